// knear/select/warp/radix_select_rows.hpp -- kernels that select any k of each row by the digits of
// the values' bits, in ascending place.
//
// The bits of a float, changed so that they are in its order, are digits of 11, 11 and 10 bits. A
// histogram of the first digit gives the bucket that holds the k-th value; smaller values are kept,
// larger ones dropped, and the bucket is read again by its next digit, until it is wanted whole or
// its values are equal, of which the first are kept. A last reading gathers the kept values, in the
// order of the row, so the answer does not depend on the order of the threads.
//
// RadixSelect does this with a block for each row, which it reads up to four times, though probably
// from the cache after the first. Where rows are few, each is cut into parts (those of
// warp_select_layout.hpp) with a block each, and a kernel for each reading: RadixCount up to three
// times, RadixCountKept, RadixGather. (Up to k = 4,096 threshold_select_rows.hpp reads once.)
//
// After Alabi, Blanchard, Gordon, Steinbach, "Fast k-selection algorithms for graphics processing
// units" (2012), and Zhang, Naruse, Li, Wang, "Parallel top-K algorithms on GPU" (2023).
#pragma once
#include <cstddef>

#include "knear/select/sort/float_order.hpp"
#include "knear/select/warp/device_rows.hpp"
#include "knear/select/warp/warp_select_layout.hpp"
#include "knear/simt/block.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

inline constexpr int radix_digit_bits = 11, radix_bins = 1 << radix_digit_bits;
inline constexpr int radix_digits = 3;  // of 11, 11 and 10 bits

// What is known of the k-th value. Keys below `key` are kept; the keys whose first `bits` bits are
// those of `key` are candidates, of which the `left` first by (value, place) are kept. It is
// decided when there are no candidates, or they are equal.
struct RadixBound {
  unsigned key;
  int bits, left;

  KNEAR_HD bool decided() const { return left == 0 || bits == 32; }
  KNEAR_HD unsigned prefix_mask() const { return bits == 0 ? 0 : ~0u << (32 - bits); }
  // The digit to be decided next: key >> shift() & (2^width() - 1).
  KNEAR_HD int width() const { return 32 - bits < radix_digit_bits ? 32 - bits : radix_digit_bits; }
  KNEAR_HD int shift() const { return 32 - bits - width(); }

  // After the next digit, if `before` of the candidates have a smaller one and `count` have this
  // one: before < left <= before + count.
  KNEAR_HD RadixBound narrowed(unsigned digit, int before, int count) const {
    const RadixBound next = {key | digit << shift(), bits + width(), left - before};
    // All of the bucket is wanted. (Past the last bucket there are only NaNs: no overflow.)
    return next.left == count ? RadixBound{next.key + (1u << shift()), next.bits, 0} : next;
  }
};
KNEAR_HD constexpr RadixBound all_numbers() { return {key_after_numbers, 32, 0}; }
KNEAR_HD constexpr RadixBound first_bound(int k, int length) {
  return length <= k ? all_numbers() : RadixBound{0, 0, k};
}

// How many values of a part of a row are kept for certain, and how many equal the bound.
struct RadixKept {
  int below, equal;
};

// The operations of a block, with its shared memory.
template <class Thread>
class RadixBlock {
 public:
  static constexpr int threads = 512, warps = threads / warp_size;
  static constexpr int loads = 4;  // in flight at once
  static constexpr int tile = threads * loads;
  // Many values of a row share their first digit, so that lanes would wait for one another at one
  // counter: each bin has four counters, which the lanes use in turn.
  static constexpr int copies = 4;
  static constexpr std::size_t shared_bytes =
      (radix_bins * copies + warps) * sizeof(int) + sizeof(RadixBound);

  KNEAR_DEVICE RadixBlock(Thread t, unsigned flip)
      : t_(t),
        flip_(flip),
        histogram_(reinterpret_cast<int*>(t.shared())),
        sums_(histogram_ + radix_bins * copies),
        chosen_(reinterpret_cast<RadixBound*>(sums_ + warps)) {}

  // Makes the histogram of the next digit of those values of row[begin .. end) that are candidates;
  // it is visible to all threads when this returns.
  KNEAR_DEVICE void count(const float* row, unsigned begin, unsigned end, RadixBound bound) {
    for (int i = t_.index(); i < radix_bins * copies; i += threads) histogram_[i] = 0;
    t_.sync();
    const unsigned mask = bound.prefix_mask(), digits = (1u << bound.width()) - 1;
    for (unsigned from = begin; from < end; from += tile) {
      unsigned keys[loads];
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i)
        keys[i] = key_at(row, from + unsigned(i * threads + t_.index()), end);
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i)
        if (keys[i] != key_of_nan && ((keys[i] ^ bound.key) & mask) == 0)
          t_.atomic_add(
              &histogram_[int(keys[i] >> bound.shift() & digits) * copies + t_.index() % copies],
              1);
    }
    t_.sync();
  }
  KNEAR_DEVICE int bin(int i) const {
    int sum = 0;
    KNEAR_UNROLL
    for (int copy = 0; copy < copies; ++copy) sum += histogram_[i * copies + copy];
    return sum;
  }

  // The bound with one more digit decided, where bin(i) candidates have the digit i.
  template <class Bin>
  KNEAR_DEVICE RadixBound choose(RadixBound bound, Bin bin) {
    constexpr int mine = radix_bins / threads;
    const int first = t_.index() * mine;
    int counts[mine], sum = 0;
    KNEAR_UNROLL
    for (int i = 0; i < mine; ++i) sum += counts[i] = bin(first + i);
    int total = 0, before = block_prefix<threads>(t_, sum, sums_, total);
    if (total <= bound.left) {  // no more numbers than wanted
      if (t_.index() == 0) *chosen_ = all_numbers();
    } else if (before < bound.left && bound.left <= before + sum) {
      KNEAR_UNROLL
      for (int i = 0; i < mine; ++i) {
        if (before < bound.left && bound.left <= before + counts[i])
          *chosen_ = bound.narrowed(unsigned(first + i), before, counts[i]);
        before += counts[i];
      }
    }
    t_.sync();
    return *chosen_;
  }

  // The bound of the k smallest of row[0 .. length).
  KNEAR_DEVICE RadixBound bound_of(const float* row, int length, int k) {
    RadixBound bound = first_bound(k, length);
    while (!bound.decided()) {
      count(row, 0, unsigned(length), bound);
      bound = choose(bound, [&](int i) { return bin(i); });
    }
    return bound;
  }

  // How many of row[begin .. end) are below the bound and equal to it.
  KNEAR_DEVICE RadixKept count_kept(const float* row, unsigned begin, unsigned end,
                                    RadixBound bound) {
    RadixKept mine = {0, 0}, all;
    for (unsigned from = begin; from < end; from += tile) {
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i) {
        const unsigned key = key_at(row, from + unsigned(i * threads + t_.index()), end);
        mine.below += key < bound.key;
        mine.equal += key == bound.key;
      }
    }
    block_prefix<threads>(t_, mine.below, sums_, all.below);
    t_.sync();
    block_prefix<threads>(t_, mine.equal, sums_, all.equal);
    t_.sync();
    return all;
  }

  // Writes the kept values of row[begin .. end) to values and places [k], after the `before` that
  // are kept of the row before `begin`. Returns how many of the k places are filled then; stops
  // when all are.
  KNEAR_DEVICE int gather(const float* row, unsigned begin, unsigned end, RadixBound bound,
                          RadixKept before, int k, float* values, int* places) {
    const int lane = t_.index() % warp_size, warp = t_.index() / warp_size;
    const auto taken = [&](int below, int equal) {
      return below + (equal < bound.left ? equal : bound.left);
    };
    for (unsigned from = begin; from < end && taken(before.below, before.equal) < k; from += tile) {
      // A warp has a stretch of the tile, which its loads read in order.
      const unsigned mine = from + unsigned(warp * loads * warp_size + lane);
      float x[loads];
      unsigned below[loads], equal[loads];
      int count = 0;  // both counts in one number: at most 2048 each
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i) {
        const unsigned at = mine + unsigned(i * warp_size);
        x[i] = at < end ? row[at] : 0;
        const unsigned key = at < end ? ordered_key(x[i], flip_) : key_of_nan;
        below[i] = t_.ballot(key < bound.key);
        equal[i] = t_.ballot(key == bound.key && bound.left != 0);
        count += count_bits(below[i]) + (count_bits(equal[i]) << 16);
      }
      if (lane == 0) sums_[warp] = count;
      t_.sync();
      int earlier = 0, all = 0;
      KNEAR_UNROLL
      for (int i = 0; i < warps; ++i) {
        if (i < warp) earlier += sums_[i];
        all += sums_[i];
      }
      t_.sync();
      RadixKept here = {before.below + (earlier & 0xffff), before.equal + (earlier >> 16)};
      KNEAR_UNROLL
      for (int i = 0; i < loads; ++i) {
        const int rank = here.equal + count_bits(equal[i] & lanes_before(lane));
        const int slot = taken(here.below + count_bits(below[i] & lanes_before(lane)), rank);
        const bool kept = (below[i] >> lane & 1) || ((equal[i] >> lane & 1) && rank < bound.left);
        if (kept && slot < k) {
          const int at = int(mine) + i * warp_size;
          values[slot] = x[i];
          places[slot] = at;
        }
        here.below += count_bits(below[i]), here.equal += count_bits(equal[i]);
      }
      before.below += all & 0xffff, before.equal += all >> 16;
    }
    const int all = taken(before.below, before.equal);
    return all < k ? all : k;
  }

  KNEAR_DEVICE void fill_empty(int from, int k, float* values, int* places) const {
    for (unsigned i = unsigned(from + t_.index()); i < unsigned(k); i += threads)
      values[i] = no_value(flip_), places[i] = -1;
  }

  // The sum of x over all threads of the block.
  KNEAR_DEVICE int sum(int x) {
    int total = 0;
    block_prefix<threads>(t_, x, sums_, total);
    t_.sync();
    return total;
  }

 private:
  KNEAR_DEVICE unsigned key_at(const float* row, unsigned at, unsigned end) const {
    return at < end ? ordered_key(row[at], flip_) : key_of_nan;
  }

  Thread t_;
  unsigned flip_;
  int* histogram_;  // [radix_bins x copies]
  int* sums_;       // [warps]
  RadixBound* chosen_;
};

// values, places [rows x k]. Block b takes the rows b, b + blocks, ...
template <class Thread>
struct RadixSelect {
  using Block = RadixBlock<Thread>;
  static constexpr int threads = Block::threads, resident_blocks = 2;

  DeviceRows rows;
  int k;
  unsigned flip;
  float* values;
  int* places;

  KNEAR_KERNEL void operator()(Thread t) const {
    Block block(t, flip);
    for (std::int64_t row = t.block(); row < rows.rows; row += t.blocks()) {
      const float* const x = rows.row(row);
      const int length = rows.length(row);
      const RadixBound bound = block.bound_of(x, length, k);
      const int found = block.gather(x, 0, unsigned(length), bound, {0, 0}, k, values + row * k,
                                     places + row * k);
      block.fill_empty(found, k, values + row * k, places + row * k);
    }
  }
};

// What the kernels for rows in parts share. Block b has part b % parts of row b / parts.
struct RadixParts {
  DeviceRows rows;
  int parts, k;
  unsigned flip;
  int* histograms;     // [3 x rows x radix_bins], zeros before the first kernel
  RadixBound* bounds;  // [4 x rows]: before each digit, and in the end
  RadixKept* kept;     // [rows x parts]

  struct Stretch {
    const float* x;
    std::int64_t row;
    int part;
    unsigned begin, end;
  };
  KNEAR_HD Stretch stretch(std::int64_t block) const {
    const auto [row, part] = select_part(block, parts);
    const int length = rows.length(row);
    return {rows.row(row), row, part, unsigned(select_part_begin(part, parts, length)),
            unsigned(select_part_begin(part + 1, parts, length))};
  }
  KNEAR_HD int* histogram(int digit, std::int64_t row) const {
    return histograms + (digit * rows.rows + row) * radix_bins;
  }

  // The bound before digit `digit`, computed by each block of the row; the first block stores it
  // for the next kernel.
  template <class Thread>
  KNEAR_DEVICE RadixBound bound_before(Thread t, RadixBlock<Thread>& block, const Stretch& at,
                                       int digit) const {
    RadixBound bound;
    if (digit == 0) {
      bound = first_bound(k, rows.length(at.row));
    } else {
      bound = bounds[(digit - 1) * rows.rows + at.row];
      const int* counts = histogram(digit - 1, at.row);
      if (!bound.decided()) bound = block.choose(bound, [&](int i) { return counts[i]; });
    }
    if (at.part == 0 && t.index() == 0) bounds[digit * rows.rows + at.row] = bound;
    return bound;
  }
};

// Adds each part's histogram of a digit to its row's.
template <class Thread>
struct RadixCount {
  using Block = RadixBlock<Thread>;
  static constexpr int threads = Block::threads, resident_blocks = 3;
  RadixParts in;
  int digit;

  KNEAR_KERNEL void operator()(Thread t) const {
    Block block(t, in.flip);
    const auto at = in.stretch(t.block());
    const RadixBound bound = in.bound_before(t, block, at, digit);
    if (bound.decided()) return;
    block.count(at.x, at.begin, at.end, bound);
    int* histogram = in.histogram(digit, at.row);
    for (int i = t.index(); i < radix_bins; i += threads)
      if (const int count = block.bin(i); count != 0) t.atomic_add(&histogram[i], count);
  }
};

// Counts how many values each part keeps.
template <class Thread>
struct RadixCountKept {
  using Block = RadixBlock<Thread>;
  static constexpr int threads = Block::threads, resident_blocks = 3;
  RadixParts in;

  KNEAR_KERNEL void operator()(Thread t) const {
    Block block(t, in.flip);
    const auto at = in.stretch(t.block());
    const RadixBound bound = in.bound_before(t, block, at, radix_digits);
    const RadixKept kept = block.count_kept(at.x, at.begin, at.end, bound);
    if (t.index() == 0) in.kept[t.block()] = kept;
  }
};

// values, places [rows x k].
template <class Thread>
struct RadixGather {
  using Block = RadixBlock<Thread>;
  static constexpr int threads = Block::threads, resident_blocks = 2;
  RadixParts in;
  float* values;
  int* places;

  KNEAR_KERNEL void operator()(Thread t) const {
    Block block(t, in.flip);
    const auto at = in.stretch(t.block());
    const RadixBound bound = in.bounds[radix_digits * in.rows.rows + at.row];
    RadixKept before = {0, 0};
    for (int part = t.index(); part < at.part; part += threads) {
      const RadixKept kept = in.kept[at.row * in.parts + part];
      before.below += kept.below, before.equal += kept.equal;
    }
    before = {block.sum(before.below), block.sum(before.equal)};
    float* my_values = values + at.row * in.k;
    int* my_places = places + at.row * in.k;
    const int found =
        block.gather(at.x, at.begin, at.end, bound, before, in.k, my_values, my_places);
    if (at.part == in.parts - 1) block.fill_empty(found, in.k, my_values, my_places);
  }
};

// The number of parts, of at least 2^14 values each, that makes rows * parts about `blocks`.
KNEAR_HD constexpr int radix_parts(std::int64_t rows, std::int64_t cols, std::int64_t blocks) {
  const std::int64_t wanted = (blocks + rows - 1) / rows, most = cols >> 14;
  return int(wanted < most ? wanted : most > 1 ? most : 1);
}

}  // namespace knear::detail
