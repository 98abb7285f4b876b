// knear/scan/kernels/bit_kernels.hpp -- how many bits of a query differ from those of many rows:
// the boundary of the kernels, one table per level.
//
// Rows are laid out eight together, a word of 64 bits of each beside one another, so that a
// register counts the bits of several rows and nothing is added up within one.
#pragma once
#include <cstdint>

namespace knear::detail {

// A row that is near enough, by its place in the layout, and the bits of it that differ.
struct BitHit {
  std::uint32_t row, bits;
};

inline constexpr std::int64_t bit_rows_together = 8;
// within() takes groups of eight rows, a multiple of this number of groups.
inline constexpr std::int64_t bit_groups_together = 4;

struct BitKernels {
  // Lays out `count` rows of `bytes` bytes each, `stride` bytes apart, padded with zeros, as out
  // [groups][words][8]. Places of rows that are not there are left as they are.
  void (*lay_out)(const void* first, std::int64_t stride, std::int64_t count, std::int64_t bytes,
                  std::uint64_t* out);
  // Finds the rows of `rows` [groups][words][8] that differ from query [words] in at most `limit`
  // bits, writes them in their order and returns their number. out [8 groups]; groups is a multiple
  // of bit_groups_together; limit is at most 2^62.
  std::int64_t (*within)(const std::uint64_t* rows, std::int64_t groups, std::int64_t words,
                         const std::uint64_t* query, std::uint64_t limit, BitHit* out);
  // Does the same for `count` rows of `bytes` bytes, which lie `stride` bytes apart. For one query
  // this takes less time than laying them out. query [words, padded with zeros]; out [count].
  std::int64_t (*within_rows)(const void* first, std::int64_t stride, std::int64_t count,
                              std::int64_t bytes, const std::uint64_t* query, std::uint64_t limit,
                              BitHit* out);
};

const BitKernels& bit_kernels_scalar();
const BitKernels& bit_kernels_avx2();
const BitKernels& bit_kernels_avx512();
const BitKernels& bit_kernels_avx512_popcnt();
const BitKernels& bit_kernels_neon();

}  // namespace knear::detail
