// knear/select/sort_rows.hpp -- a kernel that sorts rows of (value, place), by value or by place.
//
// Least significant digit first (Knuth, volume 3, 5.2.5), 8 bits at a time: one reading counts all
// four digits, then each pass deals the items out to where their digit belongs, those of one digit
// in the order in which they stand. A pass in which all have the same digit is left out. What a
// stable sort by value makes of items in ascending place is the order (value, place).
//
// A block for each row, 16 bytes read and written an item and pass; k items of memory beside a row
// under way.
#pragma once
#include <cstddef>
#include <cstdint>

#include "knear/select/float_order.hpp"
#include "knear/simt/block.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

enum class RowOrder { by_value, by_place };

// values, places [rows x k]: items, or empty places at the end, which come last again. No NaN.
template <class Thread>
struct SortRows {
  static constexpr int threads = 512, resident_blocks = 2;
  static constexpr int warps = threads / warp_size;
  static constexpr int loads = 4, tile = threads * loads;
  static constexpr int digit_bits = 8, bins = 1 << digit_bits, digits = 32 / digit_bits;

  struct Shared {
    int counts[digits][bins];
    int next[bins];           // where the next item of a digit goes
    int starts[warps][bins];  // the same for each warp of a tile
    int sums[warps];
  };
  static constexpr std::size_t shared_bytes = sizeof(Shared);

  std::int64_t rows;
  int k;
  RowOrder order;
  unsigned flip;
  float* values;
  int* places;
  float* other_values;  // [blocks x k]
  int* other_places;    // [blocks x k]

  struct Items {
    float* values;
    int* places;
  };

  KNEAR_KERNEL void operator()(Thread t) const {
    Shared& shared = *reinterpret_cast<Shared*>(t.shared());
    for (std::int64_t row = t.block(); row < rows; row += t.blocks()) {
      Items from = {values + row * k, places + row * k};
      Items to = {other_values + t.block() * k, other_places + t.block() * k};
      count_digits(t, shared, from);
      for (int digit = 0; digit < digits; ++digit) {
        if (shared.counts[digit][digit_of(key_of(from, 0), digit)] == k) continue;
        pass(t, shared, digit, from, to);
        const Items sorted = to;
        to = from, from = sorted;
      }
      if (from.values != values + row * k)
        for (auto i = unsigned(t.index()); i < unsigned(k); i += threads)
          to.values[i] = from.values[i], to.places[i] = from.places[i];
      t.sync();
    }
  }

 private:
  KNEAR_DEVICE static unsigned digit_of(unsigned key, int digit) {
    return key >> digit * digit_bits & (bins - 1);
  }
  KNEAR_DEVICE unsigned key_of(Items items, unsigned i) const {
    return order == RowOrder::by_value ? ordered_key(items.values[i], flip)
                                       : unsigned(items.places[i]);
  }

  KNEAR_DEVICE void count_digits(Thread t, Shared& shared, Items items) const {
    for (int i = t.index(); i < digits * bins; i += threads) shared.counts[i / bins][i % bins] = 0;
    t.sync();
    for (auto i = unsigned(t.index()); i < unsigned(k); i += threads) {
      const unsigned key = key_of(items, i);
      KNEAR_UNROLL
      for (int digit = 0; digit < digits; ++digit)
        t.atomic_add(&shared.counts[digit][digit_of(key, digit)], 1);
    }
    t.sync();
  }

  KNEAR_DEVICE void pass(Thread t, Shared& shared, int digit, Items from, Items to) const {
    const int lane = t.index() % warp_size, warp = t.index() / warp_size;
    int total = 0;
    const int first = block_prefix<threads>(
        t, t.index() < bins ? shared.counts[digit][t.index()] : 0, shared.sums, total);
    if (t.index() < bins) shared.next[t.index()] = first;
    for (unsigned begin = 0; begin < unsigned(k); begin += tile) {
      for (int i = lane; i < bins; i += warp_size) shared.starts[warp][i] = 0;
      t.sync_warp();
      // A warp has a stretch of the tile, which its loads go through in order.
      const unsigned mine = begin + unsigned(warp * loads * warp_size + lane);
      float value[loads];
      int place[loads], rank[loads];  // rank: among the warp's items of the same digit
      unsigned own[loads];
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i) {
        const unsigned at = mine + unsigned(i * warp_size);
        const bool here = at < unsigned(k);
        value[i] = here ? from.values[at] : 0;
        place[i] = here ? from.places[at] : 0;
        own[i] = digit_of(
            order == RowOrder::by_value ? ordered_key(value[i], flip) : unsigned(place[i]), digit);
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
      if (t.index() < bins) {  // from counts of the warps to where each begins
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
        if (mine + unsigned(i * warp_size) < unsigned(k)) {
          const int at = shared.starts[warp][own[i]] + rank[i];
          to.values[at] = value[i], to.places[at] = place[i];
        }
      t.sync_warp();  // before the warp's starts are cleared
    }
    t.sync();  // what was dealt out is read by others
  }
};

}  // namespace knear::detail
