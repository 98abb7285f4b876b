// knear/distance/exact_kernels.inl -- the sixteen partial sums of the reference, written once and
// compiled for each level: KNEAR_BYTES is the width of a vector register, KNEAR_TABLE the name of
// the table to define. No library code inside: the linker must not merge an inline function of this
// file with another level's. So everything is static, types are those of C, and what is called
// besides are intrinsics, which leave no function behind.
#include <stdint.h>
#if KNEAR_BYTES > 16
#include <immintrin.h>
#endif

#include "knear/distance/exact_kernels.hpp"

namespace knear::detail {
namespace {

constexpr int lanes = KNEAR_BYTES / 8;  // doubles in a register
constexpr int registers = 16 / lanes;   // that hold the sixteen sums
typedef double Doubles __attribute__((vector_size(KNEAR_BYTES)));
typedef float Floats __attribute__((vector_size(KNEAR_BYTES / 2)));

struct HalfBits {
  uint16_t bits;
};
struct BrainBits {
  uint16_t bits;
};

static inline double widen(double x) { return x; }
static inline float widen(float x) { return x; }
static inline float widen(uint8_t x) { return x; }
static inline float widen(int8_t x) { return x; }
static inline float widen(BrainBits x) {
  const uint32_t bits = uint32_t{x.bits} << 16;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  return out;
}
static inline float widen(HalfBits x) {
  // Moves exponent and mantissa up; 2^112 then corrects the bias, exactly, denormals included.
  const uint32_t bits = uint32_t(x.bits & 0x7fffu) << 13, sign = uint32_t(x.bits & 0x8000u) << 16;
  float out;
  __builtin_memcpy(&out, &bits, 4);
  out *= 0x1p112f;
  uint32_t signed_bits;
  __builtin_memcpy(&signed_bits, &out, 4);
  signed_bits |= sign;
  __builtin_memcpy(&out, &signed_bits, 4);
  return out;
}

template <class V>
static inline V load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
// As many elements as a register has doubles.
static inline Doubles load_doubles(const double* p) { return load<Doubles>(p); }
// GCC takes conversions apart, into halves or even single elements, so they are written out.
#if KNEAR_BYTES == 64
static inline Doubles load_doubles(const float* p) {
  return (Doubles)_mm512_cvtps_pd(_mm256_loadu_ps(p));
}
static inline Doubles doubles_of(__m256i x) { return (Doubles)_mm512_cvtepi32_pd(x); }
static inline Doubles load_doubles(const uint8_t* p) {
  return doubles_of(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
static inline Doubles load_doubles(const int8_t* p) {
  return doubles_of(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
static inline Doubles load_doubles(const BrainBits* p) {
  const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return (Doubles)_mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)));
}
static inline Doubles load_doubles(const HalfBits* p) {
  return (Doubles)_mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)));
}
#elif KNEAR_BYTES == 32
static inline Doubles load_doubles(const float* p) {
  return (Doubles)_mm256_cvtps_pd(_mm_loadu_ps(p));
}
static inline Doubles doubles_of(__m128i x) { return (Doubles)_mm256_cvtepi32_pd(x); }
static inline Doubles load_doubles(const uint8_t* p) {
  return doubles_of(_mm_cvtepu8_epi32(_mm_loadu_si32(p)));
}
static inline Doubles load_doubles(const int8_t* p) {
  return doubles_of(_mm_cvtepi8_epi32(_mm_loadu_si32(p)));
}
static inline Doubles load_doubles(const BrainBits* p) {
  const __m128i bits = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i*)p));
  return (Doubles)_mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(bits, 16)));
}
static inline Doubles load_doubles(const HalfBits* p) {
  return (Doubles)_mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)p)));
}
#else
static inline Doubles load_doubles(const float* p) {
  return __builtin_convertvector(load<Floats>(p), Doubles);
}
template <class T>
static inline Doubles load_doubles(const T* p) {
  Doubles v;
  for (int j = 0; j < lanes; ++j) v[j] = widen(p[j]);
  return v;
}
#endif

// s[0] after s[j] += s[j + half] for halves of 8, 4, 2 and 1: by registers, then within one. In
// registers throughout; as loops over an array, it took longer than the sums of 64 columns.
static inline __attribute__((always_inline)) double tree(const Doubles* sums) {
  Doubles s[registers];
#pragma GCC unroll 8
  for (int r = 0; r < registers; ++r) s[r] = sums[r];
#pragma GCC unroll 4
  for (int half = registers / 2; half >= 1; half /= 2)
#pragma GCC unroll 4
    for (int r = 0; r < half; ++r) s[r] += s[r + half];
#if KNEAR_BYTES == 64
  const auto four = __builtin_shufflevector(s[0], s[0], 0, 1, 2, 3) +
                    __builtin_shufflevector(s[0], s[0], 4, 5, 6, 7);
#else
  const auto four = s[0];
#endif
#if KNEAR_BYTES >= 32
  const auto two =
      __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
#else
  const auto two = four;
#endif
  return two[0] + two[1];
}

static inline Doubles size_of(Doubles x) {
  typedef long long Bits __attribute__((vector_size(KNEAR_BYTES)));
  return (Doubles)((Bits)x & 0x7fffffffffffffffll);
}

enum class Kind { l2, product, product_and_squares, l1 };

template <Kind kind, int queries, int rows, class T>
static void exact_sums(const double* x, const void* const* row_pointers, int64_t dim, double* out) {
  const int64_t stride = (dim + 15) / 16 * 16;
  Doubles sums[queries * rows][registers] = {}, squares[rows][registers] = {};
  const auto step = [&](const double* xi, int n, const T* yi) __attribute__((always_inline)) {
#pragma GCC unroll 8
    for (int r = 0; r < registers; ++r) {
      const Doubles b = load_doubles(yi + r * lanes);
      if constexpr (kind == Kind::product_and_squares) squares[n][r] += b * b;
#pragma GCC unroll 4
      for (int q = 0; q < queries; ++q) {
        const Doubles a = load_doubles(xi + q * stride + r * lanes);
        if constexpr (kind == Kind::l2) {
          const Doubles difference = a - b;
          sums[q * rows + n][r] += difference * difference;
        } else if constexpr (kind == Kind::l1) {
          sums[q * rows + n][r] += size_of(a - b);
        } else {
          sums[q * rows + n][r] += a * b;
        }
      }
    }
  };
  const T* row[rows];
  for (int n = 0; n < rows; ++n) row[n] = static_cast<const T*>(row_pointers[n]);
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
#pragma GCC unroll 4
    for (int n = 0; n < rows; ++n) step(x + i, n, row[n] + i);
  }
  if (i < dim) {  // the last few: zeros beyond the end add +0, which changes no sum
#pragma GCC unroll 4
    for (int n = 0; n < rows; ++n) {
      T tail[16] = {};
      for (int j = 0; i + j < dim; ++j) tail[j] = row[n][i + j];
      step(x + i, n, tail);
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < queries * rows; ++p) out[p] = tree(sums[p]);
  if constexpr (kind == Kind::product_and_squares)
    for (int n = 0; n < rows; ++n) out[queries * rows + n] = tree(squares[n]);
}

template <int queries, int rows>
static void bit_sums(const double* x, const void* const* row_pointers, int64_t dim, double* out) {
  const int64_t stride = (dim + 15) / 16 * 16;
  for (int n = 0; n < rows; ++n)
    for (int q = 0; q < queries; ++q) {
      const uint8_t *a = reinterpret_cast<const uint8_t*>(x + q * stride),
                    *b = static_cast<const uint8_t*>(row_pointers[n]);
      int64_t bits = 0, i = 0;
      for (; i + 8 <= dim; i += 8)
        bits += __builtin_popcountll(load<uint64_t>(a + i) ^ load<uint64_t>(b + i));
      for (; i < dim; ++i) bits += __builtin_popcount(a[i] ^ b[i]);
      out[q * rows + n] = static_cast<double>(bits);
    }
}

template <class T>
static void to_doubles(const void* from, int64_t dim, double* __restrict out) {
  const T* __restrict row = static_cast<const T*>(from);
  int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const Doubles v = load_doubles(row + i);
    __builtin_memcpy(out + i, &v, sizeof v);
  }
  for (; i < dim; ++i) out[i] = widen(row[i]);
}

#define KNEAR_TYPES(kind, queries, rows)                                                      \
  {                                                                                           \
    exact_sums<kind, queries, rows, float>, exact_sums<kind, queries, rows, HalfBits>,        \
        exact_sums<kind, queries, rows, BrainBits>, exact_sums<kind, queries, rows, uint8_t>, \
        exact_sums<kind, queries, rows, int8_t>, exact_sums<kind, queries, rows, double>      \
  }
#define KNEAR_SHAPES(kind) \
  { KNEAR_TYPES(kind, 1, 1), KNEAR_TYPES(kind, exact_group, 1), KNEAR_TYPES(kind, 1, exact_group) }

}  // namespace

const ExactKernels& KNEAR_TABLE() {
  static constexpr ExactKernels table = {
      KNEAR_SHAPES(Kind::l2),
      KNEAR_SHAPES(Kind::product),
      KNEAR_SHAPES(Kind::product_and_squares),
      KNEAR_SHAPES(Kind::l1),
      {bit_sums<1, 1>, bit_sums<exact_group, 1>, bit_sums<1, exact_group>},
      {to_doubles<float>, to_doubles<HalfBits>, to_doubles<BrainBits>, to_doubles<uint8_t>,
       to_doubles<int8_t>, to_doubles<double>}};
  return table;
}

}  // namespace knear::detail
