// The loops of select_k for AVX-512: the values that pass are compressed in a register and stored
// whole, so that no branch depends on a single value. See select_kernels.inl.
#include <immintrin.h>
#include <stdint.h>

#include <type_traits>

#include "knear/select/kernels/select_kernels.hpp"

// GCC 12 warns of a variable of its own header that is left unset on purpose.
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#define KNEAR_TABLE select_kernels_avx512

namespace knear::detail {
namespace {

// Stores the keys of the lanes in `passed`; returns the end. What stands beyond it is overwritten.
// With `many` it does not test whether they are more than 8: where half of the values pass, that
// branch cannot be predicted.
template <bool many>
static inline uint64_t* store_keys(__m512 values, __m512i places, __mmask16 passed, uint64_t* out) {
  // Adding zero turns -0 into +0.
  const __m512i bits = _mm512_castps_si512(_mm512_add_ps(values, _mm512_setzero_ps()));
  const __m512i turn = _mm512_or_si512(_mm512_srai_epi32(bits, 31),
                                       _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  const __m512i high = _mm512_maskz_compress_epi32(passed, _mm512_xor_si512(bits, turn));
  const __m512i low = _mm512_maskz_compress_epi32(passed, places);
  const int count = __builtin_popcount(passed);
  const auto keys = [](__m256i h, __m256i l) {
    return _mm512_or_si512(_mm512_slli_epi64(_mm512_cvtepu32_epi64(h), 32),
                           _mm512_cvtepu32_epi64(l));
  };
  _mm512_storeu_si512(out, keys(_mm512_castsi512_si256(high), _mm512_castsi512_si256(low)));
  if (many || count > 8)
    _mm512_storeu_si512(
        out + 8, keys(_mm512_extracti64x4_epi64(high, 1), _mm512_extracti64x4_epi64(low, 1)));
  return out + count;
}

// The distance reaches into the next row: rows of some kilobytes end before the hardware has
// detected that they are read in order.
constexpr int64_t ahead = 16384;
// A row that is partitioned has a few thousand values, and takes long before the next one is read.
constexpr int64_t ahead_to_divide = 2048;

int64_t append(const float* row, int64_t count, uint32_t flip, float bound, uint32_t first,
               uint64_t* out) {
  uint64_t* const begin = out;
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(flip));
  const __m512 bounds = _mm512_set1_ps(bound);
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto turned = [&](__m512 x) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign));
  };
  const auto places = [&](int64_t i) {
    return _mm512_add_epi32(lanes,
                            _mm512_set1_epi32(static_cast<int>(first + static_cast<uint32_t>(i))));
  };
  constexpr int wide = 8;
  bool many = false;
  int64_t i = 0;
  for (; i + 16 * wide <= count; i += 16 * wide) {
    const uint64_t* const before = out;
    __mmask16 passed[wide];
    unsigned some = 0;
#pragma GCC unroll 8
    for (int j = 0; j < wide; ++j) {
      __builtin_prefetch(row + i + ahead + 16 * j);
      passed[j] = _mm512_cmp_ps_mask(turned(_mm512_loadu_ps(row + i + 16 * j)), bounds, _CMP_LE_OQ);
      some |= static_cast<unsigned>(passed[j] != 0) << j;
    }
    const auto store = [&](auto which, unsigned lines) {
      for (; lines != 0; lines &= lines - 1) {
        const int j = __builtin_ctz(lines);
        out = store_keys<which()>(turned(_mm512_loadu_ps(row + i + 16 * j)), places(i + 16 * j),
                                  passed[j], out);
      }
    };
    if (many)
      store(std::true_type(), some);
    else
      store(std::false_type(), some);
    many = out - before > 6 * wide;  // the next values are expected to be like these
  }
  for (; i < count; i += 16) {
    const auto here = static_cast<__mmask16>(count - i < 16 ? (1u << (count - i)) - 1 : 0xffffu);
    const __m512 value = turned(_mm512_maskz_loadu_ps(here, row + i));
    const __mmask16 passed = _mm512_mask_cmp_ps_mask(here, value, bounds, _CMP_LE_OQ);
    if (passed != 0) out = store_keys<false>(value, places(i), passed, out);
  }
  return out - begin;
}

int64_t split_values(const float* from, int64_t count, uint32_t flip, float pivot, float* low,
                     float* above, int64_t* aboves) {
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(flip));
  const __m512 pivots = _mm512_set1_ps(pivot);
  int64_t lows = 0, highs = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const auto here = static_cast<__mmask16>(count - i < 16 ? (1u << (count - i)) - 1 : 0xffffu);
    __builtin_prefetch(from + i + ahead_to_divide);
    const __m512 x = _mm512_castsi512_ps(
        _mm512_xor_si512(_mm512_castps_si512(_mm512_maskz_loadu_ps(here, from + i)), sign));
    const __mmask16 is_low = _mm512_mask_cmp_ps_mask(here, x, pivots, _CMP_LE_OQ);
    const __mmask16 is_high = _mm512_mask_cmp_ps_mask(here, x, pivots, _CMP_GT_OQ);
    _mm512_storeu_ps(low + lows, _mm512_maskz_compress_ps(is_low, x));
    _mm512_storeu_ps(above + highs, _mm512_maskz_compress_ps(is_high, x));
    lows += __builtin_popcount(is_low), highs += __builtin_popcount(is_high);
  }
  *aboves = highs;
  return lows;
}

// Prefetches the memory for the answer of the next row: it is new, and stores that wait for it
// would hold up what follows.
static inline void prefetch_written(const float* values, const int64_t* places) {
  __builtin_prefetch(values, 1);
  __builtin_prefetch(places, 1);
}

int64_t take(const float* row, int64_t count, uint32_t flip, float last, int64_t ties, int64_t room,
             float* values, int64_t* places) {
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(flip));
  const __m512 lasts = _mm512_set1_ps(last);
  __m512i place = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  int64_t taken = 0;
  for (int64_t i = 0; i < count; i += 16) {
    const auto here = static_cast<__mmask16>(count - i < 16 ? (1u << (count - i)) - 1 : 0xffffu);
    const __m512 value = _mm512_maskz_loadu_ps(here, row + i);
    const __m512 turned = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(value), sign));
    unsigned passed = _mm512_mask_cmp_ps_mask(here, turned, lasts, _CMP_LT_OQ);
    if (unsigned equal = _mm512_mask_cmp_ps_mask(here, turned, lasts, _CMP_EQ_OQ)) {
      for (; equal != 0 && ties > 0; equal &= equal - 1, --ties) passed |= equal & -equal;
    }
    prefetch_written(values + room + taken, places + room + taken);
    const int more = __builtin_popcount(passed);
    const __m512 x = _mm512_maskz_compress_ps(static_cast<__mmask16>(passed), value);
    const __m512i p = _mm512_maskz_compress_epi32(static_cast<__mmask16>(passed), place);
    const __m512i p0 = _mm512_cvtepu32_epi64(_mm512_castsi512_si256(p));
    const __m512i p1 = _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(p, 1));
    if (taken + 16 <= room) {
      _mm512_storeu_ps(values + taken, x);
      _mm512_storeu_si512(places + taken, p0);
      _mm512_storeu_si512(places + taken + 8, p1);
    } else {
      const unsigned lanes = (1u << more) - 1;
      _mm512_mask_storeu_ps(values + taken, static_cast<__mmask16>(lanes), x);
      _mm512_mask_storeu_epi64(places + taken, static_cast<__mmask8>(lanes), p0);
      _mm512_mask_storeu_epi64(places + taken + 8, static_cast<__mmask8>(lanes >> 8), p1);
    }
    taken += more;
    place = _mm512_add_epi32(place, _mm512_set1_epi32(16));
  }
  return taken;
}

int64_t split(uint64_t* keys, int64_t count, uint64_t pivot, uint64_t* spare, int64_t* above) {
  const __m512i pivots = _mm512_set1_epi64(static_cast<long long>(pivot));
  int64_t low = 0, high = 0, i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m512i x = _mm512_loadu_si512(keys + i);
    const __mmask8 is_low = _mm512_cmple_epu64_mask(x, pivots);
    // In place: what is overwritten beyond the kept keys has been read.
    _mm512_storeu_si512(keys + low, _mm512_maskz_compress_epi64(is_low, x));
    _mm512_storeu_si512(spare + high,
                        _mm512_maskz_compress_epi64(static_cast<__mmask8>(~is_low), x));
    const int lows = __builtin_popcount(is_low);
    low += lows, high += 8 - lows;
  }
  for (; i < count; ++i) {
    const uint64_t key = keys[i];
    const bool is_low = key <= pivot;
    keys[low] = key, spare[high] = key;
    low += is_low, high += !is_low;
  }
  *above = high;
  return low;
}

// The lanes that the next `left` keys take.
static inline __mmask8 lanes(int64_t left) {
  return static_cast<__mmask8>(left >= 8 ? 0xff : left <= 0 ? 0 : (1 << left) - 1);
}

// Decodes the values instead of reading them from the row; but a zero may have had either sign.
void unpack(const uint64_t* keys, int64_t count, uint32_t flip, const float* row, float* values,
            int64_t* places) {
  const __m512i low = _mm512_set1_epi64(0xffffffff);
  const __m256i sign = _mm256_set1_epi32(static_cast<int>(0x80000000u));
  const __m256i flips = _mm256_set1_epi32(static_cast<int>(flip));
  for (int64_t i = 0; i < count; i += 8) {
    const __mmask8 here = lanes(count - i);
    prefetch_written(values + count + i, places + count + i);
    const __m512i key = _mm512_maskz_loadu_epi64(here, keys + i);
    _mm512_mask_storeu_epi64(places + i, here, _mm512_and_si512(key, low));
    const __m256i ordered = _mm512_cvtepi64_epi32(_mm512_srli_epi64(key, 32));
    // Negative numbers had all their bits inverted, others only the sign.
    const __m256i negative =
        _mm256_andnot_si256(_mm256_srai_epi32(ordered, 31), _mm256_set1_epi32(-1));
    const __m256i bits = _mm256_xor_si256(ordered, _mm256_or_si256(sign, negative));
    _mm256_mask_storeu_ps(values + i, here, _mm256_castsi256_ps(_mm256_xor_si256(bits, flips)));
    for (unsigned zeros = _mm256_mask_cmpeq_epi32_mask(here, ordered, sign); zeros != 0;
         zeros &= zeros - 1) {
      const int j = __builtin_ctz(zeros);
      values[i + j] = row[static_cast<uint32_t>(keys[i + j])];
    }
  }
}

// As split, without storing the keys above.
int64_t cut(uint64_t* keys, int64_t count, uint64_t last) {
  const __m512i lasts = _mm512_set1_epi64(static_cast<long long>(last));
  int64_t low = 0, i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m512i x = _mm512_loadu_si512(keys + i);
    const __mmask8 is_low = _mm512_cmple_epu64_mask(x, lasts);
    _mm512_storeu_si512(keys + low, _mm512_maskz_compress_epi64(is_low, x));
    low += __builtin_popcount(is_low);
  }
  for (; i < count; ++i) {
    const uint64_t key = keys[i];
    keys[low] = key, low += key <= last;
  }
  return low;
}

constexpr int64_t most_few = 128;

// Batcher's bitonic sort of 8 R keys, number i in lane i % 8 of x[i / 8]: one step, in which keys
// whose numbers differ by `stride` are put in order, upwards in blocks of `size` that start at an
// even multiple of it. By templates, so that every index is known and x stays in registers.
template <int R, int size, int stride>
static inline void sort_step(__m512i (&x)[R]) {
  if constexpr (stride >= 8) {
    constexpr int apart = stride / 8;
#pragma GCC unroll 16
    for (int i = 0; i < R / 2; ++i) {
      const int r = i / apart * 2 * apart + i % apart;
      const bool up = (r * 8 & size) == 0;
      const __m512i small = _mm512_min_epu64(x[r], x[r + apart]);
      const __m512i large = _mm512_max_epu64(x[r], x[r + apart]);
      x[r] = up ? small : large, x[r + apart] = up ? large : small;
    }
  } else {
    // Lanes that keep the larger key of an ascending pair.
    constexpr int later = stride == 1 ? 0xaa : stride == 2 ? 0xcc : 0xf0;
    constexpr int down = size == 2 ? 0xcc : size == 4 ? 0xf0 : 0;
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i other = stride == 1   ? _mm512_permutex_epi64(x[r], 0xb1)
                            : stride == 2 ? _mm512_permutex_epi64(x[r], 0x4e)
                                          : _mm512_shuffle_i64x2(x[r], x[r], 0x4e);
      const int flipped = size >= 8 && (r * 8 & size) != 0 ? 0xff : down;
      const auto larger = static_cast<__mmask8>(later ^ flipped);
      x[r] = _mm512_mask_max_epu64(_mm512_min_epu64(x[r], other), larger, x[r], other);
    }
  }
}
template <int R, int size, int stride>
static inline void sort_steps(__m512i (&x)[R]) {
  sort_step<R, size, stride>(x);
  if constexpr (stride > 1)
    sort_steps<R, size, stride / 2>(x);
  else if constexpr (size < 8 * R)
    sort_steps<R, 2 * size, size>(x);
}

template <int R>
static inline void sort_up_to(uint64_t* keys, int64_t count) {
  __m512i x[R];
  const __m512i none = _mm512_set1_epi64(-1);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
    x[r] = _mm512_mask_loadu_epi64(none, lanes(count - 8 * r), keys + 8 * r);
  sort_steps<R, 2, 1>(x);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) _mm512_mask_storeu_epi64(keys + 8 * r, lanes(count - 8 * r), x[r]);
}

// Sorts up to 1,024 keys as a matrix of 8 columns in memory, a register for each row: first each
// column, which takes no shuffles; then the columns are merged in pairs, fours and all eight. The
// networks are bitonic, all upwards: the first step of a merge compares what has number i with what
// has it from the end.
//
// A pass keeps in registers the rows that are compared in several steps: 16 neighbours, or those
// with numbers j and 15 - j in each block of 16.
constexpr int64_t most_at_once = 1024;
constexpr int block = 16;

template <int N, int apart>
static inline void clean(__m512i (&x)[N]) {
#pragma GCC unroll 16
  for (int i = 0; i < N / 2; ++i) {
    const int r = i / apart * 2 * apart + i % apart;
    const __m512i small = _mm512_min_epu64(x[r], x[r + apart]);
    x[r + apart] = _mm512_max_epu64(x[r], x[r + apart]), x[r] = small;
  }
}
template <int N, int from, int to>
static inline void clean_down(__m512i (&x)[N]) {
  if constexpr (from >= to) {
    clean<N, from>(x);
    clean_down<N, from / 2, to>(x);
  }
}
// Compares rows of sorted columns, to make columns of `size` rows from those of size / 2.
template <int N, int size>
static inline void flip_rows(__m512i (&x)[N]) {
#pragma GCC unroll 16
  for (int i = 0; i < N / 2; ++i) {
    const int first = i / (size / 2) * size, r = first + i % (size / 2);
    const int other = 2 * first + size - 1 - r;
    const __m512i small = _mm512_min_epu64(x[r], x[other]);
    x[other] = _mm512_max_epu64(x[r], x[other]), x[r] = small;
  }
}
template <int N, int size = 2>
static inline void sort_columns(__m512i (&x)[N]) {
  flip_rows<N, size>(x);
  clean_down<N, size / 4, 1>(x);
  if constexpr (size < N) sort_columns<N, 2 * size>(x);
}

template <int columns>
static inline __m512i reversed(__m512i x) {
  if constexpr (columns == 2)
    return _mm512_shuffle_epi32(x, _MM_PERM_BADC);
  else if constexpr (columns == 4)
    return _mm512_permutex_epi64(x, 0x1b);
  else
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(7, 6, 5, 4, 3, 2, 1, 0), x);
}
// The first steps that merge groups of `columns` columns into one order: those across columns.
template <int columns, int N>
static inline void merge_columns(__m512i (&x)[N]) {
  constexpr __mmask8 later = columns == 2 ? 0xaa : columns == 4 ? 0xcc : 0xf0;
#pragma GCC unroll 16
  for (int r = 0; r < N / 2; ++r) {
    const __m512i other = reversed<columns>(x[N - 1 - r]);
    const __m512i small = _mm512_min_epu64(x[r], other), large = _mm512_max_epu64(x[r], other);
    x[r] = _mm512_mask_blend_epi64(later, small, large);
    x[N - 1 - r] = reversed<columns>(_mm512_mask_blend_epi64(later, large, small));
  }
#pragma GCC unroll 16
  for (int r = 0; r < N; ++r) {
    if constexpr (columns == 8) {
      const __m512i other = _mm512_permutex_epi64(x[r], 0x4e);
      x[r] = _mm512_mask_max_epu64(_mm512_min_epu64(x[r], other), 0xcc, x[r], other);
    }
    if constexpr (columns >= 4) {
      const __m512i other = _mm512_shuffle_epi32(x[r], _MM_PERM_BADC);
      x[r] = _mm512_mask_max_epu64(_mm512_min_epu64(x[r], other), 0xaa, x[r], other);
    }
  }
}

// Merges columns of 16 blocks / 2 rows to columns of 16 blocks, or, where `columns` is more than 1,
// sorted columns / 2 columns of 16 blocks to sorted `columns`; up to the steps within blocks.
template <int blocks, int columns>
static inline void merge_blocks(uint64_t* rows) {
  for (int j = 0; j < block / 2; ++j) {
    __m512i x[2 * blocks];
#pragma GCC unroll 16
    for (int b = 0; b < blocks; ++b) {
      x[2 * b] = _mm512_load_si512(rows + 8 * (block * b + j));
      x[2 * b + 1] = _mm512_load_si512(rows + 8 * (block * b + block - 1 - j));
    }
    if constexpr (columns == 1) {
      flip_rows<2 * blocks, 2 * blocks>(x);
      clean_down<2 * blocks, blocks / 2, 2>(x);
    } else {
      merge_columns<columns>(x);
      clean_down<2 * blocks, blocks, 2>(x);
    }
#pragma GCC unroll 16
    for (int b = 0; b < blocks; ++b) {
      _mm512_store_si512(rows + 8 * (block * b + j), x[2 * b]);
      _mm512_store_si512(rows + 8 * (block * b + block - 1 - j), x[2 * b + 1]);
    }
  }
}
static inline void finish_blocks(uint64_t* rows, int blocks) {
  for (int b = 0; b < blocks; ++b) {
    __m512i x[block];
#pragma GCC unroll 16
    for (int r = 0; r < block; ++r) x[r] = _mm512_load_si512(rows + 8 * (block * b + r));
    clean_down<block, block / 2, 1>(x);
#pragma GCC unroll 16
    for (int r = 0; r < block; ++r) _mm512_store_si512(rows + 8 * (block * b + r), x[r]);
  }
}
// Merges all columns: to 32 rows, then to 64, up to 16 `blocks`.
template <int blocks, int size = 2>
static inline void merge_rows(uint64_t* rows) {
  for (int b = 0; b < blocks; b += size) merge_blocks<size, 1>(rows + 8 * block * b);
  finish_blocks(rows, blocks);
  if constexpr (size < blocks) merge_rows<blocks, 2 * size>(rows);
}

static inline void transpose(__m512i (&x)[8]) {
  __m512i y[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = _mm512_unpacklo_epi64(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm512_unpackhi_epi64(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512i a = _mm512_shuffle_i64x2(y[i], y[i + 2], 0x88);
    const __m512i b = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0x88);
    const __m512i c = _mm512_shuffle_i64x2(y[i], y[i + 2], 0xdd);
    const __m512i d = _mm512_shuffle_i64x2(y[i + 4], y[i + 6], 0xdd);
    x[i] = _mm512_shuffle_i64x2(a, b, 0x88), x[i + 4] = _mm512_shuffle_i64x2(a, b, 0xdd);
    x[i + 2] = _mm512_shuffle_i64x2(c, d, 0x88), x[i + 6] = _mm512_shuffle_i64x2(c, d, 0xdd);
  }
}

template <int blocks>
void sort_matrix(uint64_t* keys, int64_t count) {
  alignas(64) uint64_t rows[8 * block * blocks];
  const __m512i none = _mm512_set1_epi64(-1);
  for (int b = 0; b < blocks; ++b) {
    __m512i x[block];
#pragma GCC unroll 16
    for (int r = 0; r < block; ++r) {
      const int64_t at = 8 * (block * b + r);
      x[r] = _mm512_mask_loadu_epi64(none, lanes(count - at), keys + at);
    }
    sort_columns(x);
#pragma GCC unroll 16
    for (int r = 0; r < block; ++r) _mm512_store_si512(rows + 8 * (block * b + r), x[r]);
  }
  if constexpr (blocks > 1) merge_rows<blocks>(rows);
  merge_blocks<blocks, 2>(rows), finish_blocks(rows, blocks);
  merge_blocks<blocks, 4>(rows), finish_blocks(rows, blocks);
  merge_blocks<blocks, 8>(rows), finish_blocks(rows, blocks);
  for (int r = 0; r < block * blocks; r += 8) {
    __m512i x[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) x[i] = _mm512_load_si512(rows + 8 * (r + i));
    transpose(x);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const int64_t at = block * blocks * i + r;
      _mm512_mask_storeu_epi64(keys + at, lanes(count - at), x[i]);
    }
  }
}

// Sorts up to 128 keys, which stay in registers.
static inline void sort_128(uint64_t* keys, int64_t count) {
  __m512i x[block];
  const __m512i none = _mm512_set1_epi64(-1);
#pragma GCC unroll 16
  for (int r = 0; r < block; ++r)
    x[r] = _mm512_mask_loadu_epi64(none, lanes(count - 8 * r), keys + 8 * r);
  sort_columns(x);
  merge_columns<2>(x), clean_down<block, block / 2, 1>(x);
  merge_columns<4>(x), clean_down<block, block / 2, 1>(x);
  merge_columns<8>(x), clean_down<block, block / 2, 1>(x);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    __m512i y[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) y[i] = x[8 * half + i];
    transpose(y);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const int64_t at = block * i + 8 * half;
      _mm512_mask_storeu_epi64(keys + at, lanes(count - at), y[i]);
    }
  }
}

void sort_few(uint64_t* keys, int64_t count) {
  if (count <= 8)
    sort_up_to<1>(keys, count);
  else if (count <= 16)
    sort_up_to<2>(keys, count);
  else if (count <= 32)
    sort_up_to<4>(keys, count);
  else if (count <= 64)
    sort_up_to<8>(keys, count);
  else
    sort_128(keys, count);
}

void sort_at_once(uint64_t* keys, int64_t count) {
  if (count <= most_few)
    sort_few(keys, count);
  else if (count <= 256)
    sort_matrix<2>(keys, count);
  else if (count <= 512)
    sort_matrix<4>(keys, count);
  else
    sort_matrix<8>(keys, count);
}

constexpr int partition_sorted = 4, partition_by_place = 8;

}  // namespace
}  // namespace knear::detail

#include "knear/select/kernels/select_kernels.inl"
