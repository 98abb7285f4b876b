#include "bench/gpu/list_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu/made_vectors.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/knn.hpp"

namespace knear::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Of the search by lists that is held against all rows: targets.cpp.
constexpr double published_recall = 0.948;

struct Runs {
  Neighbors found;
  KnnReport seen;
  double median = 0, spread = 0;  // seconds; (slowest - fastest) / median
};

template <class Search>
Runs measure(const Deadline& deadline, Search search) {
  Runs out;
  std::vector<double> seconds;
  const Deadline runs(std::min(3.0, deadline.left() / 4));
  for (int run = -2; run < 20 && (run < 3 || runs.left() > 0); ++run) {
    const auto start = Clock::now();
    out.found = search(out.seen);
    if (run >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  out.median = seconds[seconds.size() / 2];
  out.spread = (seconds.back() - seconds.front()) / out.median;
  return out;
}

// The mean share of the true neighbours that were found.
double recall_of(const Neighbors& found, const Neighbors& truth) {
  const std::int64_t k = truth.ids.cols();
  std::int64_t hits = 0;
  for (std::int64_t q = 0; q < truth.ids.rows(); ++q)
    for (std::int64_t i = 0; i < k; ++i)
      hits += std::count(found.ids.row(q), found.ids.row(q) + k, truth.ids.row(q)[i]);
  return static_cast<double>(hits) / static_cast<double>(truth.ids.rows() * k);
}

void bench_kind(const std::string& kind, Index& index, AnyMatrixView base,
                const ExactSearcher& flat, const std::string& there, const Deadline& deadline,
                Report& report) {
  constexpr std::int64_t k = 10;
  const std::int64_t rows = base.rows(), dim = base.cols();
  const std::string name = fmt::format("lists f32 k={}", k);
  if (deadline.left() < 20) {
    report.skipped.push_back(fmt::format("{} of {} x {}: out of time", kind, rows, dim));
    return;
  }
  fmt::print(stderr, "{} of {} x {} f32\n", kind, rows, dim);
  const auto start = Clock::now();
  index.train(base);
  index.add(base);
  report.notes.push_back(fmt::format("{} of {} x {} f32 was made by the processor in {:.1f} s",
                                     kind, rows, dim,
                                     std::chrono::duration<double>(Clock::now() - start).count()));
  for (const std::int64_t count : {10000, 1}) {
    const AnyMatrix queries = make_clusters(ElementType::f32, count, dim, 46);
    if (deadline.left() < 5) {
      report.skipped.push_back(fmt::format("{}, {} queries: out of time", kind, count));
      continue;
    }
    const Runs all = measure(deadline, [&](KnnReport& seen) {
      return flat.search(queries, k, {.device = there}, &seen);
    });
    for (const std::int64_t probes : {8, 32}) {
      SearchOptions options{.method = {.probes = probes}, .device = there};
      const Runs by_lists = measure(
          deadline, [&](KnnReport& seen) { return index.search(queries, k, options, &seen); });
      const std::string shape =
          fmt::format("{} x {} x {}, {}, {} probes", count, rows, dim, kind, probes);
      if (by_lists.seen.scan.fallback_queries != 0) {
        report.fail(fmt::format("{}, {}: {} queries were handed back, so its time says little",
                                name, shape, by_lists.seen.scan.fallback_queries));
        continue;
      }
      ++report.tests;
      options.device = "cpu";
      const std::int64_t some = std::min<std::int64_t>(64, count);
      const Neighbors truth = index.search(queries.view().rows(0, some), k, options);
      for (std::int64_t i = 0; i < some * k; ++i)
        if (truth.ids.data()[i] != by_lists.found.ids.data()[i] ||
            truth.distances.data()[i] != by_lists.found.distances.data()[i]) {
          report.fail(fmt::format("{}, {}: query {}, place {}: ({}, {}) instead of ({}, {})", name,
                                  shape, i / k, i % k, by_lists.found.distances.data()[i],
                                  by_lists.found.ids.data()[i], truth.distances.data()[i],
                                  truth.ids.data()[i]));
          break;
        }
      const double times = all.median / by_lists.median,
                   recall = recall_of(by_lists.found, all.found);
      report.add({name,
                  shape + ", whole call",
                  static_cast<double>(count) / by_lists.median,
                  "queries/s",
                  by_lists.median,
                  by_lists.spread,
                  {},
                  ""});
      if (recall >= published_recall)
        report.add({name + ", all rows beside it",
                    fmt::format("{}, recall {:.4f}", shape, recall),
                    times,
                    "times",
                    all.median,
                    all.spread,
                    {},
                    ""});
      report.notes.push_back(fmt::format(
          "{}, {}: recall {:.4f}; all rows take {:.3f} ms, {:.1f} times as long; {:.3f} ms are for "
          "choosing lists, by the processor; {:.0f} rows of lists and {:.0f} survivors a query",
          name, shape, recall, all.median * 1e3, times, by_lists.seen.lists.coarse_seconds * 1e3,
          by_lists.seen.scan.probed_rows, by_lists.seen.scan.survivors_per_query));
    }
  }
}

}  // namespace

void bench_lists(int device, const Deadline& deadline, Report& report) {
  constexpr std::int64_t rows = 1000000, dim = 128, lists = 1024;
  if (deadline.left() < 25) {
    report.skipped.push_back(fmt::format("inverted lists of {} x {}: out of time", rows, dim));
    return;
  }
  const AnyMatrix base = make_clusters(ElementType::f32, rows, dim, 45);
  const std::string there = fmt::format("cuda:{}", device);
  const ExactSearcher flat(base, {.device = there});
  {
    Index index = make_index(fmt::format("IVF{},Flat", lists), dim);
    bench_kind("IVF1024,Flat", index, base, flat, there, deadline, report);
  }
  Index index = make_index(fmt::format("IVF{},PQ32", lists), dim);
  bench_kind("IVF1024,PQ32", index, base, flat, there, deadline, report);
}

}  // namespace knear::bench
