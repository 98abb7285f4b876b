// knear/select/warp/threshold_select_rows.hpp -- a kernel that selects the k first of each row, up
// to k = 4,096, and reads the row once.
//
// A block has a row. A threshold from a sample of the row lets somewhat more than k of its values
// pass (Matsumoto and Yiu's TH-heap, with another selection after the threshold); these are
// appended to shared memory, cut down to k there, and sorted (block_items.hpp).
//
// The answer never depends on the sample. Where more pass than there is room for, the k first so
// far are kept, the last of them is the new threshold, and reading goes on. Where fewer than k
// passed, the row is read again with a threshold that every number passes. The worst that a row can
// do is to descend behind a sample that says otherwise: then each 4,096 values are read twice, and
// room is made as often as room - k values have come. Equal values make room once in all, as those
// to the right of what is kept need not pass.
//
// Cost, with n values a row: 4 n bytes, 4 KB to 16 KB for a sample, 8 k written. A thread has 64
// bytes under way. By the machine code of sm_90a a warp has some 140 instructions for 512 values,
// and 30 for each that passes in the lane that has most of them: 200 for k = 1,000 of 128,000. A
// row takes 20,000 to 25,000 more there, of which the sort is a half.
//
// Predicted for 10,000 rows of 128,000 values and k = 1,000 on a GPU with 132 multiprocessors at
// 1.75 GHz that reads 3.09 TB/s: 5.12 GB of rows, 0.16 GB of samples and 0.08 GB of answers take
// 1.75 ms. In a multiprocessor 76 rows x (250 x 200 + 23,000) instructions take 0.8 ms at four a
// cycle, 1.6 ms at two. Four blocks are resident, so that one that selects leaves three that read:
// 2.0 to 2.3 ms together. For k = 4,000, 76 x (55,000 + 76,000) instructions, of which the sort is
// 60,000, are 1.4 ms at four a cycle and 2.8 ms at two: about 3 ms. An H100 took 1.91 and 3.08.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "knear/select/sort/float_order.hpp"
#include "knear/select/sort/sort_rows.hpp"
#include "knear/select/warp/block_items.hpp"
#include "knear/select/warp/device_rows.hpp"

namespace knear::detail {

inline constexpr int threshold_max_k = 4096;
// How many items a block has room for: a power of two, for a sort, that leaves a good part of
// itself to what passes beside the k first, and a step of 1,024 values. Four blocks with room for
// 4,096 fit into a multiprocessor of compute capability 9.0, and three with the most.
KNEAR_HD constexpr int threshold_room(int k) { return k <= 256 ? 2048 : k <= 1024 ? 4096 : 8192; }

// The threshold is the value of this rank in the sample; 0: no threshold, as the row is short or
// wanted for the greater part.
struct ThresholdSample {
  int size, rank;
};
// Of a row of n values, on average k * size / n of the k first are in the sample, a binomial number
// whose deviation is the root of that. Fewer than k values pass where `rank` of them are. With
// three deviations more than the mean that happens in 0.1 to 0.2 % of rows in random order, whose
// second reading costs as much of the time; k * rank / mean values pass on average: 1,874 (+- 340)
// for k = 1,000 of 128,000, 1,272 (+- 91) of 8,000, 195 (+- 39) for k = 100 of 8,000, 5,622 (+-
// 579) for k = 4,000 of 128,000. A larger sample would let fewer pass, but what passes costs no
// more than what is in the sample.
KNEAR_HD inline ThresholdSample threshold_sample(int k, int length) {
  if (length < 4096) return {0, 0};
  const int size = length < 32768 ? 1024 : 2048;
  const float mean = float(k) / float(length) * float(size);
  const float rank = mean + 3 * sqrtf(mean) + 2;
  return {size, rank <= float(size) * 0.75f ? int(rank) : 0};
}

// Of a row of `count` vectors, the one that gives the values 4 i to 4 i + 3 of the sample, counted
// from the first whole one: pairs at equal distances, as memory gives 32 bytes at the least.
KNEAR_HD constexpr unsigned sample_vector(unsigned i, unsigned count, int size) {
  return i / 2 * ((count - 2) / unsigned(size / 8)) + i % 2;
}

// A row as vectors of four values, the first of which begins at the boundary of 16 bytes at or
// before the row.
class RowVectors {
 public:
  struct alignas(16) Vector {
    float x[4];
  };

  KNEAR_DEVICE RowVectors(const float* row, int length)
      : row_(row),
        length_(unsigned(length)),
        before_(unsigned(reinterpret_cast<std::uintptr_t>(row) / sizeof(float) % 4)) {}

  KNEAR_DEVICE unsigned count() const { return (before_ + length_ + 3) / 4; }
  // The place in the row of the first value of a vector; beyond the row, as a number without a
  // sign, where that stands before it.
  KNEAR_DEVICE unsigned place(unsigned vector) const { return 4 * vector - before_; }
  // Whether all four values are of the row.
  KNEAR_DEVICE bool is_whole(unsigned vector) const {
    return place(vector) < length_ && length_ - place(vector) >= 4;
  }
  KNEAR_DEVICE float value(unsigned place) const { return row_[place]; }
  KNEAR_DEVICE Vector whole(unsigned vector) const {
    return *reinterpret_cast<const Vector*>(row_ + place(vector));
  }
  // With NaN in place of what is not of the row.
  KNEAR_DEVICE Vector any(unsigned vector) const {
    if (is_whole(vector)) return whole(vector);
    Vector out;
    KNEAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const unsigned at = place(vector) + unsigned(i);
      out.x[i] = at < length_ ? row_[at] : std::numeric_limits<float>::quiet_NaN();
    }
    return out;
  }
  KNEAR_DEVICE unsigned first_whole() const { return before_ != 0; }

 private:
  const float* row_;
  unsigned length_, before_;
};

// values, places [rows x k], best first or by ascending place. Block b takes the rows b, b +
// blocks,
// ...
template <class Thread>
struct SelectByThreshold {
  using Items = BlockItems<Thread>;
  static constexpr int threads = Items::threads, resident_blocks = 4;
  static constexpr int vectors = 4;  // under way at once
  static constexpr unsigned tile = threads * vectors;

  DeviceRows rows;
  int k, room;  // room: threshold_room(k)
  RowOrder order;
  unsigned flip;
  float* values;
  int* places;

  KNEAR_KERNEL void operator()(Thread t) const {
    const Items items(t, room);
    for (std::int64_t row = t.block(); row < rows.rows; row += t.blocks()) {
      const float* x = rows.row(row);
      const int length = rows.length(row);
      const RowVectors in(x, length);
      float limit = limit_of_sample(t, items, in, threshold_sample(k, length));
      int count = 0;
      for (;;) {
        count = read(t, items, in, limit);
        if (count >= k || !(limit < infinity)) break;
        limit = infinity;
        t.sync();  // all know how many passed, before they are counted again
      }
      count = cut_and_sort(t, items, count);
      store(t, items, count, x, values + row * k, places + row * k);
      t.sync();  // before the next row's items
    }
  }

 private:
  static constexpr float infinity = std::numeric_limits<float>::infinity();

  // The largest number that an item up to the bound has.
  KNEAR_DEVICE static float number_at(Item bound) {
    const unsigned key = key_of(bound);
    return key < key_after_numbers ? number_of_key(key) : infinity;
  }
  // The number before x, in their order; NaN where there is none.
  KNEAR_DEVICE static float number_before(float x) {
    const unsigned key = ordered_key(x, 0);
    return number_of_key(key - (x == 0 ? 2 : 1));  // no number has the key between
  }

  // A number that about sample.rank / sample.size of the row's values are not above; infinity
  // without a sample.
  KNEAR_DEVICE float limit_of_sample(Thread t, const Items& items, const RowVectors& in,
                                     ThresholdSample sample) const {
    if (sample.rank == 0) return infinity;
    const int count = sample.size / 4;
    for (int i = t.index(); i < count; i += threads) {
      const auto vector =
          in.whole(in.first_whole() + sample_vector(unsigned(i), in.count(), sample.size));
      KNEAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int at = j * count + i;
        items[at] = item_of(ordered_key(vector.x[j], flip), at);
      }
    }
    t.sync();
    return number_at(items.bound_of(sample.size, sample.rank));
  }

  // Appends the numbers of the row that are not above the limit, but for some that are not among
  // its k first. Returns how many.
  KNEAR_DEVICE int read(Thread t, const Items& items, const RowVectors& in, float limit) const {
    int* const counters = items.shared().added;
    if (t.index() < 3) counters[t.index()] = 0;
    t.sync();
    int turn = 0;
    // What all threads have added since the last call. Each counter is used in every third turn: it
    // is cleared after the sync() before which all have read it, and before that of the turn
    // before.
    const auto all_added = [&] {
      t.sync();
      const int added = counters[turn];
      if (t.index() == 0) counters[turn == 0 ? 2 : turn - 1] = 0;
      turn = turn == 2 ? 0 : turn + 1;
      return added;
    };
    int count = 0;
    KNEAR_NO_UNROLL
    for (unsigned begin = 0; begin < in.count(); begin += tile) {
      typename RowVectors::Vector x[vectors];
      const unsigned mine = begin + unsigned(t.index());
      if (in.is_whole(begin) && in.is_whole(begin + tile - 1)) {
        KNEAR_UNROLL
        for (int i = 0; i < vectors; ++i) x[i] = in.whole(mine + unsigned(i * threads));
      } else {  // an end of the row
        KNEAR_UNROLL
        for (int i = 0; i < vectors; ++i) x[i] = in.any(mine + unsigned(i * threads));
      }
      append(t, items, in, x, mine, limit, count, &counters[turn]);
      const int added = all_added();
      if (added <= room - count) {
        count += added;
        continue;
      }
      // More passes than there is room for: the tile is read again, in steps that there is room
      // for.
      KNEAR_NO_UNROLL
      for (unsigned step = begin; step < begin + tile && step < in.count(); step += threads) {
        if (room - count < threads * 4) {
          const Item bound = items.bound_of(count, k);
          items.keep(count, bound);
          count = k;
          limit = number_before(number_at(bound));  // equal values that follow are not wanted
        }
        const unsigned next = step + unsigned(t.index());
        const typename RowVectors::Vector one[] = {in.any(next)};
        append(t, items, in, one, next, limit, count, &counters[turn]);
        count += all_added();
      }
    }
    return count;
  }

  // Appends those of the thread's vectors' values that are not above the limit, as far as there is
  // room. Vector i is number `first` + i threads of the row.
  //
  // What passes is one value in some hundred as a rule, so it is read again, from the nearest
  // cache: a loop over it takes a third of the instructions of asking for each register whether it
  // is to be stored.
  template <int n>
  KNEAR_DEVICE void append(Thread t, const Items& items, const RowVectors& in,
                           const typename RowVectors::Vector (&x)[n], unsigned first, float limit,
                           int count, int* added) const {
    unsigned passed = 0;
    if (flip == 0) {
      KNEAR_UNROLL
      for (int i = 0; i < 4 * n; ++i)
        if (x[i / 4].x[i % 4] <= limit) passed |= 1u << i;
    } else {
      KNEAR_UNROLL
      for (int i = 0; i < 4 * n; ++i)
        if (-x[i / 4].x[i % 4] <= limit) passed |= 1u << i;
    }
    if (!t.any(passed != 0)) return;
    int slot = count + items.reserve(count_bits(passed), added);
    KNEAR_NO_UNROLL
    for (; passed != 0 && slot < room; ++slot) {
      const unsigned i = unsigned(bit_width(passed)) - 1;
      passed ^= 1u << i;
      const unsigned place = in.place(first + i / 4 * threads) + i % 4;
      items[slot] = item_of(key_of_number(flipped(in.value(place), flip)), int(place));
    }
  }

  // Leaves the k first of the items [0 .. count), in the order wanted; returns how many there are.
  KNEAR_DEVICE int cut_and_sort(Thread t, const Items& items, int count) const {
    const int size = sort_size(count < k ? count : k);
    if (count > k) {
      // A sort that is no longer for what is too many finds the first by itself.
      if (order == RowOrder::by_place || sort_size(count) > size) {
        items.keep(count, items.bound_of(count, k));
        count = k;
      }
    }
    for (int i = t.index(); i < size; i += threads) {
      if (i >= count)
        items[i] = ~Item{0};
      else if (order == RowOrder::by_place)
        items[i] = turned(items[i]);
    }
    t.sync();
    items.sort(size);
    return count < k ? count : k;
  }

  KNEAR_DEVICE void store(Thread t, const Items& items, int count, const float* row,
                          float* my_values, int* my_places) const {
    for (int i = t.index(); i < k; i += threads) {
      float value = no_value(flip);
      int place = -1;
      if (i < count) {
        const Item item = order == RowOrder::by_place ? turned(items[i]) : items[i];
        place = place_of(item);
        const float x = number_of_key(key_of(item));
        value = x == 0 ? row[place] : flipped(x, flip);  // zeros of both signs have one key
      }
      my_values[i] = value, my_places[i] = place;
    }
  }
};

}  // namespace knear::detail
