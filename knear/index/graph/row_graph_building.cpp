#include "knear/index/graph/row_graph_building.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/unit_length.hpp"
#include "knear/distance/exact.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/lists/flat_lists.hpp"
#include "knear/index/lists/list_probing.hpp"
#include "knear/index/lists/recall_calibration.hpp"
#include "knear/knn/knn.hpp"
#include "knear/knn/lists/list_search.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {
namespace {

// Rows from which neighbours are found by inverted lists, and with which recall; rows of which the
// layers above find them so.
constexpr std::int64_t least_rows_by_lists = 65536, least_rows_above_by_lists = 1 << 18;
constexpr double recall_of_neighbours = 0.95;
// Fewer rows are not put in the order of lists.
constexpr std::int64_t least_rows_in_order = 4096;
// Of a node: how many rows that have it among their neighbours are looked at, for each of its own.
constexpr std::int64_t most_reverse = 4;
constexpr std::int64_t parts_of_reverse = 8;  // of the nodes of a large layer
constexpr std::int64_t task_nodes = 1024;     // nodes of a task

template <class F>
void each_block(std::int64_t count, int threads, F f) {
  parallel_for(threads, (count + task_nodes - 1) / task_nodes,
               [&](std::int64_t b) { f(b * task_nodes, std::min(count, (b + 1) * task_nodes)); });
}

struct Row {
  Id id;
  std::uint32_t segment;
  std::int64_t row;
};

std::vector<Row> live_rows(const State& state) {
  std::vector<Row> out;
  out.reserve(state.size);
  for (std::size_t s = 0; s < state.segments.size(); ++s)
    for (std::int64_t row = 0; row < state.segments[s].rows->rows(); ++row)
      if (state.segments[s].live.contains(row))
        out.push_back({state.segments[s].rows->ids()(row), static_cast<std::uint32_t>(s), row});
  std::sort(out.begin(), out.end(), [](const Row& a, const Row& b) { return a.id < b.id; });
  return out;
}

// Calls f(vector, i) for rows begin, ..., end - 1, each as a matrix of one row.
template <class F>
void each_vector(const State& state, const std::vector<Row>& rows, std::int64_t begin,
                 std::int64_t end, F f) {
  std::vector<std::byte> scratch;
  for (std::int64_t i = begin; i < end; ++i) {
    const Row& row = rows[i];
    const BaseRows& base = state.segments[row.segment].rows->base();
    scratch.resize(std::max(scratch.size(), base.scratch_bytes()));
    f(base.row_view(row.row, scratch.data()), i);
  }
}

// The segment that holds all rows in their order, under the ids 0, 1, ... and nothing else, if
// there is one; else nullptr.
const Segment* segment_of_all(const State& state, const std::vector<Row>& rows) {
  if (rows.empty()) return nullptr;
  const Segment& segment = state.segments[rows.front().segment];
  const SegmentRows& all = *segment.rows;
  if (all.rows() != std::ssize(rows) || all.has_own_ids() || all.first_id() != 0) return nullptr;
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i].segment != rows.front().segment || rows[i].row != static_cast<std::int64_t>(i))
      return nullptr;
  return &segment;
}

// One unit for all columns, by which nearly all of some drawn rows fall into 8 bits.
GraphCoding learn_coding(const State& state, const IndexShape& shape, const std::vector<Row>& rows,
                         int threads) {
  GraphCoding out;
  out.metric = shape.metric, out.dim = shape.inner_dim();
  ValueRange found;
  for (const Segment& segment : state.segments) found = united(found, segment.rows->found());
  if (traits_of(out.metric).squared && found.integer && found.high - found.low <= 255) {
    out.lows.assign(out.dim, found.low);
    return out;  // codes are the numbers themselves
  }
  if (traits_of(out.metric).lifted) {
    const std::int64_t blocks = (std::ssize(rows) + task_nodes - 1) / task_nodes;
    std::vector<double> longest(blocks), squares(longest.size());
    each_block(std::ssize(rows), threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> row(out.dim);
      each_vector(state, rows, begin, end, [&](AnyMatrixView vector, std::int64_t) {
        row_as_doubles(vector, 0, row.data());
        const double length = safe_length(row.data(), out.dim).value();
        const std::size_t at = begin / task_nodes;
        longest[at] = std::max(longest[at], length);
        squares[at] += length / static_cast<double>(std::ssize(rows)) * length;
      });
    });
    out.longest = *std::max_element(longest.begin(), longest.end());
    out.query_length = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  }
  constexpr std::int64_t most_drawn = 16384;
  std::vector<Row> drawn;
  for (const DrawnRow& one : drawn_rows(state, most_drawn))
    drawn.push_back({one.id, static_cast<std::uint32_t>(one.segment), one.row});
  const std::int64_t count = std::ssize(drawn), columns = out.columns();
  Matrix<double> values(columns, count);
  each_block(count, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> row(columns);
    each_vector(state, drawn, begin, end, [&](AnyMatrixView vector, std::int64_t i) {
      out.to_space(vector, 0, false, row.data());
      for (std::int64_t j = 0; j < columns; ++j) values.row(j)[i] = row[j];
    });
  });
  // A few that lie far from the others are cut off; the others keep a margin.
  const std::int64_t cut = count / 2000;
  out.lows.resize(columns);
  double widest = 0;
  for (std::int64_t j = 0; j < columns; ++j) {
    double* const column = values.row(j);
    std::sort(column, column + count);
    out.lows[j] = column[cut];
    widest = std::max(widest, column[count - 1 - cut] - column[cut]);
  }
  // Queries of products have 0 in the last column.
  if (traits_of(out.metric).lifted) {
    out.lows.back() = 0;
    widest = std::max(widest, values.row(columns - 1)[count - 1 - cut]);
  }
  if (!(widest > 0)) return out;
  const double range = 1.1 * widest;
  for (double& low : out.lows) low -= 0.05 * widest;
  out.scale = 255 / range;
  return out;
}

// The numbers themselves instead of codes.
void keep_numbers(const State& state, GraphCoding& coding) {
  coding.numbers = state.type == ElementType::f64 ? ElementType::f64 : ElementType::f32;
  // Codes had 255 steps: squares of distances as small as 2^-100 of the largest are floats then.
  coding.scale = std::ldexp(1.0, 2 * std::clamp(std::ilogb(coding.scale) + 32, -400, 400));
  coding.lows.clear();
}

// Whether codes put the nearest neighbours of rows behind others, so that a search that measures
// what is nearest by codes does not find them: tried on drawn rows and their true neighbours.
bool codes_hide_neighbours(const State& state, const IndexShape& shape, const GraphCoding& coding,
                           int threads) {
  constexpr std::int64_t most_drawn = 200, wanted = 10, measured = 18, compared = 65;
  constexpr double least_found = 0.985;
  const std::vector<DrawnRow> drawn = drawn_rows(state, most_drawn);
  const ElementType type = state.type.value_or(ElementType::f32);
  AnyMatrix queries(type, std::ssize(drawn), shape.inner_dim());
  std::vector<std::byte> scratch;
  const auto row_of = [&](std::size_t segment, std::int64_t row) {
    const BaseRows& base = state.segments[segment].rows->base();
    scratch.resize(std::max(scratch.size(), base.scratch_bytes()));
    return base.row_view(row, scratch.data());
  };
  for (std::size_t q = 0; q < drawn.size(); ++q)
    copy_exactly(row_of(drawn[q].segment, drawn[q].row), type,
                 queries.row(static_cast<std::int64_t>(q)));
  const std::vector<SearchSegment> segments = live_segments(state);
  const SearchRequest request(SearchKind::nearest, segments, queries.view(), compared,
                              {.metric = shape.metric, .threads = threads}, Reuse::expected);
  const Neighbors truth = search_segments(request, nullptr);
  AlignedArray<std::uint8_t> codes(compared * coding.stride());
  std::vector<double> values(coding.columns());
  NodeScores scores(coding);
  std::int64_t near = 0, found = 0;
  for (std::int64_t q = 0; q < queries.view().rows(); ++q) {
    // By distance: all but the row itself, and where the last of those that are wanted is.
    std::vector<std::uint32_t> places;
    std::vector<float> distances;
    for (std::int64_t i = 0; i < compared && truth.ids.row(q)[i] != no_id; ++i) {
      if (truth.ids.row(q)[i] == drawn[q].id) continue;
      const State::Place at = state.find(truth.ids.row(q)[i]);
      coding.code_row(row_of(at.segment, at.row), 0, values.data(),
                      codes.data() + std::ssize(places) * coding.stride());
      places.push_back(static_cast<std::uint32_t>(places.size()));
      distances.push_back(truth.distances.row(q)[i]);
    }
    if (std::ssize(places) <= measured) continue;
    std::vector<std::uint32_t> by_codes(places.size());
    scores.from_query(queries.view(), q);
    scores.of(codes.data(), coding.stride(), places.data(), std::ssize(places), by_codes.data());
    const auto is_near = [&, last = distances[wanted - 1]](std::uint32_t i) {
      return traits_of(shape.metric).larger_is_nearer ? distances[i] >= last : distances[i] <= last;
    };
    // Of equal codes any may come first: here those that are not near.
    std::sort(places.begin(), places.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(by_codes[a], is_near(a)) < std::pair(by_codes[b], is_near(b));
    });
    near += wanted;
    found += std::min<std::int64_t>(
        wanted, std::count_if(places.begin(), places.begin() + measured, is_near));
  }
  return static_cast<double>(found) < least_found * static_cast<double>(near);
}

// Rows of equal codes together: their numbers, and where each node's begin.
struct Groups {
  std::vector<std::uint32_t> rows;
  std::vector<std::int64_t> begin;
};
Groups equal_codes(const AlignedArray<std::uint8_t>& codes, std::int64_t count, std::int64_t stride,
                   int threads) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> keys(count);
  each_block(count, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint64_t hash = 0;
      for (std::int64_t b = 0; b < stride; b += 8) {
        std::uint64_t word;
        std::memcpy(&word, codes.data() + i * stride + b, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 32;
      }
      keys[i] = {hash, static_cast<std::uint32_t>(i)};
    }
  });
  const auto code_of = [&](std::uint32_t row) { return codes.data() + std::int64_t{row} * stride; };
  const auto compared = [&](std::uint32_t a, std::uint32_t b) {
    return std::memcmp(code_of(a), code_of(b), stride);
  };
  std::sort(keys.begin(), keys.end(), [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    const int order = compared(a.second, b.second);
    return order != 0 ? order < 0 : a.second < b.second;
  });
  // Groups in the order of their first rows.
  std::vector<std::pair<std::uint32_t, std::size_t>> firsts;
  for (std::size_t i = 0; i < keys.size(); ++i)
    if (i == 0 || keys[i].first != keys[i - 1].first ||
        compared(keys[i].second, keys[i - 1].second) != 0)
      firsts.emplace_back(keys[i].second, i);
  std::vector<std::size_t> ends;
  for (std::size_t g = 1; g <= firsts.size(); ++g)
    ends.push_back(g < firsts.size() ? firsts[g].second : keys.size());
  std::vector<std::size_t> order(firsts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return firsts[a].first < firsts[b].first; });
  Groups out;
  out.begin.push_back(0);
  for (const std::size_t g : order) {
    for (std::size_t i = firsts[g].second; i < ends[g]; ++i) out.rows.push_back(keys[i].second);
    out.begin.push_back(std::ssize(out.rows));
  }
  return out;
}

// The vectors of nodes: rows of a matrix, or of a segment that holds nothing else.
struct NodeVectors {
  ElementType type;
  AnyMatrixView matrix = {};  // empty: there is a segment
  const Segment* segment = nullptr;

  static NodeVectors of(AnyMatrixView rows) { return {rows.type(), rows}; }
  std::int64_t rows() const { return segment ? segment->rows->rows() : matrix.rows(); }
  std::int64_t cols() const { return segment ? segment->rows->base().cols() : matrix.cols(); }
  // Writes row number at(i) to row i of a matrix [count x cols()], for i = 0, ..., count - 1.
  template <class At>
  AnyMatrix some(std::int64_t count, int threads, At at) const {
    AnyMatrix out(type, count, cols());
    each_block(count, threads, [&](std::int64_t begin, std::int64_t end) {
      const BaseRows base = segment ? segment->rows->base() : BaseRows(matrix);
      std::vector<std::byte> scratch(base.scratch_bytes());
      for (std::int64_t i = begin; i < end; ++i)
        copy_exactly(base.row_view(at(i), scratch.data()), type, out.row(i));
    });
    return out;
  }
  // The vectors as a segment under the ids 0, 1, ...
  Segment as_segment(Metric metric, int threads) const {
    if (segment) return *segment;
    const ValueRange found = find_value_range(matrix, metric, "rows", threads);
    return {SegmentRows::of_matrix({.matrix = matrix, .keeper = {}, .found = found, .first = 0},
                                   metric),
            RowSet(matrix.rows())};
  }
};

// The k nearest others of each of some vectors [n x k], padded with no_node, and the order of the
// vectors by inverted list.
class NearestOthers {
 public:
  NearestOthers(const NodeVectors& vectors, Metric metric, std::int64_t k, int threads,
                const Progress& progress)
      : vectors_(vectors), metric_(metric), k_(k), threads_(threads), progress_(progress) {}

  // By lists, which are made first.
  std::vector<std::uint32_t> order() {
    std::vector<std::uint32_t> out(vectors_.rows());
    std::iota(out.begin(), out.end(), 0u);
    if (vectors_.rows() < least_rows_in_order) return out;
    make_lists();
    const std::vector<std::uint32_t> list = lists_->segments.front().rows->list_of();
    std::stable_sort(out.begin(), out.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return list[a] < list[b]; });
    return out;
  }

  // In the order of `order`, in whose places the neighbours are. Called once, as the last.
  Matrix<std::uint32_t> find(std::span<const std::uint32_t> order, bool by_lists) {
    const std::int64_t n = vectors_.rows();
    std::vector<std::uint32_t> place(n);
    for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<std::uint32_t>(i);
    Matrix<std::uint32_t> out = Matrix<std::uint32_t>::unset(n, k_);
    const auto take = [&](std::int64_t at, const Id* found, std::int64_t count) {
      std::uint32_t* const to = out.row(at);
      const Id own = order[at];
      std::int64_t filled = 0;
      for (std::int64_t j = 0; j < count && filled < k_; ++j)
        if (found[j] != own && found[j] != no_id) to[filled++] = place[found[j]];
      std::fill(to + filled, to + k_, no_node);
    };
    if (!by_lists) {
      AnyMatrix copies;
      if (vectors_.segment) copies = vectors_.some(n, threads_, [](std::int64_t i) { return i; });
      const Neighbors found =
          self_join(vectors_.segment ? copies.view() : vectors_.matrix, k_,
                    {.metric = metric_, .threads = threads_, .progress = progress_});
      for (std::int64_t i = 0; i < n; ++i) take(i, found.ids.row(order[i]), k_);
      return out;
    }
    make_lists();
    give_back_freed_memory();
    const RecallCurve curve =
        calibrate_by_rows(*lists_, metric_, k_, threads_, progress_, CurveUse::once);
    const RecallPoint* point = curve.find(recall_of_neighbours);
    const RecallRule rule = point ? point->rule : RecallRule{.lists = lists_->coarse->lists()};
    const std::vector<SearchSegment> segments = live_segments(*lists_);
    give_back_freed_memory();
    constexpr std::int64_t together = 2048;
    Reporter reporter(progress_, "neighbours", n);
    for (std::int64_t begin = 0; begin < n; begin += together) {
      const std::int64_t end = std::min(n, begin + together);
      const AnyMatrix queries = vectors_.some(
          end - begin, threads_, [&](std::int64_t i) { return std::int64_t{order[begin + i]}; });
      const SearchRequest request(SearchKind::nearest, segments, queries.view(), k_ + 1,
                                  {.metric = metric_, .threads = threads_}, Reuse::expected);
      ListSearch scan(request);
      ListProbing probing(*lists_, request, scan);
      probing.probe_by(rule, probing.lists_near(rule.lists));
      const ExactNeighbors& found = probing.found();
      for (std::int64_t i = begin; i < end; ++i) take(i, found.ids.row(i - begin), found.columns());
      reporter.add(end - begin);
    }
    lists_ = nullptr;  // they take as much as the graph does
    give_back_freed_memory();
    return out;
  }

 private:
  void make_lists() {
    if (lists_) return;
    State state;
    state.type = vectors_.type;
    state.next_id = state.size = vectors_.rows();
    state.segments.push_back(vectors_.as_segment(metric_, threads_));
    lists_ = in_lists(state, {.dim = vectors_.cols(), .metric = metric_}, KeptApart::calibrated,
                      threads_, progress_);
  }

  const NodeVectors vectors_;
  const Metric metric_;
  const std::int64_t k_;
  const int threads_;
  const Progress& progress_;
  std::shared_ptr<const State> lists_;
};

// Chooses the links of the nodes of one layer.
class Linking {
 public:
  // above: the layer above, which has its links.
  Linking(const RowGraph::Layer& layer, const RowGraph::Layer& above, const GraphCoding& coding,
          std::int64_t degree, int threads)
      : codes_(layer.codes.data()),
        coding_(coding),
        above_(above),
        nodes_(layer.nodes),
        degree_(degree),
        threads_(threads) {}

  // near: of each node its nearest others, which are given up on the way.
  AlignedArray<std::uint32_t> links(Matrix<std::uint32_t> near) {
    const std::int64_t near_each = near.cols();
    AlignedArray<std::uint32_t> out =
        AlignedArray<std::uint32_t>::unset(static_cast<std::size_t>(nodes_ * degree_));
    // Of each node: how many links were chosen, the first ones of its row in `out`. Behind them are
    // near nodes that were not.
    std::vector<std::int32_t> chosen(nodes_);
    // Reverse neighbours take as much memory as the neighbours: a part of the nodes at a time.
    const std::int64_t parts = nodes_ < least_rows_by_lists ? 1 : parts_of_reverse,
                       nodes_of_part = (nodes_ + parts - 1) / parts;
    for (std::int64_t first = 0; first < nodes_; first += nodes_of_part) {
      const std::int64_t last = std::min(nodes_, first + nodes_of_part);
      const Lists back = reversed(
          near.data(), near_each, [&](std::int64_t) { return near_each; }, most_reverse * near_each,
          first, last);
      each_block(last - first, threads_, [&](std::int64_t begin, std::int64_t end) {
        Scratch scratch(coding_);
        for (std::int64_t i = first + begin; i < first + end; ++i) {
          const std::uint32_t* const nearest = near.row(i);
          std::uint32_t* const to = out.data() + i * degree_;
          scratch.begin();
          for (std::int64_t j = 0; j < near_each; ++j) scratch.add(nearest[j]);
          for (const std::uint32_t other : back.of(i)) scratch.add(other);
          add_far(i, {nearest, static_cast<std::size_t>(near_each)}, scratch);
          sort_candidates(i, scratch);
          choose(scratch, to);
          std::int64_t filled = std::find(to, to + degree_, no_node) - to;
          chosen[i] = static_cast<std::int32_t>(filled);
          for (std::int64_t j = 0; j < near_each && nearest[j] != no_node; ++j)
            add_unless_there(to, filled, nearest[j]);
        }
      });
    }
    near = Matrix<std::uint32_t>();
    // Links take the place of those chosen first, which no other node reads any more.
    const auto chosen_of = [&](std::int64_t i) { return std::int64_t{chosen[i]}; };
    const Lists back = reversed(out.data(), degree_, chosen_of, nodes_, 0, nodes_);
    each_block(nodes_, threads_, [&](std::int64_t begin, std::int64_t end) {
      Scratch scratch(coding_);
      std::vector<std::uint32_t> others;
      for (std::int64_t i = begin; i < end; ++i) {
        std::uint32_t* const to = out.data() + i * degree_;
        scratch.begin();
        for (std::int64_t j = 0; j < chosen_of(i); ++j) scratch.add(to[j]);
        for (const std::uint32_t other : back.of(i)) scratch.add(other);
        others.assign(to + chosen_of(i), to + degree_);
        sort_candidates(i, scratch);
        if (std::ssize(scratch.candidates) > degree_) {
          choose(scratch, to);
        } else {
          std::fill(to, to + degree_, no_node);
          for (std::size_t j = 0; j < scratch.candidates.size(); ++j)
            to[j] = scratch.candidates[j].second;
        }
        // What is left of the places: the nearest that are no links yet. Those kept are enough: for
        // each of them that is a candidate now there is a link more.
        std::int64_t filled = std::find(to, to + degree_, no_node) - to;
        for (const auto& candidate : scratch.candidates)
          add_unless_there(to, filled, candidate.second);
        for (const std::uint32_t other : others)
          if (other != no_node) add_unless_there(to, filled, other);
      }
    });
    return out;
  }

 private:
  using Candidate = std::pair<std::uint32_t, std::uint32_t>;  // distance, node
  struct Scratch {
    explicit Scratch(const GraphCoding& coding) : scores(coding) {}
    std::vector<std::uint32_t> nodes, distances;
    std::vector<Candidate> candidates;
    NodeScores scores;
    void begin() { nodes.clear(); }
    void add(std::uint32_t node) {
      if (node != no_node) nodes.push_back(node);
    }
  };
  // Numbers in rows of different length, of the nodes from `first` on.
  struct Lists {
    std::int64_t first;
    std::vector<std::int64_t> begin;
    std::vector<std::uint32_t> numbers;
    std::span<const std::uint32_t> of(std::int64_t i) const {
      const std::size_t at = i - first;
      return {numbers.data() + begin[at], static_cast<std::size_t>(begin[at + 1] - begin[at])};
    }
  };

  // For each node from `first` to before `last`, the nodes i that have it among the first used(i)
  // of their row [nodes x cols], ascending, at most `most` of them.
  template <class Used>
  Lists reversed(const std::uint32_t* rows, std::int64_t cols, Used used, std::int64_t most,
                 std::int64_t first, std::int64_t last) const {
    Lists out{first, {}, {}};
    const auto count = static_cast<std::uint32_t>(last - first),
               offset = static_cast<std::uint32_t>(first);
    std::vector<std::int64_t> counts(count);
    const auto each = [&](auto f) {
      for (std::int64_t i = 0; i < nodes_; ++i) {
        const std::uint32_t* const row = rows + i * cols;
        for (std::int64_t j = 0; j < used(i) && row[j] != no_node; ++j)
          if (const std::uint32_t to = row[j] - offset; to < count)
            f(to, static_cast<std::uint32_t>(i));
      }
    };
    each([&](std::uint32_t to, std::uint32_t) { counts[to] += counts[to] < most; });
    out.begin.assign(counts.size() + 1, 0);
    std::partial_sum(counts.begin(), counts.end(), out.begin.begin() + 1);
    out.numbers.resize(out.begin.back());
    std::fill(counts.begin(), counts.end(), 0);
    each([&](std::uint32_t to, std::uint32_t from) {
      if (counts[to] < out.begin[to + 1] - out.begin[to])
        out.numbers[out.begin[to] + counts[to]++] = from;
    });
    return out;
  }

  // Neighbours alone lead nowhere where rows lie in groups of fewer. So the links of a node of the
  // layer above that lies near are looked at too: of one that is a neighbour, or else of the one
  // that stands for the list at this place.
  void add_far(std::int64_t i, std::span<const std::uint32_t> near, Scratch& scratch) const {
    constexpr auto step = static_cast<std::uint32_t>(RowGraph::layer_step);
    if (above_.links.size() == 0) {
      for (std::int64_t j = 0; j < above_.nodes; ++j)
        scratch.add(RowGraph::below(static_cast<std::uint32_t>(j)));
      return;
    }
    auto at = static_cast<std::uint32_t>(std::min(i / RowGraph::layer_step, above_.nodes - 1));
    for (const std::uint32_t node : near) {
      if (node == no_node) break;
      if (node % step != step / 2) continue;
      at = node / step;
      break;
    }
    scratch.add(RowGraph::below(at));
    const std::uint32_t* const links = above_.links.data() + std::int64_t{at} * degree_;
    for (std::int64_t j = 0; j < degree_ && links[j] != no_node; ++j)
      scratch.add(RowGraph::below(links[j]));
  }

  // Adds a node behind the first `filled` of a row of links, if there is room and it is none of
  // them.
  void add_unless_there(std::uint32_t* row, std::int64_t& filled, std::uint32_t node) const {
    if (filled < degree_ && std::find(row, row + filled, node) == row + filled)
      row[filled++] = node;
  }

  // Candidates by distance from node i and number, each once, none the node itself.
  void sort_candidates(std::int64_t i, Scratch& scratch) const {
    auto& nodes = scratch.nodes;
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    std::erase(nodes, static_cast<std::uint32_t>(i));
    scratch.distances.resize(nodes.size());
    scratch.scores.from_node(codes_, static_cast<std::uint32_t>(i));
    scratch.scores.of(codes_, coding_.stride(), nodes.data(), std::ssize(nodes),
                      scratch.distances.data());
    scratch.candidates.clear();
    for (std::size_t j = 0; j < nodes.size(); ++j)
      scratch.candidates.emplace_back(scratch.distances[j], nodes[j]);
    std::sort(scratch.candidates.begin(), scratch.candidates.end());
  }

  // Of the candidates, from the nearest on, those of which none that was taken is nearer to them
  // than the node is; at most degree, padded with no_node.
  void choose(Scratch& scratch, std::uint32_t* out) const {
    std::int64_t taken = 0;
    std::uint32_t distances[8];
    for (const auto& [distance, node] : scratch.candidates) {
      bool hidden = false;
      scratch.scores.from_node(codes_, node);
      for (std::int64_t j = 0; j < taken && !hidden; j += 8) {
        const std::int64_t some = std::min<std::int64_t>(8, taken - j);
        scratch.scores.of(codes_, coding_.stride(), out + j, some, distances);
        hidden = std::any_of(distances, distances + some,
                             [limit = distance](std::uint32_t x) { return x < limit; });
      }
      if (!hidden) out[taken++] = node;
      if (taken == degree_) break;
    }
    std::fill(out + taken, out + degree_, no_node);
  }

  const std::uint8_t* const codes_;
  const GraphCoding& coding_;
  const RowGraph::Layer& above_;
  const std::int64_t nodes_, degree_;
  const int threads_;
};

// Links to what no walk from the starts would come to: the nodes of the layer above are the starts.
// A node that is not reached hangs from one of its own links that is, in place of that one's last.
void connect(std::int64_t nodes, std::int64_t degree, std::uint32_t* links) {
  constexpr int rounds = 8;
  std::vector<char> reached, altered(nodes, 0);
  for (int round = 0; round < rounds; ++round) {
    reached.assign(nodes, 0);
    std::vector<std::uint32_t> next;
    const auto reach = [&](std::uint32_t node) {
      if (!std::exchange(reached[node], char{1})) next.push_back(node);
    };
    for (std::int64_t i = 0; i < RowGraph::nodes_above(nodes); ++i)
      reach(RowGraph::below(static_cast<std::uint32_t>(i)));
    const auto go_on = [&] {
      while (!next.empty()) {
        const std::uint32_t* const row = links + std::int64_t{next.back()} * degree;
        next.pop_back();
        for (std::int64_t j = 0; j < degree && row[j] != no_node; ++j) reach(row[j]);
      }
    };
    go_on();
    bool any = false;
    for (std::int64_t i = 0; i < nodes; ++i) {
      if (reached[i]) continue;
      const std::uint32_t* const own = links + i * degree;
      for (std::int64_t j = 0; j < degree && own[j] != no_node; ++j) {
        if (!reached[own[j]] || altered[own[j]]) continue;
        std::uint32_t* const row = links + std::int64_t{own[j]} * degree;
        const std::int64_t used = std::find(row, row + degree, no_node) - row;
        row[std::min(used, degree - 1)] = static_cast<std::uint32_t>(i);
        altered[own[j]] = char{1}, any = true;
        reach(static_cast<std::uint32_t>(i)), go_on();
        break;
      }
    }
    if (!any) return;
  }
}

}  // namespace

std::shared_ptr<const RowGraph> build_row_graph(const State& state, const IndexShape& shape,
                                                int threads, const Progress& progress) {
  std::vector<Row> rows = live_rows(state);
  if (std::ssize(rows) >= std::int64_t{1} << 31)
    throw InvalidArgument("a graph has fewer than 2^31 rows, but there are {}", rows.size());
  auto graph = std::make_shared<RowGraph>();
  graph->coding = learn_coding(state, shape, rows, threads);
  if (codes_hide_neighbours(state, shape, graph->coding, threads))
    keep_numbers(state, graph->coding);
  graph->degree = shape.graph_degree;
  const GraphCoding& coding = graph->coding;
  const std::int64_t stride = coding.stride(), columns = coding.columns();

  // Codes of some rows, in their order.
  const auto codes_of = [&](const std::vector<Row>& some) {
    AlignedArray<std::uint8_t> codes =
        AlignedArray<std::uint8_t>::unset(static_cast<std::size_t>(std::ssize(some) * stride));
    each_block(std::ssize(some), threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> scratch(columns);
      each_vector(state, some, begin, end, [&](AnyMatrixView vector, std::int64_t i) {
        coding.code_row(vector, 0, scratch.data(), codes.data() + i * stride);
      });
    });
    return codes;
  };
  // Codes are made again later, in the order of the nodes: meanwhile others need the memory.
  Groups groups = equal_codes(codes_of(rows), std::ssize(rows), stride, threads);
  const std::int64_t nodes = std::ssize(groups.begin) - 1;
  std::vector<Row> firsts;
  for (std::int64_t g = 0; g < nodes; ++g) firsts.push_back(rows[groups.rows[groups.begin[g]]]);

  // The vectors of the nodes, for products with their last column: those of the one segment that
  // holds all of them, or copies.
  const bool lifted = traits_of(coding.metric).lifted;
  const Metric metric = lifted ? Metric::l2 : coding.metric;
  const ElementType type = lifted ? ElementType::f32 : state.type.value_or(ElementType::f32);
  AnyMatrix copies;
  const NodeVectors vectors = [&]() -> NodeVectors {
    if (const Segment* const all = lifted ? nullptr : segment_of_all(state, firsts))
      return {type, {}, all};
    copies = AnyMatrix(type, nodes, columns);
    each_block(nodes, threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<double> scratch(columns);
      each_vector(state, firsts, begin, end, [&](AnyMatrixView vector, std::int64_t i) {
        if (!lifted) {
          copy_exactly(vector, type, copies.row(i));
          return;
        }
        coding.to_space(vector, 0, false, scratch.data());
        std::transform(scratch.begin(), scratch.end(), static_cast<float*>(copies.row(i)),
                       [](double x) { return static_cast<float>(x); });
      });
    });
    return NodeVectors::of(copies.view());
  }();

  const std::int64_t k = std::min(nodes - 1, graph->degree + graph->degree / 2);
  NearestOthers nearest(vectors, metric, std::max<std::int64_t>(1, k), threads, progress);
  const std::vector<std::uint32_t> order = nearest.order();
  graph->begin = AlignedArray<std::int64_t>(static_cast<std::size_t>(nodes) + 1);
  graph->ids = AlignedArray<Id>::unset(rows.size());
  std::int64_t at = 0;
  for (std::int64_t node = 0; node < nodes; ++node) {
    const std::size_t group = order[node];
    for (std::int64_t i = groups.begin[group]; i < groups.begin[group + 1]; ++i)
      graph->ids[at++] = rows[groups.rows[i]].id;
    graph->begin[node + 1] = at;
  }
  rows = std::vector<Row>(), groups = {};
  Matrix<std::uint32_t> near_base;
  if (nodes > RowGraph::most_scanned) near_base = nearest.find(order, nodes >= least_rows_by_lists);
  for (std::int64_t node = 0; node < nodes; ++node) rows.push_back(firsts[order[node]]);
  firsts = std::vector<Row>();
  RowGraph::Layer base;
  base.nodes = nodes;
  base.codes = codes_of(rows);
  rows = std::vector<Row>();

  // The layers, then their links from the coarsest on.
  graph->layers.push_back(std::move(base));
  std::vector<std::vector<std::uint32_t>> vectors_of{order};  // of the nodes of each layer
  while (graph->layers.back().nodes > RowGraph::most_scanned) {
    const RowGraph::Layer& under = graph->layers.back();
    RowGraph::Layer layer;
    layer.nodes = RowGraph::nodes_above(under.nodes);
    layer.codes = AlignedArray<std::uint8_t>::unset(static_cast<std::size_t>(layer.nodes * stride));
    std::vector<std::uint32_t> above;
    for (std::int64_t i = 0; i < layer.nodes; ++i) {
      const std::uint32_t below = RowGraph::below(static_cast<std::uint32_t>(i));
      above.push_back(vectors_of.back()[below]);
      std::memcpy(layer.codes.data() + i * stride,
                  under.codes.data() + std::int64_t{below} * stride, stride);
    }
    vectors_of.push_back(std::move(above));
    graph->layers.push_back(std::move(layer));
  }
  for (std::size_t l = graph->layers.size() - 1; l-- > 0;) {
    RowGraph::Layer& layer = graph->layers[l];
    Matrix<std::uint32_t> near;
    if (l == 0) {
      near = std::move(near_base);
      copies = AnyMatrix();  // the last layer needs no vectors
      give_back_freed_memory();
    } else {
      const AnyMatrix some = vectors.some(
          layer.nodes, threads, [&](std::int64_t i) { return std::int64_t{vectors_of[l][i]}; });
      std::vector<std::uint32_t> same(layer.nodes);
      std::iota(same.begin(), same.end(), 0u);
      NearestOthers of_layer(NodeVectors::of(some.view()), metric, std::min(k, layer.nodes - 1),
                             threads, progress);
      near = of_layer.find(same, layer.nodes >= least_rows_above_by_lists);
    }
    layer.links =
        Linking(layer, graph->layers[l + 1], coding, graph->degree, threads).links(std::move(near));
    connect(layer.nodes, graph->degree, layer.links.data());
  }
  graph->make_runs(threads);
  return graph;
}

}  // namespace knear::detail
