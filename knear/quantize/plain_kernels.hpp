// knear/quantize/plain_kernels.hpp -- the table behind plain_codes.hpp: plain pointers, one per
// level.
#pragma once
#include <cstdint>

namespace knear {
enum class Isa : std::uint8_t;  // core/cpu.hpp
}
namespace knear::detail {

// A row [n] and the centroid [n] to subtract from it first, or nullptr.
struct PlainRow {
  const float* x;
  const float* centroid;
  std::int64_t n;
};
// Columns of levels [n]: number trunc(clamp((x - low) / span, 0, 1) * top), each step rounded to
// float.
struct PlainLevels {
  const float *low, *span, *top;
};

// Rows of numbers as they lie in memory, compared with up to four queries at once.
struct PlainComparison {
  static constexpr int most_queries = 4;
  const std::uint8_t* const* rows;
  std::int64_t count, n;               // rows, and their columns
  const float* queries[most_queries];  // [n] each
  const float* scale;                  // [n], what a row's number counts for; nullptr: 1
  float* sums[most_queries];           // [count] each: the result
  float* sizes[most_queries];          // [count] each, of products: the sums of absolute values
  // The rows to compare next, to fetch early, and their bytes.
  struct Later {
    const std::uint8_t* const* rows;
    std::int64_t count, bytes;
  } later;
};

// The first three return the bits of the largest absolute value that was coded, which a number at
// least as large as those of infinity shows to be infinite or NaN; codes of such rows mean nothing.
struct PlainKernels {
  std::int32_t (*numbers)(PlainRow row, PlainLevels levels, std::uint8_t* out);
  std::int32_t (*f16)(PlainRow row, std::uint16_t* out);
  std::int32_t (*bf16)(PlainRow row, std::uint16_t* out);

  // Sums of float32 in any order, of squares of queries[j] - scale[j] x[j] or of products
  // queries[j] x[j], for 1 to 4 queries. Return whether all sums are finite.
  using Compare = bool (*)(const PlainComparison& of, int queries);
  struct Comparisons {
    Compare squares, products;
  };
  Comparisons of_bytes, of_f32, of_f16, of_bf16;  // by what x is
};

// Those that serve a level; one source for each kind of processor knows which there are.
const PlainKernels& plain_kernels(Isa isa);

const PlainKernels& plain_kernels_scalar();
const PlainKernels& plain_kernels_avx2();
const PlainKernels& plain_kernels_avx512();

}  // namespace knear::detail
