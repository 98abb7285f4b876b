#include "knear/knn/streamed_search.hpp"

#include <algorithm>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {

struct StreamedSearch::State {
  AnyMatrixView queries;
  std::int64_t k, total, rows = 0;
  KnnOptions options;
  ExactNeighbors found;
  KnnReport report;
  Matrix<double> distances;
};

StreamedSearch::StreamedSearch(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                               std::int64_t total_rows)
    : state_(std::make_unique<State>()) {
  detail::check_k(k);
  check_device(options.device);
  if (!options.filter.everything() && options.filter.rows() != total_rows)
    throw ShapeMismatch("filter is for {} rows, base has {}", options.filter.rows(), total_rows);
  state_->queries = queries, state_->k = k, state_->total = total_rows, state_->options = options;
  state_->report.metric = options.metric;
}
StreamedSearch::~StreamedSearch() = default;

void StreamedSearch::add(AnyMatrixView rows) {
  State& s = *state_;
  if (rows.cols() != s.queries.cols())
    throw ShapeMismatch("queries have {} columns, base has {}", s.queries.cols(), rows.cols());
  if (rows.rows() > s.total - s.rows)
    throw InvalidArgument("base has more than the {} rows that were announced", s.total);
  if (rows.rows() == 0) return;
  DefaultFloatMode mode;
  detail::PreparedRows prepared(rows, s.options.metric,
                                find_value_range(rows, "base", s.options.threads, s.rows));
  const detail::SearchSegment segment{.rows = &prepared,
                                      .ids = {.first = s.rows},
                                      .filter = s.options.filter,
                                      .filter_offset = s.rows};
  KnnReport report;
  detail::search_more({&segment, 1}, s.queries, s.k, s.options, s.found, &report);
  s.rows += rows.rows();
  KnnReport& sum = s.report;
  const std::int64_t chunks = sum.chunks + report.chunks;
  report.rows += sum.rows, report.allowed_rows += sum.allowed_rows;
  report.prepare_seconds += sum.prepare_seconds, report.seconds += sum.seconds;
  report.scan_seconds += sum.scan_seconds, report.rescore_seconds += sum.rescore_seconds;
  report.query_seconds += sum.query_seconds, report.seed_seconds += sum.seed_seconds;
  report.score_seconds += sum.score_seconds, report.select_seconds += sum.select_seconds;
  report.hits_per_query += sum.hits_per_query;
  report.refined_per_query += sum.refined_per_query;
  report.repeated_queries += sum.repeated_queries;
  report.survivors_per_query += sum.survivors_per_query;
  report.fallback_queries = std::max(report.fallback_queries, sum.fallback_queries);
  report.memory_bytes = std::max(report.memory_bytes, sum.memory_bytes);
  report.device_bytes = std::max(report.device_bytes, sum.device_bytes);
  report.multiply_adds += sum.multiply_adds, report.bytes_read += sum.bytes_read;
  report.chunks = chunks;
  sum = std::move(report);
}

Neighbors StreamedSearch::finish(KnnReport* report) {
  State& s = *state_;
  if (s.rows != s.total)
    throw InvalidArgument("base has {} rows, but {} were announced", s.rows, s.total);
  const std::int64_t q = s.queries.rows();
  Neighbors out = rounded(s.found, s.options.metric, q, s.k, s.options.threads);
  s.distances = distances_of(s.found, s.options.metric, q, s.k);
  if (report) {
    *report = s.report;
    report->queries = q, report->dim = s.queries.cols(), report->k = s.k;
    report->certified_queries = q;
  }
  return out;
}

Matrix<double> StreamedSearch::take_distances() { return std::move(state_->distances); }

}  // namespace knear
