#include "knear/index/recall_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/index/code_search.hpp"
#include "knear/index/list_probing.hpp"
#include "knear/index/segment_store.hpp"
#include "knear/knn/list_search.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Lists of each query that calibration knows; what is farther counts as not found.
constexpr std::int64_t most_lists_looked_at = 1024;
constexpr std::int32_t beyond = std::numeric_limits<std::int32_t>::max();

// The list of each row of each segment.
std::vector<std::vector<std::uint32_t>> lists_of_rows(const State& state) {
  std::vector<std::vector<std::uint32_t>> out;
  for (const Segment& segment : state.segments) out.push_back(segment.rows->lists()->list_of());
  return out;
}

// The j-th key of an answer that leaves out an id; infinity where there are no more.
double key_without(const ExactNeighbors& found, std::int64_t q, std::int64_t j, Id own) {
  const Id* ids = found.ids.row(q);
  const bool there = std::find(ids, ids + std::min(j + 1, found.columns()), own) !=
                     ids + std::min(j + 1, found.columns());
  const std::int64_t at = j + (own != no_id && there);
  return at < found.columns() ? found.keys.row(q)[at] : infinity;
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
                      std::int64_t k, AnyMatrixView queries, std::span<const Id> own, int threads,
                      const Progress& progress) {
  const std::int64_t count = queries.rows(), lists = state.coarse->lists();
  const std::int64_t looked_at = std::min(lists, most_lists_looked_at);
  const std::int64_t wanted = k + (own.empty() ? 0 : 1);
  const KnnOptions options{.metric = metric, .threads = threads, .progress = progress};
  const SearchRequest request(SearchKind::nearest, segments, queries, wanted, options,
                              Reuse::expected);
  const Neighbors truth = search_segments(request, nullptr);
  CalibrationSample sample;
  sample.k = k, sample.lists = lists, sample.dim = queries.cols();

  // Of each query the order of lists: place of each list, keys, rows up to there.
  const std::vector<std::vector<std::uint32_t>> of = lists_of_rows(state);
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(lists));
  for (std::size_t s = 0; s < of.size(); ++s)  // of live rows: the others are history
    for (std::size_t row = 0; row < of[s].size(); ++row)
      sizes[of[s][row]] += state.segments[s].live.contains(static_cast<std::int64_t>(row));
  const Neighbors order = state.coarse->probe(queries, looked_at, threads);
  sample.keys = Matrix<float>(count, looked_at);
  sample.rows = Matrix<std::int32_t>(count, looked_at);
  sample.ranks = Matrix<std::int32_t>(count, k);
  std::vector<std::int32_t> place(static_cast<std::size_t>(lists));
  for (std::int64_t q = 0; q < count; ++q) {
    std::fill(place.begin(), place.end(), beyond);
    std::int64_t rows = 0;
    for (std::int64_t p = 0; p < looked_at; ++p) {
      const auto list = static_cast<std::size_t>(order.ids.row(q)[p]);
      constexpr float most = std::numeric_limits<float>::max();
      sample.keys.row(q)[p] = std::clamp(order.distances.row(q)[p], -most, most);
      place[list] = static_cast<std::int32_t>(p);
      rows += sizes[list];
      sample.rows.row(q)[p] = static_cast<std::int32_t>(
          std::min<std::int64_t>(rows, std::numeric_limits<std::int32_t>::max()));
    }
    std::int64_t j = 0;
    for (std::int64_t i = 0; i < wanted && j < k; ++i) {
      const Id id = truth.ids.row(q)[i];
      if (id == no_id || (!own.empty() && id == own[static_cast<std::size_t>(q)])) continue;
      const State::Place at = state.find(id);
      sample.ranks.row(q)[j++] = place[of[at.segment][static_cast<std::size_t>(at.row)]];
    }
    for (; j < k; ++j) sample.ranks.row(q)[j] = -1;
  }

  for (std::int64_t end = 1; end < looked_at; end *= 2) sample.ends.push_back(end);
  sample.ends.push_back(looked_at);
  sample.units = Matrix<double>(count, std::ssize(sample.ends));
  std::vector<double> lengths(static_cast<std::size_t>(count));
  if (metric == Metric::ip)
    for (std::int64_t q = 0; q < count; ++q)
      lengths[static_cast<std::size_t>(q)] = length_of(queries.rows(q, q + 1));
  ListSearch search(request);
  ExactNeighbors found;
  std::int64_t probed = 0;
  for (std::size_t e = 0; e < sample.ends.size(); ++e) {
    const std::int64_t end = sample.ends[e];
    const MatrixView<Id> probes(order.ids.data() + probed, count, end - probed, looked_at);
    search.nearest(probes, found);
    for (std::int64_t q = 0; q < count; ++q)
      sample.units.row(q)[e] = state.coarse->reach_unit(
          key_without(found, q, k - 1, own.empty() ? no_id : own[static_cast<std::size_t>(q)]),
          lengths[static_cast<std::size_t>(q)]);
    probed = end;
  }
  return calibrated(sample, threads);
}

RecallCurve calibrate_by_rows(const State& state, Metric metric, std::int64_t k, int threads,
                              const Progress& progress) {
  // Rows by a hash of their ids, so that neither order nor history matters.
  struct Row {
    std::uint64_t hash;
    Id id;
    std::size_t segment;
    std::int64_t row;
    bool operator<(const Row& other) const {
      return std::pair(hash, id) < std::pair(other.hash, other.id);
    }
  };
  std::vector<Row> rows;
  for (std::size_t s = 0; s < state.segments.size(); ++s) {
    const Segment& segment = state.segments[s];
    const RowIds ids = segment.rows->ids();
    for (std::int64_t row = 0; row < segment.rows->rows(); ++row)
      if (segment.live.contains(row))
        rows.push_back({Random(static_cast<std::uint64_t>(ids(row))).next(), ids(row), s, row});
  }
  const auto count = std::min<std::int64_t>(std::ssize(rows), most_rows_sampled);
  std::partial_sort(rows.begin(), rows.begin() + count, rows.end());
  const ElementType type = state.type.value_or(ElementType::f32);
  const std::int64_t dim = state.coarse->centroids().cols();
  AnyMatrix queries(type, count, dim);
  std::vector<Id> own;
  std::vector<std::byte> scratch;
  for (std::int64_t i = 0; i < count; ++i) {
    const Row& one = rows[static_cast<std::size_t>(i)];
    const BaseRows& base = state.segments[one.segment].rows->base();
    scratch.resize(std::max(scratch.size(), base.scratch_bytes()));
    copy_exactly(base.row_view(one.row, scratch.data()), type, queries.row(i));
    own.push_back(one.id);
  }
  return calibrate(state, metric, live_segments(state), k, queries.view(), own, threads, progress);
}

RecallCurve calibrate_codes(const State& state, const IndexShape& shape, std::int64_t k,
                            int threads, const Progress& progress) {
  constexpr std::int64_t most_lists_looked_at = 256, least_queries = 100, most_queries = 500;
  const KnownNeighbors::Truth truth = state.known ? state.known->truth(k) : KnownNeighbors::Truth{};
  const std::int64_t known = std::ssize(truth.queries), count = std::min(known, most_queries);
  if (count < least_queries)
    throw InvalidArgument(
        "recall of {} neighbours is not known of index {}: it knows those of {} vectors, where {} "
        "are needed (training keeps {} with {} neighbours; what was merged, removed or read from "
        "FAISS is not known, and tuning with the base finds out)",
        k, shape.description(), known, least_queries, KnownNeighbors::most_queries,
        KnownNeighbors::most_neighbors);
  // Evenly from all of them, which are in the order of the vectors that they were drawn from.
  std::vector<std::size_t> used;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    used.push_back(static_cast<std::size_t>(i * known / count));
    numbers.push_back(truth.queries[used.back()]);
  }
  const AnyMatrix vectors = copies_of(state.known->queries(), numbers);
  Matrix<float> transformed;
  AnyMatrixView queries = vectors.view();
  if (state.transform)
    transformed = state.transform->apply(queries, threads), queries = transformed.view();
  std::int64_t most_equal = 0;
  for (const std::size_t at : used) most_equal = std::max(most_equal, std::ssize(truth.equal[at]));
  const std::vector<SearchSegment> segments = live_segments(state);
  const SearchRequest request = request_of_codes(
      SearchKind::nearest, state, segments, queries, k + std::min<std::int64_t>(most_equal, k),
      {.metric = shape.metric, .threads = threads, .progress = progress});
  const std::int64_t lists = state.coarse ? state.coarse->lists() : 1,
                     looked_at = std::min(lists, most_lists_looked_at);
  std::vector<float> nearest_keys;
  Neighbors order;
  if (state.coarse) {
    order = state.coarse->probe(queries, looked_at, threads);
    for (std::int64_t q = 0; q < count; ++q) nearest_keys.push_back(order.distances.row(q)[0]);
  }
  const auto recalls = [&](const ExactNeighbors& found) {
    std::vector<double> out;
    for (std::size_t q = 0; q < static_cast<std::size_t>(count); ++q) {
      const std::vector<Id>&nearest = truth.nearest[used[q]], &equal = truth.equal[used[q]];
      const Id* ids = found.ids.row(static_cast<std::int64_t>(q));
      std::int64_t taken = 0, there = 0;
      for (std::int64_t i = 0; i < found.columns() && taken < k; ++i) {
        if (std::find(equal.begin(), equal.end(), ids[i]) != equal.end()) continue;
        there += std::find(nearest.begin(), nearest.end(), ids[i]) != nearest.end(), ++taken;
      }
      out.push_back(
          nearest.empty() ? 1 : static_cast<double>(there) / static_cast<double>(nearest.size()));
    }
    return out;
  };
  std::vector<RuleSeen> seen;
  // Tries a rule; returns its mean recall.
  const auto attempt = [&](const RecallRule& rule) {
    CodeSearch probed(state, request, segments, vectors.view(), rule.refine_factor, 0);
    probed.measure(k * rule.refine_factor + request.k - k);
    RuleSeen one{rule, {}, 1, static_cast<double>(state.size), 0};
    if (state.coarse) {
      ListProbing search(state, request, probed);
      search.probe_by(rule, search.lists_near(queries, rule, std::min(rule.first, lists)));
      one.recalls = recalls(search.found());
      const KnnReport report = search.report();
      one.lists = report.probes, one.rows = report.probed_rows;
    } else {
      ExactNeighbors found;
      probed.nearest(Matrix<Id>(count, 1).view(), found);
      one.recalls = recalls(found);
    }
    // Nanoseconds, about: bytes of codes, lists, rounds, vectors that are measured.
    one.cost = one.rows * static_cast<double>(state.coder->code_size()) * 0.015 + one.lists * 150 +
               (rule.reach < 0 ? 0 : 5000) +
               static_cast<double>(rule.refine_factor * request.k) * 150;
    const double mean =
        std::accumulate(one.recalls.begin(), one.recalls.end(), 0.0) / static_cast<double>(count);
    seen.push_back(std::move(one));
    return mean;
  };
  double best = 0;
  std::vector<std::int64_t> factors{0};
  if (shape.refine) factors = {2, 4, 8, 32};
  for (const std::int64_t factor : factors) {
    double before = -1;
    // What is nearly everything needs no more of them.
    if (!seen.empty() && best >= 0.998) break;
    for (std::int64_t first = 1; first <= looked_at; first = std::max(first + 1, first * 8 / 5)) {
      const double mean = attempt({first, -1, factor});
      best = std::max(best, mean);
      if (mean < before + 0.0005 && first > 8) break;  // more lists bring nothing more
      before = mean;
    }
    if (looked_at < 8) continue;
    // Reaches with which about half of the queries go on to so many lists.
    CodeSearch probed(state, request, segments, vectors.view(), factor, 0);
    ExactNeighbors found;
    probed.nearest({order.ids.data(), count, 2, looked_at}, found);
    for (std::int64_t to = 4; to <= looked_at; to *= 2) {
      std::vector<double> reaches;
      for (std::int64_t q = 0; q < count; ++q) {
        const double length = shape.metric == Metric::ip ? length_of(queries.rows(q, q + 1)) : 0;
        const double unit = state.coarse->reach_unit(
            request.k > 0 ? found.keys.row(q)[request.k - 1] : infinity, length);
        const float* keys = order.distances.row(q);
        const double reach = (keys[to - 1] - keys[0]) / unit;
        reaches.push_back(unit > 0 && reach < 1e30 ? reach : 0);
      }
      std::nth_element(reaches.begin(), reaches.begin() + count / 2, reaches.end());
      const double reach = reaches[static_cast<std::size_t>(count / 2)];
      if (reach > 0) attempt({2, reach, factor});
    }
  }
  return curve_of(k, std::move(seen), std::move(nearest_keys));
}

}  // namespace knear::detail
