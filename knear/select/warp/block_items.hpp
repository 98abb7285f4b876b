// knear/select/warp/block_items.hpp -- some thousands of (value, place) in shared memory, and what
// a block does with them: appends, finds the one of a rank, throws away those behind it, sorts.
//
// A pair is one number of 64 bits, the key of the value (float_order.hpp) above the place. No two
// are equal, and they are in the order (value, place): nothing below knows of ties, and nothing
// depends on where a pair stands, so threads may append in any order.
//
//   items.reserve(mine, counter)       where this thread appends: a vote and an addition of a warp
//   items.bound_of(count, rank)        radix selection by 8 bits at a time, from the first bit in
//                                      which any two differ; as a rule two or three readings
//   items.keep(count, bound, counter)  one reading, and one writing of what stays
//   items.sort(size)                   Batcher's bitonic sort (1968), steps of less than 128 places
//                                      in registers
//
// All threads of the block call each, and what one of them wrote is seen by all when it returns,
// but for reserve().
#pragma once
#include <cstddef>

#include "knear/simt/block.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

using Item = unsigned long long;

KNEAR_HD constexpr Item item_of(unsigned key, int place) {
  return Item{key} << 32 | static_cast<unsigned>(place);
}
KNEAR_HD constexpr unsigned key_of(Item item) { return static_cast<unsigned>(item >> 32); }
KNEAR_HD constexpr int place_of(Item item) { return static_cast<int>(static_cast<unsigned>(item)); }
// The place above the key: its order is that of places.
KNEAR_HD constexpr Item turned(Item item) { return item << 32 | item >> 32; }

// The smallest power of two that a sort takes and that is not below `count`.
KNEAR_HD constexpr int sort_size(int count) {
  int size = 128;
  while (size < count) size *= 2;
  return size;
}

template <class Thread>
class BlockItems {
 public:
  static constexpr int threads = 256, warps = threads / warp_size;
  static constexpr int digit_bits = 8;
  static_assert(threads == 1 << digit_bits, "a thread has a bin of the histogram");

  struct Shared {
    Item any[warps], all[warps];  // of the bits of the items
    Item prefix;
    int left;
    bool whole;
    int kept;
    int added[3];  // counters of the caller
    int histogram[threads];
    int sums[warps];
  };
  // Of so many items at most.
  static constexpr std::size_t shared_bytes(int room) {
    return sizeof(Shared) + static_cast<std::size_t>(room) * sizeof(Item);
  }

  KNEAR_DEVICE BlockItems(Thread t, int room)
      : t_(t),
        items_(reinterpret_cast<Item*>(t.shared())),
        shared_(reinterpret_cast<Shared*>(items_ + room)) {}

  KNEAR_DEVICE Item& operator[](int i) const { return items_[i]; }
  KNEAR_DEVICE Shared& shared() const { return *shared_; }

  // Adds up `mine` over the warp, takes that many places of the counter, and returns where those of
  // this thread begin. A warp at a time.
  KNEAR_DEVICE int reserve(int mine, int* counter) const {
    const int lane = t_.index() % warp_size;
    int sum = mine;
    KNEAR_UNROLL
    for (int distance = 1; distance < warp_size; distance *= 2) {
      const int other = t_.shuffle(sum, lane >= distance ? lane - distance : lane);
      if (lane >= distance) sum += other;
    }
    int first = 0;
    if (lane == warp_size - 1) first = t_.atomic_add(counter, sum);
    return t_.shuffle(first, warp_size - 1) + sum - mine;
  }

  // A number that exactly `rank` of the items [0 .. count) are not above. Requires
  // 1 <= rank <= count and count >= 2.
  KNEAR_DEVICE Item bound_of(int count, int rank) const {
    const int lane = t_.index() % warp_size, warp = t_.index() / warp_size;
    Item any = 0, all = ~Item{0};
    for (int i = t_.index(); i < count; i += threads) any |= items_[i], all &= items_[i];
    KNEAR_UNROLL
    for (int distance = 1; distance < warp_size; distance *= 2)
      any |= t_.shuffle_xor(any, distance), all &= t_.shuffle_xor(all, distance);
    if (lane == 0) shared_->any[warp] = any, shared_->all[warp] = all;
    shared_->histogram[t_.index()] = 0;
    t_.sync();
    KNEAR_UNROLL
    for (int i = 0; i < warps; ++i) any |= shared_->any[i], all &= shared_->all[i];

    // The first of the undecided bits is the highest in which any two differ. Items that have all
    // other bits of the prefix are candidates, of which the `left` smallest are below the bound.
    const Item differ = any ^ all;
    int bits = key_of(differ) != 0 ? 32 + bit_width(key_of(differ)) : bit_width(unsigned(differ));
    int left = rank;
    Item prefix = bits == 64 ? 0 : all >> bits << bits;
    bool whole = false;
    while (!whole && bits > 0) {
      const int width = bits < digit_bits ? bits : digit_bits, shift = bits - width;
      const unsigned digits = (1u << width) - 1;
      for (int i = t_.index(); i < count; i += threads) {
        const Item item = items_[i];
        if ((item ^ prefix) >> (bits - 1) >> 1 == 0)
          t_.atomic_add(&shared_->histogram[static_cast<unsigned>(item >> shift) & digits], 1);
      }
      t_.sync();
      const int mine = shared_->histogram[t_.index()];
      int total = 0;
      const int before = block_prefix<threads>(t_, mine, shared_->sums, total);
      shared_->histogram[t_.index()] = 0;
      if (before < left && left <= before + mine) {
        shared_->prefix = prefix | Item(t_.index()) << shift;
        shared_->left = left - before;
        shared_->whole = left == before + mine;
      }
      t_.sync();
      prefix = shared_->prefix, left = shared_->left, whole = shared_->whole;
      bits = shift;
    }
    return prefix | ((Item{1} << bits) - 1);
  }

  // Moves those of the items [0 .. count) that are not above the bound to the beginning.
  KNEAR_DEVICE void keep(int count, Item bound) const {
    constexpr int loads = 8, tile = threads * loads;
    if (t_.index() == 0) shared_->kept = 0;
    KNEAR_NO_UNROLL
    for (int begin = 0; begin < count; begin += tile) {
      Item item[loads];
      int mine = 0;
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i) {
        const int at = begin + i * threads + t_.index();
        item[i] = at < count ? items_[at] : 0;
        mine += at < count && item[i] <= bound;
      }
      t_.sync();  // all have read this tile: what is written lies in it or in front of it
      int slot = reserve(mine, &shared_->kept);
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i)
        if (begin + i * threads + t_.index() < count && item[i] <= bound) items_[slot++] = item[i];
    }
    t_.sync();
  }

  // Sorts the items [0 .. size), ascending; sort_size() has the sizes.
  KNEAR_DEVICE void sort(int size) const {
    const int lane = t_.index() % warp_size, warp = t_.index() / warp_size;
    // Blocks of `block` items alternately ascend and descend; each merge makes twice as long ones.
    // First, chunks of a warp's registers are sorted; then steps of a chunk's length or more go
    // through shared memory, and those that follow within a chunk through registers again.
    KNEAR_NO_UNROLL
    for (int top = chunk; top <= size; top *= 2) {
      KNEAR_NO_UNROLL
      for (int distance = top / 2; distance >= chunk; distance /= 2) {
        for (int pair = t_.index(); pair < size / 2; pair += threads) {
          const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
          const Item a = items_[low], b = items_[high];
          if ((b < a) == ((low & top) == 0)) items_[low] = b, items_[high] = a;
        }
        t_.sync();
      }
      KNEAR_NO_UNROLL
      for (int first = warp * chunk; first < size; first += warps * chunk) {
        const int mine = first + lane * each;
        Pair* const at = reinterpret_cast<Pair*>(items_ + mine);
        const Pair low = at[0], high = at[1];
        Item item[each] = {low.a, low.b, high.a, high.b};
        KNEAR_NO_UNROLL
        for (int block = top == chunk ? 2 : top; block <= top; block *= 2) merge(item, mine, block);
        at[0] = {item[0], item[1]}, at[1] = {item[2], item[3]};
      }
      t_.sync();
    }
  }

 private:
  static constexpr int each = 4, chunk = each * warp_size;
  struct alignas(16) Pair {
    Item a, b;
  };

  // The steps of a merge that are shorter than a chunk. item[i] stands at the place mine + i.
  KNEAR_DEVICE void merge(Item (&item)[each], int mine, int block) const {
    KNEAR_UNROLL
    for (int distance = chunk / 2; distance >= each; distance /= 2) {
      if (distance >= block) continue;
      const bool smaller = ((mine & distance) == 0) == ((mine & block) == 0);
      KNEAR_UNROLL
      for (int i = 0; i < each; ++i) {
        const Item other = t_.shuffle_xor(item[i], distance / each);
        item[i] = (other < item[i]) == smaller ? other : item[i];
      }
    }
    KNEAR_UNROLL
    for (int distance = each / 2; distance > 0; distance /= 2) {
      if (distance >= block) continue;
      KNEAR_UNROLL
      for (int i = 0; i < each; ++i) {
        if (i & distance) continue;
        const Item a = item[i], b = item[i + distance];
        const bool exchange = (b < a) == (((mine + i) & block) == 0);
        item[i] = exchange ? b : a, item[i + distance] = exchange ? a : b;
      }
    }
  }

  Thread t_;
  Item* items_;
  Shared* shared_;
};

}  // namespace knear::detail
