#include "knear/index/graph/graph_search.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/system.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/graph/row_graph_building.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/knn/lists/list_search.hpp"
#include "knear/knn/search/report_builder.hpp"

namespace knear::detail {
namespace {

// Of the candidates of a walk so many rows are measured for k neighbours, the nearest by codes.
std::int64_t rows_measured(std::int64_t k) { return std::max(k + k / 2, k + 8); }
// Scoring a node takes so many times as long as scoring a row of a scan.
constexpr std::int64_t scan_rows_of_node = 64;
// Rows by which a graph is calibrated.
constexpr std::int64_t most_rows_calibrated = 1000;

bool may_be_found(const SearchSegment& segment, std::int64_t row) {
  if (segment.live) return segment.live->contains(row);
  return segment.filter.everything() || segment.filter.holds(segment.filter_offset + row);
}

// What was asked for, checked: an effort, a recall below 1, or everything.
struct Asked {
  std::int64_t ef = 0;
  std::optional<double> recall = {};
  bool everything = false;
};
Asked asked_for(const SearchOptions& options, const IndexShape& shape, std::int64_t k) {
  const SearchMethod& method = options.method;
  check_processor(options.device, "a search of a graph");
  // How much is found is for the graph to choose by.
  check_list_options({method.kind, {}, method.threshold_heap, method.partial_reduce},
                     options.first_pass, options.tuning, "a graph");
  const auto refuse = [&](std::string_view name, std::int64_t value, std::string_view why) {
    throw InvalidArgument("{} is {}, but index {} has {}", name, value, shape.description(), why);
  };
  if (method.probes != 0) refuse("probes", method.probes, "no inverted lists");
  if (method.codes.refine_factor != 0)
    refuse("refine_factor", method.codes.refine_factor, "no codes without their vectors");
  if (method.lists.widen) throw InvalidArgument("widen is on, but there are no inverted lists");
  if (method.lists.certify)
    throw InvalidArgument("certify is on, but a walk on a graph proves nothing: recall = 1 does");
  if (method.ef < 0) throw InvalidArgument("ef must not be negative, but is {}", method.ef);
  if (const double recall = method.recall.value_or(1); !(recall > 0 && recall <= 1))
    throw InvalidArgument("recall must be in (0, 1], but is {}", recall);
  const bool exact = method.kind == Method::exact;
  if (exact && method.ef > 0) throw InvalidArgument("method is exact, but ef is {}", method.ef);
  if (exact && method.recall.value_or(1) != 1)
    throw InvalidArgument("method is exact, but recall is {}", *method.recall);
  if (method.ef > 0 && method.recall)
    throw InvalidArgument("ef is {} and recall is {}, but only one of them can be asked for",
                          method.ef, *method.recall);
  if (method.ef == 0 && !method.recall && !exact)
    throw InvalidArgument(
        "neither ef nor recall is given, and a search of index {} needs one of them",
        shape.description());
  if (method.ef > 0 && method.ef < k)
    throw InvalidArgument("ef is {}, but {} neighbours are to be found among so many candidates",
                          method.ef, k);
  return {.ef = method.ef,
          .recall = method.recall && *method.recall < 1 ? method.recall : std::nullopt,
          .everything = exact || method.recall.value_or(0) == 1};
}

// Searches of one graph for some queries.
class GraphSearch {
 public:
  GraphSearch(const State& state, const IndexShape& shape, const GraphOfState::Made& made,
              std::span<const SearchSegment> segments, const SearchRequest& request)
      : state_(state),
        shape_(shape),
        graph_(*made.graph),
        walks_(*made.walks),
        beside_(*made.beside),
        segments_(segments),
        request_(request) {
    std::int64_t allowed = 0;
    for (std::size_t s = 0; s < segments.size(); ++s)
      allowed += segments[s].allowed_between(0, state.segments[s].rows->rows());
    // Rows that are gone count too: a walk passes through them.
    const std::int64_t of = std::max(graph_.rows(), allowed);
    share_ = of > 0 ? static_cast<double>(allowed) / static_cast<double>(of) : 1;
    allowed_ = allowed, filtered_ = allowed < state.size;
    ValueRange found;
    for (const Segment& segment : state.segments) found = united(found, segment.rows->found());
    codes_are_rows_ = graph_.coding.are_numbers_of(found);
  }

  // How many nodes a walk keeps so that as many as `ef` of them may be found.
  std::int64_t widened(std::int64_t ef) const {
    return static_cast<std::int64_t>(
        std::min(static_cast<double>(graph_.nodes()),
                 std::ceil(static_cast<double>(ef) / std::max(share_, 1e-9))));
  }
  // Whether all rows that may be found are scanned in less time.
  bool scan_is_faster(std::int64_t ef) const {
    return filtered_ && allowed_ < scan_rows_of_node * widened(ef);
  }

  // The k nearest of each query, [queries x k]. left_out: of each query a node that is not there
  // and an id that is not found; empty: none.
  struct LeftOut {
    std::uint32_t node = no_node;
    Id id = no_id;
  };
  void run(AnyMatrixView queries, std::int64_t k, GraphEffort effort,
           std::span<const LeftOut> left_out = {}) {
    const std::int64_t count = queries.rows();
    // A walk cannot keep more nodes than there are.
    effort.ef = std::min(effort.ef, std::max<std::int64_t>(graph_.nodes(), 1));
    found_ = ExactNeighbors(count, k);
    nearest_starts_.assign(count, 0);
    scored_.assign(count, 0);
    measured_.assign(count, 0);
    constexpr std::int64_t block = 32;
    // Each thread has a bit a node, the nodes that it keeps, and what it measures.
    const std::int64_t each = graph_.nodes() / 8 + 56 * widened(effort.ef) + 64 * rows_measured(k) +
                              16 * (graph_.degree + RowGraph::most_scanned),
                       answers = count * (16 * k + 24), memory = request_.options.memory;
    int threads = request_.threads;
    if (memory > 0) {
      if (memory < answers + each)
        throw MemoryBudgetError(
            "memory is {} bytes, but this walk on a graph needs at least {} ({} queries, k = {}, "
            "ef = {})",
            memory, answers + each, count, k, effort.ef);
      threads = static_cast<int>(std::min<std::int64_t>(threads, (memory - answers) / each));
    }
    memory_bytes_ = answers + threads * each;
    Reporter reporter(request_.options.progress, "search", count);
    parallel_for(threads, (count + block - 1) / block, [&](std::int64_t b) {
      const std::int64_t begin = b * block, end = std::min(count, begin + block);
      walks_.with(graph_, [&](GraphWalk& walk) {
        Measuring measuring(segments_.size());
        for (std::int64_t q = begin; q < end; ++q)
          search(queries, q, k, effort, left_out.empty() ? LeftOut{} : left_out[q], walk,
                 measuring);
      });
      reporter.add(end - begin);
    });
  }

  // Adds the nearest of the rows that are not in the graph.
  void add_rows_beside(AnyMatrixView queries, std::int64_t k) {
    if (beside_.ids.empty()) return;
    std::vector<SearchSegment> beside(segments_.begin(), segments_.end());
    for (std::size_t s = 0; s < beside.size(); ++s) {
      beside[s].filter = beside_.filters[s];
      if (filtered_) {
        std::vector<Id> rows;
        for (const Id row : beside_.of_segments[s])
          if (may_be_found(segments_[s], row)) rows.push_back(row);
        beside[s].filter = RowFilter::of_ids(rows, state_.segments[s].rows->rows());
      }
      beside[s].filter_offset = 0, beside[s].live = nullptr;
    }
    const SearchRequest request(SearchKind::nearest, beside, queries, k, request_.options,
                                Reuse::expected);
    ExactNeighbors more;
    search_more(request, more, nullptr);
    merge(found_, more, k, request_.threads);
  }

  const ExactNeighbors& found() const { return found_; }
  // The same, which is gone then.
  ExactNeighbors take_found() { return std::move(found_); }
  // Of each query the score of its nearest start, ascending.
  std::vector<float> nearest_starts() const {
    std::vector<float> out(nearest_starts_.begin(), nearest_starts_.end());
    std::sort(out.begin(), out.end());
    return out;
  }
  // A query, on average: nodes scored, rows measured.
  double scored() const { return mean(scored_); }
  double measured() const { return mean(measured_); }
  std::int64_t memory_bytes() const { return memory_bytes_; }

 private:
  // One thread's.
  struct Measuring {
    struct Candidate {
      std::uint32_t segment;
      std::int64_t row;
      Id id;
    };
    explicit Measuring(std::size_t segments) : of_segment(segments) {}
    std::vector<std::optional<ExactDistance>> of_segment;
    std::vector<Candidate> candidates;
    std::vector<std::pair<double, Id>> measured;
    std::vector<std::byte> scratch;
  };

  static double mean(const std::vector<std::int64_t>& of) {
    double sum = 0;
    for (const std::int64_t x : of) sum += static_cast<double>(x);
    return of.empty() ? 0 : sum / static_cast<double>(of.size());
  }

  // Whether a row with this id may be found; where it is.
  bool find(Id id, State::Place& place) const {
    if (!beside_.ids.empty() && std::binary_search(beside_.ids.begin(), beside_.ids.end(), id))
      return false;
    place = state_.find(id);
    return place.row >= 0 && may_be_found(segments_[place.segment], place.row);
  }
  std::span<const Id> ids_of(std::uint32_t node) const {
    const std::int64_t first = graph_.begin[node];
    return {graph_.ids.data() + first, static_cast<std::size_t>(graph_.begin[node + 1] - first)};
  }

  void search(AnyMatrixView queries, std::int64_t q, std::int64_t k, const GraphEffort& effort,
              const LeftOut& left_out, GraphWalk& walk, Measuring& m) {
    const std::int64_t before = walk.scored();
    State::Place place;
    if (filtered_) {
      walk.to_some(queries, q, {widened(effort.ef), effort.starts}, [&](std::uint32_t node) {
        const auto ids = ids_of(node);
        return std::any_of(ids.begin(), ids.end(), [&](Id id) { return find(id, place); });
      });
    } else {
      walk.to(queries, q, effort, left_out.node);
    }
    const std::size_t at = q;
    nearest_starts_[at] = static_cast<float>(walk.nearest_start());
    scored_[at] = walk.scored() - before;

    const bool exact = codes_are_rows_ && walk.query_is_exact();
    m.candidates.clear(), m.measured.clear();
    // Where a row lies is found in three steps. Each is begun for all candidates before the next,
    // so that they wait for memory together.
    const std::span<const GraphWalk::Candidate> nearest =
        walk.candidates().first(static_cast<std::size_t>(
            std::min<std::int64_t>(std::ssize(walk.candidates()), rows_measured(k))));
    for (const GraphWalk::Candidate& one : nearest) __builtin_prefetch(&graph_.begin[one.node]);
    for (const GraphWalk::Candidate& one : nearest)
      __builtin_prefetch(graph_.ids.data() + graph_.begin[one.node]);
    for (const GraphWalk::Candidate& candidate : walk.candidates()) {
      if (std::ssize(m.candidates) + std::ssize(m.measured) >= rows_measured(k)) break;
      for (const Id id : ids_of(candidate.node)) {
        if (id == left_out.id || !find(id, place)) continue;
        if (exact) {
          m.measured.emplace_back(candidate.score, id);
          continue;
        }
        const BaseRows& base = state_.segments[place.segment].rows->base();
        base.prefetch(place.row, std::min<std::int64_t>(512, base.row_bytes()));
        m.candidates.push_back({static_cast<std::uint32_t>(place.segment), place.row, id});
      }
    }
    std::uint64_t set = 0;  // segments whose measure has the query, of the first 64
    for (const Measuring::Candidate& one : m.candidates) {
      const BaseRows& base = state_.segments[one.segment].rows->base();
      std::optional<ExactDistance>& distance = m.of_segment[one.segment];
      if (!distance) distance.emplace(shape_.metric, base.type(), request_.isa);
      if (one.segment >= 64 || !(set >> one.segment & 1)) distance->set_query(queries, q);
      if (one.segment < 64) set |= std::uint64_t{1} << one.segment;
      m.scratch.resize(std::max(m.scratch.size(), base.scratch_bytes()));
      m.measured.emplace_back(distance->key(base.row(one.row, m.scratch.data())), one.id);
    }
    measured_[at] = std::ssize(m.candidates);
    const auto kept = std::min<std::int64_t>(k, std::ssize(m.measured));
    std::partial_sort(m.measured.begin(), m.measured.begin() + kept, m.measured.end());
    for (std::int64_t i = 0; i < k; ++i) {
      found_.keys.row(q)[i] =
          i < kept ? m.measured[i].first : std::numeric_limits<double>::infinity();
      found_.ids.row(q)[i] = i < kept ? m.measured[i].second : no_id;
    }
  }

  const State& state_;
  const IndexShape& shape_;
  const RowGraph& graph_;
  IdleWalks& walks_;
  const GraphOfState::RowsBeside& beside_;
  const std::span<const SearchSegment> segments_;
  const SearchRequest& request_;
  double share_ = 1;
  std::int64_t allowed_ = 0, memory_bytes_ = 0;
  bool filtered_ = false;
  // Whether scores are the squared distances themselves, of a query that was not rounded.
  bool codes_are_rows_ = false;
  ExactNeighbors found_;
  std::vector<float> nearest_starts_;
  std::vector<std::int64_t> scored_, measured_;
};

// The curve of recall of searches of a graph, by queries of which `left_out` is not to be found.
RecallCurve calibrate_graph(const State& state, const IndexShape& shape,
                            const GraphOfState::Made& made, std::span<const SearchSegment> segments,
                            AnyMatrixView queries, std::span<const GraphSearch::LeftOut> left_out,
                            std::int64_t k, int threads, const Progress& progress) {
  const std::int64_t count = queries.rows(), wanted = k + !left_out.empty();
  const KnnOptions options{.metric = shape.metric, .threads = threads, .progress = progress};
  const SearchRequest request(SearchKind::nearest, segments, queries, wanted, options,
                              Reuse::expected);
  const Neighbors truth = search_segments(request, nullptr);
  const SearchRequest quiet(SearchKind::nearest, segments, queries, k,
                            {.metric = shape.metric, .threads = threads}, Reuse::expected);
  GraphSearch search(state, shape, made, segments, quiet);
  std::vector<RuleSeen> seen;
  std::vector<float> starts_seen;
  constexpr std::int64_t starts_tried[] = {4, 16, 64};
  // Nodes kept for each neighbour at most; what nobody can tell from 1 by so many queries; what
  // twice the effort has to find more at least.
  const std::int64_t most_ef = std::max<std::int64_t>(1024, 16 * k);
  constexpr double enough = 0.999, least_gain = 0.0005;
  Reporter reporter(progress, "calibrate", std::ssize(starts_tried));
  for (const std::int64_t starts : starts_tried) {
    double best = 0;
    for (std::int64_t step = 0;; ++step) {
      // k, 1.5 k, 2 k, 3 k, 4 k, ...
      const std::int64_t ef = std::max<std::int64_t>(k, 8) * (step % 2 ? 3 : 2) << (step / 2) >> 1;
      if (step > 0 && (ef > most_ef || ef > made.graph->nodes())) break;
      search.run(queries, k, {ef, starts}, left_out);
      search.add_rows_beside(queries, k);
      RuleSeen rule;
      rule.rule.lists = 1, rule.rule.ef = ef, rule.rule.starts = starts;
      rule.lists = static_cast<double>(ef), rule.rows = search.scored();
      rule.cost = search.scored() + 4 * static_cast<double>(ef);
      double sum = 0;
      for (std::int64_t q = 0; q < count; ++q) {
        std::vector<Id> ids;
        for (std::int64_t i = 0; i < wanted && std::ssize(ids) < k; ++i)
          if (const Id id = truth.ids.row(q)[i];
              id != no_id && (left_out.empty() || id != left_out[q].id))
            ids.push_back(id);
        std::int64_t hits = 0;
        const Id* const row = search.found().ids.row(q);
        std::vector<Id> seen_ids(row, row + k);
        std::sort(seen_ids.begin(), seen_ids.end());
        for (const Id id : ids) hits += std::binary_search(seen_ids.begin(), seen_ids.end(), id);
        rule.recalls.push_back(
            ids.empty() ? 1 : static_cast<double>(hits) / static_cast<double>(std::ssize(ids)));
        sum += rule.recalls.back();
      }
      seen.push_back(std::move(rule));
      if (starts_seen.empty()) starts_seen = search.nearest_starts();
      const double recall = count > 0 ? sum / static_cast<double>(count) : 1;
      if (recall >= enough || (step % 2 == 0 && recall < std::exchange(best, recall) + least_gain))
        break;
    }
    reporter.add(1);
  }
  return curve_of(k, std::move(seen), std::move(starts_seen));
}

RecallCurve calibrate_graph_by_rows(const State& state, const IndexShape& shape,
                                    const GraphOfState::Made& made, std::int64_t k, int threads,
                                    const Progress& progress) {
  const std::vector<DrawnRow> rows = drawn_rows(state, most_rows_calibrated);
  const ElementType type = state.type.value_or(ElementType::f32);
  AnyMatrix queries(type, std::ssize(rows), shape.inner_dim());
  std::vector<GraphSearch::LeftOut> left_out;
  std::unordered_map<Id, std::size_t> drawn;
  std::vector<std::byte> scratch;
  for (const DrawnRow& one : rows) {
    const BaseRows& base = state.segments[one.segment].rows->base();
    scratch.resize(std::max(scratch.size(), base.scratch_bytes()));
    copy_exactly(base.row_view(one.row, scratch.data()), type, queries.row(std::ssize(left_out)));
    drawn[one.id] = left_out.size();
    left_out.push_back({no_node, one.id});
  }
  // Each row is left out with its node, unless other rows share that.
  const RowGraph& graph = *made.graph;
  for (std::int64_t node = 0; node < graph.nodes(); ++node) {
    const std::size_t first = node;
    if (graph.begin[first + 1] != graph.begin[first] + 1) continue;
    const auto at = drawn.find(graph.ids[graph.begin[first]]);
    if (at != drawn.end()) left_out[at->second].node = static_cast<std::uint32_t>(node);
  }
  return calibrate_graph(state, shape, made, live_segments(state), queries.view(), left_out, k,
                         threads, progress);
}

// Records the queries of a search and takes the curve of their traffic, which may be made now.
// point: that of the index for the recall, or nullptr.
AuditLog::Audited audit(const State& state, const IndexShape& shape, const GraphOfState::Made& made,
                        std::span<const SearchSegment> segments, const AuditLog::Search& traffic,
                        SearchRequest& request, const RecallPoint* point,
                        const std::function<void(std::string_view)>& note) {
  // Predicted nanoseconds of one core: of a query, and of a coordinate of a row that is scanned.
  constexpr double query_cost = 10000, coordinate_cost = 0.004;
  const double row = static_cast<double>(shape.inner_dim()) * coordinate_cost,
               exact = query_cost + row * static_cast<double>(state.size);
  const AuditLog::Audited before = state.audits->find(traffic);
  if (before.curve) point = before.point(traffic.recall, traffic.sample);
  // A node that is estimated first takes a quarter of the time.
  const double node = static_cast<double>(scan_rows_of_node) / (made.graph->estimates ? 4 : 1);
  const double walk = point ? query_cost + row * node * point->rows : exact;
  // A calibration walks by each of about thirty efforts.
  constexpr double walks = 30;
  return state.audits->serve(
      traffic, request.queries, {walk, exact + walks * walk, 0}, [&](AnyMatrixView sample) {
        note(fmt::format("recall was calibrated on {} audited queries first, which the index keeps",
                         sample.rows()));
        const Stopwatch time;
        RecallCurve out = calibrate_graph(state, shape, made, segments, sample, {}, traffic.k,
                                          request.threads, request.options.progress);
        request.preparation.seconds += time.seconds();
        return out;
      });
}

std::shared_ptr<const GraphOfState::RowsBeside> rows_beside(const State& state,
                                                            const std::vector<Id>& added) {
  auto out = std::make_shared<GraphOfState::RowsBeside>();
  out->of_segments.resize(state.segments.size());
  for (const Id id : added)
    if (const State::Place place = state.find(id); place.row >= 0)
      out->ids.push_back(id), out->of_segments[place.segment].push_back(place.row);
  for (std::size_t s = 0; s < state.segments.size(); ++s)
    out->filters.push_back(RowFilter::of_ids(out->of_segments[s], state.segments[s].rows->rows()));
  return out;
}

// What making a graph takes at most: vectors, their packed codes, twice the numbers that it may
// keep (GraphCoding), and links in all the forms that they have meanwhile.
std::int64_t building_bytes(const State& state, const IndexShape& shape) {
  const ElementType type = state.type.value_or(ElementType::f32);
  const std::int64_t dim = shape.inner_dim() + traits_of(shape.metric).lifted,
                     number = std::max(size_of(type), size_of(ElementType::f32));
  return state.size * (dim * (size_of(type) + 1 + 2 * number) + 24 * shape.graph_degree + 96);
}

}  // namespace

// Ids that were added since the graph was made are looked up once this many more have come; those
// that are gone again are forgotten.
constexpr std::size_t ids_looked_up_together = 1024;

std::unique_ptr<GraphWalk> IdleWalks::take(const RowGraph& graph) {
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock && !idle_.empty()) {
    std::unique_ptr<GraphWalk> out = std::move(idle_.back());
    idle_.pop_back();
    return out;
  }
  return std::make_unique<GraphWalk>(graph);
}

GraphOfState::Made GraphOfState::as_made(std::shared_ptr<const RowGraph> graph,
                                         std::vector<Id> added) {
  const std::int64_t rows = graph->rows();
  return {std::move(graph), std::make_shared<RecallCurves>(rows), std::make_shared<IdleWalks>(),
          std::make_shared<const std::vector<Id>>(std::move(added))};
}

std::shared_ptr<GraphOfState> GraphOfState::after(std::span<const Id> added,
                                                  const State& next) const {
  auto out = std::make_shared<GraphOfState>();
  out->made_ = made();
  if (out->made_) out->made_->beside = nullptr;  // that is of a state
  if (!out->made_ || added.empty()) return out;
  std::vector<Id> all(*out->made_->added);
  const std::size_t before = all.size();
  all.insert(all.end(), added.begin(), added.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  // Looked up now and then, so that an id costs little.
  if (all.size() / ids_looked_up_together != before / ids_looked_up_together)
    std::erase_if(all, [&](Id id) { return next.find(id).row < 0; });
  out->made_->added = std::make_shared<const std::vector<Id>>(std::move(all));
  return out;
}

std::optional<GraphOfState::Made> GraphOfState::current(const State& state) {
  std::lock_guard lock(mutex_);
  if (!made_) return {};
  if (!made_->beside) made_->beside = rows_beside(state, *made_->added);
  const std::int64_t added = std::ssize(made_->beside->ids);
  const std::int64_t rows = made_->graph->rows(), kept = state.size - added;
  if (8 * added > std::max<std::int64_t>(8192, rows) || 4 * kept < 3 * rows) return {};
  return made_;
}

std::optional<GraphOfState::Made> GraphOfState::get(const State& state, const IndexShape& shape,
                                                    int threads, const Progress& progress,
                                                    double* seconds) {
  if (state.size < least_rows_in_graph) return {};
  if (auto there = current(state)) return there;
  if (!may_prepare()) return {};
  std::lock_guard one(making_);
  if (auto there = current(state)) return there;
  const Stopwatch time;
  Made made = as_made(build_row_graph(state, shape, resolve_threads(threads), progress));
  made.beside = rows_beside(state, {});
  if (const auto before = this->made()) made.number = before->number + 1;
  give_back_freed_memory();
  if (seconds) *seconds = time.seconds();
  std::lock_guard lock(mutex_);
  made_ = made;
  return made;
}

std::int64_t GraphOfState::bytes() const {
  const auto there = made();
  return there ? there->graph->bytes() + 8 * std::ssize(*there->added) : 0;
}

ExactNeighbors search_graph(const State& state, const IndexShape& shape,
                            std::span<const SearchSegment> segments, AnyMatrixView queries,
                            std::int64_t k, const SearchOptions& options, KnnReport* report) {
  Asked asked = asked_for(options, shape, k);
  // Among as many candidates as there are rows all are found, also where codes cannot tell them
  // apart or the graph does not lead to them. A scan takes more memory than a walk.
  if (asked.ef >= std::max<std::int64_t>(state.size, 1) && options.memory == 0)
    asked.everything = true;
  if (options.memory > 0 && !asked.everything && state.size >= least_rows_in_graph &&
      !state.graph->current(state))
    if (const std::int64_t bytes = building_bytes(state, shape); bytes > options.memory)
      throw MemoryBudgetError(
          "memory is {} bytes, but the graph of {} rows, which has to be made first, takes about "
          "{}: optimize() makes it",
          options.memory, state.size, bytes);
  SearchRequest request(SearchKind::nearest, segments, queries, k,
                        options_of_part(options, shape.metric), Reuse::expected);
  request.altered_by = shape.altered_by();
  const auto note = [&](std::string_view more) { add_note(request.preparation.note, more); };
  double made_seconds = 0;
  const auto made = asked.everything ? std::nullopt
                                     : state.graph->get(state, shape, request.threads,
                                                        options.progress, &made_seconds);
  if (!made) {
    if (!asked.everything && state.size >= least_rows_in_graph)
      note("the graph is made aside, so all rows were compared");
    return nearest_in_segments(request, report);
  }
  request.preparation.seconds = made_seconds;
  if (made_seconds > 0)
    note(
        fmt::format("the graph of {} rows was made first, which the index keeps, and its file "
                    "once it is saved (optimize() does that)",
                    made->graph->rows()));
  GraphSearch search(state, shape, *made, segments, request);
  const bool filtered = !options.filter.everything();
  GraphEffort effort = usual_effort(asked.ef);
  RecallPoint point;
  AuditLog::Audited audited;
  bool holds = true, by_audit = false;
  const auto scan = [&] { return nearest_in_segments(request, report); };
  if (asked.recall) {
    const Stopwatch calibrating;
    bool first = false;
    std::shared_ptr<const RecallCurve> curve = made->curves->get(k, [&] {
      first = true;
      return calibrate_graph_by_rows(state, shape, *made, k, request.threads, options.progress);
    });
    if (first)
      note(
          fmt::format("recall of {} neighbours was calibrated first, which the index keeps, "
                      "and its file once it is saved ('knear tune' does that)",
                      k));
    request.preparation.seconds += calibrating.seconds();
    const RecallPoint* found = curve->find(*asked.recall);
    const AuditLog::Search traffic{.traffic = std::string(options.method.traffic.text()),
                                   .k = k,
                                   .recall = *asked.recall,
                                   .sample = most_rows_calibrated,
                                   .epoch = made->number,
                                   .may_audit = options.memory == 0};
    if (state.audits && !filtered && queries.rows() > 0)
      audited = audit(state, shape, *made, segments, traffic, request, found, note);
    const bool is_audited = audited.followed && (state.audits->share() > 0 || audited.curve);
    if (audited.curve) {
      const RecallPoint* const by_traffic = audited.point(*asked.recall, traffic.sample);
      if (!by_traffic) return scan();
      point = *by_traffic, effort = {point.rule.ef, point.rule.starts};
      if (search.scan_is_faster(effort.ef)) return scan();
      search.run(queries, k, effort);
      by_audit = of_one_kind(*audited.curve, search.nearest_starts());
    }
    if (!by_audit && !found) return scan();  // more than a walk is known to find
    const bool small = queries.rows() < least_calibrated_batch;
    if (!by_audit && !(is_audited && small && audited.curve)) {
      point = *found, effort = {point.rule.ef, point.rule.starts};
      if (search.scan_is_faster(effort.ef)) return scan();
      search.run(queries, k, effort);
    }
    if (!by_audit && is_audited && small) {
      holds = false;
      note(note_of_unaudited(audited, traffic.traffic));
    } else if (!by_audit && (filtered || !of_one_kind(*curve, search.nearest_starts()))) {
      const std::string_view reason =
          filtered ? "a filter leaves other rows than recall was calibrated on"
                   : "the queries are unlike those that recall was calibrated on";
      if (queries.rows() >= least_calibrated_batch) {
        const Stopwatch again;
        const AnyMatrix sample = copies_of(queries, queries_to_calibrate(queries.rows()));
        const RecallCurve own = calibrate_graph(state, shape, *made, segments, sample.view(), {}, k,
                                                request.threads, options.progress);
        request.preparation.seconds += again.seconds();
        note(fmt::format(
            "{}, so recall was calibrated on {} queries of this batch{}", reason, sample.rows(),
            filtered ? "" : "; tune() with such queries keeps that for searches to come"));
        found = own.find(*asked.recall);
        if (!found) return scan();
        point = *found, effort = {point.rule.ef, point.rule.starts};
        if (search.scan_is_faster(effort.ef)) return scan();
        search.run(queries, k, effort);
      } else {
        holds = false;
        note(fmt::format(
            "{}, so a recall of {} is not promised; a batch of {} queries is calibrated by "
            "itself, and recall = 1 compares all rows",
            reason, *asked.recall, least_calibrated_batch));
      }
    }
  } else {
    if (search.scan_is_faster(effort.ef)) return scan();
    search.run(queries, k, effort);
  }
  search.add_rows_beside(queries, k);
  if (report) {
    *report = {};
    set_request(*report, request);
    report->method = "graph", report->note = request.preparation.note;
    report->prepare_seconds = request.preparation.seconds;
    report->memory_bytes = state.graph->bytes() + search.memory_bytes();
    for (std::int64_t q = 0; q < queries.rows(); ++q)
      report->short_queries += search.found().ids.row(q)[k - 1] == no_id;
    report->scan.isa = name_of(request.isa), report->scan.first_pass = "graph";
    report->scan.survivors_per_query = search.measured();
    report->scan.probed_rows = search.scored();
    report->graph.ef = effort.ef;
    PromiseReport promise = no_promise();
    if (asked.recall && holds) {
      promise.promised_recall = point.promised_to(queries.rows(), *asked.recall);
      promise.expected_recall = point.expected;
      promise.recall_argument = "calibrated";
      if (by_audit) promise.audited_queries = audited.queries;
    }
    set_promise(*report, request, std::move(promise));
  }
  return search.take_found();
}

RangeLists range_search_graph(const IndexShape& shape, std::span<const SearchSegment> segments,
                              AnyMatrixView queries, double radius, const SearchOptions& options,
                              KnnReport* report) {
  if (options.method.ef != 0 || options.method.probes != 0)
    throw InvalidArgument("{} is {}, but a range search of index {} compares all rows",
                          options.method.ef != 0 ? "ef" : "probes",
                          options.method.ef != 0 ? options.method.ef : options.method.probes,
                          shape.description());
  SearchRequest request(SearchKind::range, segments, queries, usual_k,
                        options_of_scan(options, shape.metric), Reuse::expected);
  request.altered_by = shape.altered_by();
  return within_segments(request, radius, report);
}

RecallCurve tune_graph(const State& state, const IndexShape& shape, std::int64_t k,
                       AnyMatrixView queries, const ChangeOptions& options) {
  const auto made = state.graph->get(state, shape, options.threads, options.progress);
  if (!made)
    throw InvalidArgument(
        "index {} has {} rows, but below {} all are compared, whatever the recall: there is "
        "nothing to tune",
        shape.description(), state.size, least_rows_in_graph);
  const int threads = resolve_threads(options.threads);
  RecallCurve curve =
      queries.rows() == 0
          ? calibrate_graph_by_rows(state, shape, *made, k, threads, options.progress)
          : calibrate_graph(state, shape, *made, live_segments(state), queries, {}, k, threads,
                            options.progress);
  made->curves->set(curve);
  return curve;
}

}  // namespace knear::detail
