#include "cli/recall_curve.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/bench.hpp"
#include "cli/interrupt.hpp"
#include "cli/svg.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/index/usual_lists.hpp"

namespace knear::cli {
namespace {

constexpr double partial_reduce_recalls[] = {0.5, 0.8, 0.9, 0.95, 0.98, 0.99};

// Returns the first k neighbours of each row without the row itself. `found` has k + 1 per row.
Matrix<Id> without_itself(const Matrix<Id>& found, std::int64_t k) {
  Matrix<Id> out(found.rows(), k);
  for (std::int64_t q = 0; q < found.rows(); ++q) {
    const Id* from = found.row(q);
    for (std::int64_t i = 0; i < k; ++i) {
      if (*from == q) ++from;
      out.row(q)[i] = *from++;
    }
  }
  return out;
}

}  // namespace

RecallCurveOf measure_recall_curve(const std::string& factory, const RecallCurveJob& job) {
  RecallCurveOf out{factory, 0, 0, {}};
  const bool partial_reduce = factory == partial_reduce_curve;
  Index index = make_index(partial_reduce ? "Flat" : factory, job.base.cols(), job.metric);
  out.build_seconds = seconds_of([&] {
    if (!index.is_trained())
      index.train(job.base, {.threads = job.threads, .progress = job.progress});
    index.add(job.base, {.threads = job.threads, .progress = job.progress});
  });
  out.memory_bytes = index.memory_bytes();
  std::vector<SearchMethod> methods;
  if (partial_reduce)
    for (const double recall : partial_reduce_recalls)
      methods.push_back({.kind = Method::partial_reduce, .recall = recall});
  else if (index.lists() == 0)
    methods.emplace_back();
  for (std::int64_t probes = 1; probes <= std::min(index.lists(), job.most_probes); probes *= 2)
    methods.push_back({.probes = probes});
  const std::int64_t k = job.k + (job.of_itself ? 1 : 0);
  // Reports the share of the searches that are done, since each takes only a moment.
  double done = 0;
  const double searches = static_cast<double>(std::ssize(methods) * job.repeat);
  for (const SearchMethod& method : methods) {
    SearchOptions options;
    options.threads = job.threads;
    options.progress = [&](std::string_view, double fraction) {
      return !job.progress || job.progress(factory, (done + fraction) / searches);
    };
    options.method = method;
    RecallCurvePoint point;
    point.probes = method.probes, point.asked = method.recall.value_or(0);
    std::vector<double> seconds;
    Neighbors near;
    for (std::int64_t round = 0; round < job.repeat; ++round) {
      check_interrupt();
      seconds.push_back(seconds_of([&] { near = index.search(job.queries, k, options); }));
      ++done;
    }
    // One by one they are over in a moment.
    options.progress = [&](std::string_view, double) {
      return !job.progress || job.progress(factory, done / searches);
    };
    point.seconds = median(seconds);
    if (job.queries_alone > 0) {
      options.threads = 1;
      std::vector<double> alone;
      for (std::int64_t q = 0; q < std::min(job.queries_alone, job.queries.rows()); ++q)
        alone.push_back(seconds_of([&] { index.search(job.queries.rows(q, q + 1), k, options); }));
      point.alone_seconds = median(alone);
    }
    const Matrix<Id> found = job.of_itself ? without_itself(near.ids, job.k) : std::move(near.ids);
    const std::int64_t known = job.truth.rows();
    const RecallFigures recall =
        measure_recall(job.queries.rows(0, known), job.base, job.metric,
                       found.view().rows(0, known), job.truth, job.k, job.threads);
    point.recall = *recall.by_distance, point.interval = recall.distance_interval;
    out.points.push_back(point);
  }
  return out;
}

double searching_seconds(const std::vector<std::string>& factories, const RecallCurveJob& job,
                         double exact_seconds) {
  double searches = 0;  // of all rows
  for (const std::string& factory : factories) {
    if (factory == partial_reduce_curve) {
      searches += std::ssize(partial_reduce_recalls);
      continue;
    }
    const std::int64_t lists = make_index(factory, job.base.cols(), job.metric).lists();
    if (lists == 0) ++searches;
    // Rows of lists take up to four times as long as those of a flat index.
    for (std::int64_t probes = 1; probes <= std::min(lists, job.most_probes); probes *= 2)
      searches += std::min(1.0, 4.0 * static_cast<double>(probes) / static_cast<double>(lists));
  }
  return searches * static_cast<double>(job.repeat) * exact_seconds;
}

std::vector<std::string> usual_indexes(std::int64_t rows, std::int64_t dim) {
  const std::string lists = fmt::format("IVF{}", usual_lists(rows));
  std::vector<std::string> out{"Flat", lists + ",Flat"};
  out.emplace_back(partial_reduce_curve);
  if (rows < 1024) return out;
  for (const std::int64_t columns : {2, 4})
    if (dim % columns == 0) out.push_back(fmt::format("{},PQ{}", lists, dim / columns));
  if (dim % 2 == 0) out.push_back(fmt::format("{},PQ{}x4,RFlat", lists, dim / 2));
  return out;
}

std::string recall_chart(const std::vector<RecallCurveOf>& curves, std::int64_t queries,
                         std::int64_t k, bool build) {
  std::vector<ChartCurve> out;
  for (const RecallCurveOf& one : curves) {
    ChartCurve curve{one.factory, {}};
    for (const RecallCurvePoint& point : one.points)
      curve.points.push_back({point.recall, build ? one.build_seconds + point.seconds
                                                  : static_cast<double>(queries) / point.seconds});
    out.push_back(std::move(curve));
  }
  return curve_chart(out, {fmt::format("recall@{}", k), false},
                     {build ? "seconds, building included" : "queries per second", true});
}

}  // namespace knear::cli
