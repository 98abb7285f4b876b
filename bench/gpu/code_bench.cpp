#include "bench/gpu/code_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <vector>

#include "knear/cuda/queue.hpp"
#include "knear/scan/device/code_scan_launches_cuda.hpp"
#include "tests/scan/device/code_problem.hpp"

namespace knear::bench {
namespace {

using Clock = std::chrono::steady_clock;
using detail::CodedNeighbors;
using detail::CodeProbes;
using detail::CodeScanJob;
using detail::CodeScanWay;
using detail::DeviceCodeScan;

test::CodeProblem made_codes(std::int64_t rows, std::int64_t lists, std::int64_t queries,
                             std::int64_t probes) {
  test::CodeShape shape{32, 8, 4, Metric::l2, false, true};
  shape.sizes = {std::vector<std::int64_t>(static_cast<std::size_t>(lists), rows / lists)};
  shape.queries = queries, shape.probes = probes, shape.seed = 61;
  return test::problem_of(shape);
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
  const test::CodesThere<cuda::Queue> there(queue, problem);
  for (const std::int64_t queries : {std::int64_t{1}, std::int64_t{100}, most_queries})
    for (const std::int64_t k : {10, 100})
      for (const CodeScanWay way : {CodeScanWay::fused, CodeScanWay::several_passes}) {
        const std::string what =
            fmt::format("{} x 16 of 1024 lists, a million codes of 32 bytes, k={}, {}", queries, k,
                        test::name_of(way));
        if (deadline.left() < 2) {
          report.skipped.push_back(name + ", " + what + ": out of time");
          continue;
        }
        const CodeProbes probed{problem.probed.view().rows(0, queries),
                                problem.terms.view().rows(0, queries)};
        CodeScanJob job = problem.job(k);
        job.threads = 0;
        DeviceCodeScan<cuda::Queue> scan(queue, there.book, there.segments, job);
        CodedNeighbors found(queries, k);
        std::vector<double> seconds;
        const Deadline runs(std::min(1.0, deadline.left() / 16));
        for (int run = -2; run < 50 && (run < 3 || runs.left() > 0); ++run) {
          const auto start = Clock::now();
          scan.run(probed, found, {}, way);
          if (run >= 0)
            seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        }
        std::sort(seconds.begin(), seconds.end());
        const std::int64_t checked = std::min<std::int64_t>(queries, 8);
        CodedNeighbors wanted(checked, k);
        detail::ScanStats stats;
        scan_codes(problem.segments(), job,
                   {probed.lists.rows(0, checked), probed.terms.rows(0, checked)}, wanted, stats,
                   {});
        ++report.tests;
        if (const std::string error = test::first_difference(found, wanted, checked);
            !error.empty()) {
          report.fail(name + ", " + what + ": " + error);
          continue;
        }
        // The last query of all probes one list alone.
        const double median = seconds[seconds.size() / 2],
                     looked_up = 32.0 * static_cast<double>(rows / lists) * probes *
                                 static_cast<double>(queries);
        report.add({name,
                    what,
                    looked_up / median * 1e-12,
                    "T/s looked up",
                    median,
                    (seconds.back() - seconds.front()) / median,
                    {},
                    ""});
      }
}

}  // namespace knear::bench
