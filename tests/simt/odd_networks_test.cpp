// The networks of odd sizes: as comparators, by the 0-1 principle (a network that sorts every input
// of zeros and ones sorts everything) and against the step counts of the paper; on the emulated
// warp, which runs the same comparators, the same and against std::sort.
#include "knear/simt/odd_networks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "knear/simt/candidate.hpp"
#include "knear/simt/host_warp.hpp"

namespace knear {
namespace {

struct Network {
  std::vector<Comparator> comparators;  // as emitted
  int steps;
};

Network sorting(int n, int grain = 1) {
  Network out;
  out.steps = sort_odd(
      n, [&](Comparator c) { out.comparators.push_back(c); }, grain);
  return out;
}

Network merging(int left, int right) {
  Network out;
  out.steps = merge_odd(left, right, [&](Comparator c) { out.comparators.push_back(c); });
  return out;
}

std::vector<Comparator> by_steps(const Network& network) {
  std::vector<Comparator> out = network.comparators;
  std::stable_sort(out.begin(), out.end(),
                   [](Comparator a, Comparator b) { return a.step < b.step; });
  return out;
}

// Each of the steps 0 .. steps - 1 does something, and its comparators touch different items, in
// [0, n) and in the right order.
void expect_parallel(const Network& network, int n) {
  std::vector<std::set<int>> touched(std::size_t(network.steps));
  for (const Comparator c : network.comparators) {
    ASSERT_TRUE(0 <= c.low && c.low < c.high && c.high < n);
    ASSERT_TRUE(0 <= c.step && c.step < network.steps);
    ASSERT_TRUE(touched[std::size_t(c.step)].insert(c.low).second);
    ASSERT_TRUE(touched[std::size_t(c.step)].insert(c.high).second);
  }
  for (const auto& items : touched) ASSERT_FALSE(items.empty());
}

template <class T>
void run(const std::vector<Comparator>& comparators, std::vector<T>& x) {
  for (const Comparator c : comparators)
    if (x[std::size_t(c.high)] < x[std::size_t(c.low)])
      std::swap(x[std::size_t(c.low)], x[std::size_t(c.high)]);
}

// All 2^n inputs, 64 at a time: bit b of word i is item i of input 64 g + b.
bool sorts_zeros_and_ones(const std::vector<Comparator>& comparators, int n) {
  constexpr std::uint64_t patterns[6] = {0xaaaaaaaaaaaaaaaa, 0xcccccccccccccccc,
                                         0xf0f0f0f0f0f0f0f0, 0xff00ff00ff00ff00,
                                         0xffff0000ffff0000, 0xffffffff00000000};
  std::vector<std::uint64_t> x(std::size_t(n) + 1);
  for (std::uint64_t group = 0; group < (n <= 6 ? 1 : std::uint64_t{1} << (n - 6)); ++group) {
    for (int i = 0; i < n; ++i)
      x[std::size_t(i)] = i < 6 ? patterns[i] : (group >> (i - 6) & 1 ? ~std::uint64_t{0} : 0);
    for (const Comparator c : comparators) {
      std::uint64_t &low = x[std::size_t(c.low)], &high = x[std::size_t(c.high)];
      const std::uint64_t smaller = low & high;
      high |= low;
      low = smaller;
    }
    for (int i = 0; i + 1 < n; ++i)
      if (x[std::size_t(i)] & ~x[std::size_t(i) + 1]) return false;  // a one before a zero
  }
  return true;
}

TEST(OddNetworks, SortEveryInputOfUpTo20) {
  for (int n = 0; n <= 20; ++n) {
    SCOPED_TRACE(n);
    const Network network = sorting(n);
    expect_parallel(network, n);
    ASSERT_TRUE(sorts_zeros_and_ones(network.comparators, n));
    ASSERT_TRUE(sorts_zeros_and_ones(by_steps(network), n));
    // The test itself: each comparator is needed at some size, so without the last it must fail.
    std::vector<Comparator> fewer = network.comparators;
    if (fewer.empty()) continue;
    fewer.pop_back();
    ASSERT_FALSE(sorts_zeros_and_ones(fewer, n));
  }
}

TEST(OddNetworks, SortSplitAtRegisters) {
  for (int n : {4, 8, 12, 16, 20}) {
    SCOPED_TRACE(n);
    const Network network = sorting(n, 4);
    expect_parallel(network, n);
    EXPECT_EQ(network.steps, sorting(n).steps);
    ASSERT_TRUE(sorts_zeros_and_ones(by_steps(network), n));
  }
}

// An ascending array of zeros and ones is its number of zeros: all pairs of them, at all lengths up
// to 24 and 24.
TEST(OddNetworks, MergeEveryPairOfSortedInputs) {
  for (int left = 0; left <= 24; ++left)
    for (int right = 0; right <= 24; ++right) {
      SCOPED_TRACE(testing::Message() << left << " with " << right);
      const Network network = merging(left, right);
      expect_parallel(network, left + right);
      const std::vector<Comparator> ordered = by_steps(network);
      for (int zeros_left = 0; zeros_left <= left; ++zeros_left)
        for (int zeros_right = 0; zeros_right <= right; ++zeros_right) {
          std::vector<int> x(std::size_t(left + right), 1);
          std::fill_n(x.begin(), zeros_left, 0);
          std::fill_n(x.begin() + left, zeros_right, 0);
          std::vector<int> y = x;
          run(ordered, x);
          ASSERT_TRUE(std::is_sorted(x.begin(), x.end()));
          run(network.comparators, y);
          ASSERT_EQ(x, y);
        }
    }
}

// Section 4.1, for every length. The formula for merging gives 1 for an empty side and one item;
// nothing has to be done then, whatever the length of the other, and nothing is.
TEST(OddNetworks, TakeTheStepsOfThePaper) {
  for (int n = 1; n <= 300; ++n) {
    const int log = ceil_log2(n);
    EXPECT_EQ(sorting(n).steps, (log * log + log) / 2) << n;
  }
  for (int left = 1; left <= 130; ++left)
    for (int right = 1; right <= 130; ++right)
      ASSERT_EQ(merging(left, right).steps, ceil_log2(std::max(left, right)) + 1)
          << left << " with " << right;
  for (int n = 0; n <= 40; ++n) {
    EXPECT_EQ(merging(n, 0).steps, 0);
    EXPECT_EQ(merging(0, n).steps, 0);
    EXPECT_TRUE(merging(n, 0).comparators.empty());
  }
  EXPECT_EQ(sorting(0).steps, 0);
}

// At powers of two they are Batcher's: every item is compared in every step.
TEST(OddNetworks, AreBitonicAtPowersOfTwo) {
  for (int n = 2; n <= 256; n *= 2) {
    EXPECT_EQ(sorting(n).comparators.size(), std::size_t(n / 2 * sorting(n).steps));
    EXPECT_EQ(merging(n, n).comparators.size(), std::size_t(n * merging(n, n).steps));
  }
}

// Figure 1: 5 and 3 items, four steps.
TEST(OddNetworks, MergeFiveAndThreeAsDrawn) {
  const std::vector<std::vector<int>> drawn = {{1, 3, 4, 3, 0, 9, 8, 7},
                                               {0, 3, 4, 3, 1, 7, 8, 9},
                                               {0, 3, 1, 3, 4, 7, 8, 9},
                                               {0, 1, 3, 3, 4, 7, 8, 9}};
  const Network network = merging(5, 3);
  ASSERT_EQ(network.steps, 4);
  std::vector<int> x = {1, 3, 4, 8, 9, 0, 3, 7};
  for (int step = 0; step < 4; ++step) {
    std::vector<Comparator> now;
    for (const Comparator c : network.comparators)
      if (c.step == step) now.push_back(c);
    run(now, x);
    EXPECT_EQ(x, drawn[std::size_t(step)]) << "step " << step + 1;
  }
}

// --- On a warp.

using Pair = std::pair<float, std::int64_t>;
using Item = Candidate<HostWarp, std::int64_t>;

// A zero or one per lane.
struct ZeroOne {
  HostLanes<signed char> value;
};
HostMask precedes(const ZeroOne& a, const ZeroOne& b) { return a.value < b.value; }
ZeroOne select(HostWarp w, const HostMask& m, const ZeroOne& a, const ZeroOne& b) {
  return {w.select(m, a.value, b.value)};
}
ZeroOne shuffle_xor(HostWarp w, const ZeroOne& x, int lanes) {
  return {w.shuffle_xor(x.value, lanes)};
}

// Knows how many comparators it has come through, one after another.
struct Counted {
  HostLanes<int> value, depth;
};
HostMask precedes(const Counted& a, const Counted& b) { return a.value < b.value; }
Counted select(HostWarp w, const HostMask& m, const Counted& a, const Counted& b) {
  return {w.select(m, a.value, b.value), w.select(a.depth < b.depth, b.depth, a.depth) + w.fill(1)};
}
Counted shuffle_xor(HostWarp w, const Counted& x, int lanes) {
  return {w.shuffle_xor(x.value, lanes), w.shuffle_xor(x.depth, lanes)};
}

template <int R>
void set(ZeroOne (&x)[R], int zeros) {
  for (int i = 0; i < 32 * R; ++i) x[i / 32].value.lane[i % 32] = i >= zeros;
}
template <int R>
bool holds(const ZeroOne (&x)[R], int zeros) {
  for (int i = 0; i < 32 * R; ++i)
    if (x[i / 32].value.lane[i % 32] != (i >= zeros)) return false;
  return true;
}

template <int R>
void scatter(const std::vector<Pair>& pairs, Item (&x)[R]) {
  for (int i = 0; i < 32 * R; ++i) {
    x[i / 32].distance.lane[i % 32] = pairs[std::size_t(i)].first;
    x[i / 32].id.lane[i % 32] = pairs[std::size_t(i)].second;
  }
}

template <int R>
std::vector<Pair> gather(const Item (&x)[R]) {
  std::vector<Pair> pairs;
  for (int i = 0; i < 32 * R; ++i)
    pairs.emplace_back(x[i / 32].distance.lane[i % 32], x[i / 32].id.lane[i % 32]);
  return pairs;
}

// Few distinct distances, so that ids decide often; ids in random order.
std::vector<Pair> random_pairs(int n, int distinct, std::mt19937& random) {
  std::vector<Pair> pairs;
  for (int i = 0; i < n; ++i) pairs.emplace_back(float(int(random() % unsigned(distinct)) - 3), i);
  std::shuffle(pairs.begin(), pairs.end(), random);
  return pairs;
}

template <int R>
void start(Counted (&x)[R], std::mt19937& random) {
  for (Counted& c : x) {
    for (int& value : c.value.lane) value = int(random());
    c.depth = HostWarp().fill(0);
  }
}
template <int R>
int deepest(const Counted (&x)[R]) {
  int most = 0;
  for (const Counted& c : x)
    most = std::max(most, *std::max_element(c.depth.lane, c.depth.lane + 32));
  return most;
}

template <int R>
void sort_on_a_warp() {
  SCOPED_TRACE(R);
  std::mt19937 random(R);
  for (int distinct : {1, 2, 7, 1000000})
    for (int repeat = 0; repeat < 4; ++repeat) {
      std::vector<Pair> pairs = random_pairs(32 * R, distinct, random), sorted = pairs;
      std::sort(sorted.begin(), sorted.end());
      Item x[R];
      scatter(pairs, x);
      warp_sort(HostWarp(), x);
      ASSERT_EQ(gather(x), sorted);
    }
  Counted x[R];
  start(x, random);
  warp_sort(HostWarp(), x);
  constexpr int log = ceil_log2(32 * R), steps = (log * log + log) / 2;
  static_assert(detail::warp_sort_network<R>.steps == steps);
  // What an item comes through. Halves of unequal length leave some slack: with 5 registers the
  // longest chain of comparators is one shorter than the number of steps.
  if ((R & (R - 1)) == 0)
    EXPECT_EQ(deepest(x), steps);
  else
    EXPECT_LE(deepest(x), steps);
}

TEST(OddNetworksOnAWarp, SortAnyNumberOfRegisters) {
  sort_on_a_warp<1>();
  sort_on_a_warp<2>();
  sort_on_a_warp<3>();
  sort_on_a_warp<4>();
  sort_on_a_warp<5>();
  sort_on_a_warp<6>();
  sort_on_a_warp<7>();
  sort_on_a_warp<8>();
  sort_on_a_warp<11>();
  sort_on_a_warp<32>();
}

template <int R, int T>
void merge_on_a_warp() {
  SCOPED_TRACE(testing::Message() << R << " registers with " << T);
  const HostWarp w;
  std::mt19937 random(R * 100 + T);

  // Zeros and ones: every pair of lengths, or if that is too much about 5,000 that include the
  // lengths beside multiples of 32.
  const int skip = std::max(1, (32 * R + 1) * (32 * T + 1) / 5000);
  int number = 0;
  for (int left = 0; left <= 32 * R; ++left)
    for (int right = 0; right <= 32 * T; ++right) {
      const bool edge = (left + 1) % 32 <= 2 && (right + 1) % 32 <= 2;
      if (++number % skip != 0 && !edge) continue;
      ZeroOne x[R], y[T];
      set(x, left);
      set(y, right);
      warp_merge_smallest(w, x, y);
      ASSERT_TRUE(holds(x, left + right)) << left << " and " << right << " zeros";
      set(x, left);
      warp_merge(w, x, y);
      ASSERT_TRUE(holds(x, left + right)) << left << " and " << right << " zeros";
      ASSERT_TRUE(holds(y, left + right - 32 * R)) << left << " and " << right << " zeros";
    }

  for (int distinct : {1, 5, 1000000}) {
    const std::vector<Pair> all = random_pairs(32 * (R + T), distinct, random);
    std::vector<Pair> left(all.begin(), all.begin() + 32 * R),
        right(all.begin() + 32 * R, all.end()), sorted = all;
    std::sort(left.begin(), left.end());
    std::sort(right.begin(), right.end());
    std::sort(sorted.begin(), sorted.end());
    Item x[R], y[T];
    scatter(left, x);
    scatter(right, y);
    warp_merge_smallest(w, x, y);
    ASSERT_EQ(gather(x), std::vector<Pair>(sorted.begin(), sorted.begin() + 32 * R));
    ASSERT_EQ(gather(y), right);  // untouched
    scatter(left, x);
    warp_merge(w, x, y);
    ASSERT_EQ(gather(x), std::vector<Pair>(sorted.begin(), sorted.begin() + 32 * R));
    ASSERT_EQ(gather(y), std::vector<Pair>(sorted.begin() + 32 * R, sorted.end()));
  }

  Counted x[R], y[T];
  start(x, random);
  start(y, random);
  warp_merge_smallest(w, x, y);
  EXPECT_EQ(deepest(x), ceil_log2(32 * R) + 1);
  start(x, random);
  start(y, random);
  warp_merge(w, x, y);
  constexpr int steps = ceil_log2(32 * std::max(R, T)) + 1;
  static_assert(detail::warp_merge_network<R, T>.steps == steps);
  EXPECT_EQ(std::max(deepest(x), deepest(y)), steps);
}

TEST(OddNetworksOnAWarp, MergeAnyNumbersOfRegisters) {
  merge_on_a_warp<1, 1>();
  merge_on_a_warp<1, 2>();
  merge_on_a_warp<2, 1>();
  merge_on_a_warp<1, 3>();
  merge_on_a_warp<1, 8>();
  merge_on_a_warp<3, 1>();
  merge_on_a_warp<3, 2>();
  merge_on_a_warp<3, 5>();
  merge_on_a_warp<4, 3>();
  merge_on_a_warp<5, 3>();
  merge_on_a_warp<7, 7>();
  merge_on_a_warp<8, 4>();
  merge_on_a_warp<13, 6>();
  merge_on_a_warp<32, 8>();
}

}  // namespace
}  // namespace knear
