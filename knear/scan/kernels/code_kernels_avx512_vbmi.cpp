// The kernels for codes for AVX-512 with VBMI, which looks up bytes in two registers at once: a
// table of 8 bits is four of them. See code_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/code_kernels.hpp"

namespace knear::detail {
namespace {

// Seven bits choose among two registers, the eighth among the two pairs.
static inline __m512i entries_of(const __m512i* table, __m512i codes) {
  const __m512i low = _mm512_permutex2var_epi8(table[0], codes, table[1]),
                high = _mm512_permutex2var_epi8(table[2], codes, table[3]);
  return _mm512_mask_blend_epi8(_mm512_movepi8_mask(codes), low, high);
}

}  // namespace
}  // namespace knear::detail

#define KNEAR_BYTES 64
#define KNEAR_CODES8 entries_of
#include "knear/scan/kernels/code_kernels.inl"
//
#include "knear/scan/kernels/code_kernels_avx512.inl"

namespace knear::detail {
namespace {

// Sums of 16 * chains rows, whose places in their group are given, of 4 bits: a table of 16 floats
// is a register.
template <int chains>
static inline void sums_of_places(const CodeSumArgs& a, const uint8_t* codes, int64_t stride,
                                  __m512i places, float* out) {
  __m512 sums[chains];
#pragma GCC unroll 4
  for (int c = 0; c < chains; ++c) sums[c] = _mm512_setzero_ps();
  const float* table = a.tables;
  const auto add = [&](__m512i wanted) {
    const __m512 entries = _mm512_loadu_ps(table);
    return _mm512_maskz_permutexvar_ps(0xffff, wanted, entries);
  };
  // A code may have bytes behind those of its parts.
  for (int64_t b = 0; 2 * b < a.parts; ++b, codes += stride) {
    const __m512i bytes =
        _mm512_maskz_permutexvar_epi8(~uint64_t{0}, places, _mm512_loadu_si512(codes));
    __m512i some[chains];
    const auto part = [](__m128i sixteen) { return _mm512_maskz_cvtepu8_epi32(0xffff, sixteen); };
    some[0] = part(_mm512_maskz_extracti32x4_epi32(15, bytes, 0));
    if constexpr (chains > 1) some[1] = part(_mm512_maskz_extracti32x4_epi32(15, bytes, 1));
    if constexpr (chains > 2) {
      some[2] = part(_mm512_maskz_extracti32x4_epi32(15, bytes, 2));
      some[3] = part(_mm512_maskz_extracti32x4_epi32(15, bytes, 3));
    }
#pragma GCC unroll 4
    for (int c = 0; c < chains; ++c) sums[c] = _mm512_add_ps(sums[c], add(some[c]));
    table += 16;
    if (2 * b + 1 == a.parts) break;
#pragma GCC unroll 4
    for (int c = 0; c < chains; ++c)
      sums[c] = _mm512_add_ps(sums[c], add(_mm512_maskz_srli_epi32(0xffff, some[c], 4)));
    table += 16;
  }
#pragma GCC unroll 4
  for (int c = 0; c < chains; ++c) _mm512_storeu_ps(out + 16 * c, sums[c]);
}

static int64_t sums4_vbmi(const CodeSumArgs* args) {
  const CodeSumArgs& a = *args;
  int64_t count = 0;
  for (int64_t first = 0; first < a.rows; first += code_group_rows) {
    const uint64_t near = a.near[first / code_group_rows];
    if (near == 0) continue;
    const int64_t stride = a.rows - first < code_group_rows ? a.rows - first : code_group_rows;
    const uint8_t* const codes = a.codes + first * a.width;
    uint16_t* const at = a.at + count;
    const int64_t more = wanted_rows(near, first, at);
    alignas(64) uint8_t bytes[code_group_rows];
    for (int64_t i = 0; i < code_group_rows; ++i) bytes[i] = static_cast<uint8_t>(at[i] & 63);
    const __m512i places = _mm512_load_si512(bytes);
    float* const out = a.sums + count;
    if (more <= 16)
      sums_of_places<1>(a, codes, stride, places, out);
    else if (more <= 32)
      sums_of_places<2>(a, codes, stride, places, out);
    else
      sums_of_places<4>(a, codes, stride, places, out);
    count += more;
  }
  return count;
}

// Four columns of 64 rows at a time: each is one look-up, and interleaving the four makes a step of
// two panels.
static void decode8_vbmi(const CodeDecodeArgs* args) {
  const CodeDecodeArgs& a = *args;
  const int64_t columns = a.parts * a.width, steps = (columns + 3) / 4;
  // Unpacking takes quarters of a register: place 16 l + 4 i + r holds row 16 i + 4 l + r before.
  alignas(64) uint8_t places[64];
  for (int p = 0; p < 64; ++p)
    places[p] = static_cast<uint8_t>(16 * (p / 4 % 4) + 4 * (p / 16) + p % 4);
  const Bytes order = load_bytes(places);
  const uint8_t* codes = a.codes;
  Bytes code{};
  int64_t left = 0;  // columns of the part at hand
  const uint8_t* table = a.by_column;
  for (int64_t step = 0; step < steps; ++step) {
    Bytes column[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if (4 * step + j >= columns) {
        column[j] = _mm512_setzero_si512();
        continue;
      }
      if (left == 0) {
        code = _mm512_maskz_permutexvar_epi8(~uint64_t{0}, order, load_bytes(codes));
        codes += a.rows, left = a.width;
      }
      --left;
      const Bytes t[4] = {load_bytes(table), load_bytes(table + 64), load_bytes(table + 128),
                          load_bytes(table + 192)};
      column[j] = KNEAR_CODES8(t, code);
      table += 256;
    }
    const Bytes low01 = _mm512_unpacklo_epi8(column[0], column[1]),
                high01 = _mm512_unpackhi_epi8(column[0], column[1]),
                low23 = _mm512_unpacklo_epi8(column[2], column[3]),
                high23 = _mm512_unpackhi_epi8(column[2], column[3]);
    uint8_t* const out = a.panels + step * 4 * panel_rows;
    const auto put = [](uint8_t* to, Bytes x) { __builtin_memcpy(to, &x, sizeof x); };
    put(out, _mm512_unpacklo_epi16(low01, low23));
    put(out + 64, _mm512_unpackhi_epi16(low01, low23));
    if (a.rows <= panel_rows) continue;
    uint8_t* const second = out + steps * 4 * panel_rows;
    put(second, _mm512_unpacklo_epi16(high01, high23));
    put(second + 64, _mm512_unpackhi_epi16(high01, high23));
  }
}

}  // namespace

const CodeKernels& code_kernels_avx512_vbmi() {
  static const CodeKernels kernels = {bits8_avx512, bits4_avx512, kth_value,  values_up_to,
                                      plain_sums8,  sums4_vbmi,   fill_table, round_down,
                                      decode8_vbmi, direct_sums8};
  return kernels;
}

}  // namespace knear::detail
