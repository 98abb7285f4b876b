// knear/simt/bitonic.hpp -- sorting and merging networks over the registers of a warp.
//
//   Candidate<W, int> x[R];                // 32 R items, number i in lane i % 32 of x[i / 32]
//   warp_sort<Order::ascending>(w, x);     // any order -> sorted
//   warp_merge<Order::ascending>(w, x);    // bitonic (up, then down) -> sorted
//   warp_keep_smallest(w, x, other);       // x ascending, other descending -> x ascending
//
// Batcher's networks on a lane-stride array: a comparator of stride 32 or more stands within a
// lane, one below 32 takes a shuffle. For n = 32 R: log2(n) (log2(n) + 1) / 2 steps to sort,
// log2(n) to merge, R comparators each. R must be a power of two. Item is any type with precedes(),
// select() and shuffle_xor() as in candidate.hpp; of two items one must precede the other unless
// they are the same (no NaN).
//
// On CUDA every index into x must be known at compile time, since a run-time index would push the
// registers to memory: the steps are enumerated by templates and inlined with constant arguments.
#pragma once
#include "knear/simt/warp.hpp"

namespace knear {

enum class Order { ascending, descending };

namespace detail {

constexpr bool is_power_of_two(int n) { return n > 0 && (n & (n - 1)) == 0; }

// One step of the network: items whose numbers differ in the bit `stride` are put in order, up in
// blocks of `size` whose number has that bit clear, down in the others (or the reverse).
template <Order order, Warp W, class Item, int R>
KNEAR_WARP void bitonic_step(W w, Item (&x)[R], int size, int stride) {
  if (stride >= warp_size) {
    const int step = stride / warp_size;
    KNEAR_UNROLL
    for (int r = 0; r < R; ++r) {
      if ((r & step) != 0 || r + step >= R) continue;  // the second part: for GCC's warnings
      const bool up = ((r * warp_size & size) == 0) == (order == Order::ascending);
      const Item low = x[r], high = x[r + step];
      const auto swap = up ? precedes(high, low) : precedes(low, high);
      x[r] = select(w, swap, high, low);
      x[r + step] = select(w, swap, low, high);
    }
    return;
  }
  // The later place of an upward pair keeps the larger item, and so on by exclusive or.
  auto later = w.lanes_with(stride);
  if (size < warp_size) later = later ^ w.lanes_with(size);
  KNEAR_UNROLL
  for (int r = 0; r < R; ++r) {
    const bool down = size >= warp_size && (r * warp_size & size) != 0;
    const auto keeps_larger = down != (order == Order::descending) ? !later : later;
    const Item mine = x[r], other = shuffle_xor(w, x[r], stride);
    x[r] = select(w, precedes(other, mine) ^ keeps_larger, other, mine);
  }
}

template <int size, int stride, Order order, Warp W, class Item, int R>
KNEAR_WARP void bitonic_steps(W w, Item (&x)[R]) {
  bitonic_step<order>(w, x, size, stride);
  if constexpr (stride > 1) bitonic_steps<size, stride / 2, order>(w, x);
}

template <int size, Order order, Warp W, class Item, int R>
KNEAR_WARP void bitonic_sort_from(W w, Item (&x)[R]) {
  bitonic_steps<size, size / 2, order>(w, x);
  if constexpr (size < warp_size * R) bitonic_sort_from<2 * size, order>(w, x);
}

}  // namespace detail

// Sorts the 32 * R items.
template <Order order, Warp W, class Item, int R>
KNEAR_WARP void warp_sort(W w, Item (&x)[R]) {
  static_assert(detail::is_power_of_two(R));
  detail::bitonic_sort_from<2, order>(w, x);
}

// Sorts a bitonic sequence of 32 * R items: one that rises and then falls, or a rotation of such.
template <Order order, Warp W, class Item, int R>
KNEAR_WARP void warp_merge(W w, Item (&x)[R]) {
  static_assert(detail::is_power_of_two(R));
  detail::bitonic_steps<2 * warp_size * R, warp_size * R / 2, order>(w, x);
}

// best: ascending. other: descending. Leaves in best the 32 * R smallest of both, ascending.
//
// Laid tail to tail, the largest of best meet the smallest of other; the smaller of each pair are
// the wanted ones (with n = 32 R, b_i is among the n smallest iff it precedes the (n - 1 - i)-th of
// other), and they form a bitonic sequence.
template <Warp W, class Item, int R, int T>
KNEAR_WARP void warp_keep_smallest(W w, Item (&best)[R], const Item (&other)[T]) {
  static_assert(detail::is_power_of_two(R) && detail::is_power_of_two(T));
  KNEAR_UNROLL
  for (int i = 1; i <= (R < T ? R : T); ++i)
    best[R - i] = select(w, precedes(other[T - i], best[R - i]), other[T - i], best[R - i]);
  warp_merge<Order::ascending>(w, best);
}

}  // namespace knear
