#include "knear/index/lists/recall_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/core/sample.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {
namespace {

// Lists of each query that calibration knows; what is farther counts as not found.
constexpr std::int64_t most_lists_compared = 1024;
// Queries for which lists are put in order at a time: distances to them take 28 bytes a list.
constexpr std::int64_t queries_ordered_together = 250;
constexpr std::int32_t beyond = std::numeric_limits<std::int32_t>::max();

// The list of each row of each segment.
std::vector<std::vector<std::uint32_t>> lists_of_rows(const State& state) {
  std::vector<std::vector<std::uint32_t>> out;
  for (const Segment& segment : state.segments) out.push_back(segment.rows->lists()->list_of());
  return out;
}

// The second list of each row of each segment; empty: rows are in one list.
std::vector<std::vector<std::uint32_t>> second_lists_of_rows(const State& state) {
  std::vector<std::vector<std::uint32_t>> out;
  for (const Segment& segment : state.segments)
    if (const ListedRows* second = segment.rows->lists()->second())
      out.push_back(second->list_of());
  return out;
}

}  // namespace

std::vector<SearchSegment> live_segments(const State& state) {
  std::vector<SearchSegment> out;
  for (const Segment& segment : state.segments)
    out.push_back({.rows = segment.rows->is_codes() ? nullptr : &segment.rows->prepared(),
                   .ids = segment.rows->ids(),
                   .live = segment.live.all() ? nullptr : &segment.live,
                   .lists = segment.rows->lists()});
  return out;
}

RecallCurve calibrate(const State& state, Metric metric, std::span<const SearchSegment> segments,
                      std::int64_t k, AnyMatrixView queries, std::span<const Id> own, CurveUse use,
                      int threads, const Progress& progress) {
  const std::int64_t count = queries.rows(), lists = state.coarse->lists();
  const std::int64_t looked_at = std::min(lists, most_lists_compared);
  const std::int64_t wanted = k + (own.empty() ? 0 : 1);
  const KnnOptions options{.metric = metric, .threads = threads, .progress = progress};
  const SearchRequest request(SearchKind::nearest, segments, queries, wanted, options,
                              Reuse::expected);
  const Neighbors truth = search_segments(request, nullptr);
  CalibrationSample sample;
  sample.k = k, sample.lists = lists, sample.dim = queries.cols();

  // Of each query the order of lists: place of each list, keys, rows up to there.
  const std::vector<std::vector<std::uint32_t>> of = lists_of_rows(state);
  const std::vector<std::vector<std::uint32_t>> second = second_lists_of_rows(state);
  std::vector<std::int64_t> sizes(lists);
  for (const auto* rows : {&of, &second})
    for (std::size_t s = 0; s < rows->size(); ++s)  // of live rows: the others are history
      for (std::size_t row = 0; row < (*rows)[s].size(); ++row)
        sizes[(*rows)[s][row]] += state.segments[s].live.contains(static_cast<std::int64_t>(row));
  // Rows count in their first lists alone, so that they are not taken for twice as many.
  std::vector<std::int64_t> allowed(lists);  // by the filter too
  for (std::size_t s = 0; s < of.size(); ++s)
    for (const std::uint32_t row : segments[s].allowed_rows(0, std::ssize(of[s])))
      ++allowed[of[s][row]];
  sample.distances = state.coarse->keys_are_distances();
  sample.keys = Matrix<float>(count, looked_at);
  sample.rows = Matrix<std::int32_t>(count, looked_at);
  sample.ranks = Matrix<std::int32_t>(count, k);
  const auto list_of = [&](Id id) -> Id {
    const State::Place at = state.find(id);
    return of[at.segment][at.row];
  };
  std::vector<std::int32_t> place(lists);
  const bool kept = use == CurveUse::kept && state.size >= wanted;
  Matrix<std::uint32_t> nearest_lists(kept ? count : 0, looked_at);
  Neighbors order;  // of the queries of a block
  const auto place_of = [&](Id id) {
    const State::Place at = state.find(id);
    const std::size_t row = at.row;
    const std::int32_t first = place[of[at.segment][row]];
    return second.empty() ? first : std::min(first, place[second[at.segment][row]]);
  };
  for (std::int64_t q = 0; q < count; ++q) {
    if (q % queries_ordered_together == 0)
      order = state.coarse->probe(queries.rows(q, std::min(count, q + queries_ordered_together)),
                                  looked_at, threads);
    const Id* const near = order.ids.row(q % queries_ordered_together);
    const float* const keys = order.distances.row(q % queries_ordered_together);
    if (kept) std::copy_n(near, looked_at, nearest_lists.row(q));
    std::fill(place.begin(), place.end(), beyond);
    std::int64_t rows = 0;
    for (std::int64_t p = 0; p < looked_at; ++p) {
      const std::size_t list = near[p];
      constexpr float most = std::numeric_limits<float>::max();
      sample.keys.row(q)[p] = std::clamp(keys[p], -most, most);
      place[list] = static_cast<std::int32_t>(p);
      rows += sizes[list];
      sample.rows.row(q)[p] = static_cast<std::int32_t>(
          std::min<std::int64_t>(rows, std::numeric_limits<std::int32_t>::max()));
    }
    std::int64_t j = 0;
    for (std::int64_t i = 0; i < wanted && j < k; ++i) {
      const Id id = truth.ids.row(q)[i];
      if (id == no_id || (!own.empty() && id == own[q])) continue;
      sample.ranks.row(q)[j++] = place_of(id);
    }
    // The lists that hold as many rows as are found, without the query's own.
    std::int64_t left = j;
    std::int32_t enough = 0;
    for (; left > 0 && enough < looked_at; ++enough) {
      const Id list = near[enough];
      left -= allowed[list];
      if (!own.empty()) left += list_of(own[q]) == list;
    }
    sample.enough.push_back(left > 0 && looked_at < lists ? enough + 1 : enough);
    for (; j < k; ++j) sample.ranks.row(q)[j] = -1;
  }

  if (!kept) return calibrated(sample, threads);
  // Lists of each rule are those of the one before and some more: these are added to its answers.
  ListSearch search(request);
  ExactNeighbors found;
  std::vector<std::int64_t> done(count, 0);
  const std::vector<Nearness> lengths = scales_without_lists(queries, metric);
  return calibrated(sample, threads, [&](const RecallRule& rule, auto probed) {
    std::int64_t most = 0;
    for (std::size_t q = 0; q < done.size(); ++q) most = std::max(most, probed[q] - done[q]);
    if (most > 0) {
      Matrix<Id> probes(count, most);
      std::fill_n(probes.data(), count * most, no_id);
      for (std::int64_t q = 0; q < count; ++q) {
        std::int64_t& from = done[q];
        const std::int64_t to = std::max(from, probed[q]);
        std::copy(nearest_lists.row(q) + from, nearest_lists.row(q) + to, probes.row(q));
        from = to;
      }
      search.nearest(probes.view(), found);
    }
    std::vector<Nearness> out;
    for (std::int64_t q = 0; q < count; ++q) {
      const std::size_t at = q;
      const std::int64_t places[] = {0, last_of_a_third(k) - 1};
      const Id* const ids = found.ids.row(q);
      Nearness near = lengths[at];
      if (!traits_of(metric).lifted)
        near[1] = sample.keys.row(q)[std::min(rule.lists, looked_at) - 1];
      for (std::size_t m = 0; m < nearness_measures; ++m) {
        const bool behind =
            !own.empty() && std::find(ids, ids + places[m] + 1, own[at]) <= ids + places[m];
        near[m] = nearness_of(found.keys.row(q)[places[m] + behind], near[m]);
      }
      out.push_back(near);
    }
    return out;
  });
}

std::vector<DrawnRow> drawn_rows(const State& state, std::int64_t most) {
  std::vector<std::pair<std::uint64_t, DrawnRow>> rows;
  for (std::size_t s = 0; s < state.segments.size(); ++s) {
    const Segment& segment = state.segments[s];
    const RowIds ids = segment.rows->ids();
    for (std::int64_t row = 0; row < segment.rows->rows(); ++row)
      if (segment.live.contains(row))
        rows.push_back({Random(static_cast<std::uint64_t>(ids(row))).next(), {ids(row), s, row}});
  }
  const auto count = std::min<std::int64_t>(std::ssize(rows), most);
  std::partial_sort(rows.begin(), rows.begin() + count, rows.end(),
                    [](const auto& a, const auto& b) {
                      return std::pair(a.first, a.second.id) < std::pair(b.first, b.second.id);
                    });
  std::vector<DrawnRow> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(rows[i].second);
  return out;
}

std::vector<std::int64_t> queries_to_calibrate(std::int64_t queries) {
  Random random(1);
  return sample_of(queries, std::min(most_queries_sampled, queries), random);
}

RecallCurve calibrate_by_rows(const State& state, Metric metric, std::int64_t k, int threads,
                              const Progress& progress, CurveUse use) {
  const std::vector<DrawnRow> rows = drawn_rows(state, most_rows_sampled);
  const ElementType type = state.type.value_or(ElementType::f32);
  AnyMatrix queries(type, std::ssize(rows), state.coarse->centroids().cols());
  std::vector<Id> own;
  std::vector<std::byte> scratch;
  for (const DrawnRow& one : rows) {
    const BaseRows& base = state.segments[one.segment].rows->base();
    scratch.resize(std::max(scratch.size(), base.scratch_bytes()));
    copy_exactly(base.row_view(one.row, scratch.data()), type, queries.row(std::ssize(own)));
    own.push_back(one.id);
  }
  RecallCurve out = calibrate(state, metric, live_segments(state), k, queries.view(), own, use,
                              threads, progress);
  // Rows that the centroids were learned from are nearer to them than queries like the rows; rows
  // that are farther than vectors they were not learned from, or far nearer, are of another kind
  // than these.
  const auto median = [](const std::vector<float>& keys) { return keys[keys.size() / 2]; };
  if (const auto& fresh = state.fresh_keys; fresh && !fresh->empty() && !out.nearest_keys.empty() &&
                                            median(out.nearest_keys) <= median(*fresh) &&
                                            2 * median(out.nearest_keys) >= median(*fresh))
    out.nearest_keys = *fresh;
  return out;
}

}  // namespace knear::detail
