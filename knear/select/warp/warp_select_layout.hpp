// knear/select/warp/warp_select_layout.hpp -- which warp of the grid selects from which row, or
// from which part of a row.
//
// These are integer functions, used by kernels and, on the host, by their tests.
#pragma once
#include <cstdint>

#include "knear/simt/warp.hpp"

namespace knear::detail {

// Rows are independent and one warp takes each. There are four warps per block: enough blocks per
// multiprocessor to hide the end of each, few enough threads for 128 registers each.
inline constexpr int select_warps_per_block = 4;

// Blocks that must fit a multiprocessor at once, from which the compiler takes its limit of
// registers (2^16 / (128 * blocks)): 64 and 170. Not tuned on a GPU yet.
KNEAR_HD constexpr int select_resident_blocks(std::int64_t k) { return k <= 256 ? 8 : 3; }

KNEAR_HD constexpr std::int64_t select_blocks(std::int64_t rows) {
  return (rows + select_warps_per_block - 1) / select_warps_per_block;
}
// The row of a thread; beyond the last one there may be up to three that have none.
KNEAR_HD constexpr std::int64_t select_row(std::int64_t block, int thread) {
  return block * select_warps_per_block + thread / warp_size;
}

// Few long rows leave most of a machine idle. Then a row is cut into parts and a warp selects from
// each (select_blocks(rows * parts) blocks; select_part() of select_row()); a second pass selects
// from the parts * k candidates of all parts. The answer is the same for any number of parts, since
// the order of candidates is total.

// The number of parts for which rows * parts is about the number of warps that the machine wants.
// No more than sqrt(cols / k): a part is then as long as what the second pass reads, and with more
// parts that pass would take longer than the first one gains. 1 if there are enough rows, or short
// ones. Requires rows, k >= 1 and cols, warps >= 0.
KNEAR_HD constexpr int select_parts(std::int64_t rows, std::int64_t cols, int k,
                                    std::int64_t warps) {
  const std::int64_t wanted = (warps + rows - 1) / rows;
  std::int64_t parts = 1;
  while (parts < wanted && (parts + 1) * (parts + 1) * k <= cols) ++parts;
  return int(parts);
}

// The begin of part `part` of a row of `length` values, 0 <= part <= parts: a multiple of 32, so
// that loads stay aligned, or the end of the row. Parts differ by one group of 32 at most, of which
// the last may be shorter; those of a short row may be empty.
KNEAR_HD constexpr std::int64_t select_part_begin(std::int64_t part, int parts,
                                                  std::int64_t length) {
  const std::int64_t groups = (length + warp_size - 1) / warp_size;
  const std::int64_t begin = groups * part / parts * warp_size;
  return begin < length ? begin : length;
}

// Row and part of a warp: the parts of a row follow each other.
struct SelectPart {
  std::int64_t row;
  int part;
};
KNEAR_HD constexpr SelectPart select_part(std::int64_t warp, int parts) {
  return {warp / parts, int(warp % parts)};
}

}  // namespace knear::detail
