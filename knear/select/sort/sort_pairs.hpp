// knear/select/sort/sort_pairs.hpp -- (key, id) pairs in the total order: sorted, or the k smallest
// of them, some four times as fast as the standard library.
//
//   std::vector<Pair> pairs = ...;                // compared by key, then id
//   keep_smallest(pairs, k);                      // the k smallest, in no order
//   sort_pairs(pairs);
//
// Both do without branches that depend on a comparison: distances are in no order that a processor
// could predict. Sorting is a bottom-up merge sort (Knuth, volume 3, 5.2.4) whose merges go on from
// both ends at once, two chains of dependent steps instead of one.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "knear/select/sort/nth_value.hpp"

namespace knear {

using KeyedId = std::pair<double, std::int64_t>;

namespace detail {

// A pair as one number in the same order; keys must not be NaN or -0.0.
using Ordered = unsigned __int128;
inline Ordered ordered(const KeyedId& pair) {
  std::uint64_t bits;
  std::memcpy(&bits, &pair.first, 8);
  const std::uint64_t sign = std::uint64_t(0) - (bits >> 63);
  bits ^= sign | 0x8000000000000000u;
  return Ordered(bits) << 64 | (static_cast<std::uint64_t>(pair.second) ^ 0x8000000000000000u);
}
inline KeyedId pair_of(Ordered x) {
  std::uint64_t bits = static_cast<std::uint64_t>(x >> 64);
  bits ^= (bits >> 63) ? 0x8000000000000000u : ~std::uint64_t{0};
  KeyedId pair;
  std::memcpy(&pair.first, &bits, 8);
  pair.second = static_cast<std::int64_t>(static_cast<std::uint64_t>(x) ^ 0x8000000000000000u);
  return pair;
}

// Memory of a thread is kept for the next call, unless it is more than a megabyte.
template <class T>
void release_if_large(std::vector<T>& space) {
  if (space.capacity() * sizeof(T) > 1 << 20) std::vector<T>().swap(space);
}

// Merges sorted [a, a + n) and [a + n, a + n + m) into `out`; n >= m >= 1.
inline void merge_from_both_ends(const Ordered* a, std::size_t n, std::size_t m, Ordered* out) {
  const Ordered *left = a, *right = a + n;                  // forwards
  const Ordered *left_end = right, *right_end = right + m;  // backwards, one beyond
  Ordered* last = out + n + m;
  // So many steps from each end exhaust neither side before the ends meet.
  const std::size_t steps = std::min(m, (n + m) / 2);
  for (std::size_t i = 0; i < steps; ++i) {
    const Ordered l = *left, r = *right, le = left_end[-1], re = right_end[-1];
    const bool from_right = r < l, from_left = re < le;
    *out++ = from_right ? r : l;
    *--last = from_left ? le : re;
    right += from_right, left += !from_right;
    left_end -= from_left, right_end -= !from_left;
  }
  // What is left in between: nothing where both sides were equally long.
  while (left < left_end && right < right_end) *out++ = *right < *left ? *right++ : *left++;
  while (left < left_end) *out++ = *left++;
  while (right < right_end) *out++ = *right++;
}

}  // namespace detail

// Sorts ascending. Requires that no key is NaN; -0.0 comes out as 0.0.
inline void sort_pairs(std::vector<KeyedId>& pairs) {
  const std::size_t count = pairs.size();
  thread_local std::vector<detail::Ordered> space;
  space.resize(2 * count);
  detail::Ordered *from = space.data(), *to = from + count;
  constexpr std::size_t run = 4;
  for (std::size_t i = 0; i < count; ++i)
    from[i] = detail::ordered({pairs[i].first + 0.0, pairs[i].second});
  const auto order = [&](std::size_t i, std::size_t j) {
    const detail::Ordered a = from[i], b = from[j];
    from[i] = a < b ? a : b, from[j] = a < b ? b : a;
  };
  std::size_t begin = 0;
  for (; begin + run <= count; begin += run) {
    order(begin, begin + 1), order(begin + 2, begin + 3), order(begin, begin + 2);
    order(begin + 1, begin + 3), order(begin + 1, begin + 2);
  }
  std::sort(from + begin, from + count);
  for (std::size_t width = run; width < count; width *= 2, std::swap(from, to))
    for (begin = 0; begin < count; begin += 2 * width) {
      const std::size_t n = std::min(width, count - begin), m = std::min(width, count - begin - n);
      if (m == 0)
        std::copy_n(from + begin, n, to + begin);
      else
        detail::merge_from_both_ends(from + begin, n, m, to + begin);
    }
  for (std::size_t i = 0; i < count; ++i) pairs[i] = detail::pair_of(from[i]);
  detail::release_if_large(space);
}

// Leaves the k smallest, in no order; the largest of them comes last. Requires 1 <= k <= size,
// no NaN.
inline void keep_smallest(std::vector<KeyedId>& pairs, std::size_t k) {
  const std::size_t count = pairs.size();
  thread_local std::vector<double> keys;
  thread_local std::vector<std::int64_t> ties;
  keys.resize(2 * count);
  for (std::size_t i = 0; i < count; ++i) keys[i] = pairs[i].first;
  const double bound = nth_value(keys.data(), keys.data() + count, count, k - 1);
  ties.clear();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const KeyedId pair = pairs[i];
    if (pair.first == bound) ties.push_back(pair.second);
    pairs[kept] = pair, kept += pair.first < bound;
  }
  const std::ptrdiff_t wanted = static_cast<std::ptrdiff_t>(k - kept);
  std::nth_element(ties.begin(), ties.begin() + (wanted - 1), ties.end());
  pairs.resize(k);
  for (std::ptrdiff_t i = 0; i < wanted; ++i) pairs[kept + i] = {bound, ties[i]};
  detail::release_if_large(keys), detail::release_if_large(ties);
}

}  // namespace knear
