// knear/scan/device/packing_kernels.hpp -- kernels that encode rows in device memory.
//
//   InterleaveSlots   the row of each slot of the tiles
//   InterleaveRows    the same, and the largest coordinate of each row, by which the rows of a tile
//                     are sorted then
//   EncodePanels      codes with certified errors, and what the test needs of rows and panels
//   EncodeWholeRows   whole numbers of 8 bits as they are
//   FindValueRange    whether all is finite, and whole numbers of which range (value_range.hpp)
//   SampleRows        some rows, evenly spaced
//
// The result is that of PackedBase (scan/packing/packed_base.cpp; docs/bounds.md, 2), in the order
// of code_layout.hpp: the same rows in the same slots, the same codes except where a value is half
// way between two of them, and lengths and errors with sums in another order, which the slack
// covers.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/code_layout.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/packing/interleaving.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

// The rows and the coding space; all pointers are to device memory.
struct DevicePacking {
  const void* rows;    // [count x dim]
  std::int64_t count;  // at least 1, below 2^31
  std::int64_t dim;
  std::int64_t tiles, panels_per_tile;
  const double* mean;  // [dim]; nullptr: not centred
  double mean_norm, slack;
  bool l2, cosine;
  int row_offset;  // whole numbers: added to each
  // The output; [slots] are tiles * panels_per_tile * 32.
  int* ids;                // [slots]; -1: none
  float* sizes;            // [slots] certified: what rows of a tile are sorted by
  std::uint8_t* codes;     // as code_layout.hpp
  PanelHead* heads;        // [panels], certified
  PanelTest* tests;        // [panels], certified
  float* bias;             // [slots], certified
  std::uint32_t* squares;  // [slots], whole numbers
  std::int32_t* sums;      // [slots], whole numbers

  KNEAR_HD std::int64_t panels() const { return tiles * panels_per_tile; }
  KNEAR_HD std::int64_t slots() const { return panels() * panel_rows; }
  KNEAR_HD int steps() const { return static_cast<int>((dim + 3) / 4); }
  KNEAR_HD int slices() const { return static_cast<int>(slices_of(steps())); }
  // The row of a slot, or -1.
  KNEAR_HD int interleaved_row(std::int64_t slot) const {
    const std::int64_t tile_slots = panels_per_tile * panel_rows;
    const std::int64_t tile = slot / tile_slots, j = slot % tile_slots;
    const Interleaving interleaving = {count, tiles};
    return j < interleaving.rows_of(tile) ? static_cast<int>(interleaving.row(tile, j)) : -1;
  }
};

// The sum over the lanes.
template <class Thread>
KNEAR_DEVICE double warp_sum(Thread t, double x) {
  for (int step = warp_size / 2; step > 0; step /= 2) x += t.shuffle_xor(x, step);
  return x;
}
template <class Thread>
KNEAR_DEVICE double warp_max(Thread t, double x) {
  for (int step = warp_size / 2; step > 0; step /= 2) {
    const double other = t.shuffle_xor(x, step);
    x = other > x ? other : x;
  }
  return x;
}

// A row in coding space.
template <class Row>
struct CodingRow {
  const Row* y;
  const double* mean;
  double length;  // 0: not divided by it

  KNEAR_DEVICE double operator[](std::int64_t i) const {
    double v = to_double(y[i]);
    if (length != 0) v /= length;
    return mean ? v - mean[i] : v;
  }
};
// The length of a row, computed by a warp: its sum comes in an order of 32 lanes.
template <class Row, class Thread>
KNEAR_DEVICE double row_length(Thread t, const Row* y, std::int64_t dim) {
  double squares = 0;
  for (std::int64_t i = t.index() % warp_size; i < dim; i += warp_size) {
    const double x = to_double(y[i]);
    squares += x * x;
  }
  return sqrt(warp_sum(t, squares));
}
// The coding of a row, computed by a warp.
template <class Row, class Thread>
KNEAR_DEVICE CodingRow<Row> coding_row(Thread t, const DevicePacking& p, std::int64_t row) {
  const Row* const y = static_cast<const Row*>(p.rows) + row * p.dim;
  return {y, p.mean, p.cosine ? row_length(t, y, p.dim) : 0};
}

template <class Thread>
struct InterleaveSlots {
  static constexpr int threads = 256, resident_blocks = 8;
  DevicePacking p;

  KNEAR_KERNEL void operator()(Thread t) const {
    for (std::int64_t slot = t.block() * threads + t.index(); slot < p.slots();
         slot += t.blocks() * threads)
      p.ids[slot] = p.interleaved_row(slot);
  }
};

// One warp per slot.
template <class Thread, class Row>
struct InterleaveRows {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  DevicePacking p;

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size;
    for (std::int64_t slot = t.block() * warps + t.index() / warp_size; slot < p.slots();
         slot += t.blocks() * warps) {
      const int row = p.interleaved_row(slot);
      double largest = std::numeric_limits<double>::infinity();  // empty slots come last
      if (row >= 0) {
        const CodingRow<Row> v = coding_row<Row>(t, p, row);
        largest = 0;
        for (std::int64_t i = lane; i < p.dim; i += warp_size) {
          const double size = fabs(v[i]);
          largest = size > largest ? size : largest;
        }
        largest = warp_max(t, largest);
      }
      if (lane == 0) p.ids[slot] = row, p.sizes[slot] = static_cast<float>(largest);
    }
  }
};

// One block per panel; padding is at its end.
template <class Thread, class Row>
struct EncodePanels {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  struct Shared {
    double largest[panel_rows], squares[panel_rows], length[panel_rows];
    double code_error[panel_rows], code_squares[panel_rows], mean_product[panel_rows];
  };
  static constexpr std::size_t shared_bytes = sizeof(Shared);
  DevicePacking p;

  KNEAR_KERNEL void operator()(Thread t) const {
    Shared& shared = *reinterpret_cast<Shared*>(t.shared());
    const int lane = t.index() % warp_size, warp = t.index() / warp_size;
    const std::int64_t panel = t.block();
    const int* const ids = p.ids + panel * panel_rows;
    std::uint8_t* const codes = p.codes + panel * p.slices() * panel_slice_bytes;
    const int filled = count_bits(t.ballot(ids[lane] >= 0));
    if (filled == 0) {  // the whole block; nothing can pass: its largest g is below any threshold
      for (int i = t.index(); i < p.slices() * panel_slice_bytes; i += threads) codes[i] = 0;
      if (t.index() < panel_rows) p.bias[panel * panel_rows + t.index()] = 0;
      if (t.index() == 0) {
        const PanelHead none = {1, -std::numeric_limits<double>::max(), 0, 0, 0};
        p.heads[panel] = none, p.tests[panel] = empty_panel_test();
      }
      return;
    }
    // Padding repeats the last row.
    const auto row_of = [&](int r) { return ids[r < filled ? r : filled - 1]; };

    for (int r = warp; r < panel_rows; r += warps) {
      const CodingRow<Row> v = coding_row<Row>(t, p, row_of(r));
      double largest = 0, squares = 0;
      for (std::int64_t i = lane; i < p.dim; i += warp_size) {
        const double x = v[i], size = fabs(x);
        largest = size > largest ? size : largest;
        squares += x * x;
      }
      largest = warp_max(t, largest), squares = warp_sum(t, squares);
      if (lane == 0)
        shared.largest[r] = largest, shared.squares[r] = squares, shared.length[r] = v.length;
    }
    t.sync();

    const double squares = shared.squares[lane];
    const double scale =
        scale_for(format_int8, warp_max(t, shared.largest[lane]), sqrt(warp_max(t, squares)));
    const double inverse = 1 / scale;
    const bool products = !p.l2 && p.mean;
    for (int r = warp; r < panel_rows; r += warps) {
      const CodingRow<Row> v = {static_cast<const Row*>(p.rows) + row_of(r) * p.dim, p.mean,
                                shared.length[r]};
      double error = 0, code_squares = 0, product = 0;
      for (int step = lane; step < p.slices() * slice_steps; step += warp_size) {
        unsigned word = 0;
        for (int j = 0; j < step_bytes && step < p.steps(); ++j) {
          const std::int64_t i = std::int64_t{step} * step_bytes + j;
          double c = 0;
          if (i < p.dim) {
            const double x = v[i];
            c = rint(x * inverse);
            const double e = x - c * scale;
            error += e * e, code_squares += c * c;
            if (products) product += x * p.mean[i];
          }
          word |= static_cast<unsigned>(static_cast<int>(c) + 128) << 8 * j;
        }
        *reinterpret_cast<unsigned*>(codes + panel_place(step, r)) = word;
      }
      error = warp_sum(t, error), code_squares = warp_sum(t, code_squares);
      product = warp_sum(t, product);
      if (lane == 0) {
        shared.code_error[r] = error, shared.code_squares[r] = code_squares;
        shared.mean_product[r] = product;
      }
    }
    t.sync();
    if (warp != 0) return;

    const double norm = norm_above(squares, p.slack);
    const double code_norm = norm_above(shared.code_squares[lane], p.slack) * scale;
    // A row of a cosine space was divided by its length first: the error is relative to unit size,
    // whatever v is.
    const double size = norm + (p.l2 ? 0 : p.mean_norm) + (p.cosine ? 1 : 0);
    const double error = error_above(shared.code_error[lane], 0, p.slack) + size * p.slack;
    const double b = p.l2 ? -squares / 2 : shared.mean_product[lane];
    PanelHead head;
    head.scale = scale;
    head.norm = warp_max(t, norm > code_norm ? norm : code_norm);
    head.error = warp_max(t, error);
    head.bias_max = warp_max(t, b);
    head.slack = 2 * p.slack *
                 (p.l2 ? head.norm * head.norm
                       : p.mean_norm * (head.norm + p.mean_norm) + (p.cosine ? 1.0 : 0.0));
    // Rounded towards zero: never below the true value.
    const double unit = 1 / (scale * scale);
    p.bias[panel * panel_rows + lane] =
        static_cast<float>((b - head.bias_max) * unit) * (1.0f - 0x1p-22f);
    head.bias_max += head.slack;
    if (lane == 0) p.heads[panel] = head, p.tests[panel] = panel_test(head);
  }
};

// One block per panel.
template <class Thread, class Row>
struct EncodeWholeRows {
  static constexpr int threads = 256, resident_blocks = 8;
  static constexpr int warps = threads / warp_size;
  DevicePacking p;

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size;
    const std::int64_t panel = t.block();
    std::uint8_t* const codes = p.codes + panel * p.slices() * panel_slice_bytes;
    for (int r = t.index() / warp_size; r < panel_rows; r += warps) {
      const std::int64_t slot = panel * panel_rows + r;
      const int row = p.ids[slot];
      const Row* const y = static_cast<const Row*>(p.rows) + (row < 0 ? 0 : row) * p.dim;
      int sum = 0;
      unsigned squares = 0;
      for (int step = lane; step < p.slices() * slice_steps; step += warp_size) {
        unsigned word = 0;
        for (int j = 0; j < step_bytes && row >= 0; ++j) {
          const std::int64_t i = std::int64_t{step} * step_bytes + j;
          if (i >= p.dim) break;
          const int x = static_cast<int>(to_double(y[i]));
          sum += x, squares += static_cast<unsigned>(x * x);
          word |= static_cast<unsigned>(x + p.row_offset) << 8 * j;
        }
        *reinterpret_cast<unsigned*>(codes + panel_place(step, r)) = word;
      }
      for (int step = warp_size / 2; step > 0; step /= 2) {
        sum += t.shuffle_xor(sum, step);
        squares += t.shuffle_xor(squares, step);
      }
      if (lane == 0) p.sums[slot] = sum, p.squares[slot] = p.l2 ? squares : 0;
    }
  }
};

// The result of FindValueRange; zeros before it.
struct RowsFound {
  unsigned long long
      not_finite;                // elements from the first that no float is as large as: 0 for none
  unsigned long long not_whole;  // 1: some element is no whole number in [-128, 255]
  unsigned long long high, below;  // the largest whole number + 512, 512 - the smallest
};

template <class Thread, class Row>
struct FindValueRange {
  static constexpr int threads = 256, resident_blocks = 8;
  const Row* elements;
  std::int64_t count;
  RowsFound* found;

  KNEAR_KERNEL void operator()(Thread t) const {
    std::int64_t bad = count;
    int fractions = 0, low = 511, high = -511;
    for (std::int64_t i = t.block() * threads + t.index(); i < count; i += t.blocks() * threads) {
      const auto x = widened(elements[i]);
      using Wide = std::remove_const_t<decltype(x)>;
      const Wide size = x < 0 ? -x : x;
      if (!(size <= std::numeric_limits<float>::max())) {
        bad = i < bad ? i : bad;
        continue;
      }
      const int whole = size <= 255 ? static_cast<int>(x) : -256;
      fractions |= static_cast<Wide>(whole) != x || whole < -128;
      low = whole < low ? whole : low, high = whole > high ? whole : high;
    }
    // Most threads find nothing that others have not published.
    const auto publish = [&](unsigned long long* to, long long x) {
      const auto value = static_cast<unsigned long long>(x);
      if (x > 0 && value > t.atomic_read(to)) t.atomic_max(to, value);
    };
    publish(&found->not_finite, count - bad);
    publish(&found->not_whole, fractions);
    publish(&found->high, high + 512);
    publish(&found->below, 512 - low);
  }
};

template <class Thread>
struct SampleRows {
  static constexpr int threads = 256, resident_blocks = 8;
  const unsigned char* from;  // [rows x row_bytes]
  std::int64_t rows, row_bytes;
  std::int64_t count, first, some;  // of the sample's rows, these
  unsigned char* to;                // [some x row_bytes]

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t bytes = some * row_bytes;
    for (std::int64_t i = t.block() * threads + t.index(); i < bytes; i += t.blocks() * threads) {
      const std::int64_t row = first + i / row_bytes;
      // count * rows is below 2^63: a sample has some thousands of rows.
      to[i] = from[row * rows / count * row_bytes + i % row_bytes];
    }
  }
};

}  // namespace knear::detail
