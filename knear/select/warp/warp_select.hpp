// knear/select/warp/warp_select.hpp -- the k smallest (distance, id) pairs of a stream, kept by one
// warp.
//
//   WarpSelect<W, int, 4, 3> select(w, 100);                // k <= 32 * 4
//   select.add_row(row, length);                            // ids are the places in the row
//   select.store(distances, ids);
//
// After Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs", section 4. The warp
// holds the 32 * R best in order, the i-th in lane i % 32 of register i / 32; each lane holds a
// queue of T candidates. Most values cost one comparison; when one of the k best might be in a full
// queue, the queues are sorted and merged into the best. One pass over the data, all state in
// registers: 2 (R + T) of them and about 30 more.
//
// Order and ties: ascending distance, then ascending id, so the answer is unique, whatever the
// order of arrival and the rule. NaN is never kept; +infinity is, before empty places. Same results
// on every warp.
#pragma once
#include <limits>

#include "knear/simt/candidate.hpp"
#include "knear/simt/odd_networks.hpp"
#include "knear/simt/warp.hpp"

namespace knear {

// The rule by which a lane takes a value into its queue, and by which the queues are merged.
//
// Both rules merge at the same moments, when some lane has got T values that precede the k-th
// best. The counts are the default because they send fewer groups into the queues: 184 instead of
// 402 of 4,000 at k = 32 (T = 2), 446 instead of 743 at k = 100 (T = 3), 1,984 instead of 2,201 at
// k = 1000 (T = 8), means over 20 rows of 128,000 random values (warp_select_counts_test). Each is
// also cheaper, as a queue needs no order, and so is a merge, of which only the best are wanted.
enum class UpdateRule {
  // The journal version (2019): takes a value that precedes the k-th best as of the last merge;
  // queues are unsorted and counted, and when one is full all are merged and emptied.
  queue_counts,
  // The first version (2017): takes a value that precedes the head of the lane's own queue, its
  // largest; queues are sorted. Merges when a head precedes the k-th best; what is left over by the
  // merge goes back to the queues.
  queue_heads
};

// Counts nothing and costs nothing; the tests count groups read, insertions and merges.
struct NoCounts {
  KNEAR_WARP void on_read(int) {}
  KNEAR_WARP void on_insert() {}
  KNEAR_WARP void on_merge() {}
};

// R registers of results, a queue of T in each lane; any R, T >= 1.
template <Warp W, class Id, int R, int T, UpdateRule rule = UpdateRule::queue_counts,
          class Counts = NoCounts>
class WarpSelect {
  static_assert(R >= 1 && T >= 1);

 public:
  using Item = Candidate<W, Id>;

  static constexpr int capacity = warp_size * R;

  // Requires 1 <= k <= capacity.
  KNEAR_WARP WarpSelect(W w, int k) : w_(w), k_(k), worst_(no_candidate<Id>(w)) {
    KNEAR_UNROLL
    for (int r = 0; r < R; ++r) best_[r] = worst_;
    clear_queue();
  }

  // Offers one candidate per lane; a lane that has none passes no_candidate(), or a NaN. Ids must
  // differ from each other and from the largest of their type. All lanes call together.
  KNEAR_WARP void add(const Item& c) {
    counts_.on_read(1);
    const auto better = precedes(c, bound());
    if (!w_.any(better)) return;  // the usual case once the stream has warmed up
    counts_.on_insert();
    if constexpr (rule == UpdateRule::queue_counts) {
      KNEAR_UNROLL
      for (int i = T - 1; i > 0; --i) queue_[i] = select(w_, better, queue_[i - 1], queue_[i]);
      queue_[0] = select(w_, better, c, queue_[0]);
      count_ = w_.select(better, count_ + w_.fill(1), count_);
      if (!w_.any(count_ == w_.fill(T))) return;
    } else {
      // The head is dropped; the new value moves down from there to its place.
      queue_[0] = select(w_, better, c, queue_[0]);
      KNEAR_UNROLL
      for (int i = 0; i + 1 < T; ++i) detail::compare_across<0>(w_, queue_[i + 1], queue_[i]);
      // A lane holds no more than T values: if all of them precede the k-th best, the next to be
      // dropped may be one of the k best.
      if (!w_.any(precedes(queue_[0], worst_))) return;
    }
    counts_.on_merge();
    merge();
  }

  // Offers row[0 .. length), ids first_id, first_id + 1, ...
  //
  // Eight loads are in flight at a time, and their minimum alone is compared first: on long rows
  // nearly every group of 256 values ends there. A group that does not is read again (from the
  // cache) by a loop that is not unrolled: the code of a merge stands here once, not eight times.
  KNEAR_WARP void add_row(const float* row, Id length, Id first_id = 0) {
    constexpr int loads = 8, group = loads * warp_size;
    int rest = 0;
    for (Id begin = 0; begin < length; begin += rest) {  // never beyond length: Id may end there
      rest = length - begin < group ? int(length - begin) : group;
      if (rest == group) {
        Lanes<W, float> x[loads];
        KNEAR_UNROLL
        for (int i = 0; i < loads; ++i) x[i] = w_.load(row + begin + i * warp_size);
        auto smallest = x[0];
        KNEAR_UNROLL
        for (int i = 1; i < loads; ++i) smallest = w_.minimum(smallest, x[i]);
        if (!w_.any(smallest <= bound().distance)) {
          counts_.on_read(loads);
          continue;
        }
      }
      KNEAR_NO_UNROLL
      for (int i = 0; i < rest; i += warp_size) {
        const Item c = {w_.load(row + begin + i, rest - i, infinity),
                        w_.template lane<Id>() + w_.fill(Id(first_id + begin + i))};
        // A place beyond the end is no candidate at all, not one at +infinity.
        add(select(w_, w_.template lane<int>() < w_.fill(rest - i), c, no_candidate<Id>(w_)));
      }
    }
  }

  // Writes the k places, ascending; those beyond the number of candidates get +infinity and -1.
  // Call last: it empties the queues into the best.
  KNEAR_WARP void store(float* distances, Id* ids) {
    merge();
    KNEAR_UNROLL
    for (int r = 0; r < R; ++r) {
      const auto empty = best_[r].id == no_candidate<Id>(w_).id;
      w_.store(distances + r * warp_size, k_ - r * warp_size, best_[r].distance);
      w_.store(ids + r * warp_size, k_ - r * warp_size,
               w_.select(empty, w_.fill(Id(-1)), best_[r].id));
    }
  }

  // The k-th best so far, the same in all lanes; no_candidate() of fewer than k.
  KNEAR_WARP const Item& kth() {
    merge();
    return worst_;
  }

  // A candidate of a larger distance is not among the k: what is offered need not have an id then.
  // The same in all lanes, and larger than that of kth() until the next merge.
  KNEAR_WARP const Lanes<W, float>& limit() const { return worst_.distance; }

  // The counts so far; nothing with NoCounts.
  KNEAR_WARP const Counts& counts() const { return counts_; }

 private:
  static constexpr float infinity = std::numeric_limits<float>::infinity();

  // A new candidate of the lane must precede this.
  KNEAR_WARP const Item& bound() const {
    return rule == UpdateRule::queue_counts ? worst_ : queue_[0];
  }

  KNEAR_WARP void merge() {
    // The queues are one array, number i in lane i % 32 of register i / 32: it does not matter
    // which lane a candidate was queued in.
    warp_sort(w_, queue_);
    if constexpr (rule == UpdateRule::queue_counts) {
      warp_merge_smallest(w_, best_, queue_);
      clear_queue();
    } else {
      warp_merge(w_, best_, queue_);
      // The queues ascend in each lane; this puts the largest at the head. (What is left over does
      // not precede the k-th best, so in any order it would be dropped before what does: answers
      // and n3 do not depend on this.)
      KNEAR_UNROLL
      for (int i = 0; i < T / 2; ++i) {
        const Item head = queue_[i];
        queue_[i] = queue_[T - 1 - i];
        queue_[T - 1 - i] = head;
      }
    }
    // A select for each register, not best_[(k_ - 1) / 32] nor an `if` in the loop, which the
    // compiler turns into the same: an index known at run time only would push the registers to
    // memory.
    Item kth = best_[0];
    KNEAR_UNROLL
    for (int r = 1; r < R; ++r)
      kth = select(w_, w_.fill((k_ - 1) / warp_size) == w_.fill(r), best_[r], kth);
    worst_ = broadcast(w_, kth, (k_ - 1) % warp_size);
  }

  KNEAR_WARP void clear_queue() {
    KNEAR_UNROLL
    for (int i = 0; i < T; ++i) queue_[i] = no_candidate<Id>(w_);
    count_ = w_.fill(0);
  }

  W w_;
  int k_;                // results wanted
  Item worst_;           // the k-th best as of the last merge, in every lane
  Item best_[R];         // ascending
  Item queue_[T];        // by counts: the latest first; by heads: descending
  Lanes<W, int> count_;  // candidates queued in each lane; by counts only
  [[no_unique_address]] Counts counts_;
};

// R and T for each range of k: calls f with the shape. The queue lengths are those of section 4.3,
// not tuned on a GPU yet. There are few shapes, as each is a kernel that takes long to compile.
template <int registers, int queue>
struct WarpSelectShape {
  static constexpr int R = registers, T = queue;
};

inline constexpr int warp_select_max_k = 1024;

// Requires 1 <= k <= warp_select_max_k.
template <class F>
decltype(auto) with_warp_select_shape(int k, F&& f) {
  if (k <= 32) return f(WarpSelectShape<1, 2>{});
  if (k <= 128) return f(WarpSelectShape<4, 3>{});
  if (k <= 256) return f(WarpSelectShape<8, 4>{});
  return f(WarpSelectShape<32, 8>{});
}

}  // namespace knear
