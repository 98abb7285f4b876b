#include "knear/index/lists/code_calibration.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "knear/core/value_range.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/lists/code_search.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/index/lists/recall_calibration.hpp"

namespace knear::detail {
namespace {

// Lists of each query that rules are tried with.
constexpr std::int64_t most_lists_looked_at = 256;

// Vectors, and of each its nearest rows without those that do not count: itself, and equal ones.
struct CodeTruth {
  AnyMatrix vectors;  // as users have them
  std::vector<std::vector<Id>> nearest, equal;

  std::int64_t size() const { return std::ssize(nearest); }
};

// Of the vectors that the index was trained on: evenly from all that are known well enough, which
// are in the order of the vectors that they were drawn from.
CodeTruth truth_known(const State& state, std::int64_t k) {
  CodeTruth out;
  if (!state.known) return out;
  KnownNeighbors::Truth truth = state.known->truth(k);
  const std::int64_t known = std::ssize(truth.queries),
                     count = std::min(known, most_queries_sampled);
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t at = i * known / count;
    numbers.push_back(truth.queries[at]);
    out.nearest.push_back(std::move(truth.nearest[at]));
    out.equal.push_back(std::move(truth.equal[at]));
  }
  out.vectors = copies_of(state.known->queries(), numbers);
  return out;
}

// Found by comparing vectors [n x dim] with all those that the index keeps. own [n]: the id of each
// among the rows; empty: they are none of them.
CodeTruth truth_among(const State& state, Metric metric, std::span<const SearchSegment> segments,
                      AnyMatrix vectors, std::span<const Id> own, std::int64_t k, int threads,
                      const Progress& progress) {
  // Rows by their numbers over all segments: their ids are in the order of lists.
  std::vector<std::unique_ptr<PreparedRows>> prepared;
  std::vector<SearchSegment> among;
  std::vector<std::int64_t> firsts;
  std::int64_t rows = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const CodedRows& coded = state.segments[s].rows->coded();
    if (coded.guard) coded.guard->touch_all(threads);
    prepared.push_back(std::make_unique<PreparedRows>(
        BaseRows(coded.vectors), metric,
        find_value_range(coded.vectors, metric, "vectors", threads)));
    SearchSegment segment = segments[s];
    segment.rows = prepared.back().get(), segment.ids = {rows, nullptr}, segment.lists = nullptr;
    among.push_back(std::move(segment));
    firsts.push_back(rows);
    rows += coded.vectors.rows();
  }
  const SearchRequest request(SearchKind::nearest, among, vectors.view(), k + (own.empty() ? 0 : 1),
                              {.metric = metric, .threads = threads, .progress = progress},
                              Reuse::none);
  const Neighbors near = search_segments(request, nullptr);
  CodeTruth out;
  for (std::int64_t q = 0; q < vectors.rows(); ++q) {
    std::vector<Id> nearest;
    const Id mine = own.empty() ? no_id : own[q];
    for (std::int64_t j = 0; j < near.ids.cols() && std::ssize(nearest) < k; ++j) {
      const Id row = near.ids.row(q)[j];
      if (row == no_id) break;
      const std::size_t s =
          std::upper_bound(firsts.begin(), firsts.end(), row) - firsts.begin() - 1;
      const Id id = state.segments[s].rows->ids()(row - firsts[s]);
      if (id != mine) nearest.push_back(id);
    }
    out.nearest.push_back(std::move(nearest));
    out.equal.push_back(mine == no_id ? std::vector<Id>{} : std::vector<Id>{mine});
  }
  out.vectors = std::move(vectors);
  return out;
}

// Which share of the nearest rows of all queries is in the first 1, 2, ... lists of each [queries x
// lists looked at].
std::vector<double> shares_in_lists(const State& state, const CodeTruth& truth,
                                    MatrixView<Id> order) {
  std::vector<double> out(order.cols(), 0);
  double all = 0;
  for (std::int64_t q = 0; q < order.rows(); ++q)
    for (const Id id : truth.nearest[q]) {
      const State::Place place = state.find(id);
      const std::int64_t list =
          state.segments[place.segment].rows->coded().lists->list_at(place.row);
      const Id* const end = order.row(q) + order.cols();
      const Id* const found = std::find(static_cast<const Id*>(order.row(q)), end, list);
      if (found != end) ++out[found - order.row(q)];
      ++all;
    }
  std::partial_sum(out.begin(), out.end(), out.begin());
  for (double& share : out) share = all == 0 ? 1 : share / all;
  return out;
}

// The curve that these vectors and their neighbours show.
RecallCurve curve_by(const State& state, const IndexShape& shape,
                     std::span<const SearchSegment> segments, const CodeTruth& truth,
                     std::int64_t k, int threads, const Progress& progress) {
  const std::int64_t count = truth.size();
  if (count == 0) return {k, {}, {}};  // nothing has no mean
  Matrix<float> transformed;
  AnyMatrixView queries = truth.vectors.view();
  if (state.transform)
    transformed = state.transform->apply(queries, threads), queries = transformed.view();
  std::int64_t most_equal = 0;
  for (const auto& equal : truth.equal) most_equal = std::max(most_equal, std::ssize(equal));
  const SearchRequest request = request_of_codes(
      SearchKind::nearest, state, segments, queries, k + std::min<std::int64_t>(most_equal, k),
      {.metric = shape.metric, .threads = threads, .progress = progress});
  const std::int64_t lists = state.coarse ? state.coarse->lists() : 1,
                     looked_at = std::min(lists, most_lists_looked_at);
  std::vector<float> nearest_keys;
  Neighbors order;
  std::vector<double> shares{1};
  if (state.coarse) {
    order = state.coarse->probe(queries, looked_at, threads);
    shares = shares_in_lists(state, truth, order.ids);
    for (std::int64_t q = 0; q < count; ++q) nearest_keys.push_back(order.distances.row(q)[0]);
  } else {
    nearest_keys = keys_without_lists(state, queries, threads);
  }
  // What was found, with the scales of nearness.
  const auto note = [&](RuleSeen& to, const ExactNeighbors& found,
                        const std::vector<Nearness>& scales) {
    for (std::size_t q = 0; q < static_cast<std::size_t>(count); ++q) {
      const std::vector<Id>&nearest = truth.nearest[q], &equal = truth.equal[q];
      const Id* ids = found.ids.row(static_cast<std::int64_t>(q));
      std::int64_t taken = 0, there = 0;
      Nearness near{};
      for (std::int64_t i = 0; i < found.columns() && taken < k; ++i) {
        if (std::find(equal.begin(), equal.end(), ids[i]) != equal.end()) continue;
        there += std::find(nearest.begin(), nearest.end(), ids[i]) != nearest.end(), ++taken;
        const double key = found.keys.row(static_cast<std::int64_t>(q))[i];
        if (taken == 1) near[0] = nearness_of(key, scales[q][0]);
        if (taken <= last_of_a_third(k)) near[1] = nearness_of(key, scales[q][1]);
      }
      to.nearness.push_back(near);
      to.recalls.push_back(
          nearest.empty() ? 1 : static_cast<double>(there) / static_cast<double>(nearest.size()));
    }
  };
  std::vector<RuleSeen> seen;
  // Tries a rule; returns its mean recall.
  const auto attempt = [&](const RecallRule& rule) {
    CodeSearch probed(state, request, segments, truth.vectors.view(), rule.refine_factor, 0);
    probed.measure(k * rule.refine_factor + request.k - k);
    RuleSeen one;
    one.rule = rule, one.lists = 1, one.rows = static_cast<double>(state.size);
    if (state.coarse) {
      ListProbing search(state, request, probed);
      NearLists near = search.lists_near(rule.lists);
      const std::vector<Nearness> scales = nearness_scales(queries, shape.metric, near);
      search.probe_by(rule, std::move(near));
      note(one, search.found(), scales);
      const KnnReport report = search.report();
      one.lists = report.lists.probes, one.rows = report.scan.probed_rows;
    } else {
      ExactNeighbors found;
      probed.nearest(Matrix<Id>(count, 1).view(), found);
      note(one, found, scales_without_lists(queries, shape.metric));
    }
    // Nanoseconds, about: bytes of codes, lists, their order, vectors that are measured.
    one.cost = one.rows * static_cast<double>(state.coder->code_size()) * 0.015 + one.lists * 150 +
               static_cast<double>(rule.lists) * 75 +
               static_cast<double>(rule.refine_factor * request.k) * 150;
    const double mean =
        std::accumulate(one.recalls.begin(), one.recalls.end(), 0.0) / static_cast<double>(count);
    seen.push_back(std::move(one));
    return mean;
  };
  // With a spread by which this share of the queries, in quarters, want so many lists or more.
  const auto rule_of = [&](std::int64_t probes, std::int64_t quarters, std::int64_t factor) {
    RecallRule rule{.lists = probes, .refine_factor = factor};
    if (!state.coarse || !state.coarse->keys_are_distances() || probes == 1 || probes == looked_at)
      return rule;
    std::vector<double> spreads;
    for (std::int64_t q = 0; q < count; ++q) {
      const float* const keys = order.distances.row(q);
      spreads.push_back(spread_of(keys[probes - 1], keys[0], probes - 1));
    }
    const std::int64_t place = count * quarters / 4;
    std::nth_element(spreads.begin(), spreads.begin() + place, spreads.end());
    rule.spread = spreads[place];
    rule.lists = looked_at;
    std::vector<std::int64_t> wanted;
    for (std::int64_t q = 0; q < count; ++q)
      wanted.push_back(
          lists_within({order.distances.row(q), static_cast<std::size_t>(looked_at)}, rule));
    rule.lists = lists_enough(std::move(wanted));
    return rule;
  };
  double best = 0;
  std::vector<std::int64_t> factors{0};
  if (shape.refine) factors.clear();
  for (std::int64_t f = 2; shape.refine && f <= most_calibrated_factor; f *= 2)
    factors.push_back(f);
  for (const std::int64_t factor : factors) {
    // What is nearly everything needs no more of them.
    if (!seen.empty() && best >= 0.998) break;
    for (std::int64_t first = 1;; first = std::min(looked_at, std::max(first + 1, first * 8 / 5))) {
      // Between so many lists and the number before lies much, where they are few.
      if (first > 1 && first < looked_at) attempt(rule_of(first, 1, factor));
      best = std::max(best, attempt(rule_of(first, 2, factor)));
      // There is nothing more, or hardly anything.
      if (first == looked_at || shares[first - 1] >= 0.9995) break;
    }
  }
  return curve_of(k, std::move(seen), std::move(nearest_keys));
}

}  // namespace

RecallCurve calibrate_codes(const State& state, const IndexShape& shape, std::int64_t k,
                            int threads, const Progress& progress) {
  CodeTruth truth = truth_known(state, k);
  const std::vector<SearchSegment> segments = live_segments(state);
  if (truth.size() < least_calibration_queries && shape.keeps_vectors()) {
    const std::vector<DrawnRow> rows = drawn_rows(state, most_queries_sampled);
    const ElementType type = state.type.value_or(ElementType::f32);
    AnyMatrix vectors(type, std::ssize(rows), shape.dim);
    std::vector<Id> own;
    std::vector<std::byte> scratch;
    for (const DrawnRow& one : rows) {
      const CodedRows& coded = state.segments[one.segment].rows->coded();
      const BaseRows base(coded.vectors, coded.guard.get());
      scratch.resize(std::max(scratch.size(), base.scratch_bytes()));
      copy_exactly(base.row_view(one.row, scratch.data()), type, vectors.row(std::ssize(own)));
      own.push_back(one.id);
    }
    truth =
        truth_among(state, shape.metric, segments, std::move(vectors), own, k, threads, progress);
  } else if (truth.size() < least_calibration_queries) {
    constexpr std::int64_t usual = 100;  // neighbours that are kept, and some for what is removed
    if (k > usual && truth_known(state, usual).size() >= least_calibration_queries)
      throw InvalidArgument(
          "k is {}, but recall of index {} is known of {} neighbours, or few more: tuning for this "
          "k with the base (knear tune --base) finds it out, and a search without recall takes any",
          k, shape.description(), usual);
    throw InvalidArgument(
        "recall of {} neighbours is not known of index {}: it knows those of {} vectors, where {} "
        "are needed (training keeps {} with {} neighbours, unless hold_out is off; what was "
        "merged, "
        "removed or read from FAISS is not known; tuning with the base, knear tune --base, finds "
        "out)",
        k, shape.description(), truth.size(), least_calibration_queries,
        KnownNeighbors::most_queries, usual);
  }
  return curve_by(state, shape, segments, truth, k, threads, progress);
}

RecallCurve calibrate_codes_by(const State& state, const IndexShape& shape,
                               std::span<const SearchSegment> segments, AnyMatrixView queries,
                               std::int64_t k, int threads, const Progress& progress) {
  AnyMatrix some = copies_of(queries, queries_to_calibrate(queries.rows()));
  return curve_by(
      state, shape, segments,
      truth_among(state, shape.metric, segments, std::move(some), {}, k, threads, progress), k,
      threads, progress);
}

std::vector<float> keys_without_lists(const State& state, AnyMatrixView queries, int threads) {
  std::vector<float> out = state.coder->distances_to_few(queries, threads);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace knear::detail
