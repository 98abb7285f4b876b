// knear/scan/kernels/few_rows_kernels.hpp -- which of a few rows may be the nearest to each query:
// the boundary of the kernels, plain structs, one table per level.
//
// Where the base is so small, the scores of a query with all of its rows stay in registers: the
// least of them is the threshold, and nothing has to be kept between calls. Scores are float32,
//   s = |y - m|^2 - 2 <x - m, y - m>,
// with m near the middle of the rows, each lowered by the part of its error that grows with the
// row, so that one row far from the others does not make all of them candidates. A row is a
// candidate unless it is proven that another one is nearer: unless s > least + slack, where slack
// bounds twice the error of a score (docs/bounds.md 11).
#pragma once
#include <cstdint>

namespace knear::detail {

inline constexpr std::int64_t most_few_rows = 1024;
// Rows are padded to a multiple of this, if there are more than a quarter of it (16, then 64).
inline constexpr std::int64_t few_rows_block = 256;

struct FewRowsArgs {
  // The base: [dim][padded] and [padded]. Rows that pad it have squares of infinity.
  const float* factors;  // -2 (y - m)
  const float* squares;  // |y - m|^2 (1 - relative_slack)
  std::int64_t dim, padded;
  // The slack of a query is relative_slack (|x - m|^2 + t) + absolute_slack with t the smaller of
  // twice_largest and 8.2 |x - m|^2 + 4.2 max(least score, 0). It is infinite if |x - m|^2 +
  // twice_largest is beyond 1e38, where scores may overflow.
  float twice_largest;  // of the squares
  float relative_slack, absolute_slack;
  const float* queries;  // [count x dim]
  std::int64_t count;
  // [count]: the one candidate, or anything where there are several.
  std::uint32_t* nearest;
  // Queries of which there are several, and whether row r is one: bit r % 64 of word r / 64. All
  // rows are where the slack is infinite, those that pad too. Room for one more than `count`.
  std::uint32_t* undecided;
  std::uint64_t* candidates;  // [undecided][words]
};
constexpr std::int64_t words_of(std::int64_t padded) { return (padded + 63) / 64; }

// Returns how many queries are undecided.
using FewRowsKernel = std::int64_t (*)(const FewRowsArgs*);
// For 16, 64, 256 padded rows, and for any multiple of 256 up to most_few_rows.
enum FewRowsSize { few_rows_16, few_rows_64, few_rows_256, few_rows_more, few_rows_sizes };
struct FewRowsKernels {
  FewRowsKernel candidates[few_rows_sizes];
};

const FewRowsKernels& few_rows_kernels_scalar();
const FewRowsKernels& few_rows_kernels_avx2();
const FewRowsKernels& few_rows_kernels_avx512();
const FewRowsKernels& few_rows_kernels_neon();

}  // namespace knear::detail
