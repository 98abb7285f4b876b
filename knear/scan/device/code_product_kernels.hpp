// knear/scan/device/code_product_kernels.hpp -- kernels for codes that many queries look at: what
// codes stand for, so that tensor cores multiply it, and the keys of what they leave.
//
//   DecodeRows        the vectors of rows of codes, some panels at a time
//   MakeTableQueries  what the tables of queries would be made with, from the queries
//   MeasureCodes      the keys of pairs that may be among the k nearest
//
// Keys are those of code_scan_kernels.hpp, to the bit, without tables: of a row the entries that
// its code asks for are computed alone.
#pragma once
#include <cstddef>
#include <cstdint>

#include "knear/scan/device/code_scan_kernels.hpp"
#include "knear/scan/device/scan_views.hpp"

namespace knear::detail {

// Rows of codes as a scan by products has them: row n of the scan is the one at positions[n], and
// those of a panel are of one list.
struct DecodedView {
  DeviceCodeBookView book;
  DeviceCodedView codes;
  const float* by_centroid;  // [parts x 2^bits x width]: the book's centroids as they are
  const float* centroids;    // [lists x dim] added to what the codes stand for; nullptr: nothing
  const std::int32_t* positions;    // [rows]
  const std::int32_t* panel_lists;  // [panels]
};

// Where the code of a row of a list begins, and how far apart its bytes lie.
struct CodePlace {
  const std::uint8_t* code;
  std::int64_t stride;

  KNEAR_DEVICE int part(int bits, int m) const {
    return bits == 8 ? code[m * stride] : code[m / 2 * stride] >> m % 2 * 4 & 15;
  }
};
KNEAR_DEVICE CodePlace code_place(const DecodedView& of, std::int32_t list, std::int64_t row) {
  constexpr std::int64_t group_rows = 64;
  const std::int64_t begin = of.codes.begins[list], end = of.codes.begins[list + 1],
                     first = row - (row - begin) % group_rows;
  return {of.codes.codes + first * of.book.code_size() + (row - first),
          end - first < group_rows ? end - first : group_rows};
}

// One warp per slot of the panels from `first` on. A slot without a row is left as it is.
template <class Thread>
struct DecodeRows {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;

  DecodedView of;
  const int* numbers;  // [slots of all panels] the row in each; -1: none
  std::int64_t first, panels;
  float* rows;  // [panels * 32 x dim]
  int* places;  // [panels * 32] the slot's own number in `rows`; -1

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size, dim = of.book.dim();
    for (std::int64_t slot = t.block() * warps + t.index() / warp_size; slot < panels * panel_rows;
         slot += t.blocks() * warps) {
      const int number = numbers[first * panel_rows + slot];
      if (lane == 0) places[slot] = number < 0 ? -1 : static_cast<int>(slot);
      if (number < 0) continue;
      const std::int32_t list = of.panel_lists[first + slot / panel_rows];
      const CodePlace at = code_place(of, list, of.positions[number]);
      const float* const added = of.centroids ? of.centroids + std::int64_t{list} * dim : nullptr;
      for (int j = lane; j < dim; j += warp_size) {
        const int part = j / of.book.width;
        const float* const centroid =
            of.by_centroid + ((part << of.book.bits) + at.part(of.book.bits, part)) * of.book.width;
        const double r = centroid[j % of.book.width];
        rows[slot * dim + j] = static_cast<float>(added ? rounded_sum(r, double{added[j]}) : r);
      }
    }
  }
};

// to = factor * from, a power of two and a sign, which rounds nothing.
template <class Thread>
struct MakeTableQueries {
  static constexpr int threads = 256, resident_blocks = 8;
  const double* from;
  double factor;
  std::int64_t count;  // of numbers
  double* to;

  KNEAR_KERNEL void operator()(Thread t) const {
    for (std::int64_t i = t.block() * threads + t.index(); i < count; i += t.blocks() * threads)
      to[i] = factor * from[i];
  }
};

// A thread for each entry of a list, `parts` blocks per query. What lanes read of centroids lies
// anywhere in the second-level cache, the query is the same for all.
template <class Thread>
struct MeasureCodes {
  static constexpr int threads = 128, resident_blocks = 8;

  DecodedView of;
  DeviceBaseView base;
  DeviceLists lists;
  const double* queries;  // [count x dim], by place: what tables would be made with
  // The lists of the query at each place, ascending, and its terms for these [count x probes].
  const std::int32_t* probed;  // beyond the last one: the largest number
  const float* terms;
  int probes, parts;
  Metric metric;
  bool squared;

  KNEAR_KERNEL void operator()(Thread t) const {
    const std::int64_t place = t.block() / parts;
    const double* const query = queries + place * of.book.dim();
    for (int i = static_cast<int>(t.block() % parts) * threads + t.index(); i < lists.counts[place];
         i += parts * threads) {
      const Entry entry = lists.entries[place * lists.room + i];
      const std::int32_t list = of.panel_lists[entry.slot / panel_rows];
      const std::int64_t row = of.positions[base.ids[entry.slot]];
      const CodePlace at = code_place(of, list, row);
      float sum = 0;
      for (int m = 0; m < of.book.parts; ++m) sum += entry_of(query, m, at.part(of.book.bits, m));
      const float scalar = of.codes.scalars ? of.codes.scalars[row] : 0;
      lists.keys[place * lists.room + i] = code_key(metric, term_of(place, list), sum, scalar);
    }
  }

 private:
  // As code_table_entry() has it.
  KNEAR_DEVICE float entry_of(const double* query, int part, int code) const {
    const float* const centroid = of.by_centroid + ((part << of.book.bits) + code) * of.book.width;
    query += part * of.book.width;
    double sum = 0;
    for (int j = 0; j < of.book.width; ++j) {
      const double x = centroid[j], difference = rounded_sum(query[j], -x);
      sum = rounded_sum(
          sum, squared ? rounded_product(difference, difference) : rounded_product(query[j], x));
    }
    return static_cast<float>(sum);
  }
  KNEAR_DEVICE float term_of(std::int64_t place, std::int32_t list) const {
    const std::int32_t* const all = probed + place * probes;
    int low = 0, high = probes;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      if (all[middle] < list)
        low = middle + 1;
      else
        high = middle;
    }
    return terms[place * probes + low];
  }
};

}  // namespace knear::detail
