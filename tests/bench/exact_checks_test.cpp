// The checks of whole searches that bench/gpu runs on a device, with the processor in its place:
// they accept a search that is right and report one that is wrong.
#include "bench/gpu/exact_checks.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/cuda/device_error.hpp"

namespace knear::bench {

// A Report without the printing of report.cpp, which is for the program.
void Report::fail(std::string what) { failures.push_back(std::move(what)); }

namespace {

// Options for searches of the processor that claim to be of a device. `there`: the vectors are in
// the device's memory, where there are no methods.
KnnOptions here(const KnnOptions& options, bool there) {
  KnnOptions out = options;
  EXPECT_EQ(options.device, "cuda:1");
  if (there && out.method.kind != Method::automatic)
    throw InvalidArgument("method is {}", name_of(out.method.kind));
  if (out.method.kind == Method::partial_reduce) out.memory = 0;
  out.device = "cpu";
  return out;
}

void pretend(const KnnOptions& options, AnyMatrixView base, bool there, KnnReport* report) {
  const std::int64_t rows = base.rows();
  report->device.name = options.device;
  report->scan.fallback_queries =
      there && !options.filter.everything() && options.filter.count(0, rows) * 16 < rows ? 9 : 0;
}

ExactSearch nearest(bool there) {
  return [there](AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
                 const KnnOptions& options, KnnReport* report) {
    Neighbors out = knn(queries, base, k, here(options, there), report);
    pretend(options, base, there, report);
    return out;
  };
}

RangeSearch within(bool there) {
  return [there](AnyMatrixView queries, AnyMatrixView base, double radius,
                 const KnnOptions& options, KnnReport* report) {
    RangeNeighbors out = range_search(queries, base, radius, here(options, there), report);
    pretend(options, base, there, report);
    return out;
  };
}

Neighbors joined(AnyMatrixView base, std::int64_t k, const KnnOptions& options, KnnReport* report) {
  Neighbors out = self_join(base, k, here(options, false), report);
  pretend(options, base, false, report);
  return out;
}

std::string first_of(const Report& report) {
  return report.failures.empty() ? "" : report.failures.front();
}

TEST(ExactChecks, PassARightSearch) {
  for (const bool there : {false, true}) {
    Report report;
    check_exact(nearest(there), "cuda:1", "", 7, there, report);
    EXPECT_EQ(first_of(report), "") << there;
    EXPECT_GT(report.tests, 100) << there;
    Report ranges;
    check_range(within(there), "cuda:1", 7, there, ranges);
    EXPECT_EQ(first_of(ranges), "") << there;
    EXPECT_GT(ranges.tests, 40) << there;
  }
}

TEST(ExactChecks, FailAWrongSearch) {
  // One id, in one case.
  int calls = 0;
  Report report;
  check_exact(
      [&](AnyMatrixView queries, AnyMatrixView base, std::int64_t k, const KnnOptions& options,
          KnnReport* seen) {
        Neighbors out = nearest(false)(queries, base, k, options, seen);
        if (calls++ == 3) ++out.ids.row(queries.rows() - 1)[k - 1];
        return out;
      },
      "cuda:1", "", 61, false, report);
  EXPECT_EQ(report.failures.size(), 1u);
  EXPECT_GT(report.tests, 10);

  calls = 0;
  Report ranges;
  check_range(
      [&](AnyMatrixView queries, AnyMatrixView base, double radius, const KnnOptions& options,
          KnnReport* seen) {
        RangeNeighbors out = within(false)(queries, base, radius, options, seen);
        if (calls == 2) seen->device.name = "cpu";
        if (calls == 3) seen->scan.fallback_queries = 1;
        if (calls++ == 4) out.begin.back() -= 1;
        return out;
      },
      "cuda:1", 41, false, ranges);
  EXPECT_EQ(ranges.failures.size(), 3u);
}

TEST(ExactChecks, JudgeSelfJoins) {
  Report report;
  check_self_join(joined, "cuda:1", 2, report);
  EXPECT_EQ(first_of(report), "");
  EXPECT_GT(report.tests, 30);
  int calls = 0;
  check_self_join(
      [&](AnyMatrixView base, std::int64_t k, const KnnOptions& options, KnnReport* seen) {
        Neighbors out = joined(base, k, options, seen);
        if (calls++ == 1) out.distances.row(5)[0] += 1;
        return out;
      },
      "cuda:1", 20, report);
  EXPECT_EQ(report.failures.size(), 1u);
}

// All passes together are every case once; the first has some of each kind; none runs late.
TEST(ExactChecks, RunInPasses) {
  constexpr int passes = 17;
  const Deadline never(1e9), over(0);
  std::vector<int> runs(1000);
  for (int pass = 0; pass < passes; ++pass) {
    const CaseShare share = CaseShare(pass, passes, &never).one_in(3);
    for (std::size_t number = 0; number < runs.size(); ++number)
      runs[number] += share.takes(static_cast<std::int64_t>(number));
  }
  for (std::size_t number = 0; number < runs.size(); ++number)
    EXPECT_EQ(runs[number], number % 3 == 0 ? 1 : 0) << number;

  Report all, first, late;
  check_self_join(joined, "cuda:1", 1, all);
  check_self_join(joined, "cuda:1", CaseShare(0, passes, &never), first);
  check_self_join(joined, "cuda:1", CaseShare(0, passes, &over), late);
  EXPECT_EQ(all.tests, 85);
  EXPECT_EQ(first.tests, 5);
  EXPECT_EQ(late.tests, 0);
}

// What fails on a device fails from then on.
TEST(ExactChecks, EndWithTheDevice) {
  Report report;
  const ExactSearch gone = [](AnyMatrixView, AnyMatrixView, std::int64_t, const KnnOptions&,
                              KnnReport*) -> Neighbors { throw cuda::DeviceError("gone"); };
  EXPECT_THROW(check_exact(gone, "cuda:1", "", 1, false, report), cuda::DeviceError);
  EXPECT_TRUE(report.failures.empty());
}

}  // namespace
}  // namespace knear::bench
