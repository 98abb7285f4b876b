#include "knear/graph/path_search.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"

namespace knear::detail {
namespace {

// Rows after which it is asked whether to go on.
constexpr std::int64_t rows_between_checks = 16384;

// Searches that are kept for the next calls; where more calls are at work at once, they make their
// own and throw them away.
constexpr std::size_t most_idle = 4;

// For paths that are longer than 64 bits can say: more than two million of the largest steps.
__extension__ typedef __int128 Wide;

// What a cosine distance may lie outside of [0, 2]: that of numbers of 16 bits, which others
// compute with, is off by 2^-10 at most.
constexpr float rounding = 0x1p-10f;

std::size_t place(std::int64_t row) { return row; }

// std::llround() of a float in whole units, which is not negative and below 2^40, without a call:
// the sum is exact, or x is far below a half.
std::int64_t rounded(double x) { return static_cast<std::int64_t>(x + 0.5); }

// Rows by their distance, where each that comes is as far as the last that was taken or farther, by
// a largest step at most. What is far lies unordered in buckets; the nearest of them is sorted when
// its turn comes, so that it is known which rows are next, and what still comes for it goes to a
// heap.
template <class Sum>
class RowQueue {
 public:
  struct Entry {
    Sum distance;
    std::uint32_t row;
  };

  void clear() {
    sorted_.clear(), heap_.clear();
    for (std::vector<Entry>& bucket : buckets_) bucket.clear();
    now_ = size_ = 0;
  }
  std::size_t size() const { return size_; }

  void push(Sum distance, std::uint32_t row) {
    ++size_;
    const std::size_t bucket = distance >> bucket_bits;
    if (bucket != now_) return buckets_[bucket % buckets_.size()].push_back({distance, row});
    heap_.push_back({distance, row});
    std::push_heap(heap_.begin(), heap_.end(), farther);
  }
  // The nearest that is wanted(), those before it are dropped; nullptr if there is none.
  template <class F>
  const Entry* top(F wanted) {
    while (size_ > 0) {
      if (sorted_.empty() && heap_.empty())
        next_bucket(wanted);
      else if (const Entry& entry = front(); wanted(entry))
        return &entry;
      else
        pop();
    }
    return nullptr;
  }
  const Entry& front() const { return from_heap() ? heap_.front() : sorted_.back(); }
  void pop() {
    --size_;
    if (!from_heap()) return sorted_.pop_back();
    std::pop_heap(heap_.begin(), heap_.end(), farther);
    heap_.pop_back();
  }
  // The row that will mostly be the front after so many calls of pop(), if it is known.
  const Entry* front_after(std::size_t calls) const {
    return calls < sorted_.size() ? &sorted_[sorted_.size() - 1 - calls] : nullptr;
  }

 private:
  // 32 buckets for a largest step, which is below 2^40 units.
  static constexpr int bucket_bits = 35;

  static bool farther(const Entry& a, const Entry& b) { return a.distance > b.distance; }
  bool from_heap() const {
    return sorted_.empty() || (!heap_.empty() && farther(sorted_.back(), heap_.front()));
  }

  template <class F>
  void next_bucket(F wanted) {
    std::vector<Entry>* bucket = nullptr;
    do bucket = &buckets_[++now_ % buckets_.size()];
    while (bucket->empty());
    std::copy_if(bucket->begin(), bucket->end(), std::back_inserter(sorted_), wanted);
    size_ -= bucket->size() - sorted_.size();
    bucket->clear();
    std::sort(sorted_.begin(), sorted_.end(), farther);
  }

  std::vector<Entry> sorted_, heap_;  // of bucket now_, the nearest last and first
  std::array<std::vector<Entry>, 64> buckets_;
  std::size_t now_ = 0, size_ = 0;
};

// What is known of a row: how far it is from both ends, and marks beside each distance. Both lie
// together, since who looks for the one mostly needs the other.
template <class Sum>
struct RowState {
  static constexpr Sum marks = 1 << 2, settled_mark = 1, path_mark = 2;
  // No path is known; not from std::numeric_limits, which does not know the wide type.
  static constexpr Sum unseen = (Sum{1} << (8 * sizeof(Sum) - 3)) - 1;

  std::array<Sum, 2> far{unseen * marks, unseen* marks};

  // Not negative, so that a shift does for a division, which would round towards 0.
  Sum distance(std::size_t side) const { return far[side] >> 2; }
  bool seen(std::size_t side) const { return far[side] < unseen * marks; }
  bool settled(std::size_t side) const { return (far[side] & settled_mark) != 0; }
  bool on_path() const { return (far[0] & path_mark) != 0; }
};

}  // namespace

template <class Sum>
class PathSearch {
 public:
  explicit PathSearch(std::int64_t rows) : rows_(AlignedArray<Row>::unset(place(rows))) {
    std::fill(rows_.begin(), rows_.end(), Row{});
  }

  // As PathSearches::shortest(); no rows if the sum of steps is too large for the type.
  std::vector<Id> run(const StepGraph& graph, Id from, Id to, float largest, PathWeights weights) {
    graph_ = &graph, largest_ = largest, weights_ = weights;
    // A power of two, so that only lengths far below the largest are rounded.
    if (weights == PathWeights::lengths) units_ = std::ldexp(1.0, 39 - std::ilogb(largest));
    const std::uint32_t first = graph.place_of(from), last = graph.place_of(to);
    offer(0, first, 0);
    offer(1, last, 0);
    meet();
    std::vector<Id> path;
    if (shortest_ < Row::unseen) {
      mark_before_meetings(last);
      path = walk(first, last);
    }
    clear();
    return path;
  }

 private:
  using Row = RowState<Sum>;
  using Entry = typename RowQueue<Sum>::Entry;

  Row& at(std::uint32_t row) { return rows_[row]; }

  // Calls f(row at the other end, weight) for the steps from a row that are not too long.
  template <class F>
  void each_step(std::uint32_t row, F f) {
    for (const StepGraph::Step& step : graph_->from(row)) {
      if (step.length > largest_) break;
      f(step.place, weight(step.length));
    }
  }
  std::int64_t weight(float length) const {
    if (weights_ == PathWeights::ones) return 1;
    // Those of cosine may be rounded to less than 0.
    return std::max(std::int64_t{1}, rounded(std::max(0.0, static_cast<double>(length)) * units_));
  }

  void offer(std::size_t side, std::uint32_t row, Sum distance) {
    Row& known = at(row);
    if (distance >= known.distance(side)) return;
    if (!known.seen(0) && !known.seen(1)) touched_.push_back(row);
    known.far[side] = distance * Row::marks;
    queues_[side].push(distance, row);
  }

  // The least distance of what a side has still to settle; `unseen` if nothing is left.
  Sum next_distance(std::size_t side) {
    const Entry* const next = queues_[side].top([&](const Entry& entry) {
      const Row& known = at(entry.row);
      return known.far[side] == entry.distance * Row::marks && !known.settled(1 - side);
    });
    return next == nullptr ? Row::unseen : next->distance;
  }

  // Two searches go on until neither can meet the other at less, nor at as much. Neither goes
  // beyond what the other has settled, nor where the whole path would be longer than one that is
  // known. Then of each shortest path all rows before some step are settled by the first search and
  // all behind it by the second, at their true distances; `met_` has the first one's row of each
  // such step.
  void meet() {
    for (std::int64_t count = 0;; ++count) {
      if (count % rows_between_checks == 0) stop_if_asked();
      const std::array<Sum, 2> next{next_distance(0), next_distance(1)};
      if (std::max(next[0], next[1]) == Row::unseen || next[0] + next[1] > shortest_) return;
      const std::size_t own = queues_[0].size() <= queues_[1].size() ? 0 : 1;
      settle(own, next[own], next[1 - own]);
    }
  }

  void settle(std::size_t own, Sum distance, Sum next_of_other) {
    const std::size_t other = 1 - own;
    const std::uint32_t row = queues_[own].front().row;
    queues_[own].pop();
    // Most of the time goes into waiting for memory: has that of the next rows come in time.
    if (const Entry* const later = queues_[own].front_after(16))
      __builtin_prefetch(graph_->begin.data() + later->row);
    if (const Entry* const soon = queues_[own].front_after(6)) {
      const StepGraph::Step* const steps = graph_->from(soon->row).data();
      for (int line = 0; line < 3; ++line) __builtin_prefetch(steps + 8 * line);
    }
    at(row).far[own] += Row::settled_mark;
    const std::span<const StepGraph::Step> steps = graph_->from(row);
    for (const StepGraph::Step& step : steps) {
      if (step.length > largest_) break;
      __builtin_prefetch(&at(step.place));
    }
    each_step(row, [&](std::uint32_t neighbor, std::int64_t step) {
      const Row& known = at(neighbor);
      const Sum reached = distance + step;
      // Most rows are known to be nearer.
      if (known.distance(own) < reached || known.settled(own)) return;
      if (known.seen(other)) {
        const Sum length = reached + known.distance(other);
        if (length <= shortest_) {
          shortest_ = length;
          met_.push_back({own == 0 ? row : neighbor, length});
        }
        if (known.settled(other)) return;
      }
      if (reached + next_of_other <= shortest_) offer(own, neighbor, reached);
    });
  }

  // Marks the rows of shortest paths that the first search settled: backwards from where it met the
  // other, or from the end if it came so far.
  void mark_before_meetings(std::uint32_t to) {
    const auto mark = [&](std::uint32_t row) {
      if (!at(row).settled(0) || at(row).on_path()) return;
      at(row).far[0] += Row::path_mark;
      open_.push_back(row);
    };
    for (const Meeting& meeting : met_)
      if (meeting.length == shortest_) mark(meeting.row);
    mark(to);
    while (!open_.empty()) {
      const std::uint32_t row = open_.back();
      open_.pop_back();
      each_step(row, [&](std::uint32_t neighbor, std::int64_t step) {
        if (at(neighbor).seen(0) && at(neighbor).distance(0) + step == at(row).distance(0))
          mark(neighbor);
      });
    }
  }

  // From the beginning to the smallest row of those that shortest paths lead on to.
  std::vector<Id> walk(std::uint32_t from, std::uint32_t to) {
    std::vector<Id> path{graph_->row_at[from]};
    Sum gone = 0;
    for (std::uint32_t here = from; here != to;) {
      std::uint32_t next = here;
      std::int64_t its_step = 0;
      each_step(here, [&](std::uint32_t neighbor, std::int64_t step) {
        const Row& known = at(neighbor);
        const Sum reached = gone + step;
        const bool leads_on = (known.on_path() && known.distance(0) == reached) ||
                              (known.settled(1) && reached + known.distance(1) == shortest_);
        if (leads_on && (next == here || graph_->row_at[neighbor] < graph_->row_at[next]))
          next = neighbor, its_step = step;
      });
      here = next;
      path.push_back(graph_->row_at[here]);
      gone += its_step;
    }
    return path;
  }

  void clear() {
    for (const std::uint32_t row : touched_) rows_[row] = {};
    for (RowQueue<Sum>& queue : queues_) queue.clear();
    touched_.clear(), met_.clear();
    shortest_ = Row::unseen;
  }

  struct Meeting {
    std::uint32_t row;
    Sum length;
  };

  const StepGraph* graph_ = nullptr;
  float largest_ = 0;
  double units_ = 1;  // in a length of 1
  PathWeights weights_ = PathWeights::lengths;
  Sum shortest_ = Row::unseen;
  AlignedArray<Row> rows_;
  std::array<RowQueue<Sum>, 2> queues_;
  std::vector<std::uint32_t> touched_, open_;
  std::vector<Meeting> met_;
};

void check_steps(const SparseGraph& symmetric, Metric metric) {
  const MetricTraits traits = traits_of(metric);
  if (symmetric.rows() > std::int64_t{std::numeric_limits<std::uint32_t>::max()})
    throw InvalidArgument("graph has {} rows, but paths are found among {} at most",
                          symmetric.rows(), std::numeric_limits<std::uint32_t>::max());
  for (Id row = 0; row < symmetric.rows(); ++row) {
    if (row % rows_between_checks == 0) stop_if_asked();
    const auto first = place(symmetric.begin[place(row)]),
               last = place(symmetric.begin[place(row) + 1]);
    for (std::size_t e = first; e < last; ++e) {
      const float distance = symmetric.distances[e];
      const Id other = symmetric.ids[e];
      if (std::isinf(distance))
        throw InvalidArgument("graph: the distance of rows {} and {} is infinite", row, other);
      if (!traits.product && !traits.unit_rows && distance < 0)
        throw InvalidArgument(
            "graph: the distance of rows {} and {} is {}, but those of {} are not negative "
            "(products are of the metric ip)",
            row, other, distance, traits.name);
      if (traits.unit_rows && !(distance >= -rounding && distance <= 2 + rounding))
        throw InvalidArgument(
            "graph: the distance of rows {} and {} is {}, but those of cosine are between 0 and 2 "
            "(products are of the metric ip)",
            row, other, distance);
    }
  }
}

StepGraph::StepGraph(const SparseGraph& symmetric, Metric metric, std::vector<std::uint32_t> order)
    : row_at(std::move(order)),
      places(row_at.size()),
      begin(AlignedArray<std::int64_t>::unset(symmetric.begin.size())),
      steps(AlignedArray<Step>::unset(symmetric.ids.size())) {
  for (std::size_t at = 0; at < row_at.size(); ++at)
    places[row_at[at]] = static_cast<std::uint32_t>(at);
  std::size_t end = 0;
  begin[0] = 0;
  for (std::size_t at = 0; at < row_at.size(); ++at) {
    if (at % rows_between_checks == 0) stop_if_asked();
    const std::size_t row = row_at[at], first = end;
    for (auto e = place(symmetric.begin[row]); e < place(symmetric.begin[row + 1]); ++e)
      steps[end++] = {place_of(symmetric.ids[e]), step_length(symmetric.distances[e], metric)};
    std::sort(steps.data() + first, steps.data() + end, [](const Step& a, const Step& b) {
      return a.length < b.length || (a.length == b.length && a.place < b.place);
    });
    begin[at + 1] = static_cast<std::int64_t>(end);
  }
}

PathSearches::PathSearches(const StepGraph& graph) : graph_(graph) {}
PathSearches::~PathSearches() = default;

std::vector<Id> PathSearches::shortest(Id from, Id to, float largest, PathWeights weights) {
  std::unique_ptr<PathSearch<std::int64_t>> search;
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) search = std::move(idle_.back()), idle_.pop_back();
  }
  if (!search) search = std::make_unique<PathSearch<std::int64_t>>(graph_.rows());
  std::vector<Id> path = search->run(graph_, from, to, largest, weights);
  {
    std::lock_guard lock(mutex_);
    if (idle_.size() < most_idle) idle_.push_back(std::move(search));
  }
  if (path.empty())
    path =
        std::make_unique<PathSearch<Wide>>(graph_.rows())->run(graph_, from, to, largest, weights);
  return path;
}

}  // namespace knear::detail
