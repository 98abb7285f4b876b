// knear/select/sort/bitonic_partial_sort.hpp -- the k smallest of a row by a bitonic sort that
// throws away what cannot be among them.
//
//   BitonicPartialSort sort;                            // keeps its memory from row to row
//   int64_t found = sort(row, n, k, values, ids);       // ascending; ids are the places in the row
//
// After Sismanis, Pitsianis and Sun, "Parallel search of k-nearest neighbors with synchronous
// operations" (2012), on Batcher's bitonic sort (1968): sorted runs are merged pairwise from the
// bottom up, and once they are K long (k rounded up to a power of two), the upper half of each pair
// is dropped before the merge. Which places are compared never depends on the values. GPU libraries
// of that time used it, and the TH-heap was measured against it; it suits small k.
//
// On a CPU the steps are loops over arrays. A piece of the row is taken as a matrix [K x runs]
// whose columns are the runs, so no copy is transposed: two places of all runs are compared in one
// loop over neighbours in memory, which vectorises for every step, also those of distance one.
// Values and ids are separate arrays for the same reason.
//
// Cost for n values: n log2(K) (log2(K) + 1) / 4 comparators for the runs, then about
// n (1 + log2(K) / 2) for the merges. Memory: 192 KiB or 48 K bytes, whichever is more, and 12 K
// bytes for each piece of the row.
//
// Order and ties: by value, then id: -0.0 equals 0.0. NaN is never kept; +infinity is. Different
// objects may be used at once.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace knear {

namespace detail {

// The comparators of two stretches [n]: the pair that comes first goes to `low`. Comparisons are
// combined without short-circuit and everything is selected before the first store, so that GCC 12
// makes a vector loop of it for any x86-64, which it does not with stores in between.
template <class T, class Id>
void compare_exchange(T* __restrict__ low, Id* __restrict__ low_ids, T* __restrict__ high,
                      Id* __restrict__ high_ids, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const T a = low[i], b = high[i];
    const Id p = low_ids[i], q = high_ids[i];
    const bool exchange = (b < a) | ((b == a) & (q < p));
    const T first = exchange ? b : a, second = exchange ? a : b;
    const Id first_id = exchange ? q : p, second_id = exchange ? p : q;
    low[i] = first, high[i] = second;
    low_ids[i] = first_id, high_ids[i] = second_id;
  }
}

// For each place of two stretches [n], copies the pair that comes first to a third.
template <class T, class Id>
void keep_first(const T* __restrict__ a, const Id* __restrict__ a_ids, const T* __restrict__ b,
                const Id* __restrict__ b_ids, T* __restrict__ out, Id* __restrict__ out_ids,
                std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    const bool second = (b[i] < a[i]) | ((b[i] == a[i]) & (b_ids[i] < a_ids[i]));
    out[i] = second ? b[i] : a[i];
    out_ids[i] = second ? b_ids[i] : a_ids[i];
  }
}

// Runs as the columns of a matrix [length x runs] of pairs; length is a power of two.
template <class T, class Id>
struct BitonicRuns {
  std::vector<T> values;
  std::vector<Id> ids;
  std::size_t length = 1, runs = 0;

  void resize(std::size_t new_length, std::size_t new_runs) {
    length = new_length, runs = new_runs;
    values.resize(length * runs), ids.resize(length * runs);
  }

  // One step of the network in every run: places `distance` apart are put in order, in blocks of
  // `block` places that alternately ascend and descend. Places that are compared with the next ones
  // lie together in memory, over all runs: distance * runs pairs in one loop.
  void step(std::size_t distance, std::size_t block) {
    const std::size_t together = distance * runs;
    for (std::size_t place = 0; place < length; place += 2 * distance) {
      std::size_t low = place * runs, high = low + together;
      if (place & block) std::swap(low, high);
      compare_exchange(values.data() + low, ids.data() + low, values.data() + high,
                       ids.data() + high, together);
    }
  }
  // Sorts bitonic blocks, which alternately ascend and descend; a block of `length` ascends.
  void merge(std::size_t block) {
    for (std::size_t distance = block / 2; distance > 0; distance /= 2) step(distance, block);
  }
  // Batcher's sort of every run, ascending.
  void sort() {
    for (std::size_t block = 2; block <= length; block *= 2) merge(block);
  }

  // Merges pairs of sorted runs and keeps the lower halves, until one run is left. A run and
  // another one read backwards are bitonic together, so the comparators between the two leave the
  // lower half in one run, which is bitonic again and only has to be merged. `spare` is
  // overwritten.
  void reduce(BitonicRuns& spare) {
    while (runs > 1) {
      const std::size_t kept = (runs + 1) / 2, pairs = runs - kept;
      spare.resize(length, kept);
      for (std::size_t place = 0; place < length; ++place) {
        const std::size_t a = place * runs, b = (length - 1 - place) * runs + kept;
        const std::size_t out = place * kept;
        keep_first(values.data() + a, ids.data() + a, values.data() + b, ids.data() + b,
                   spare.values.data() + out, spare.ids.data() + out, pairs);
        if (pairs < kept) {  // the run that has no partner
          spare.values[out + pairs] = values[a + pairs];
          spare.ids[out + pairs] = ids[a + pairs];
        }
      }
      std::swap(*this, spare);
      merge(length);
    }
  }
};

}  // namespace detail

template <class T = float, class Id = std::int32_t>
class BitonicPartialSort {
 public:
  // The k smallest of row[0 .. n), ascending, into values and ids [k]; where fewer are numbers,
  // +infinity and -1 follow. Returns how many there are. Requires that n is less than the largest
  // Id.
  std::int64_t operator()(const T* row, std::int64_t n, std::int64_t k, T* values, Id* ids) {
    const std::size_t count = n, wanted = static_cast<std::size_t>(k);
    std::size_t found = 0;
    if (count > 0 && wanted > 0) {
      const std::size_t length = std::bit_ceil(std::min(count, wanted));
      // The row is taken in pieces that stay in cache for all their steps; then the remaining runs
      // of all pieces are merged.
      const std::size_t piece = std::max<std::size_t>(length * 4, pairs_at_once);
      best_.resize(length, (count + piece - 1) / piece);
      for (std::size_t i = 0; i < best_.runs; ++i) {
        load(row, i * piece, std::min(piece, count - i * piece), length);
        piece_.sort();
        piece_.reduce(spare_);
        for (std::size_t place = 0; place < length; ++place) {
          best_.values[place * best_.runs + i] = piece_.values[place];
          best_.ids[place * best_.runs + i] = piece_.ids[place];
        }
      }
      best_.reduce(spare_);
      for (const std::size_t end = std::min(length, wanted);
           found < end && best_.ids[found] != no_id; ++found)
        values[found] = best_.values[found], ids[found] = best_.ids[found];
    }
    std::fill(values + found, values + wanted, infinity);
    std::fill(ids + found, ids + wanted, Id(-1));
    return static_cast<std::int64_t>(found);
  }

 private:
  static constexpr std::size_t pairs_at_once = 1 << 14;
  // Fills the last places of runs, and the places of NaN: it comes after every pair that may be
  // kept.
  static constexpr T infinity = std::numeric_limits<T>::infinity();
  static constexpr Id no_id = std::numeric_limits<Id>::max();

  void load(const T* row, std::size_t begin, std::size_t count, std::size_t length) {
    piece_.resize(length, (count + length - 1) / length);
    for (std::size_t i = 0; i < count; ++i) {
      const T value = row[begin + i];
      const bool number = value == value;
      piece_.values[i] = number ? value : infinity;
      piece_.ids[i] = number ? static_cast<Id>(begin + i) : no_id;
    }
    std::fill(piece_.values.begin() + static_cast<std::ptrdiff_t>(count), piece_.values.end(),
              infinity);
    std::fill(piece_.ids.begin() + static_cast<std::ptrdiff_t>(count), piece_.ids.end(), no_id);
  }

  detail::BitonicRuns<T, Id> piece_, spare_, best_;
};

}  // namespace knear
