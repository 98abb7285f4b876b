// Differing bits for AVX-512 with counts of words (VPOPCNTDQ). See bit_kernels.inl.
// GCC 12 warns of a variable of its own header that is left unset on purpose.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "knear/scan/kernels/bit_kernels.hpp"

#define KNEAR_TABLE bit_kernels_avx512_popcnt
#define KNEAR_ADDS_BYTES 0

#include "knear/scan/kernels/bit_kernels_avx512_words.inl"

namespace knear::detail {
namespace {

static inline Words bits_of(Words x) { return _mm512_popcnt_epi64(x); }

}  // namespace
}  // namespace knear::detail

#include "knear/scan/kernels/bit_kernels.inl"
