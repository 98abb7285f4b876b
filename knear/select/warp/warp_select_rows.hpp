// knear/select/warp/warp_select_rows.hpp -- the kernel of WarpSelect: a warp for each row of a
// matrix, or for each part of a row.
//
// Where rows are few, each is cut into parts (warp_select_layout.hpp), and the k best of all parts,
// one after another, are the rows of a second run of the same kernel. It orders equal values by
// where they stand, which is the order of their places: those of a part ascend, and so do the
// parts. Empty places of a part hold NaN, which the second run does not keep.
//
// One reading of the matrix, 4 * rows * cols bytes; with p parts 16 * rows * p * k more.
#pragma once
#include <limits>

#include "knear/select/sort/float_order.hpp"
#include "knear/select/warp/device_rows.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/select/warp/warp_select_layout.hpp"
#include "knear/simt/thread_warp.hpp"

namespace knear::detail {

// Changes the sign bit of floats on the way from and to memory, if asked to at run time: one
// operation per value read, instead of a second kernel for the largest.
template <class Thread>
class FlippingWarp : public ThreadWarp<Thread> {
 public:
  KNEAR_DEVICE FlippingWarp(Thread t, unsigned flip) : ThreadWarp<Thread>(t), flip_(flip) {}

  KNEAR_DEVICE float load(const float* from) const { return flip(ThreadWarp<Thread>::load(from)); }
  KNEAR_DEVICE float load(const float* from, int count, float otherwise) const {
    const int i = this->template lane<int>();
    return i < count ? flip(from[i]) : otherwise;
  }
  KNEAR_DEVICE void store(float* to, int count, float x) const {
    ThreadWarp<Thread>::store(to, count, flip(x));
  }
  KNEAR_DEVICE void store(int* to, int count, int x) const {
    ThreadWarp<Thread>::store(to, count, x);
  }

 private:
  KNEAR_DEVICE float flip(float x) const { return flipped(x, flip_); }
  unsigned flip_;
};

// A warp for each part of each row; the parts of a row follow each other.
template <class Thread, int R, int T>
struct SelectByWarp {
  static constexpr int threads = select_warps_per_block * warp_size;
  static constexpr int resident_blocks = select_resident_blocks(R * warp_size);

  DeviceRows rows;
  int parts, k;
  unsigned flip;
  const int* names;  // [rows x cols] the places of the values; nullptr: those in the row
  float* values;     // [rows x parts x k]
  int* places;       // [rows x parts x k]

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t warp = select_row(t.block(), t.index());
    const auto [row, part] = select_part(warp, parts);
    if (row >= rows.rows) return;  // a whole warp at a time
    float* const my_values = values + warp * k;
    int* const my_places = places + warp * k;
    {
      const int length = rows.length(row);
      const int begin = int(select_part_begin(part, parts, length));
      const int end = int(select_part_begin(part + 1, parts, length));
      WarpSelect<FlippingWarp<Thread>, int, R, T> select(FlippingWarp<Thread>(t, flip), k);
      select.add_row(rows.row(row) + begin, end - begin, begin);
      select.store(my_values, my_places);
    }
    if (parts == 1 && !names) return;
    // Each lane reads back only places that it has written itself.
    for (int i = t.index() % warp_size; i < k; i += warp_size) {
      const int place = my_places[i];
      if (place < 0 && parts > 1) my_values[i] = std::numeric_limits<float>::quiet_NaN();
      if (place >= 0 && names) my_places[i] = names[row * rows.cols + place];
    }
  }
};

}  // namespace knear::detail
