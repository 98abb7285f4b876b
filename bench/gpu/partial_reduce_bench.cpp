#include "bench/gpu/partial_reduce_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "bench/gpu/ceiling.hpp"
#include "bench/gpu/made_vectors.hpp"
#include "knear/knn/knn.hpp"

namespace knear::bench {
namespace {

using Clock = std::chrono::steady_clock;

Matrix<bf16> rounded_clusters(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  const AnyMatrix floats = make_clusters(ElementType::f32, rows, dim, seed);
  Matrix<bf16> out(rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    std::transform(static_cast<const float*>(floats.view().row(i)),
                   static_cast<const float*>(floats.view().row(i)) + dim, out.row(i),
                   [](float x) { return to_bf16(x); });
  return out;
}

}  // namespace

void bench_partial_reduce(int device, const Deadline& deadline, Report& report) {
  constexpr std::int64_t count = 10000, rows = 1000000, dim = 128, k = 10;
  const std::string name = "partial-reduce bf16 k=10";
  const std::string shape =
      fmt::format("{} x {} x {}, recall 0.95, whole search", count, rows, dim);
  if (deadline.left() < 5) {
    report.skipped.push_back(name + ": out of time");
    return;
  }
  fmt::print(stderr, "{}\n", name);
  const Matrix<bf16> base = rounded_clusters(rows, dim, 41),
                     queries = rounded_clusters(count, dim, 42);
  KnnOptions options{.method = {.kind = Method::partial_reduce, .recall = 0.95},
                     .device = fmt::format("cuda:{}", device)};
  const ExactSearcher searcher(base.view(), options);
  std::vector<double> seconds;
  KnnReport seen;
  Neighbors found;
  const Deadline runs(std::min(3.0, deadline.left() / 2));
  for (int run = -2; run < 20 && (run < 3 || runs.left() > 0); ++run) {
    const auto start = Clock::now();
    found = searcher.search(queries.view(), k, options, &seen);
    if (run >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  if (seen.scan.fallback_queries != 0) {
    report.fail(fmt::format("{}, {}: {} queries were handed back, so its time says little", name,
                            shape, seen.scan.fallback_queries));
    return;
  }
  ++report.tests;
  options.device = "cpu";
  const Neighbors truth = searcher.search(queries.view().rows(0, 64), k, options);
  for (std::int64_t i = 0; i < 64 * k; ++i)
    if (truth.ids.data()[i] != found.ids.data()[i] ||
        truth.distances.data()[i] != found.distances.data()[i]) {
      report.fail(fmt::format("{}, {}: query {}, place {}: ({}, {}) instead of ({}, {})", name,
                              shape, i / k, i % k, found.distances.data()[i], found.ids.data()[i],
                              truth.distances.data()[i], truth.ids.data()[i]));
      break;
    }

  const double median = seconds[seconds.size() / 2];
  const double work = 2e-12 * static_cast<double>(count * rows * dim);
  Entry entry{name,      shape,  work / median,
              "Tflop/s", median, (seconds.back() - seconds.front()) / median,
              {},        ""};
  hold_against(product_ceiling(report, "bf16"), entry);
  report.add(entry);
  report.notes.push_back(
      fmt::format("{}: {} bins, {} rows kept of each, {} of {} queries certified, {:.0f} survivors "
                  "a query",
                  name, seen.partial_reduce.bins, seen.partial_reduce.kept_per_bin,
                  seen.promise.certified_queries, count, seen.scan.survivors_per_query));
}

}  // namespace knear::bench
