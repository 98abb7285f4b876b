// The kernels for codes for AVX2, 32 rows at a time: 4 bits by a byte shuffle, 8 bits by sixteen of
// them, of which the upper half of the code chooses one. See code_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include "knear/scan/kernels/code_kernels.hpp"

#define KNEAR_BYTES 32
#include "knear/scan/kernels/code_kernels.inl"

namespace knear::detail {
namespace {

// Sums of 32 rows: those of even rows and of odd ones.
struct HalfSums {
  __m256i even, odd;
};

static inline void add_bytes(HalfSums& s, __m256i bytes) {
  s.even = _mm256_add_epi16(s.even, _mm256_and_si256(bytes, _mm256_set1_epi16(255)));
  s.odd = _mm256_add_epi16(s.odd, _mm256_srli_epi16(bytes, 8));
}

// Of `count` neighbouring sixteenths of a table of 256 bytes, from number `at` on, the entries of
// 32 codes. bit[b] has bit 4 + b of each code as its highest.
template <int count>
static inline __m256i entries_of(const uint8_t* table, int at, __m256i lower, const __m256i* bit) {
  if constexpr (count == 1) {
    const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * at));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), lower);
  } else {
    constexpr int half = count / 2, b = count == 2 ? 0 : count == 4 ? 1 : count == 8 ? 2 : 3;
    return _mm256_blendv_epi8(entries_of<half>(table, at, lower, bit),
                              entries_of<half>(table, at + half, lower, bit), bit[b]);
  }
}

static inline HalfSums sums8(const CodeScanArgs& a, const uint8_t* codes, int64_t stride) {
  HalfSums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const uint8_t* table = a.tables;
  const auto entries = [&] {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i bit[4] = {_mm256_slli_epi16(code, 3), _mm256_slli_epi16(code, 2),
                            _mm256_slli_epi16(code, 1), code};
    const uint8_t* const own = table;
    codes += stride, table += 256;
    return entries_of<16>(own, 0, _mm256_and_si256(code, _mm256_set1_epi8(15)), bit);
  };
  int64_t b = 0;
  for (; b + 2 <= a.width; b += 2) {
    const __m256i first = entries();
    add_bytes(s, _mm256_add_epi8(first, entries()));
  }
  if (b < a.width) add_bytes(s, entries());
  return s;
}

static inline HalfSums sums4(const CodeScanArgs& a, const uint8_t* codes, int64_t stride) {
  const __m256i nibble = _mm256_set1_epi8(15);
  HalfSums s = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  const uint8_t* table = a.tables;
  for (int64_t b = 0; b < a.width; ++b, codes += stride, table += 32) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    const __m256i tables = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(table));
    const __m256i lower = _mm256_permute2x128_si256(tables, tables, 0x00),
                  upper = _mm256_permute2x128_si256(tables, tables, 0x11);
    add_bytes(s, _mm256_add_epi8(_mm256_shuffle_epi8(lower, _mm256_and_si256(code, nibble)),
                                 _mm256_shuffle_epi8(
                                     upper, _mm256_and_si256(_mm256_srli_epi16(code, 4), nibble))));
  }
  return s;
}

// Bit i is set for row first + i of a run if it may be near enough.
static inline uint64_t near_rows(const CodeScanArgs& a, const CodeRun& run, const uint16_t* sums,
                                 int64_t first, int64_t rows) {
  const __m256 offset = _mm256_set1_ps(a.offset), slope = _mm256_set1_ps(a.slope);
  uint64_t near = 0;
  for (int64_t i = 0; i < rows; i += 8) {
    const __m256i words =
        _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(sums + i)));
    __m256 limit = offset;
    if (run.scalars)
      limit = _mm256_add_ps(offset, _mm256_mul_ps(slope, _mm256_loadu_ps(run.scalars + first + i)));
    const __m256 is_near = _mm256_cmp_ps(_mm256_cvtepi32_ps(words), limit, _CMP_LE_OQ);
    near |= static_cast<uint64_t>(_mm256_movemask_ps(is_near)) << i;
  }
  return rows < 64 ? near & ((uint64_t{1} << rows) - 1) : near;
}

static void values_up_to_avx2(const int32_t* values, int64_t rows, int32_t limit, uint64_t* near) {
  const __m256i limits = _mm256_set1_epi32(limit);
  for (int64_t first = 0; first < rows; first += code_group_rows) {
    uint64_t beyond = 0;
    for (int64_t i = 0; i < code_group_rows; i += 8) {
      const __m256i eight =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + first + i));
      const __m256 is_beyond = _mm256_castsi256_ps(_mm256_cmpgt_epi32(eight, limits));
      beyond |= static_cast<uint64_t>(_mm256_movemask_ps(is_beyond)) << i;
    }
    const int64_t group = rows - first;
    near[first / code_group_rows] = group < 64 ? ~beyond & ((uint64_t{1} << group) - 1) : ~beyond;
  }
}

template <HalfSums (*sums_of)(const CodeScanArgs&, const uint8_t*, int64_t)>
static inline void scan_run(const CodeScanArgs& a, const CodeRun& run) {
  const uint8_t* codes = run.codes;
  for (int64_t first = 0; first < run.rows; first += code_group_rows, codes += 64 * a.width) {
    const int64_t rows = run.rows - first < code_group_rows ? run.rows - first : code_group_rows;
    alignas(32) uint16_t sums[code_group_rows];
    for (int64_t half = 0; half < rows; half += 32) {
      const HalfSums s = sums_of(a, codes + half, rows);
      // In the order of rows; each half of a register by itself.
      const __m256i low = _mm256_unpacklo_epi16(s.even, s.odd),
                    high = _mm256_unpackhi_epi16(s.even, s.odd);
      __m256i* const out = reinterpret_cast<__m256i*>(sums + half);
      _mm256_store_si256(out, _mm256_permute2x128_si256(low, high, 0x20));
      _mm256_store_si256(out + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
    if (a.values)
      put_values(a, run, sums, first, rows);
    else
      run.near[first / code_group_rows] = near_rows(a, run, sums, first, rows);
  }
}
template <HalfSums (*sums_of)(const CodeScanArgs&, const uint8_t*, int64_t)>
static inline void scan_all(const CodeScanArgs& a) {
  for (int64_t r = 0; r < a.run_count; ++r) scan_run<sums_of>(a, a.runs[r]);
}
static void bits4_avx2(const CodeScanArgs* args) { scan_all<sums4>(*args); }
static void bits8_avx2(const CodeScanArgs* args) { scan_all<sums8>(*args); }

}  // namespace

const CodeKernels& code_kernels_avx2() {
  static const CodeKernels kernels = {bits8_avx2,    bits4_avx2,  kth_value,  values_up_to_avx2,
                                      plain_sums8,   plain_sums4, fill_table, round_down,
                                      plain_decode8, direct_sums8};
  return kernels;
}

}  // namespace knear::detail
