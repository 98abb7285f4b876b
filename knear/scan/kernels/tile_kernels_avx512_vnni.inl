// What tile_kernels.inl needs of AVX-512 with VNNI: four int8 products, or two of int16, added to a
// lane by one instruction. The including file defines KNEAR_TABLE, and KNEAR_PRODUCTS if it has
// products made otherwise.
//
// The instructions are written in assembly: for the intrinsics GCC 12 copies and spills the
// accumulators in this loop, at half the speed.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

#define KNEAR_WIDTH 16
#define KNEAR_BLOCK 12

namespace knear::detail {
namespace {

typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef float Floats __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));

// Sums wrap around modulo 2^32 (tile_kernels.hpp): unsigned, where that is defined.
static inline Ints add(Ints a, Ints b) { return (Ints)((Words)a + (Words)b); }
static inline Ints subtract(Ints a, Ints b) { return (Ints)((Words)a - (Words)b); }

static inline __attribute__((always_inline)) Ints dot_int8(Ints sum, Ints rows, Ints query) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(rows), "v"(query));
  return sum;
}
static inline __attribute__((always_inline)) Ints dot_int16(Ints sum, Ints rows, Ints query) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(rows), "v"(query));
  return sum;
}
static inline Floats multiply_add(Floats sum, Floats rows, Floats query) {
  return (Floats)_mm512_fmadd_ps((__m512)rows, (__m512)query, (__m512)sum);
}
static inline uint32_t sign_bits(Ints x) { return _mm512_movepi32_mask((__m512i)x); }
// For NaN these instructions return their second operand. The mask is all ones: for the plain
// intrinsics GCC 12 warns of a variable of its own header.
static inline Doubles clamp(Doubles x, double low, double high) {
  const __m512d bounded = _mm512_maskz_max_pd(0xff, (__m512d)x, _mm512_set1_pd(low));
  return (Doubles)_mm512_maskz_min_pd(0xff, bounded, _mm512_set1_pd(high));
}
static inline Floats at_least(Floats x, float low) {
  return (Floats)_mm512_maskz_max_ps(0xffff, (__m512)x, _mm512_set1_ps(low));
}

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/tile_kernels.inl"
