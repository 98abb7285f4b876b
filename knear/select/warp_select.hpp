// knear/select/warp_select.hpp -- the k smallest (distance, id) pairs of a stream, kept by one
// warp.
//
//   WarpSelect<W, int, 4, 4> select(w, 100);                // k <= 32 * 4
//   select.add_row(row, length);                            // ids are the places in the row
//   select.store(distances, ids);
//
// After Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs" (2017), section 4, in
// the form that fits power-of-two networks. The warp holds the 32 * R best in order, the i-th in
// lane i % 32 of register i / 32; each lane holds its T latest candidates in any order. A candidate
// no better than the k-th best costs one comparison; when a lane is full, the queues are sorted and
// merged into the best. One pass over the data, all state in registers: 2 (R + T) of them and about
// 30 more.
//
// For n values in random order: n / 32 comparisons, about k ln(n / k) / T merges at most, each
// log2(32 T)^2 / 2 * T + log2(32 R) * R comparators.
//
// Order and ties: ascending distance, then ascending id, so the answer is one, whatever the order
// of arrival. NaN is never kept; +infinity is, before empty places. Same results on CudaWarp and
// HostWarp.
#pragma once
#include <cstdint>
#include <limits>

#include "knear/simt/bitonic.hpp"
#include "knear/simt/candidate.hpp"
#include "knear/simt/warp.hpp"

namespace knear {

template <Warp W, class Id, int R, int T>  // R registers of results, T queued per lane
class WarpSelect {
  static_assert(detail::is_power_of_two(R) && detail::is_power_of_two(T));

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
    const auto better = precedes(c, worst_);
    if (!w_.any(better)) return;  // the usual case once the stream has warmed up
    KNEAR_UNROLL
    for (int i = T - 1; i > 0; --i) queue_[i] = select(w_, better, queue_[i - 1], queue_[i]);
    queue_[0] = select(w_, better, c, queue_[0]);
    count_ = w_.select(better, count_ + w_.fill(1), count_);
    if (w_.any(count_ == w_.fill(T))) merge();
  }

  // Offers row[0 .. length), ids first_id, first_id + 1, ...
  //
  // Eight loads are in flight at a time, and their minimum alone is compared first: on long rows
  // nearly every group of 256 values ends there. A group that does not is read again (from the
  // cache) by a loop that is not unrolled: the code of a merge stands here once, not eight times.
  KNEAR_WARP void add_row(const float* row, Id length, Id first_id = 0) {
    constexpr int loads = 8, group = loads * warp_size;
    for (Id begin = 0; begin < length; begin += group) {
      const int rest = length - begin < group ? int(length - begin) : group;
      if (rest == group) {
        Lanes<W, float> x[loads];
        KNEAR_UNROLL
        for (int i = 0; i < loads; ++i) x[i] = w_.load(row + begin + i * warp_size);
        auto smallest = x[0];
        KNEAR_UNROLL
        for (int i = 1; i < loads; ++i) smallest = w_.minimum(smallest, x[i]);
        if (!w_.any(smallest <= worst_.distance)) continue;
      }
      KNEAR_NO_UNROLL
      for (int i = 0; i < rest; i += warp_size) {
        const Item c = {w_.load(row + begin + i, rest - i, infinity),
                        ids_from(first_id + begin + i)};
        // Beyond the end stands no candidate at all, not one at +infinity.
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

 private:
  static constexpr float infinity = std::numeric_limits<float>::infinity();

  KNEAR_WARP Lanes<W, Id> ids_from(Id first) const {
    return w_.template lane<Id>() + w_.fill(first);
  }

  KNEAR_WARP void merge() {
    warp_sort<Order::descending>(w_, queue_);
    warp_keep_smallest(w_, best_, queue_);
    // A select for each register, not best_[(k_ - 1) / 32] nor an `if` in the loop, which the
    // compiler turns into the same: a run-time index would push the registers to memory.
    Item kth = best_[0];
    KNEAR_UNROLL
    for (int r = 1; r < R; ++r)
      kth = select(w_, w_.fill((k_ - 1) / warp_size) == w_.fill(r), best_[r], kth);
    worst_ = broadcast(w_, kth, (k_ - 1) % warp_size);
    clear_queue();
  }

  KNEAR_WARP void clear_queue() {
    KNEAR_UNROLL
    for (int i = 0; i < T; ++i) queue_[i] = no_candidate<Id>(w_);
    count_ = w_.fill(0);
  }

  W w_;
  int k_;                // results wanted
  Item worst_;           // the k-th best so far, in every lane: the bar a newcomer must beat
  Item best_[R];         // ascending
  Item queue_[T];        // unordered between merges
  Lanes<W, int> count_;  // candidates queued in each lane
};

// R and T for each range of k: calls f with the shape. The queue lengths follow the paper's table
// (t = 2, 3, 4, 8), 3 rounded up to a power of two; not tuned on a GPU yet.
template <int registers, int queue>
struct WarpSelectShape {
  static constexpr int R = registers, T = queue;
};

inline constexpr int warp_select_max_k = 1024;

// Requires 1 <= k <= warp_select_max_k.
template <class F>
decltype(auto) with_warp_select_shape(int k, F&& f) {
  if (k <= 32) return f(WarpSelectShape<1, 2>{});
  if (k <= 128) return f(WarpSelectShape<4, 4>{});
  if (k <= 256) return f(WarpSelectShape<8, 4>{});
  return f(WarpSelectShape<32, 8>{});
}

}  // namespace knear
