// knear/select/sort/compressed_batch.hpp -- rows of distances pruned by a threshold and compressed,
// and the k smallest of what is left by a min-max heap: the selection of the TH-heap.
//
//   thresholds[q] = threshold_of_sample(sample.row(q), sample.cols(), k, space);
//   batch.start(queries);
//   for (each tile of distances [queries x n]) batch.compress(tile, thresholds, first_id_of_tile);
//   batch.pad();                                        // [queries x width]
//   for (q...) partial_heap_sort(batch.values().row(q), batch.ids().row(q), batch.count(q), k,
//                                space, values, ids);
//
// After Matsumoto and Yiu, "Accelerating Exact Similarity Search on CPU-GPU Systems" (2015),
// sections V-A and V-C. The k-th smallest distance to a sample of the base cannot be less than that
// to the base, so a row with a greater distance is none of the k nearest. One with an equal
// distance may be: it is kept, as in their Example 2, though their Equation 4 counts only smaller
// ones.
//
// The bound holds if the sample names no row twice, and if a distance is the same number in the
// sample and in the tile: the same arithmetic, or thresholds that are raised by its error.
//
// A value is read once, compared once and written at most once; n_S samples leave about
// k n / n_S of n values (so n_S = 8 k, an eighth or less). Sorting m values takes O(k) for the
// heap, m comparisons, O(log k) for each value that enters, and O(k log k) at the end.
//
// Order and ties: by value, then id. NaN is never kept; +infinity is if its threshold is.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/select/sort/min_max_heap.hpp"

namespace knear {

// Fills the ends of rows that are shorter than the longest.
template <class T>
inline constexpr T padding_value = std::numeric_limits<T>::infinity();
template <class Id>
inline constexpr Id padding_id = Id(-1);

// Appends those of row[0 .. n) that are not above the threshold to values and ids, which have room
// for n more; the first value has the id first_id. Returns how many. No branch depends on a
// distance: each is written, and the end moves or not. (A processor with compress instructions
// would need only this loop replaced.)
template <class T, class Id>
std::size_t append_not_above(const T* row, std::size_t n, T threshold, Id first_id, T* values,
                             Id* ids) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const T value = row[i];
    values[kept] = value;
    ids[kept] = first_id + static_cast<Id>(i);
    kept += value <= threshold;
  }
  return kept;
}

// The pruned rows of one batch of queries: the kept values stand at the beginning of each row, in
// the order in which they came, and pad() fills each row up to the length of the longest. Padding
// is infinite and has the id -1. Memory is kept from batch to batch.
template <class T, class Id = std::int64_t>
class CompressedBatch {
 public:
  // Starts again with so many empty rows.
  void start(std::int64_t rows) {
    counts_.assign(rows, 0);
    make_room(0);
  }

  // Appends to each row those values of a tile [rows x n] that pass the row's threshold; the
  // columns of the tile have the ids first_id, first_id + 1, ... The tile has as many rows as
  // start() was given; tiles may come in any order and size. Nothing passes a threshold that is
  // NaN.
  void compress(MatrixView<T> tile, const T* thresholds, Id first_id) {
    for (std::int64_t begin = 0; begin < tile.cols(); begin += most_at_once) {
      const std::int64_t n = std::min(most_at_once, tile.cols() - begin);
      make_room(n);
      for (std::int64_t row = 0; row < tile.rows(); ++row)
        append(row, tile.row(row) + begin, n, thresholds[row], first_id + static_cast<Id>(begin));
    }
  }

  // compress() in two steps, for callers that give each row to a thread: one thread makes room for
  // so many more values in every row, then different rows may be filled at once.
  void make_room(std::int64_t columns) {
    const std::size_t needed = longest() + static_cast<std::size_t>(columns);
    if (needed > stride_) widen(std::max(needed, 2 * stride_));
    if (values_.size() < counts_.size() * stride_) {
      values_.resize(counts_.size() * stride_);
      ids_.resize(values_.size());
    }
  }
  void append(std::int64_t row, const T* distances, std::int64_t n, T threshold, Id first_id) {
    std::size_t& count = counts_[row];
    const std::size_t end = static_cast<std::size_t>(row) * stride_ + count;
    count += append_not_above(distances, n, threshold, first_id, values_.data() + end,
                              ids_.data() + end);
  }

  // Adds one pair to a row that has room for it.
  void push(std::int64_t row, T value, Id id) {
    std::size_t& count = counts_[row];
    const std::size_t end = static_cast<std::size_t>(row) * stride_ + count++;
    values_[end] = value, ids_[end] = id;
  }

  void clear(std::int64_t row) { counts_[row] = 0; }
  // Drops the values of a row that are above a limit.
  void keep_at_most(std::int64_t row, T limit) {
    std::size_t& count = counts_[row];
    T* values = values_.data() + static_cast<std::size_t>(row) * stride_;
    Id* ids = ids_.data() + static_cast<std::size_t>(row) * stride_;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const T value = values[i];
      values[kept] = value, ids[kept] = ids[i];
      kept += value <= limit;
    }
    count = kept;
  }

  // Call once, after the last tile.
  void pad() {
    const std::size_t width = longest();
    for (std::size_t row = 0; row < counts_.size(); ++row) {
      const std::size_t end = row * stride_ + counts_[row], missing = width - counts_[row];
      std::fill_n(values_.data() + end, missing, padding_value<T>);
      std::fill_n(ids_.data() + end, missing, padding_id<Id>);
    }
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(counts_.size()); }
  // The length of the longest row.
  std::int64_t width() const { return static_cast<std::int64_t>(longest()); }
  // How many values of a row are not padding.
  std::int64_t count(std::int64_t row) const { return static_cast<std::int64_t>(counts_[row]); }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(values_.capacity() * sizeof(T) + ids_.capacity() * sizeof(Id));
  }
  // [rows x width], with a stride longer than that; valid until the next start, make_room or
  // compress.
  MatrixView<T> values() const { return {values_.data(), rows(), width(), stride()}; }
  MatrixView<Id> ids() const { return {ids_.data(), rows(), width(), stride()}; }

 private:
  // Columns of a tile that are appended before the rows' lengths are looked at again: limits the
  // room that is made for values which are not kept.
  static constexpr std::int64_t most_at_once = 4096;

  std::int64_t stride() const { return static_cast<std::int64_t>(stride_); }
  std::size_t longest() const {
    return counts_.empty() ? 0 : *std::max_element(counts_.begin(), counts_.end());
  }
  // Moves the rows further apart, the last first.
  void widen(std::size_t stride) {
    values_.resize(std::max(values_.size(), counts_.size() * stride));
    ids_.resize(values_.size());
    for (std::size_t row = counts_.size(); row-- > 1;) {
      const std::size_t from = row * stride_, to = row * stride, count = counts_[row];
      std::copy_backward(values_.data() + from, values_.data() + from + count,
                         values_.data() + to + count);
      std::copy_backward(ids_.data() + from, ids_.data() + from + count, ids_.data() + to + count);
    }
    stride_ = stride;
  }

  std::vector<std::size_t> counts_;  // of each row
  std::vector<T> values_;            // row i from i * stride_ on
  std::vector<Id> ids_;
  std::size_t stride_ = 0;
};

// Algorithm 7: the k smallest of count pairs by (value, id), ascending, into values and ids [k];
// where there are fewer, padding follows. Returns how many there are. The first k become the heap,
// which lies in `space`, the others are offered, and the heap is emptied in order. Requires k >= 0
// and no NaN. Padding in the row would count as pairs: pass the count without it.
template <class T, class Id>
std::int64_t partial_heap_sort(const T* row, const Id* row_ids, std::int64_t count, std::int64_t k,
                               std::vector<std::pair<T, Id>>& space, T* values, Id* ids) {
  const std::int64_t kept = std::min(k, count);
  if (kept > 0) {
    space.resize(kept);
    for (std::int64_t i = 0; i < kept; ++i) space[i] = {row[i], row_ids[i]};
    MinMaxHeap<std::pair<T, Id>> heap{std::span(space)};
    T bound = heap.max().first;  // most values end here, and need no pair
    for (std::int64_t i = kept; i < count; ++i)
      if (!(row[i] > bound) && heap.insert_replacing_max({row[i], row_ids[i]}))
        bound = heap.max().first;
    for (std::int64_t i = 0; i < kept; ++i) {
      const auto [value, id] = heap.delete_min();
      values[i] = value, ids[i] = id;
    }
  }
  std::fill(values + kept, values + k, padding_value<T>);
  std::fill(ids + kept, ids + k, padding_id<Id>);
  return kept;
}

// The k-th smallest distance to a sample [n], the maximum of the heap (Example 3); +infinity where
// fewer than k are numbers, which keeps everything. Requires k >= 1; rows that the sample names
// twice would make the bound too small.
template <class T>
T threshold_of_sample(const T* distances, std::int64_t n, std::int64_t k, std::vector<T>& space) {
  space.clear();
  std::int64_t next = 0;
  for (; next < n && static_cast<std::int64_t>(space.size()) < k; ++next)
    if (distances[next] == distances[next]) space.push_back(distances[next]);
  if (static_cast<std::int64_t>(space.size()) < k) return padding_value<T>;
  MinMaxHeap<T> heap{std::span(space)};
  for (; next < n; ++next) heap.insert_replacing_max(distances[next]);  // NaN precedes nothing
  return heap.max();
}

// Equation 4: how many times fewer columns a batch [q x n] has once compressed to its longest row.
// Infinite if none of some columns are left, 1 if there were none.
inline double compression_ratio(std::int64_t n, std::int64_t width) {
  return n == width ? 1.0 : static_cast<double>(n) / static_cast<double>(width);
}

// Equation 3: the mean over queries of the k-th distance over the threshold [count], at most 1 if
// the thresholds are bounds. Both are distances, not their squares. Where the two are equal (0 and
// 0, say) a query counts 1; without queries the mean is 1.
template <class T>
double threshold_ratio(const T* kth_distances, const T* thresholds, std::int64_t count) {
  if (count == 0) return 1.0;
  double sum = 0.0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += kth_distances[i] == thresholds[i]
               ? 1.0
               : static_cast<double>(kth_distances[i]) / static_cast<double>(thresholds[i]);
  return sum / static_cast<double>(count);
}

}  // namespace knear
