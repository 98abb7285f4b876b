// knear/select/warp/warp_partial_reduce.hpp -- the best few of each bin of a row, kept by one warp
// in registers.
//
//   WarpPartialReduce<W, int, 4, 2> reduce(w);              // 128 bins, the best 2 of each
//   reduce.add_row(row, length);                            // ids are the places in the row
//   reduce.store(distances, ids, &dropped, &dropped_id);    // 256 candidates, the best dropped
//
// The partial reduction of Chern et al., "TPU-KNN" (2022), section 5 and Algorithm 2, for more than
// one kept of each bin and with the best pair that was ever dropped, for the certificate
// (partial_reduce.hpp is the plain reference). The value at place i belongs to bin i mod (32 *
// bins_per_lane), that is to lane i mod 32: each load of the warp is one line of memory, and no
// lane reads another's bins. Rows must be in random order (permutation.hpp).
//
// One pass, no branch that depends on a value, and state in registers alone: 2 (bins_per_lane *
// kept + 1) of them. The coefficient-wise operations per value, where `precedes` takes 5 (two
// comparisons of distances, one of ids, and two of truth values), and selecting a pair 2:
//
//   kept  precede     select                                         sum
//      1     5     +  2 (the place)                                =   7   the paper's 3 and ties
//      K     5 K   +  2 (first place) + 4 (K - 1) (the others)     =   9 K - 2
//   certificate: 2 to select what is dropped, 5 and 2 to compare it with the best dropped: 9 more
//
// Where ids ascend with the places and no value is infinite, the later of two equal values never
// precedes, and one comparison of distances would do instead of the five operations: 3 for K = 1,
// as in the paper. A kernel that is limited by operations may do so.
//
// Keeping kept + 1 of each bin instead of the best dropped pair certifies the same queries
// (partial_reduce.hpp). It costs 9 operations per value as well, but 2 registers for each bin of a
// lane instead of 2 in all, candidates grow by 1 / kept, and its certificate takes one comparison
// for each bin instead of one in all. So the dropped pair is kept here.
//
// Order and ties: ascending distance, then id, in each bin and for the dropped. NaN is neither kept
// nor dropped; +infinity is kept before empty places. Same results on every warp.
#pragma once
#include <cstdint>
#include <limits>

#include "knear/simt/candidate.hpp"
#include "knear/simt/warp.hpp"

namespace knear {

template <Warp W, class Id, int bins_per_lane, int kept>
class WarpPartialReduce {
  static_assert(bins_per_lane >= 1 && kept >= 1);

 public:
  using Item = Candidate<W, Id>;

  static constexpr int bins = warp_size * bins_per_lane;
  static constexpr int capacity = bins * kept;  // candidates

  KNEAR_WARP explicit WarpPartialReduce(W w) : w_(w), dropped_(no_candidate<Id>(w)) {
    KNEAR_UNROLL
    for (int b = 0; b < bins_per_lane; ++b) {
      KNEAR_UNROLL
      for (int j = 0; j < kept; ++j) best_[b][j] = dropped_;
    }
  }

  // Offers row[0 .. length), ids first_place, first_place + 1, ..., which are their places too.
  // Parts of a row must come in ascending order, and all but the last must have a multiple of
  // `bins` values.
  KNEAR_WARP void add_row(const float* row, Id length, Id first_place = 0) {
    for (Id begin = 0; begin < length; begin += bins) {
      KNEAR_UNROLL
      for (int b = 0; b < bins_per_lane; ++b) {
        const Id first = begin + b * warp_size;
        const int rest = count_from(first, length);
        insert(best_[b], offered(w_.load(row + (rest > 0 ? first : 0), rest, 0.0f),
                                 w_.template lane<Id>() + w_.fill(Id(first_place + first)), rest));
      }
    }
  }

  // As add_row with the id of each value: original ids, where the row is in permuted order. They
  // must differ from each other and from the largest of their type.
  KNEAR_WARP void add_row_with_ids(const float* row, const Id* ids, Id length) {
    for (Id begin = 0; begin < length; begin += bins) {
      KNEAR_UNROLL
      for (int b = 0; b < bins_per_lane; ++b) {
        const Id first = begin + b * warp_size;
        const int rest = count_from(first, length);
        const Id from = rest > 0 ? first : 0;
        insert(best_[b],
               offered(w_.load(row + from, rest, 0.0f), w_.load(ids + from, rest, Id(0)), rest));
      }
    }
  }

  // Writes the candidates, [bins_per_lane x kept x 32]: the j-th best of bin 32 b + l at (b * kept
  // + j) * 32 + l; empty places get +infinity and -1. Writes the best dropped pair, or +infinity
  // and -1 for none. Call last.
  KNEAR_WARP void store(float* distances, Id* ids, float* dropped_distance, Id* dropped_id) {
    KNEAR_UNROLL
    for (int b = 0; b < bins_per_lane; ++b) {
      KNEAR_UNROLL
      for (int j = 0; j < kept; ++j) {
        const int at = (b * kept + j) * warp_size;
        store_item(distances + at, ids + at, warp_size, best_[b][j]);
      }
    }
    KNEAR_UNROLL
    for (int distance = warp_size / 2; distance > 0; distance /= 2) {
      const Item other = shuffle_xor(w_, dropped_, distance);
      dropped_ = select(w_, precedes(other, dropped_), other, dropped_);
    }
    store_item(dropped_distance, dropped_id, 1, dropped_);
  }

 private:
  // How many of the 32 values from `first` exist; 0 or less beyond the end.
  KNEAR_WARP static int count_from(Id first, Id length) {
    return first >= length              ? 0
           : length - first < warp_size ? static_cast<int>(length - first)
                                        : warp_size;
  }

  // A place beyond the end is no candidate at all, not one at +infinity.
  KNEAR_WARP Item offered(const Lanes<W, float>& x, const Lanes<W, Id>& id, int rest) const {
    return select(w_, w_.template lane<int>() < w_.fill(rest), Item{x, id}, no_candidate<Id>(w_));
  }

  // Sorted insertion: all comparisons first, so that none waits for another; then each place takes
  // the new item, its neighbour, or what it has.
  KNEAR_WARP void insert(Item (&best)[kept], const Item& c) {
    typename W::Mask before[kept];
    KNEAR_UNROLL
    for (int j = 0; j < kept; ++j) before[j] = precedes(c, best[j]);
    const Item out = select(w_, before[kept - 1], best[kept - 1], c);
    dropped_ = select(w_, precedes(out, dropped_), out, dropped_);
    KNEAR_UNROLL
    for (int j = kept - 1; j > 0; --j)
      best[j] = select(w_, before[j - 1], best[j - 1], select(w_, before[j], c, best[j]));
    best[0] = select(w_, before[0], c, best[0]);
  }

  KNEAR_WARP void store_item(float* distance, Id* id, int count, const Item& item) const {
    const auto empty = item.id == no_candidate<Id>(w_).id;
    w_.store(distance, count, item.distance);
    w_.store(id, count, w_.select(empty, w_.fill(Id(-1)), item.id));
  }

  W w_;
  Item best_[bins_per_lane][kept];  // each ascending
  Item dropped_;                    // the best that each lane has dropped
};

}  // namespace knear
