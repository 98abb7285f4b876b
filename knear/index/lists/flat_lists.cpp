#include "knear/index/lists/flat_lists.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/cost/plan.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/index/usual_lists.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {
namespace {

// Fewer rows are compared as fast, and of many neighbours too much would have to be probed.
constexpr std::int64_t least_rows = 16384, rows_of_neighbour = 256;
// Rows from which a list is learned: fewer than usual, since nobody asked for the wait.
constexpr std::int64_t rows_of_list = 64;
// A scan by a prefix may be so many times as fast as the model says of one without
// (knn/search/prefix_search.hpp): the more columns, the more of them it spares.
double gain_of_prefix(std::int64_t dim) {
  return std::clamp(static_cast<double>(dim) / 64, 1.25, 4.0);
}
// What simulating the rules takes of one core, a query of the calibration.
constexpr double simulation_seconds = 200e-6;

// Whether a search could go by lists: it leaves everything to the index but the recall.
bool is_free(const SearchOptions& options) {
  const std::optional<double> recall = options.method.recall;
  return recall && *recall > 0 && *recall < 1 && options.method == SearchMethod{.recall = recall} &&
         options.memory == 0 && options.first_pass == FirstPass::automatic &&
         options.filter.everything() && options.device == "cpu" &&
         options.tuning == TuningOverrides{};
}

struct LiveRow {
  Id id;
  std::uint32_t segment;
  std::int64_t row;
};

// Rows by ascending id.
struct SomeRows {
  std::vector<LiveRow> learned;  // that centroids are learned from
  std::vector<LiveRow> apart;    // that they are not, to know queries like the rows by
};

// About `count` live rows and those kept apart, drawn by their ids, so that history does not
// matter. Rows that were learned from are nearer to their centroid, and by the spread of a rule
// probe fewer lists; so a recall that is promised to them too is calibrated by rows of both kinds.
SomeRows some_rows(const State& state, std::int64_t count, KeptApart apart) {
  const bool calibrated = apart == KeptApart::calibrated;
  const double most_apart = calibrated ? 1.1 * static_cast<double>(most_rows_sampled) : 1000;
  const double share = static_cast<double>(count) / static_cast<double>(state.size);
  const double held_out = most_apart / static_cast<double>(state.size);
  const auto drawn = [](std::uint64_t seed) { return Random(seed).uniform(); };
  SomeRows out;
  for (std::size_t s = 0; s < state.segments.size(); ++s) {
    const Segment& segment = state.segments[s];
    const RowIds ids = segment.rows->ids();
    for (std::int64_t row = 0; row < segment.rows->rows(); ++row) {
      const auto id = static_cast<std::uint64_t>(ids(row));
      if (!segment.live.contains(row)) continue;
      const LiveRow one{ids(row), static_cast<std::uint32_t>(s), row};
      if (drawn(calibrated ? id : id ^ 0x6b6e6f776eULL) < held_out)
        out.apart.push_back(one);
      else if (drawn(~id) < share)
        out.learned.push_back(one);
    }
  }
  for (std::vector<LiveRow>* rows : {&out.learned, &out.apart})
    std::sort(rows->begin(), rows->end(),
              [](const LiveRow& a, const LiveRow& b) { return a.id < b.id; });
  return out;
}

// Rows 0, ..., count - 1 of which the i-th is row at(i) of base_of(i).
template <class BaseOf, class At>
AnyMatrix copies(ElementType type, std::int64_t count, std::int64_t dim, int threads,
                 BaseOf base_of, At at) {
  AnyMatrix out(type, count, dim);
  constexpr std::int64_t block = 1024;
  parallel_for(threads, (count + block - 1) / block, [&](std::int64_t b) {
    std::vector<std::byte> scratch;
    for (std::int64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
      const BaseRows& base = base_of(i);
      scratch.resize(std::max(scratch.size(), base.scratch_bytes()));
      copy_exactly(base.row_view(at(i), scratch.data()), type, out.row(i));
    }
  });
  return out;
}

// A segment of which the rows are in lists too.
Segment listed(const Segment& segment, const CoarseQuantizer& coarse, ElementType type,
               Metric metric, int threads, const Progress& progress) {
  const BaseRows& base = segment.rows->base();
  const std::int64_t n = base.rows(), dim = coarse.centroids().cols(), lists = coarse.lists();
  ListAssignment all;
  all.radii.assign(lists, 0);
  constexpr std::int64_t block = 1 << 17;
  for (std::int64_t begin = 0; begin < n; begin += block) {
    const AnyMatrix some = copies(
        type, std::min(block, n - begin), dim, threads,
        [&](std::int64_t) -> const BaseRows& { return base; },
        [&](std::int64_t i) { return begin + i; });
    const ListAssignment part = coarse.assign(some.view(), threads, progress);
    all.list_of.insert(all.list_of.end(), part.list_of.begin(), part.list_of.end());
    for (std::size_t l = 0; l < all.radii.size(); ++l)
      all.radii[l] = std::max(all.radii[l], part.radii[l]);
  }
  std::shared_ptr<ListedRows> made;
  if (!packs_lists(n, lists)) {
    made = std::make_shared<ListedRows>(RowLists(all.list_of, lists));
  } else {
    made = std::make_shared<ListedRows>(std::make_shared<const PackedLists>(
        keeps_as_panels(metric, segment.rows->found())
            ? PackedLists::integer(base, all.list_of, lists, metric, active_isa(),
                                   segment.rows->found(), threads, progress)
            : PackedLists::certified(
                  base, all.list_of, lists, format_int8, segment.rows->prepared().coding_space(),
                  threads, progress,
                  centres_that_pay(base, all.list_of, segment.rows->prepared().coding_space(),
                                   coarse.centres()))));
  }
  return {SegmentRows::with_lists(segment.rows, std::move(made), std::move(all.radii)),
          segment.live};
}

}  // namespace

std::shared_ptr<const State> in_lists(const State& state, const IndexShape& shape, KeptApart apart,
                                      int threads, const Progress& progress) {
  const IndexShape inner{
      .dim = shape.inner_dim(), .metric = shape.metric, .lists = usual_lists(state.size)};
  const ElementType type = state.type.value_or(ElementType::f32);
  const SomeRows some = some_rows(state, rows_of_list * inner.lists, apart);
  const auto vectors_of = [&](const std::vector<LiveRow>& rows) {
    const auto nth = [&](std::int64_t i) { return rows[i]; };
    return copies(
        type, std::ssize(rows), inner.dim, threads,
        [&](std::int64_t i) -> const BaseRows& {
          return state.segments[nth(i).segment].rows->base();
        },
        [&](std::int64_t i) { return nth(i).row; });
  };
  auto out = std::make_shared<State>();
  out->coarse = CoarseQuantizer::trained(vectors_of(some.learned).view(), inner,
                                         {.threads = threads, .progress = progress});
  if (apart == KeptApart::some) {
    const Neighbors near = out->coarse->probe(vectors_of(some.apart).view(), 1, threads);
    std::vector<float> keys(near.distances.data(), near.distances.data() + near.distances.rows());
    std::sort(keys.begin(), keys.end());
    out->fresh_keys = std::make_shared<const std::vector<float>>(std::move(keys));
  }
  out->recall = std::make_shared<RecallCurves>(state.size);
  out->type = state.type, out->next_id = state.next_id;
  out->version = state.version, out->size = state.size;
  for (const Segment& segment : state.segments)
    out->segments.push_back(listed(segment, *out->coarse, type, shape.metric, threads, progress));
  return out;
}

std::optional<FlatLists::Calibrated> FlatLists::Known::calibrated(std::int64_t k) const {
  const auto curve = curves.find(k);
  if (!lists || curve == curves.end()) return {};
  return Calibrated{lists, curve->second};
}

template <class Change>
std::shared_ptr<const FlatLists::Known> FlatLists::update(Change change) {
  std::lock_guard lock(mutex_);
  auto next = std::make_shared<Known>(*known_);
  change(*next);
  std::shared_ptr<const Known> made = next;
  known_.swap(made);
  return next;
}

std::optional<FlatLists::Calibrated> FlatLists::calibrated(const State& state,
                                                           const IndexShape& shape, std::int64_t k,
                                                           const SearchOptions& options,
                                                           double seconds, double& made_seconds) {
  const int threads = resolve_threads(options.threads);
  const MachinePeaks& peaks = planning_peaks(active_isa(), threads);
  const std::int64_t dim = shape.inner_dim(), lists = usual_lists(state.size);
  std::shared_ptr<const Known> now = known();
  if (auto there = now->calibrated(k)) return there;
  if (now->refused) return {};
  constexpr std::int64_t queries = most_rows_sampled;
  double cost = queries * simulation_seconds / threads + predict_scan({.rows = state.size,
                                                                       .dim = dim,
                                                                       .queries = queries,
                                                                       .k = k + 1,
                                                                       .bytes_per_element = 1,
                                                                       .op = ScanOp::int8,
                                                                       .threads = threads},
                                                                      peaks)
                                                             .seconds;
  if (!now->lists) {
    const ListShape made{.rows = state.size, .dim = dim, .lists = lists, .threads = threads};
    const ListMakingCost making =
        predict_list_making(made, std::min(state.size, rows_of_list * lists), peaks);
    cost += making.train_seconds + making.add_seconds;
  }
  now = update([&](Known& next) { next.spent[k] += seconds; });
  if (now->spent.at(k) < cost) return {};
  if (!may_prepare()) return {};  // all rows are compared meanwhile
  // While one search makes them, others go on without.
  const std::unique_lock one(making_, std::try_to_lock);
  if (!one) return {};
  now = known();
  if (auto there = now->calibrated(k)) return there;
  std::shared_ptr<const State> made = now->lists;
  const Stopwatch time;
  try {
    if (!made) made = in_lists(state, shape, KeptApart::some, threads, options.progress);
    auto curve = std::make_shared<const RecallCurve>(
        calibrate_by_rows(*made, shape.metric, k, threads, options.progress));
    made_seconds += time.seconds();
    return update([&](Known& next) {
             next.lists = std::move(made), next.curves[k] = std::move(curve);
           })
        ->calibrated(k);
  } catch (const MemoryBudgetError&) {
  } catch (const std::bad_alloc&) {
  }
  update([](Known& next) { next.refused = true; });
  return {};
}

RecallCurve FlatLists::tune(const State& state, const IndexShape& shape, std::int64_t k,
                            AnyMatrixView queries, const ChangeOptions& options) {
  if (state.size < least_rows)
    throw InvalidArgument(
        "index {} has {} rows, but below {} all are compared, whatever the recall: there is "
        "nothing to tune",
        shape.description(), state.size, least_rows);
  const int threads = resolve_threads(options.threads);
  const std::lock_guard one(making_);
  std::shared_ptr<const State> made = known()->lists;
  if (!made) made = in_lists(state, shape, KeptApart::some, threads, options.progress);
  auto curve = std::make_shared<const RecallCurve>(
      queries.rows() == 0 ? calibrate_by_rows(*made, shape.metric, k, threads, options.progress)
                          : calibrate(*made, shape.metric, live_segments(*made), k, queries, {},
                                      CurveUse::kept, threads, options.progress));
  update([&](Known& next) {
    next.lists = std::move(made), next.curves[k] = curve, next.refused = false;
  });
  return *curve;
}

std::optional<ExactNeighbors> FlatLists::search(const State& state, const IndexShape& shape,
                                                AnyMatrixView queries, std::int64_t k,
                                                const SearchOptions& options,
                                                Preparation& preparation, KnnReport* report) {
  if (!is_free(options) || state.size < least_rows || k > state.size / rows_of_neighbour ||
      queries.rows() == 0)
    return {};
  const int threads = resolve_threads(options.threads);
  const MachinePeaks& peaks = planning_peaks(active_isa(), threads);
  const double scan = predict_scan({.rows = state.size,
                                    .dim = shape.inner_dim(),
                                    .queries = queries.rows(),
                                    .k = k,
                                    .bytes_per_element = 1,
                                    .op = ScanOp::int8,
                                    .threads = threads},
                                   peaks)
                          .seconds;
  const auto used = calibrated(state, shape, k, options, scan, preparation.seconds);
  if (!used) return {};
  const RecallPoint* point = used->curve->find(*options.method.recall);
  if (!point) return {};
  const std::int64_t lists = used->lists->coarse->lists();
  const double probing = predict_lists({.rows = state.size,
                                        .dim = shape.inner_dim(),
                                        .queries = queries.rows(),
                                        .k = k,
                                        .lists = lists,
                                        .probes = point->lists,
                                        .probed_rows = point->rows,
                                        .threads = threads},
                                       peaks)
                             .seconds;
  if (gain_of_prefix(shape.inner_dim()) * probing > scan) return {};
  const std::vector<SearchSegment> segments = live_segments(*used->lists);
  SearchRequest request(SearchKind::nearest, segments, queries, k,
                        options_of_part(options, shape.metric), Reuse::expected);
  request.preparation = preparation, request.altered_by = shape.altered_by();
  ListSearch rows(request);
  ListProbing search(*used->lists, request, rows);
  NearLists near = search.lists_near(point->rule.lists);
  if (!of_one_kind(*used->curve, near)) return {};
  const std::vector<Nearness> scales = nearness_scales(queries, shape.metric, near);
  search.probe_by(point->rule, std::move(near));
  if (!finds_as_calibrated(*point, *options.method.recall, k, search.found(), scales)) return {};
  if (report) {
    *report = search.report();
    PromiseReport promise = search.promise();
    if (promise.recall_argument != "exact") {
      promise.recall_argument = "calibrated", promise.expected_recall = point->expected;
      promise.promised_recall = point->promised_to(queries.rows(), *options.method.recall);
    }
    set_promise(*report, request, std::move(promise));
  }
  return search.take_found();
}

std::int64_t FlatLists::bytes() const {
  const std::shared_ptr<const State> lists = known()->lists;
  if (!lists) return 0;
  std::int64_t sum = lists->coarse->bytes();
  for (const Segment& segment : lists->segments) sum += segment.rows->bytes_of_lists();
  return sum;
}

}  // namespace knear::detail
