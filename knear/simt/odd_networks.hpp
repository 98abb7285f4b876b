// knear/simt/odd_networks.hpp -- merging and sorting networks of any length, and warps that run
// them on their registers.
//
//   Candidate<W, int> x[3], y[2];          // item i in lane i % 32 of register i / 32
//   warp_sort(w, x);                       // any order -> ascending
//   warp_merge(w, x, y);                   // both ascending -> x, then y, ascending
//   warp_merge_smallest(w, x, y);          // both ascending -> x: the smallest, ascending
//
// After Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs" (2017), Algorithms 1
// and 2. merge_odd() and sort_odd() describe a network as comparators, each with the parallel step
// it belongs to; the tests run these one by one, and the code for warps is made of the same
// comparators at compile time. With L = ceil(log2 n), sorting n items takes L (L + 1) / 2 steps;
// merging l and r of them takes ceil(log2 max(l, r)) + 1, and none if either is empty. A warp takes
// one comparator a register in each step.
//
// Item is any type with precedes(), select() and shuffle_xor() as in candidate.hpp; of two items
// one must precede the other unless they are the same (no NaN).
#pragma once
#include <cstddef>
#include <utility>

#include "knear/simt/warp.hpp"

namespace knear {

// Exchanges items low < high if the one at high precedes the one at low. The comparators of one
// step touch different items, so all of them may run at once.
struct Comparator {
  int low, high, step;
};

// ceil(log2 n) for n >= 1.
KNEAR_HD constexpr int ceil_log2(int n) {
  int bits = 0;
  while ((1 << bits) < n) ++bits;
  return bits;
}

namespace detail {

// Sorts [begin, begin + n) whose items, with dummies up to the next power of two, are bitonic. The
// dummies stand before the items of a left part and are smaller than all; they stand after those of
// a right part and are larger. They stay where they are, so no comparator is spent on them.
// Returns the step after the last.
template <class Emit>
constexpr int merge_odd_continue(int begin, int n, bool left, int step, Emit& emit) {
  if (n <= 1) return step;
  const int stride = 1 << (ceil_log2(n) - 1);
  for (int i = 0; i < n - stride; ++i) emit(Comparator{begin + i, begin + i + stride, step});
  const int first = left ? n - stride : stride;  // the other part is full: it has no dummies
  const int after_first = merge_odd_continue(begin, first, true, step + 1, emit);
  const int after_second = merge_odd_continue(begin + first, n - first, false, step + 1, emit);
  return after_first > after_second ? after_first : after_second;
}

template <class Emit>
constexpr int merge_odd(int begin, int left, int right, int step, Emit& emit) {
  // There is nothing to merge. (The listing of the paper would go on comparing what is in order
  // already.)
  if (left == 0 || right == 0) return step;
  // Tail against head: both arrays rise, so the second is read backwards to make them bitonic.
  for (int i = 0; i < left && i < right; ++i)
    emit(Comparator{begin + left - 1 - i, begin + left + i, step});
  const int after_left = merge_odd_continue(begin, left, true, step + 1, emit);
  const int after_right = merge_odd_continue(begin + left, right, false, step + 1, emit);
  return after_left > after_right ? after_left : after_right;
}

template <class Emit>
constexpr int sort_odd(int begin, int n, int grain, int step, Emit& emit) {
  if (n <= 1) return step;
  const int left = n > grain ? n / grain / 2 * grain : n / 2;
  const int after_left = sort_odd(begin, left, grain, step, emit);
  const int after_right = sort_odd(begin + left, n - left, grain, step, emit);
  return merge_odd(begin, left, n - left, after_left > after_right ? after_left : after_right,
                   emit);
}

}  // namespace detail

// Merges the ascending items [0, left) with the ascending items [left, left + right): calls
// emit(Comparator) for each comparator, in an order in which they may be run one by one. Returns
// the number of steps. Any lengths >= 0.
template <class Emit>
constexpr int merge_odd(int left, int right, Emit emit) {
  return detail::merge_odd(0, left, right, 0, emit);
}

// Sorts the items [0, n), n >= 0, in the same way. Splits in half at a multiple of `grain`, of
// which n is a multiple unless it is smaller; the number of steps is the same for all grains that
// are powers of two.
template <class Emit>
constexpr int sort_odd(int n, Emit emit, int grain = 1) {
  return detail::sort_odd(0, n, grain, 0, emit);
}

namespace detail {

// 32 comparators in one: lane i of register low against lane i ^ lanes of register high. Within a
// register (low == high) there are 16, and the lanes that have the highest bit of `lanes` are the
// high ones.
struct RegisterComparator {
  int low, high, lanes;
};

// A network on 32 * registers items, in the order of its steps.
template <int registers>
struct WarpNetwork {
  static constexpr int most_steps =
      (ceil_log2(warp_size * registers) + 1) * ceil_log2(warp_size * registers) / 2;
  RegisterComparator comparators[std::size_t(most_steps) * registers];
  int count = 0, steps = 0;
};

// Gathers comparators of items into those of registers. Does not compile if they can't be: if 32
// items of a register do not meet those of one other in the same step, all by one shuffle.
template <int registers>
struct GatherForWarp {
  RegisterComparator at[WarpNetwork<registers>::most_steps][registers] = {};
  int items[WarpNetwork<registers>::most_steps][registers] = {};

  struct Emit {
    GatherForWarp* to;
    constexpr void operator()(Comparator c) const {
      const int low = c.low / warp_size, high = c.high / warp_size;
      const int lanes = (c.low ^ c.high) % warp_size;
      RegisterComparator& mine = to->at[c.step][low];
      if (to->items[c.step][low]++ == 0) mine = {low, high, lanes};
      if (mine.high != high || mine.lanes != lanes) throw "not a comparator of registers";
    }
  };

  constexpr WarpNetwork<registers> network(int steps) const {
    WarpNetwork<registers> out = {};
    for (int step = 0; step < steps; ++step)
      for (int r = 0; r < registers; ++r) {
        if (items[step][r] == 0) continue;
        const RegisterComparator c = at[step][r];
        if (items[step][r] != (c.low == c.high ? warp_size / 2 : warp_size))
          throw "a part of a register";
        out.comparators[out.count++] = c;
      }
    out.steps = steps;
    return out;
  }
};

template <int n>
constexpr WarpNetwork<n> make_warp_sort() {
  GatherForWarp<n> gather;
  const int steps =
      knear::sort_odd(warp_size * n, typename GatherForWarp<n>::Emit{&gather}, warp_size);
  return gather.network(steps);
}

template <int R, int T>
constexpr WarpNetwork<R + T> make_warp_merge() {
  GatherForWarp<R + T> gather;
  const int steps =
      knear::merge_odd(warp_size * R, warp_size * T, typename GatherForWarp<R + T>::Emit{&gather});
  return gather.network(steps);
}

template <int n>
inline constexpr WarpNetwork<n> warp_sort_network = make_warp_sort<n>();
template <int R, int T>
inline constexpr WarpNetwork<R + T> warp_merge_network = make_warp_merge<R, T>();

// The numbers of a network's comparators.
template <int n>
using WarpSortNumbers = std::make_index_sequence<std::size_t(warp_sort_network<n>.count)>;
template <int R, int T>
using WarpMergeNumbers = std::make_index_sequence<std::size_t(warp_merge_network<R, T>.count)>;

// Compares within one register: the lanes with the highest bit of `lanes` keep the later item of
// each pair.
template <int lanes, Warp W, class Item>
KNEAR_WARP void compare_within(W w, Item& x) {
  constexpr int highest_bit = (1 << ceil_log2(lanes + 1)) / 2;
  const auto keeps_later = w.lanes_with(highest_bit);
  const Item other = shuffle_xor(w, x, lanes);
  x = select(w, precedes(other, x) ^ keeps_later, other, x);
}

template <int lanes, Warp W, class Item>
KNEAR_WARP Item from_lanes(W w, const Item& x) {
  if constexpr (lanes == 0)
    return x;
  else
    return shuffle_xor(w, x, lanes);
}

template <int lanes, Warp W, class Item>
KNEAR_WARP void keep_earlier(W w, Item& low, const Item& high) {
  const Item other = from_lanes<lanes>(w, high);
  low = select(w, precedes(other, low), other, low);
}

template <int lanes, Warp W, class Item>
KNEAR_WARP void compare_across(W w, Item& low, Item& high) {
  if constexpr (lanes == 0) {
    const Item a = low, b = high;
    const auto swap = precedes(b, a);
    low = select(w, swap, b, a);
    high = select(w, swap, a, b);
  } else {
    const Item other = shuffle_xor(w, low, lanes);
    keep_earlier<lanes>(w, low, high);
    high = select(w, precedes(high, other), other, high);
  }
}

// Runs comparator number i of a network. Every index into an array is a constant: one known at run
// time only would push the registers to memory on CUDA.
template <const auto& network, std::size_t i, Warp W, class Item, int R>
KNEAR_WARP void compare(W w, Item (&x)[R]) {
  constexpr RegisterComparator c = network.comparators[i];
  if constexpr (c.low == c.high)
    compare_within<c.lanes>(w, x[c.low]);
  else
    compare_across<c.lanes>(w, x[c.low], x[c.high]);
}
template <const auto& network, std::size_t i, Warp W, class Item, int R, int T>
KNEAR_WARP void compare(W w, Item (&x)[R], Item (&y)[T]) {
  constexpr RegisterComparator c = network.comparators[i];
  if constexpr (c.high < R)
    compare<network, i>(w, x);
  else if constexpr (c.low < R)
    compare_across<c.lanes>(w, x[c.low], y[c.high - R]);
  else if constexpr (c.low == c.high)
    compare_within<c.lanes>(w, y[c.low - R]);
  else
    compare_across<c.lanes>(w, y[c.low - R], y[c.high - R]);
}
// As above, but y is not wanted, so comparators within it are left out.
template <const auto& network, std::size_t i, Warp W, class Item, int R, int T>
KNEAR_WARP void compare(W w, Item (&x)[R], const Item (&y)[T]) {
  constexpr RegisterComparator c = network.comparators[i];
  if constexpr (c.high < R)
    compare<network, i>(w, x);
  else if constexpr (c.low < R)
    keep_earlier<c.lanes>(w, x[c.low], y[c.high - R]);
}

// Runs the comparators begin, ..., end - 1, some at a time: Clang folds no more than 256.
template <const auto& network, std::size_t begin, Warp W, std::size_t... i, class... Arrays>
KNEAR_WARP void run_some(W w, std::index_sequence<i...>, Arrays&... arrays) {
  (compare<network, begin + i>(w, arrays...), ...);
}
template <const auto& network, std::size_t begin, std::size_t end, Warp W, class... Arrays>
KNEAR_WARP void run_between(W w, Arrays&... arrays) {
  constexpr std::size_t middle = end - begin > 128 ? begin + 128 : end;
  run_some<network, begin>(w, std::make_index_sequence<middle - begin>(), arrays...);
  if constexpr (middle < end) run_between<network, middle, end>(w, arrays...);
}
template <const auto& network, Warp W, std::size_t... i, class... Arrays>
KNEAR_WARP void run_network(W w, std::index_sequence<i...>, Arrays&... arrays) {
  run_between<network, 0, sizeof...(i)>(w, arrays...);
}

}  // namespace detail

// Sorts the 32 * n items.
template <Warp W, class Item, int n>
KNEAR_WARP void warp_sort(W w, Item (&x)[n]) {
  detail::run_network<detail::warp_sort_network<n>>(w, detail::WarpSortNumbers<n>(), x);
}

// Merges x [32 * R] and y [32 * T], each ascending: the 32 * R smallest of both go to x, the others
// to y, each ascending.
template <Warp W, class Item, int R, int T>
KNEAR_WARP void warp_merge(W w, Item (&x)[R], Item (&y)[T]) {
  detail::run_network<detail::warp_merge_network<R, T>>(w, detail::WarpMergeNumbers<R, T>(), x, y);
}

// As warp_merge, but keeps only x: takes the comparators that x needs, ceil(log2 32 R) + 1 steps.
template <Warp W, class Item, int R, int T>
KNEAR_WARP void warp_merge_smallest(W w, Item (&x)[R], const Item (&y)[T]) {
  detail::run_network<detail::warp_merge_network<R, T>>(w, detail::WarpMergeNumbers<R, T>(), x, y);
}

}  // namespace knear
