// knear/select/sort/block_sort.hpp -- a block sorts items in device memory.
//
// Least significant digit first (Knuth, volume 3, 5.2.5), 8 bits at a time: one reading counts all
// digits, then each pass scatters the items to the places of their digit, those of one digit in the
// order in which they stand, so that the sort is stable. A pass in which all have the same digit is
// skipped.
//
//   struct Items {                                       // two arrays, say; cheap to copy
//     Item load(unsigned i) const;                       // Item: what they hold at place i
//     void store(unsigned i, Item item) const;
//   };
//   items = BlockSort<Thread, 4>::sort(t, shared, n, items, other, [](Item item, int digit) {...});
#pragma once
#include <cstddef>

#include "knear/simt/block.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

// digits_: the number of digits of a key, 8 bits each; the least significant one is digit 0.
template <class Thread, int digits_>
struct BlockSort {
  static constexpr int threads = 512;
  static constexpr int warps = threads / warp_size;
  static constexpr int loads = 4, tile = threads * loads;
  static constexpr int digit_bits = 8, bins = 1 << digit_bits, digits = digits_;

  struct Shared {
    int counts[digits][bins];
    int next[bins];           // where the next item of a digit goes
    int starts[warps][bins];  // the same for each warp of a tile
    int sums[warps];
  };

  // Sorts the n items of `from`, n >= 1, with room for as many in `to`, and returns the one of both
  // that holds the result. All threads of the block call it, after a sync() that makes `from`
  // visible to them; the result is visible when it returns.
  template <class Items, class DigitOf>
  KNEAR_DEVICE static Items sort(Thread t, Shared& shared, unsigned n, Items from, Items to,
                                 DigitOf digit_of) {
    count_digits(t, shared, n, from, digit_of);
    for (int digit = 0; digit < digits; ++digit) {
      if (unsigned(shared.counts[digit][digit_of(from.load(0), digit)]) == n) continue;
      pass(t, shared, n, digit, from, to, digit_of);
      const Items sorted = to;
      to = from, from = sorted;
    }
    return from;
  }

 private:
  template <class Items, class DigitOf>
  KNEAR_DEVICE static void count_digits(Thread t, Shared& shared, unsigned n, Items items,
                                        DigitOf digit_of) {
    for (int i = t.index(); i < digits * bins; i += threads) shared.counts[i / bins][i % bins] = 0;
    t.sync();
    for (auto i = unsigned(t.index()); i < n; i += threads) {
      const auto item = items.load(i);
      KNEAR_UNROLL
      for (int digit = 0; digit < digits; ++digit)
        t.atomic_add(&shared.counts[digit][digit_of(item, digit)], 1);
    }
    t.sync();
  }

  template <class Items, class DigitOf>
  KNEAR_DEVICE static void pass(Thread t, Shared& shared, unsigned n, int digit, Items from,
                                Items to, DigitOf digit_of) {
    using Item = decltype(from.load(0));
    const int lane = t.index() % warp_size, warp = t.index() / warp_size;
    int total = 0;
    const int first = block_prefix<threads>(
        t, t.index() < bins ? shared.counts[digit][t.index()] : 0, shared.sums, total);
    if (t.index() < bins) shared.next[t.index()] = first;
    for (unsigned begin = 0; begin < n; begin += tile) {
      for (int i = lane; i < bins; i += warp_size) shared.starts[warp][i] = 0;
      t.sync_warp();
      // A warp has a stretch of the tile, which its loads read in order.
      const unsigned mine = begin + unsigned(warp * loads * warp_size + lane);
      Item item[loads];
      int rank[loads];  // among the warp's items of the same digit
      unsigned own[loads];
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i) {
        const unsigned at = mine + unsigned(i * warp_size);
        const bool here = at < n;
        item[i] = here ? from.load(at) : Item{};
        own[i] = digit_of(item[i], digit);
        unsigned same = t.ballot(here);  // lanes that have an item of the same digit
        KNEAR_UNROLL
        for (int bit = 0; bit < digit_bits; ++bit) {
          const bool set = own[i] >> bit & 1;
          const unsigned lanes = t.ballot(set);
          same &= set ? lanes : ~lanes;
        }
        const int earlier = shared.starts[warp][own[i]];
        rank[i] = earlier + count_bits(same & lanes_before(lane));
        t.sync_warp();  // all have read
        if (here && (same & lanes_before(lane)) == 0)
          shared.starts[warp][own[i]] = earlier + count_bits(same);
        t.sync_warp();
      }
      t.sync();
      if (t.index() < bins) {  // turns the counts of the warps into the places where they begin
        int at = shared.next[t.index()];
        for (int i = 0; i < warps; ++i) {
          const int count = shared.starts[i][t.index()];
          shared.starts[i][t.index()] = at;
          at += count;
        }
        shared.next[t.index()] = at;
      }
      t.sync();
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i)
        if (mine + unsigned(i * warp_size) < n)
          to.store(unsigned(shared.starts[warp][own[i]] + rank[i]), item[i]);
      t.sync_warp();  // before the warp's starts are cleared
    }
    t.sync();  // makes the scattered items visible to other threads
  }
};

}  // namespace knear::detail
