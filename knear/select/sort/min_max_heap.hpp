// knear/select/sort/min_max_heap.hpp -- a heap of fixed size that knows both its ends.
//
//   std::vector<KeyedId> space = ...;                   // the first k of a stream, in any order
//   MinMaxHeap<KeyedId> heap{std::span(space)};         // borrowed: ordered in place, O(k)
//   for (...) heap.insert_replacing_max(item);          // O(1) if it comes too late, or O(log k)
//   heap.take_sorted(out);                              // ascending, O(k log k), heap empty then
//
// A complete binary tree in an array, the children of place i at 2i + 1 and 2i + 2. On the even
// levels (the root's is 0) an item precedes nothing below it, on the odd levels nothing below
// precedes it: the first of all is at the root, the last is one of the root's children. So one heap
// both keeps the k smallest of a stream, as a max heap would, and yields them in ascending order,
// as a min heap would, with no sort in between.
//
// After Atkinson, Sack, Santoro and Strothotte, "Min-max heaps and generalized priority queues"
// (CACM 29, 1986), in the fixed-size form of Matsumoto and Yiu, "Accelerating Exact Similarity
// Search on CPU-GPU Systems" (2015), section V-B: the heap begins full, so nothing ever bubbles up.
// Their listings have slips. We implement the heap of 1986 and only name their procedures; what the
// listings would do as printed (tests/select/sort/min_max_heap_test.cpp does it):
// - Algorithm 5 trickles *min* from the place of the replaced maximum, which is on a max level. A
//   new item smaller than a child there stays above it, and the heap no longer knows its maximum.
//   Heaps of three, as in the paper's examples, are too small to show it.
// - Algorithm 7 goes on from `current` (the place in the row) or `k - current`, where it has to go
//   on from `update` (the place in the heap): beyond the end, so that only the first step is done.
// - Algorithm 7 repeats the loop over the row for each distance in it: from the second time on,
//   what is kept already is inserted again.
// - Algorithm 4 reads the best grandchild where there is none, and names a place to go on from
//   where nothing was exchanged.
// - Example 4 fills the root with the *largest* item and the text with the *last*. It is the last:
//   the largest would leave a hole in the middle of the array.
//
// No step allocates or recurses. A heap may be read by many threads and changed by one.
#pragma once
#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "knear/select/sort/sort_pairs.hpp"

namespace knear {

// `Precedes` is a strict weak order. With ties any of the equals may be found first; KeyedId's
// order by key, then id, has none.
template <class Item = KeyedId, class Precedes = std::less<Item>>
class MinMaxHeap {
 public:
  // Orders the items in `items`, which must outlive the heap and not be changed meanwhile.
  explicit MinMaxHeap(std::span<Item> items, Precedes precedes = {})
      : items_(items.data()), size_(items.size()), precedes_(std::move(precedes)) {
    heapify();
  }
  // As above, over items that the heap owns.
  explicit MinMaxHeap(std::vector<Item>&& items, Precedes precedes = {})
      : own_(std::move(items)),
        items_(own_.data()),
        size_(own_.size()),
        precedes_(std::move(precedes)) {
    heapify();
  }
  MinMaxHeap(const MinMaxHeap&) = delete;  // two heaps over borrowed items would corrupt each other
  MinMaxHeap& operator=(const MinMaxHeap&) = delete;

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // The items in the order of the heap.
  std::span<const Item> items() const { return {items_, size_}; }

  // Both require an item.
  const Item& min() const { return items_[0]; }
  const Item& max() const { return items_[max_place()]; }

  // PInsert: puts `item` in the place of the maximum if it precedes that; else changes nothing.
  // Returns whether it did. Requires an item.
  bool insert_replacing_max(Item item) {
    const std::size_t place = max_place();
    if (!precedes_(item, items_[place])) return false;
    // A new minimum belongs at the root, and the old one goes where the maximum was: it trickles
    // down from there like any new item.
    if (place > 0 && precedes_(item, items_[0])) std::swap(item, items_[0]);
    if (place == 0)
      items_[0] = std::move(item);
    else
      trickle<false>(place, std::move(item));
    return true;
  }

  // PDelete: removes the minimum; the last item goes to the root and trickles down. Requires an
  // item.
  Item delete_min() {
    Item first = std::move(items_[0]);
    if (--size_ > 0) trickle<true>(0, std::move(items_[size_]));
    return first;
  }

  // Removes everything, ascending. Returns the end of what was written.
  template <class Output>
  Output take_sorted(Output out) {
    while (size_ > 0) *out++ = delete_min();
    return out;
  }

 private:
  // The level is the bit width of the place counted from 1, less one.
  static bool on_min_level(std::size_t place) { return std::bit_width(place + 1) % 2 == 1; }

  // The order of the min levels, or its reverse, that of the max levels.
  template <bool Min>
  bool before(const Item& a, const Item& b) const {
    return Min ? precedes_(a, b) : precedes_(b, a);
  }

  std::size_t max_place() const {
    if (size_ < 3) return size_ - 1;
    return precedes_(items_[1], items_[2]) ? 2 : 1;
  }

  // PHeapifyMinMax: from the last parent up to the root, each in the heap below it.
  void heapify() {
    for (std::size_t place = size_ / 2; place-- > 0;) {
      Item item = std::move(items_[place]);
      if (on_min_level(place))
        trickle<true>(place, std::move(item));
      else
        trickle<false>(place, std::move(item));
    }
  }

  // PTrickleMin and PTrickleMax: finds the place for `item` in the heap below `place`, a place of
  // the min levels or of the max levels, whose content is void. The names are those for the min
  // levels; for the max levels `before` means after.
  template <bool Min>
  void trickle(std::size_t place, Item item) {
    for (;;) {
      const std::size_t child = 2 * place + 1, grandchild = 4 * place + 3;
      if (child >= size_) break;
      // The first among children and grandchildren. Only a child without children of its own, or
      // one equal to the first of them, can precede the grandchildren.
      std::size_t best = child;
      if (child + 1 < size_ && before<Min>(items_[child + 1], items_[best])) best = child + 1;
      for (std::size_t i = grandchild, end = std::min(grandchild + 4, size_); i < end; ++i)
        if (before<Min>(items_[i], items_[best])) best = i;
      if (!before<Min>(items_[best], item)) break;
      items_[place] = std::move(items_[best]);
      place = best;
      if (best < grandchild) break;  // nothing below a child comes after it, nor after `item`
      Item& parent = items_[(best - 1) / 2];
      if (before<Min>(parent, item)) std::swap(parent, item);
    }
    items_[place] = std::move(item);
  }

  std::vector<Item> own_;  // empty where items are borrowed
  Item* items_;
  std::size_t size_;
  [[no_unique_address]] Precedes precedes_;
};

}  // namespace knear
