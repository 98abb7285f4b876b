// knear/quantize/plain_kernels.inl -- numbers of scalar codes, written once and compiled for each
// level: KNEAR_BYTES is the width of a vector register, KNEAR_TABLE the table to define. Compilers
// make vectors of the loops over columns that are coded. No library code inside: an inline function
// of this file must not be merged by the linker with another level's.
#include <stdint.h>

#include "knear/quantize/plain_kernels.hpp"

namespace knear::detail {
namespace {

static inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
static inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
static inline int32_t larger(int32_t a, uint32_t bits) {
  const int32_t b = static_cast<int32_t>(bits & 0x7fffffffu);
  return a < b ? b : a;
}

template <bool residual>
static int32_t numbers_of(PlainRow row, PlainLevels levels, uint8_t* __restrict out) {
  int32_t largest = 0;
  for (int64_t j = 0; j < row.n; ++j) {
    const float x = residual ? row.x[j] - row.centroid[j] : row.x[j];
    largest = larger(largest, bits_of(x));
    float share = (x - levels.low[j]) / levels.span[j];
    share = share > 0 ? share : 0;
    share = share < 1 ? share : 1;
    out[j] = static_cast<uint8_t>(static_cast<int32_t>(share * levels.top[j]));
  }
  return largest;
}
static int32_t numbers(PlainRow row, PlainLevels levels, uint8_t* out) {
  return row.centroid ? numbers_of<true>(row, levels, out) : numbers_of<false>(row, levels, out);
}

// As to_halves() of core/element_type.cpp rounds.
template <bool residual>
static int32_t bf16_of(PlainRow row, uint16_t* __restrict out) {
  int32_t largest = 0;
  for (int64_t j = 0; j < row.n; ++j) {
    const uint32_t bits = bits_of(residual ? row.x[j] - row.centroid[j] : row.x[j]);
    largest = larger(largest, bits);
    out[j] = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  return largest;
}
static int32_t bf16(PlainRow row, uint16_t* out) {
  return row.centroid ? bf16_of<true>(row, out) : bf16_of<false>(row, out);
}

template <bool residual>
static int32_t f16_of(PlainRow row, uint16_t* __restrict out) {
  int32_t largest = 0;
  for (int64_t j = 0; j < row.n; ++j) {
    const uint32_t bits = bits_of(residual ? row.x[j] - row.centroid[j] : row.x[j]);
    const uint32_t size = bits & 0x7fffffffu;
    largest = larger(largest, bits);
    const uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    // The last place of 0.5f is 2^-24, the unit of denormal f16: the sum is rounded to it.
    const uint32_t denormal = bits_of(float_of(size) + 0.5f) - 0x3f000000u;
    const uint32_t rounded = size < 0x38800000u ? denormal : normal;
    out[j] = static_cast<uint16_t>((bits >> 16 & 0x8000u) | rounded);
  }
  return largest;
}
static int32_t f16(PlainRow row, uint16_t* out) {
  return row.centroid ? f16_of<true>(row, out) : f16_of<false>(row, out);
}

constexpr int lanes = KNEAR_BYTES / 4;
typedef float Floats __attribute__((vector_size(KNEAR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(KNEAR_BYTES)));
typedef int32_t Numbers __attribute__((vector_size(KNEAR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(lanes * 2)));
typedef uint8_t Bytes __attribute__((vector_size(lanes)));

template <class V>
static inline V load(const void* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// The elements of rows: `lanes` of them from a place on, and one.
struct OfBytes {
  static Floats some(const uint8_t* row, int64_t j) {
#ifdef KNEAR_WIDEN_BYTES
    return (Floats)KNEAR_WIDEN_BYTES(row + j);
#else
    return __builtin_convertvector(__builtin_convertvector(load<Bytes>(row + j), Numbers), Floats);
#endif
  }
  static float one(const uint8_t* row, int64_t j) { return row[j]; }
};
struct OfF32 {
  static Floats some(const uint8_t* row, int64_t j) { return load<Floats>(row + 4 * j); }
  static float one(const uint8_t* row, int64_t j) { return load<float>(row + 4 * j); }
};
struct OfBf16 {
  static Floats some(const uint8_t* row, int64_t j) {
#ifdef KNEAR_WIDEN_BF16
    return (Floats)KNEAR_WIDEN_BF16(row + 2 * j);
#else
    return (Floats)(__builtin_convertvector(load<Halves>(row + 2 * j), Words) << 16);
#endif
  }
  static float one(const uint8_t* row, int64_t j) {
    return float_of(static_cast<uint32_t>(load<uint16_t>(row + 2 * j)) << 16);
  }
};
// An f16 whose bits are moved to the places of a float's is 2^112 times too small. Those that are
// not finite stay so.
struct OfF16 {
  static Floats some(const uint8_t* row, int64_t j) {
#ifdef KNEAR_WIDEN_F16
    return (Floats)KNEAR_WIDEN_F16(row + 2 * j);
#else
    const Words bits = __builtin_convertvector(load<Halves>(row + 2 * j), Words);
    const Floats size = (Floats)((bits & 0x7fffu) << 13) * 0x1p112f;
    const Words special = (Words)((bits & 0x7c00u) == 0x7c00u) & 0x7f800000u;
    return (Floats)((Words)size | (bits & 0x8000u) << 16 | special);
#endif
  }
  static float one(const uint8_t* row, int64_t j) {
    const uint32_t bits = load<uint16_t>(row + 2 * j);
    const float size = float_of((bits & 0x7fffu) << 13) * 0x1p112f;
    if ((bits & 0x7c00u) == 0x7c00u) return float_of(0x7f800000u);
    return bits & 0x8000u ? -size : size;
  }
};

// Halves are added until one number is left. They are taken without an address, which would keep
// sums in memory.
typedef float Four __attribute__((vector_size(16)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Sixteen __attribute__((vector_size(64)));
static inline float sum_of(Four v) {
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
  return v[0] + v[1];
}
static inline float sum_of(Eight v) {
  return sum_of((Four)(__builtin_shufflevector(v, v, 0, 1, 2, 3) +
                       __builtin_shufflevector(v, v, 4, 5, 6, 7)));
}
static inline float sum_of(Sixteen v) {
  return sum_of((Eight)(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                        __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)));
}

// Whether a product is rounded before it is added does not matter here.
static inline Floats add_product(Floats sum, Floats a, Floats b) {
#ifdef KNEAR_ADD_PRODUCT
  return (Floats)KNEAR_ADD_PRODUCT(sum, a, b);
#else
  return sum + a * b;
#endif
}
static inline Floats less_product(Floats from, Floats a, Floats b) {
  return add_product(from, -a, b);
}

template <class Of, bool squared, bool scaled, int queries>
static bool compare_with(const PlainComparison& of) {
  uint32_t exponents = 0;  // whether any has all bits of the exponent
  for (int64_t r = 0; r < of.count; ++r) {
    const uint8_t* const row = of.rows[r];
    if (r < of.later.count)
      for (int64_t b = 0; b < of.later.bytes; b += 64) __builtin_prefetch(of.later.rows[r] + b);
    Floats sums[queries] = {}, sizes[queries] = {};
    int64_t j = 0;
    for (; j + lanes <= of.n; j += lanes) {
      const Floats x = Of::some(row, j);
      const Floats scale = scaled ? load<Floats>(of.scale + j) : Floats{};
#pragma GCC unroll 4
      for (int q = 0; q < queries; ++q) {
        const Floats y = load<Floats>(of.queries[q] + j);
        if (squared) {
          const Floats t = scaled ? less_product(y, scale, x) : y - x;
          sums[q] = add_product(sums[q], t, t);
        } else {
          const Floats product = y * x;
          sums[q] += product;
          sizes[q] += (Floats)((Words)product & 0x7fffffffu);
        }
      }
    }
    float last[queries] = {}, last_size[queries] = {};
    for (; j < of.n; ++j) {
      float x = Of::one(row, j);
      if (scaled) x *= of.scale[j];
      for (int q = 0; q < queries; ++q) {
        const float y = of.queries[q][j], t = squared ? y - x : y * x;
        last[q] += squared ? t * t : t;
        last_size[q] += t < 0 ? -t : t;
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < queries; ++q) {
      const float sum = sum_of(sums[q]) + last[q];
      of.sums[q][r] = sum;
      exponents |= (bits_of(sum) & 0x7fffffffu) >= 0x7f800000u;
      if (squared) continue;
      const float size = sum_of(sizes[q]) + last_size[q];
      of.sizes[q][r] = size;
      exponents |= (bits_of(size) & 0x7fffffffu) >= 0x7f800000u;
    }
  }
  return exponents == 0;
}

template <class Of, bool squared, bool scaled>
static bool compare_scaled(const PlainComparison& of, int queries) {
  switch (queries) {
    case 1:
      return compare_with<Of, squared, scaled, 1>(of);
    case 2:
      return compare_with<Of, squared, scaled, 2>(of);
    case 3:
      return compare_with<Of, squared, scaled, 3>(of);
    default:
      return compare_with<Of, squared, scaled, 4>(of);
  }
}
template <class Of, bool squared>
static bool compare(const PlainComparison& of, int queries) {
  if (squared && of.scale) return compare_scaled<Of, squared, squared>(of, queries);
  return compare_scaled<Of, squared, false>(of, queries);
}

template <class Of>
constexpr PlainKernels::Comparisons comparisons = {compare<Of, true>, compare<Of, false>};

}  // namespace

const PlainKernels& KNEAR_TABLE() {
  static constexpr PlainKernels table = {numbers,
                                         f16,
                                         bf16,
                                         comparisons<OfBytes>,
                                         comparisons<OfF32>,
                                         comparisons<OfF16>,
                                         comparisons<OfBf16>};
  return table;
}

}  // namespace knear::detail
