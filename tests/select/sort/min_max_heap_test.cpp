// MinMaxHeap: its order after every operation, its answers against sorting, and what the listings
// of Matsumoto and Yiu (2015) would do as printed.
#include "knear/select/sort/min_max_heap.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <vector>

#include "knear/core/random.hpp"

namespace knear {
namespace {

// Compares every place with all those above it, level by level from the definition.
template <class Item, class Precedes = std::less<Item>>
bool is_min_max_heap(std::span<const Item> items, Precedes precedes = {}) {
  for (std::size_t i = 1; i < items.size(); ++i) {
    std::size_t level = 0;
    for (std::size_t above = i; above > 0; above = (above - 1) / 2) ++level;
    for (std::size_t above = i; above > 0;) {
      above = (above - 1) / 2, --level;
      if (level % 2 == 0 ? precedes(items[i], items[above]) : precedes(items[above], items[i]))
        return false;
    }
  }
  return true;
}
bool is_min_max_heap(const std::vector<int>& items) {
  return is_min_max_heap(std::span<const int>(items));
}

TEST(MinMaxHeap, TheTestKnowsAHeap) {
  EXPECT_TRUE(is_min_max_heap(std::vector<int>{}));
  EXPECT_TRUE(is_min_max_heap({1, 9, 8, 5}));
  EXPECT_FALSE(is_min_max_heap({2, 1}));
  EXPECT_FALSE(is_min_max_heap({1, 9, 8, 10}));                 // a grandchild above its parent
  EXPECT_FALSE(is_min_max_heap({3, 9, 8, 2}));                  // below the root
  EXPECT_FALSE(is_min_max_heap({1, 9, 8, 5, 5, 5, 5, 4}));      // level 3 below level 2
  EXPECT_TRUE(is_min_max_heap({1, 9, 8, 5, 5, 5, 5, 5}));       // equals anywhere
  EXPECT_FALSE(is_min_max_heap({1, 9, 8, 5, 5, 5, 5, 9, 10}));  // level 3 above level 1
}

// The life of a heap: made, offered a stream, emptied; its order is checked after each step and its
// content against a sorted list.
template <class Item, class Precedes, class Draw>
void live(std::size_t size, std::size_t offers, Draw draw, Precedes precedes) {
  std::vector<Item> space(size);
  for (Item& item : space) item = draw();
  std::vector<Item> sorted = space;
  std::sort(sorted.begin(), sorted.end(), precedes);
  MinMaxHeap<Item, Precedes> heap{std::span(space), precedes};
  ASSERT_TRUE(is_min_max_heap(heap.items(), precedes));
  for (std::size_t i = 0; i < offers; ++i) {
    ASSERT_EQ(heap.min(), sorted.front());
    ASSERT_EQ(heap.max(), sorted.back());
    const Item item = draw();
    ASSERT_EQ(heap.insert_replacing_max(item), precedes(item, sorted.back()));
    if (precedes(item, sorted.back())) {
      sorted.pop_back();
      sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), item, precedes), item);
    }
    ASSERT_EQ(heap.size(), size);
    ASSERT_TRUE(is_min_max_heap(heap.items(), precedes)) << "after " << i + 1 << " offers";
  }
  for (std::size_t i = 0; i < size / 2; ++i) {
    ASSERT_EQ(heap.delete_min(), sorted[i]);
    ASSERT_TRUE(is_min_max_heap(heap.items(), precedes)) << "after " << i + 1 << " deletions";
    ASSERT_EQ(heap.max(), sorted.back());
  }
  std::vector<Item> rest;
  heap.take_sorted(std::back_inserter(rest));
  EXPECT_TRUE(heap.empty());
  EXPECT_EQ(rest, std::vector<Item>(sorted.begin() + std::ptrdiff_t(size / 2), sorted.end()));
}

class MinMaxHeapOfSize : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, MinMaxHeapOfSize, testing::Range<std::size_t>(1, 71));

TEST_P(MinMaxHeapOfSize, KeepsItsOrder) {
  Random random(GetParam());
  for (const std::uint64_t kinds : {1, 2, 3, 20, 1000000})
    for (int time = 0; time < 12; ++time) {
      SCOPED_TRACE(testing::Message() << kinds << " kinds of values, life " << time);
      const auto draw = [&] { return static_cast<int>(random.below(kinds)); };
      live<int>(GetParam(), 60, draw, std::less<int>());
      live<int>(GetParam(), 60, draw, std::greater<int>());
      const auto draw_pair = [&] {
        return KeyedId(static_cast<double>(random.below(kinds)),
                       static_cast<std::int64_t>(random.below(1000)) - 500);
      };
      live<KeyedId>(GetParam(), 60, draw_pair, std::less<KeyedId>());
      if (HasFatalFailure()) return;
    }
}

// Rising streams are refused at once; falling streams put every new item at the root.
TEST_P(MinMaxHeapOfSize, OfMonotonousStreams) {
  const int size = static_cast<int>(GetParam());
  int next = 0;
  live<int>(
      GetParam(), 100, [&] { return next++; }, std::less<int>());
  live<int>(
      GetParam(), 100, [&] { return next--; }, std::less<int>());
  // From both ends: every second item is just below the maximum.
  live<int>(
      GetParam(), 100, [&, i = 0]() mutable { return ++i % 2 ? size - i : i - size; },
      std::less<int>());
}

TEST(MinMaxHeap, OfNothing) {
  MinMaxHeap<int> heap{std::span<int>()};
  EXPECT_TRUE(heap.empty());
  EXPECT_EQ(heap.take_sorted(static_cast<int*>(nullptr)), nullptr);
}

TEST(MinMaxHeap, OwnsWhatItIsGivenAndOrdersLentItemsInPlace) {
  MinMaxHeap owning(std::vector<int>{5, 3, 9, 1});
  EXPECT_EQ(owning.min(), 1);
  EXPECT_EQ(owning.max(), 9);
  std::vector<int> space{5, 3, 9, 1};
  MinMaxHeap<int> lent{std::span(space)};
  EXPECT_EQ(lent.items().data(), space.data());
  EXPECT_TRUE(is_min_max_heap(space));
}

TEST(MinMaxHeap, OfPairsPrefersTheSmallerIdAmongEqualKeys) {
  MinMaxHeap heap(std::vector<KeyedId>{{1.0, 7}, {1.0, 3}, {0.5, 9}});
  EXPECT_FALSE(heap.insert_replacing_max({1.0, 8}));
  EXPECT_TRUE(heap.insert_replacing_max({1.0, 5}));
  std::vector<KeyedId> out;
  heap.take_sorted(std::back_inserter(out));
  EXPECT_EQ(out, (std::vector<KeyedId>{{0.5, 9}, {1.0, 3}, {1.0, 5}}));
}

// The listings as printed, for integers. -1 stands for `none`.
namespace printed {

// PTrickleMinOnce (Algorithm 4) and, reversed, PTrickleMaxOnce, without their own slips: no
// grandchild that is not there, and nowhere to go on from if nothing was exchanged.
int trickle_once(std::vector<int>& heap, int place, bool min) {
  const auto before = [min](int a, int b) { return min ? a < b : b < a; };
  const int size = static_cast<int>(heap.size());
  int best = -1;
  for (const int i :
       {2 * place + 1, 2 * place + 2, 4 * place + 3, 4 * place + 4, 4 * place + 5, 4 * place + 6})
    if (i < size && (best < 0 || before(heap[std::size_t(i)], heap[std::size_t(best)]))) best = i;
  if (best < 0 || !before(heap[std::size_t(best)], heap[std::size_t(place)])) return -1;
  std::swap(heap[std::size_t(best)], heap[std::size_t(place)]);
  if (best < 4 * place + 3) return -1;
  int &parent = heap[std::size_t((best - 1) / 2)], &item = heap[std::size_t(best)];
  if (before(parent, item)) std::swap(parent, item);
  return best;
}

std::size_t place_of_max(const std::vector<int>& heap) { return heap[1] < heap[2] ? 2 : 1; }

// PInsert (Algorithm 5); `min` as printed, max as it should be.
int insert(std::vector<int>& heap, int item, bool min = true) {
  const std::size_t place = place_of_max(heap);
  if (!(heap[place] > item)) return -1;
  heap[place] = item;
  if (item < heap[0]) std::swap(heap[place], heap[0]);
  return trickle_once(heap, static_cast<int>(place), min);
}

}  // namespace printed

// Algorithm 5, line 5: the 2 in the place of the 9 is left above the 5, and from then on the
// maximum cannot be found.
TEST(MinMaxHeapListings, InsertionThatTricklesMinBreaksTheHeap) {
  const std::vector<int> before{1, 9, 8, 5};
  ASSERT_TRUE(is_min_max_heap(before));
  std::vector<int> heap = before;
  printed::insert(heap, 2);
  EXPECT_EQ(heap, (std::vector<int>{1, 2, 8, 5}));
  EXPECT_FALSE(is_min_max_heap(heap));
  printed::insert(heap, 3);  // in the place of the 8
  EXPECT_EQ(heap[printed::place_of_max(heap)], 3) << "though 5 is kept";
  printed::insert(heap, 2);  // replaces the 3, not the 5: one of the four does not belong
  std::sort(heap.begin(), heap.end());
  EXPECT_EQ(heap, (std::vector<int>{1, 2, 2, 5}));

  MinMaxHeap ours{std::vector<int>(before)};
  for (const int item : {2, 3, 2}) EXPECT_TRUE(ours.insert_replacing_max(item));
  EXPECT_TRUE(is_min_max_heap(ours.items()));
  EXPECT_EQ(ours.max(), 3);
}

// The example of the paper has a heap of three, where no child of the root has children: min or
// max, nothing is wrong.
TEST(MinMaxHeapListings, HeapsOfThreeDoNotShowIt) {
  for (int item = 0; item < 12; ++item) {
    std::vector<int> as_printed{2, 10, 6}, as_meant = as_printed;
    printed::insert(as_printed, item, true);
    printed::insert(as_meant, item, false);
    EXPECT_TRUE(is_min_max_heap(as_printed));
    EXPECT_EQ(as_printed, as_meant);
  }
}

// Algorithm 7, line 12: after PInsert's one step, PTrickleMaxOnce is called at the place in the
// row, k or more, which has no children in the heap. The smallest heap that needs a second step has
// 16 items.
TEST(MinMaxHeapListings, GoingOnFromThePlaceInTheRowLeavesStepsOut) {
  const std::vector<int> before{0, 50, 60, 1, 2, 3, 4, 40, 30, 30, 30, 30, 30, 30, 30, 20};
  ASSERT_TRUE(is_min_max_heap(before));
  std::vector<int> heap = before;
  heap[2] = 45;  // so that the maximum is at place 1
  ASSERT_TRUE(is_min_max_heap(heap));
  const int item = 10, current = static_cast<int>(heap.size());  // the first place offered
  std::vector<int> as_printed = heap, as_meant = heap;
  int update = printed::insert(as_printed, item, false);
  ASSERT_EQ(update, 7);  // where the 40 was, and now the 10 above the 20
  update = printed::trickle_once(as_printed, current, false);
  EXPECT_EQ(update, -1);
  EXPECT_FALSE(is_min_max_heap(as_printed));

  update = printed::insert(as_meant, item, false);
  while (update >= 0) update = printed::trickle_once(as_meant, update, false);
  EXPECT_TRUE(is_min_max_heap(as_meant));
  MinMaxHeap<int> ours{std::span(heap)};
  EXPECT_TRUE(ours.insert_replacing_max(item));
  EXPECT_EQ(std::vector<int>(ours.items().begin(), ours.items().end()), as_meant);
}

// Algorithm 7, line 23: the same mistake when the minimum is deleted, where eight items or more are
// left.
TEST(MinMaxHeapListings, GoingOnFromTheEndAfterADeletionLeavesStepsOut) {
  std::vector<int> heap{0, 50, 60, 1, 7, 8, 9, 3, 20};  // the 20 goes to the root
  ASSERT_TRUE(is_min_max_heap(heap));
  std::vector<int> as_printed = heap;
  as_printed[0] = as_printed.back();
  as_printed.pop_back();
  const int update = printed::trickle_once(as_printed, 0, true);
  ASSERT_EQ(update, 3);  // the 20 where the 1 was, above the 3
  EXPECT_EQ(printed::trickle_once(as_printed, static_cast<int>(as_printed.size()), true), -1);
  EXPECT_FALSE(is_min_max_heap(as_printed));
  MinMaxHeap<int> ours{std::span(heap)};
  EXPECT_EQ(ours.delete_min(), 0);
  EXPECT_TRUE(is_min_max_heap(ours.items()));
  EXPECT_EQ(ours.delete_min(), 1);
  EXPECT_EQ(ours.delete_min(), 3);
}

// Algorithm 7, lines 5 to 14: the loop over the row is inside a loop over the row. The second time
// the 1 is again smaller than the maximum, and is kept twice.
TEST(MinMaxHeapListings, OfferingTheRowAgainKeepsItemsTwice) {
  const std::vector<int> row{5, 4, 1};
  const auto kept_after = [&row](int times) {
    MinMaxHeap heap(std::vector<int>{row[0], row[1]});
    while (times-- > 0) heap.insert_replacing_max(row[2]);
    std::vector<int> kept;
    heap.take_sorted(std::back_inserter(kept));
    return kept;
  };
  EXPECT_EQ(kept_after(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(kept_after(3), (std::vector<int>{1, 1}));
}

// Example 4's words: the root is replaced by the largest item, which is then removed from its
// place. Where that is not the last place, the array has a hole or the last item is lost.
TEST(MinMaxHeapListings, TheRootIsReplacedByTheLastItemNotTheLargest) {
  const std::vector<int> before{1, 9, 8, 5};
  std::vector<int> heap = before;
  heap[0] = heap[printed::place_of_max(heap)];  // the largest
  heap.pop_back();
  EXPECT_EQ(std::count(heap.begin(), heap.end(), 5), 0);
  EXPECT_EQ(std::count(heap.begin(), heap.end(), 9), 2);
  MinMaxHeap ours{std::vector<int>(before)};
  ours.delete_min();
  EXPECT_EQ(ours.min(), 5);
  EXPECT_EQ(ours.max(), 9);
}

}  // namespace
}  // namespace knear
