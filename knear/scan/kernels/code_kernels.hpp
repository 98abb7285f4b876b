// knear/scan/kernels/code_kernels.hpp -- which rows of a list of codes may be near enough: the
// boundary of the kernels, plain structs, one table per level.
//
// A code is a few bytes, each of which says which entry of its own table counts for the row; the
// entries of a code add up to its distance. Here tables hold bytes, rounded down from the real
// ones, so that sums are whole numbers that never exceed what they stand for: a row is left out
// only if it is proven to be too far. With 8 bits and AVX-512 VBMI a table lies in four registers,
// with 4 bits in one (Andre, Kermarrec, Le Scouarnec, "Cache locality is not enough", 2015).
#pragma once
#include <cstdint>

#include "knear/scan/kernels/tile_kernels.hpp"

namespace knear::detail {

// Rows lie in groups: byte b of the codes of all rows of a group, then byte b + 1.
inline constexpr std::int64_t code_group_rows = 64;
// Entries of byte tables are at most this, so that two of them fit into a byte.
inline constexpr int most_table_entry = 127;

// Rows of a list in one place.
struct CodeRun {
  // Groups of 64 rows, the last one of those that are left; 64 bytes more may be read.
  const std::uint8_t* codes;
  std::int64_t rows;  // at least 1
  // [rows], and 64 floats more may be read. nullptr in all runs: rows have none.
  const float* scalars;
  // Either is written. near [groups]: bit r of word g is set for row 64 g + r that may be near
  // enough. values [groups x 64]: sum - slope * scalar of each row, rounded down; those beyond the
  // last row may be written too.
  std::uint64_t* near;
  std::int32_t* values;
};

struct CodeScanArgs {
  const CodeRun* runs;
  std::int64_t run_count;  // at least 1
  std::int64_t width;      // bytes of a code
  // 8 bits: [width][256]. 4 bits: [width][2][16], the lower half of a byte first. The sum of the
  // largest entries of all tables is below 2^16.
  const std::uint8_t* tables;
  // A row may be near enough if sum <= offset + slope * scalar, in float32; without scalars if sum
  // <= offset.
  float offset, slope;
  bool values;  // instead of which rows may be
};

// What is left of the rows of a list: their sums by the tables as they were, in float32, from the
// first part to the last.
struct CodeSumArgs {
  const std::uint8_t* codes;  // as in CodeRun
  std::int64_t rows;          // at least 1, below 2^16
  std::int64_t width;         // bytes of a code
  std::int64_t parts;
  const float* tables;        // [parts][256] or [parts][16]
  const std::uint64_t* near;  // [groups]: the rows that are wanted
  // [as many as are wanted, and 64 more that may be written]: their sums, and their numbers.
  float* sums;
  std::uint16_t* at;
};

// The entries of one table: for each of the centroids of a part of the columns, the sum over these
// of products, or of squared differences, with a query; summed in float64 in the order of columns
// and rounded once.
struct CodeTableArgs {
  const double* query;   // [columns]
  const float* columns;  // [columns][count]: each column of all centroids
  std::int64_t count;    // of centroids, a multiple of 16
  std::int64_t width;    // columns
  bool squared;
  float* table;          // [count]
  float least, largest;  // of the entries, set by the kernel
};

// out[i] = min(most, (table[i] - least) * scale), rounded down: never more, and below by 1 + 1e-4
// at most. Requires 0 <= most <= 127.
struct RoundDownArgs {
  const float* table;
  std::int64_t count;  // a multiple of 16
  float least, scale, most;
  std::uint8_t* out;
};

// What some codes of 8 bits stand for, in 8 bits, as panels of the tile kernels (tile_kernels.hpp).
struct CodeDecodeArgs {
  const std::uint8_t* codes;  // of one group; 64 bytes more may be read
  std::int64_t rows;          // 1 to 64, so far apart lie the bytes of a code
  std::int64_t parts, width;  // columns of a part
  // What codes of a part stand for: [parts][256][width], and [parts * width][256].
  const std::uint8_t* by_code;
  const std::uint8_t* by_column;
  // [2][steps][32 rows][4], the second panel only where there are more than 32 rows. Places behind
  // the last row may be written.
  std::uint8_t* panels;
};

// The sums of some rows by no tables: what those of the query would hold is computed for each, by
// the operations of CodeTableArgs and CodeSumArgs in their order. Codes are of 8 bits.
struct DirectSumArgs {
  const std::uint8_t* codes;  // as in CodeScanArgs
  std::int64_t rows;
  std::int64_t parts, width;  // columns of a part
  const float* centroids;     // [parts][256][width]
  const double* query;        // [parts * width]
  bool squared;
  const std::uint32_t* at;  // [count]: the rows that are wanted
  std::int64_t count;
  float* sums;  // [count]
};

using CodeKernel = void (*)(const CodeScanArgs*);
using CodeSumKernel = std::int64_t (*)(const CodeSumArgs*);  // returns how many rows were wanted
struct CodeKernels {
  CodeKernel bits8, bits4;
  // The k-th smallest of values [rows], or a little more, but not as much as the next one; 1 <= k
  // <= rows.
  std::int32_t (*kth_value)(const std::int32_t* values, std::int64_t rows, std::int64_t k);
  // Sets the bits of the rows whose values [rows, and 64 more may be read] are at most `limit`.
  void (*values_up_to)(const std::int32_t* values, std::int64_t rows, std::int32_t limit,
                       std::uint64_t* near);
  CodeSumKernel sums8, sums4;
  void (*fill_table)(CodeTableArgs*);
  void (*round_down)(const RoundDownArgs*);
  void (*decode8)(const CodeDecodeArgs*);
  void (*direct_sums8)(const DirectSumArgs*);
};

const CodeKernels& code_kernels_scalar();
const CodeKernels& code_kernels_avx2();
const CodeKernels& code_kernels_avx512();
const CodeKernels& code_kernels_avx512_vbmi();
const CodeKernels& code_kernels_neon();

}  // namespace knear::detail
