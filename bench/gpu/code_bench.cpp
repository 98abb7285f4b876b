#include "bench/gpu/code_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "knear/cuda/queue.hpp"
#include "knear/scan/device/launches_cuda.hpp"
#include "tests/scan/device/code_problem.hpp"

namespace knear::bench {
namespace {

using Clock = std::chrono::steady_clock;
using detail::CodedNeighbors;
using detail::CodeProbes;
using detail::CodeScanJob;
using detail::CodeScanWay;
using detail::DeviceCodeScan;
using detail::DeviceDecodedLists;

test::CodeProblem made_codes(std::int64_t rows, std::int64_t lists, std::int64_t queries,
                             std::int64_t probes) {
  test::CodeShape shape{32, 8, 4};
  shape.sizes = {std::vector<std::int64_t>(static_cast<std::size_t>(lists), rows / lists)};
  shape.queries = queries, shape.probes = probes, shape.seed = 61;
  test::CodeProblem out = test::problem_of(test::shape_of_vectors(shape, Metric::l2, true));
  // Queries lie where the rows of their first lists do.
  for (std::int64_t q = 0; q < queries; ++q)
    for (std::int64_t j = 0; j < out.queries.cols(); ++j) {
      double& x = out.queries.row(q)[j];
      x = x / 2 - 2 * test::centroid_of(out, out.probed.row(q)[0], j);
    }
  make_terms(out);
  return out;
}

// Measures run(), which answers `queries` of the problem into `found`.
void measure(const std::string& what, const test::CodeProblem& problem, std::int64_t queries,
             CodedNeighbors& found, const CodeScanJob& job, double looked_up,
             const Deadline& deadline, Report& report, const std::function<void()>& run) {
  const std::string name = "codes";
  if (deadline.left() < 2) {
    report.skipped.push_back(name + ", " + what + ": out of time");
    return;
  }
  std::vector<double> seconds;
  const Deadline runs(std::min(1.0, deadline.left() / 16));
  for (int i = -2; i < 50 && (i < 3 || runs.left() > 0); ++i) {
    const auto start = Clock::now();
    run();
    if (i >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const std::int64_t checked = std::min<std::int64_t>(queries, 8);
  CodedNeighbors wanted(checked, job.k);
  detail::ScanStats stats;
  scan_codes(problem.segments(), job,
             {problem.probed.view().rows(0, checked), problem.terms.view().rows(0, checked)},
             wanted, stats, {});
  ++report.tests;
  if (const std::string error = test::first_difference(found, wanted, checked); !error.empty()) {
    report.fail(name + ", " + what + ": " + error);
    return;
  }
  const double median = seconds[seconds.size() / 2];
  report.add({name,
              what,
              looked_up / median * 1e-12,
              "T/s looked up",
              median,
              (seconds.back() - seconds.front()) / median,
              {},
              ""});
}

}  // namespace

void bench_codes(int device, const Deadline& deadline, Report& report) {
  constexpr std::int64_t rows = 1 << 20, lists = 1024, most_queries = 10000, probes = 16;
  const std::string name = "codes";
  if (deadline.left() < 8) {
    report.skipped.push_back(name + ": out of time");
    return;
  }
  fmt::print(stderr, "{}\n", name);
  const test::CodeProblem problem = made_codes(rows, lists, most_queries, probes);
  cuda::Queue queue(device);
  const test::CodesOnDevice<cuda::Queue> there(queue, problem);
  std::optional<DeviceDecodedLists<cuda::Queue>> decoded;
  for (const std::int64_t queries : {std::int64_t{1}, std::int64_t{100}, most_queries})
    for (const std::int64_t k : {10, 100}) {
      const CodeProbes probed{problem.probed.view().rows(0, queries),
                              problem.terms.view().rows(0, queries)};
      CodeScanJob job = problem.job(k);
      job.threads = 0;
      CodedNeighbors found(queries, k);
      const auto what = [&](std::string_view way) {
        return fmt::format("{} x 16 of 1024 lists, a million codes of 32 bytes, k={}, {}", queries,
                           k, way);
      };
      // The last query of all probes one list alone.
      const double looked_up =
          32.0 * static_cast<double>(rows / lists) * probes * static_cast<double>(queries);
      DeviceCodeScan<cuda::Queue> scan(queue, there.book, there.segments, job);
      for (const CodeScanWay way : {CodeScanWay::fused, CodeScanWay::several_passes})
        measure(what(test::name_of(way)), problem, queries, found, job, looked_up, deadline, report,
                [&] { scan.run(probed, found, {}, way); });
      if (queries == 1) continue;
      if (!decoded) {
        const auto start = Clock::now();
        decoded.emplace(queue, there.book, there.lists[0], there.segments[0].here, job);
        queue.wait();
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        report.add({name,
                    "decoding a million codes of 32 bytes, 128 columns",
                    static_cast<double>(rows) / seconds * 1e-9,
                    "G/s rows",
                    seconds,
                    0,
                    {},
                    ""});
      }
      // With what the processor does for queries each time.
      std::vector<std::int64_t> all(static_cast<std::size_t>(queries));
      std::iota(all.begin(), all.end(), 0);
      detail::DeviceStats stats;
      measure(what("products"), problem, queries, found, job, looked_up, deadline, report, [&] {
        Matrix<double> asked(queries, problem.book.dim());
        for (std::int64_t q = 0; q < queries; ++q) {
          job.prepare(q, asked.row(q));
          for (std::int64_t j = 0; j < asked.cols(); ++j) asked.row(q)[j] /= table_factor(job);
        }
        std::fill(found.rows.begin(), found.rows.end(), CodedNeighbors::Row{});
        stats = {};
        decoded->run(asked, all, probed, there.segments[0].here, 0, job, found, stats, {});
      });
    }
}

}  // namespace knear::bench
