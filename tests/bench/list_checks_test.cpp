// The checks of inverted lists that bench/gpu runs on a device, with the processor in its place:
// they accept a search that is right and report one that is wrong.
#include "bench/gpu/list_checks.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace knear::bench {

// A Report without the printing of report.cpp, which is for the program.
void Report::fail(std::string what) { failures.push_back(std::move(what)); }

namespace {

// Searches on the processor and says that it was a device.
Neighbors pretend(const Index& index, AnyMatrixView queries, std::int64_t k,
                  const SearchOptions& options, KnnReport* report) {
  SearchOptions here = options;
  here.device = "cpu", here.memory = 0;
  Neighbors out = index.search(queries, k, here, report);
  report->device.name = options.device;
  return out;
}

TEST(ListChecks, ARightSearchPasses) {
  Report report;
  check_lists(pretend, "cuda:1", 7, report);
  EXPECT_GT(report.tests, 30);
  EXPECT_TRUE(report.failures.empty()) << report.failures.front();
}

TEST(ListChecks, AWrongOneIsReported) {
  const auto failures = [](auto spoil) {
    Report report;
    check_lists(
        [&](const Index& index, AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
            KnnReport* seen) {
          Neighbors out = pretend(index, queries, k, options, seen);
          spoil(out, *seen);
          return out;
        },
        "cuda:1", 23, report);
    EXPECT_EQ(std::ssize(report.failures), report.tests);
    return report.failures.empty() ? "" : report.failures.front();
  };
  EXPECT_NE(failures([](Neighbors& out, KnnReport&) { ++out.ids.row(0)[0]; }).find("instead of"),
            std::string::npos);
  EXPECT_NE(
      failures([](Neighbors&, KnnReport& seen) { seen.device.name = "cpu"; }).find("answered"),
      std::string::npos);
  EXPECT_NE(
      failures([](Neighbors&, KnnReport& seen) { seen.scan.fallback_queries = 1; }).find("back"),
      std::string::npos);
  EXPECT_NE(failures([](Neighbors&, KnnReport& seen) { seen.lists.probes += 1; }).find("probes"),
            std::string::npos);
}

}  // namespace
}  // namespace knear::bench
