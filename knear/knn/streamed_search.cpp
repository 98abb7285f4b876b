#include "knear/knn/streamed_search.hpp"

#include <algorithm>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/search/joined_reports.hpp"
#include "knear/knn/search/report_builder.hpp"
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
                               std::int64_t total_rows) {
  detail::public_call([&] {
    detail::check_answer(queries.rows(), k);
    detail::check_padding(queries.rows(), k, total_rows, options.memory);
    check_device(options.device);
    detail::check_filter(options.filter, total_rows);
    state_ = std::make_unique<State>();
    state_->queries = queries, state_->k = k, state_->total = total_rows, state_->options = options;
    // The report before the first block.
    KnnReport& report = state_->report;
    report.queries = queries.rows(), report.k = k, report.metric = options.metric;
    report.dim = queries.cols(), report.promise = detail::all_exact(queries.rows());
  });
}
StreamedSearch::~StreamedSearch() = default;

void StreamedSearch::add(AnyMatrixView rows) {
  detail::public_call([&] {
    State& s = *state_;
    detail::check_columns(s.queries.cols(), rows.cols());
    if (rows.rows() > s.total - s.rows)
      throw InvalidArgument("base has more than the {} rows that were announced", s.total);
    if (rows.rows() == 0) return;
    detail::PreparedRows prepared(
        rows, s.options.metric,
        find_value_range(rows, s.options.metric, "base", s.options.threads, s.rows));
    const detail::SearchSegment segment{.rows = &prepared,
                                        .ids = {.first = s.rows},
                                        .filter = s.options.filter,
                                        .filter_offset = s.rows};
    KnnReport report;
    detail::search_more(
        {detail::SearchKind::blocks, {&segment, 1}, s.queries, s.k, s.options, detail::Reuse::none},
        s.found, &report);
    s.rows += rows.rows();
    detail::add_block(report, s.report);
    s.report = std::move(report);
  });
}

Neighbors StreamedSearch::finish(KnnReport* report) {
  return detail::public_call([&] {
    State& s = *state_;
    if (s.rows != s.total)
      throw InvalidArgument("base has {} rows, but {} were announced", s.rows, s.total);
    const std::int64_t q = s.queries.rows();
    Neighbors out = rounded(s.found, s.options.metric, q, s.k, s.options.threads);
    s.distances = distances_of(s.found, s.options.metric, q, s.k);
    if (report) *report = s.report;
    return out;
  });
}

Matrix<double> StreamedSearch::take_distances() { return std::move(state_->distances); }

}  // namespace knear
