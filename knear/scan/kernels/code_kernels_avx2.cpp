// The kernels for codes for AVX2: 4 bits by byte shuffles, 32 rows at a time. See
// code_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/code_kernels.hpp"
//
#include "knear/scan/kernels/code_kernels.inl"

namespace knear::detail {
namespace {

// Sums of 32 rows: those of even rows and of odd ones.
struct HalfSums {
  __m256i even, odd;
};

static inline HalfSums sums4(const CodeScanArgs& a, const uint8_t* codes, int64_t stride) {
  const __m256i nibble = _mm256_set1_epi8(15), low_byte = _mm256_set1_epi16(255);
  HalfSums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const uint8_t* table = a.tables;
  for (int64_t b = 0; b < a.width; ++b, codes += stride, table += 32) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i tables = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
    const __m256i lower = _mm256_permute2x128_si256(tables, tables, 0x00),
                  upper = _mm256_permute2x128_si256(tables, tables, 0x11);
    const __m256i both = _mm256_add_epi8(
        _mm256_shuffle_epi8(lower, _mm256_and_si256(code, nibble)),
        _mm256_shuffle_epi8(upper, _mm256_and_si256(_mm256_srli_epi16(code, 4), nibble)));
    s.even = _mm256_add_epi16(s.even, _mm256_and_si256(both, low_byte));
    s.odd = _mm256_add_epi16(s.odd, _mm256_srli_epi16(both, 8));
  }
  return s;
}

static void bits4_avx2(const CodeScanArgs* args) {
  const CodeScanArgs& a = *args;
  const uint8_t* codes = a.codes;
  for (int64_t first = 0; first < a.rows; first += code_group_rows, codes += 64 * a.width) {
    const int64_t rows = a.rows - first < code_group_rows ? a.rows - first : code_group_rows;
    alignas(32) uint16_t even[16], odd[16], sums[code_group_rows];
    for (int64_t half = 0; half < rows; half += 32) {
      const HalfSums s = sums4(a, codes + half, rows);
      _mm256_store_si256(reinterpret_cast<__m256i*>(even), s.even);
      _mm256_store_si256(reinterpret_cast<__m256i*>(odd), s.odd);
      for (int64_t i = 0; i < 16; ++i) {
        sums[half + 2 * i] = even[i];
        sums[half + 2 * i + 1] = odd[i];
      }
    }
    put_group(a, sums, first, rows);
  }
}

}  // namespace

const CodeKernels& code_kernels_avx2() {
  static const CodeKernels kernels = {plain_bits8, bits4_avx2,  kth_value,  values_up_to,
                                      plain_sums8, plain_sums4, fill_table, round_down};
  return kernels;
}

}  // namespace knear::detail
