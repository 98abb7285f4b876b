// knear/scan/kernels/row_code_kernels.hpp -- how far single rows of 8-bit codes are from a query's:
// the boundary of the kernels, one function per level.
//
// A search on a graph scores rows that lie anywhere, a few at a time, so their codes lie row by row
// instead of in panels. Codes are unsigned with one unit for all columns; a query, which may lie
// beyond what they stand for, has 16 bits. The score is the sum of squared differences in whole
// numbers: the same on every level.
#pragma once
#include <cstdint>

namespace knear::detail {

// Codes of a row are padded with zeros to a multiple of so many bytes.
inline constexpr std::int64_t row_code_step = 32;

// out[i]: the sum of squared differences of the query [stride] and row rows[i] of codes, for i in
// [0, count), modulo 2^32. Rows begin `step` bytes apart. Requires a stride that is a multiple of
// row_code_step; of columns up to 16,384 no sum is larger if the query is in [-255, 510], of more
// if it is in [0, 255].
using RowCodeKernel = void (*)(const std::int16_t* query, const std::uint8_t* codes,
                               std::int64_t stride, std::int64_t step, const std::uint32_t* rows,
                               std::int64_t count, std::uint32_t* out);

void row_code_distances_scalar(const std::int16_t* query, const std::uint8_t* codes,
                               std::int64_t stride, std::int64_t step, const std::uint32_t* rows,
                               std::int64_t count, std::uint32_t* out);
void row_code_distances_avx2(const std::int16_t* query, const std::uint8_t* codes,
                             std::int64_t stride, std::int64_t step, const std::uint32_t* rows,
                             std::int64_t count, std::uint32_t* out);
void row_code_distances_avx512(const std::int16_t* query, const std::uint8_t* codes,
                               std::int64_t stride, std::int64_t step, const std::uint32_t* rows,
                               std::int64_t count, std::uint32_t* out);
void row_code_distances_avx512_vnni(const std::int16_t* query, const std::uint8_t* codes,
                                    std::int64_t stride, std::int64_t step,
                                    const std::uint32_t* rows, std::int64_t count,
                                    std::uint32_t* out);
void row_code_distances_neon(const std::int16_t* query, const std::uint8_t* codes,
                             std::int64_t stride, std::int64_t step, const std::uint32_t* rows,
                             std::int64_t count, std::uint32_t* out);

}  // namespace knear::detail
