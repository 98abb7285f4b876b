// knear/scan/kernels/code_kernels.inl -- the kernels of code_kernels.hpp in plain form: tables for
// every level, look-ups for those without the shuffles that they need.
//
// The including file defines KNEAR_BYTES, the width of a vector register: 16, 32 (AVX2) or 64.
//
// Everything is static and of C types: no inline function may be shared with another level.

namespace knear::detail {
namespace {

// The mask of rows whose sums are small enough. scalars: of the first of these rows.
[[maybe_unused]] static inline uint64_t small_sums(const CodeScanArgs& a, const uint16_t* sums,
                                                   const float* scalars, int64_t rows) {
  uint64_t near = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const float limit = scalars ? a.offset + a.slope * scalars[i] : a.offset;
    near |= static_cast<uint64_t>(static_cast<float>(sums[i]) <= limit) << i;
  }
  return near;
}

// The values of a group's rows, from their sums.
[[maybe_unused]] static inline void put_values(const CodeScanArgs& a, const CodeRun& run,
                                               const uint16_t* sums, int64_t first, int64_t rows) {
  constexpr float most = 1 << 30;
  int32_t* const out = run.values + first;
  for (int64_t i = 0; i < rows; ++i) {
    float value = sums[i];
    if (run.scalars) value -= a.slope * run.scalars[first + i];
    value = value < most ? value : most;
    value = value > -most ? value : -most;
    const auto whole = static_cast<int32_t>(value);
    out[i] = whole - (static_cast<float>(whole) > value);
  }
}
// What is to be said of a group's rows, from their sums.
[[maybe_unused]] static inline void put_group(const CodeScanArgs& a, const CodeRun& run,
                                              const uint16_t* sums, int64_t first, int64_t rows) {
  if (a.values)
    put_values(a, run, sums, first, rows);
  else
    run.near[first / code_group_rows] =
        small_sums(a, sums, run.scalars ? run.scalars + first : nullptr, rows);
}

// Moves a number between the smallest and the largest value and counts the values up to it: no
// branch depends on a single one.
[[maybe_unused]] static int32_t kth_value(const int32_t* values, int64_t rows, int64_t k) {
  int32_t low = values[0], high = values[0];
  for (int64_t i = 0; i < rows; ++i) {
    low = values[i] < low ? values[i] : low;
    high = values[i] > high ? values[i] : high;
  }
  while (low < high) {
    const int32_t middle = static_cast<int32_t>((int64_t{low} + high) >> 1);
    int32_t count = 0;
    for (int64_t i = 0; i < rows; ++i) count += values[i] <= middle;
    if (count < k)
      low = middle + 1;
    else
      high = middle;
    if (count == k) break;
  }
  return high;
}

[[maybe_unused]] static void values_up_to(const int32_t* values, int64_t rows, int32_t limit,
                                          uint64_t* near) {
  for (int64_t first = 0; first < rows; first += code_group_rows) {
    const int64_t group = rows - first < code_group_rows ? rows - first : code_group_rows;
    uint64_t bits = 0;
    for (int64_t i = 0; i < group; ++i)
      bits |= static_cast<uint64_t>(values[first + i] <= limit) << i;
    near[first / code_group_rows] = bits;
  }
}

// Calls add(codes, rows, sums) for each group of all runs, whose sums it adds up from 0.
template <class Add>
static inline void each_group(const CodeScanArgs& a, Add add) {
  for (int64_t r = 0; r < a.run_count; ++r) {
    const CodeRun& run = a.runs[r];
    for (int64_t first = 0; first < run.rows; first += code_group_rows) {
      const int64_t left = run.rows - first, rows = left < code_group_rows ? left : code_group_rows;
      uint16_t sums[code_group_rows] = {};
      add(run.codes + first * a.width, rows, sums);
      put_group(a, run, sums, first, rows);
    }
  }
}

[[maybe_unused]] static void plain_bits8(const CodeScanArgs* args) {
  const CodeScanArgs& a = *args;
  each_group(a, [&](const uint8_t* codes, int64_t rows, uint16_t* sums) {
    for (int64_t b = 0; b < a.width; ++b, codes += rows) {
      const uint8_t* table = a.tables + 256 * b;
      for (int64_t i = 0; i < rows; ++i) sums[i] = static_cast<uint16_t>(sums[i] + table[codes[i]]);
    }
  });
}

[[maybe_unused]] static void plain_bits4(const CodeScanArgs* args) {
  const CodeScanArgs& a = *args;
  each_group(a, [&](const uint8_t* codes, int64_t rows, uint16_t* sums) {
    for (int64_t b = 0; b < a.width; ++b, codes += rows) {
      const uint8_t* table = a.tables + 32 * b;
      for (int64_t i = 0; i < rows; ++i)
        sums[i] =
            static_cast<uint16_t>(sums[i] + table[codes[i] & 15] + table[16 + (codes[i] >> 4)]);
    }
  });
}

// The numbers of the rows that are wanted of a group that begins with row `first`.
[[maybe_unused]] static inline int64_t wanted_rows(uint64_t near, int64_t first, uint16_t* at) {
  int64_t count = 0;
  for (; near != 0; near &= near - 1)
    at[count++] = static_cast<uint16_t>(first + __builtin_ctzll(near));
  return count;
}

template <int bits>
static inline int64_t plain_sums(const CodeSumArgs& a) {
  // Each sum is a chain of additions: several of them go on side by side, of rows in any groups.
  constexpr int64_t together = 8, entries = 1 << bits;
  int64_t count = 0;
  for (int64_t first = 0; first < a.rows; first += code_group_rows)
    count += wanted_rows(a.near[first / code_group_rows], first, a.at + count);
  for (int64_t done = 0; done < count; done += together) {
    const uint8_t* some[together];
    int64_t strides[together];
    for (int64_t i = 0; i < together; ++i) {
      const int64_t at = a.at[done + i < count ? done + i : count - 1],
                    first = at / code_group_rows * code_group_rows, left = a.rows - first;
      strides[i] = left < code_group_rows ? left : code_group_rows;
      some[i] = a.codes + first * a.width + (at - first);
    }
    float sum[together] = {};
    const float* table = a.tables;
    for (int64_t m = 0; m < a.parts; ++m, table += entries)
      for (int64_t i = 0; i < together; ++i) {
        sum[i] += bits == 8 ? table[*some[i]] : table[*some[i] >> (m % 2 * 4) & 15];
        if (bits == 8 || m % 2 == 1) some[i] += strides[i];
      }
    __builtin_memcpy(a.sums + done, sum, sizeof sum);
  }
  return count;
}
[[maybe_unused]] static int64_t plain_sums8(const CodeSumArgs* a) { return plain_sums<8>(*a); }
[[maybe_unused]] static int64_t plain_sums4(const CodeSumArgs* a) { return plain_sums<4>(*a); }

// Vectors of the size of a register: larger ones go through memory at every step.
constexpr int lanes = KNEAR_BYTES / 8;
typedef double Doubles __attribute__((vector_size(KNEAR_BYTES)));
typedef float Floats __attribute__((vector_size(KNEAR_BYTES / 2)));

static inline Doubles widened(const float* from) {
#if KNEAR_BYTES == 32  // of which GCC 12 makes two halves otherwise
  return reinterpret_cast<Doubles>(_mm256_cvtps_pd(_mm_loadu_ps(from)));
#else
  Floats x;
  __builtin_memcpy(&x, from, sizeof x);
  return __builtin_convertvector(x, Doubles);
#endif
}
static inline Floats rounded(Doubles from) {
#if KNEAR_BYTES == 32
  return reinterpret_cast<Floats>(_mm256_cvtpd_ps(reinterpret_cast<__m256d>(from)));
#else
  return __builtin_convertvector(from, Floats);
#endif
}

template <bool squared>
static inline void fill(CodeTableArgs& a) {
  constexpr int together = 16 / lanes;
  // x - 0, not x + 0: that would turn -0 into +0, so it can't be left out.
  Floats least = __builtin_inff() - Floats{}, largest = -least;
  for (int64_t c = 0; c < a.count; c += 16) {
    Doubles sums[together] = {};
    const float* column = a.columns + c;
    for (int64_t j = 0; j < a.width; ++j, column += a.count) {
      const Doubles query = a.query[j] - Doubles{};
#pragma GCC unroll 8
      for (int i = 0; i < together; ++i) {
        const Doubles wide = widened(column + lanes * i);
        sums[i] += squared ? (query - wide) * (query - wide) : query * wide;
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < together; ++i) {
      const Floats entries = rounded(sums[i]);
      __builtin_memcpy(a.table + c + lanes * i, &entries, sizeof entries);
      least = entries < least ? entries : least;
      largest = entries > largest ? entries : largest;
    }
  }
  a.least = least[0], a.largest = largest[0];
  for (int i = 1; i < lanes; ++i) {
    a.least = least[i] < a.least ? least[i] : a.least;
    a.largest = largest[i] > a.largest ? largest[i] : a.largest;
  }
}
static void fill_table(CodeTableArgs* a) {
  if (a->squared)
    fill<true>(*a);
  else
    fill<false>(*a);
}

static void round_down(const RoundDownArgs* args) {
  const float* const __restrict table = args->table;
  uint8_t* const __restrict out = args->out;
  const float least = args->least, scale = args->scale, most = args->most;
  const int64_t count = args->count;
  for (int64_t i = 0; i < count; i += 16) {
#if KNEAR_BYTES == 64
    typedef float Floats16 __attribute__((vector_size(64)));
    typedef int32_t Ints16 __attribute__((vector_size(64)));
    typedef uint8_t Bytes16 __attribute__((vector_size(16)));
    Floats16 x;
    __builtin_memcpy(&x, table + i, sizeof x);
    x = (x - least) * scale - 1e-4f;
    x = x > Floats16{} ? x : Floats16{};
    x = x < most ? x : most - Floats16{};
    const Bytes16 bytes = __builtin_convertvector(__builtin_convertvector(x, Ints16), Bytes16);
    __builtin_memcpy(out + i, &bytes, sizeof bytes);
#elif KNEAR_BYTES == 32
    __m256i whole[2];
    for (int h = 0; h < 2; ++h) {
      const __m256 x = _mm256_sub_ps(
          _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(table + i + 8 * h), _mm256_set1_ps(least)),
                        _mm256_set1_ps(scale)),
          _mm256_set1_ps(1e-4f));
      whole[h] = _mm256_cvttps_epi32(
          _mm256_min_ps(_mm256_max_ps(x, _mm256_setzero_ps()), _mm256_set1_ps(most)));
    }
    // Packing goes by halves of registers: four rows of each in turn.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(whole[0], whole[1]), 0xd8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(out + i),
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#else
    for (int64_t j = i; j < i + 16; ++j) {
      float x = (table[j] - least) * scale - 1e-4f;
      x = x > 0 ? x : 0;
      out[j] = static_cast<uint8_t>(static_cast<int32_t>(x < most ? x : most));
    }
#endif
  }
}

// Steps of one part each: four bytes at a time.
template <int64_t fixed_rows>
static inline void decode_steps(const uint8_t* table, const uint8_t* codes, int64_t rows,
                                int64_t width, uint8_t* out) {
  const int64_t count = fixed_rows > 0 ? fixed_rows : rows;
  for (int64_t step = 0; step < width; step += 4, out += 4 * panel_rows)
    for (int64_t r = 0; r < count; ++r)
      __builtin_memcpy(out + 4 * r, table + codes[r] * width + step, 4);
}
[[maybe_unused]] static void plain_decode8(const CodeDecodeArgs* args) {
  const CodeDecodeArgs& a = *args;
  const int64_t steps = (a.parts * a.width + 3) / 4;
  for (int64_t first = 0; first < a.rows; first += panel_rows) {
    const int64_t rows = a.rows - first < panel_rows ? a.rows - first : panel_rows;
    const uint8_t* codes = a.codes + first;
    const uint8_t* table = a.by_code;
    uint8_t* const panel = a.panels + first * 4 * steps;
    for (int64_t m = 0; m < a.parts; ++m, codes += a.rows, table += 256 * a.width) {
      if (a.width % 4 == 0) {
        uint8_t* const out = panel + m * a.width * panel_rows;
        if (rows == panel_rows)
          decode_steps<panel_rows>(table, codes, rows, a.width, out);
        else
          decode_steps<0>(table, codes, rows, a.width, out);
        continue;
      }
      for (int64_t j = 0; j < a.width; ++j) {
        const int64_t column = m * a.width + j;
        uint8_t* const out = panel + column / 4 * 4 * panel_rows + column % 4;
        for (int64_t r = 0; r < rows; ++r) out[4 * r] = table[codes[r] * a.width + j];
      }
    }
  }
}

// Four rows side by side. `fixed`: the columns of a part, or 0 for any number.
template <bool squared, int fixed>
static inline void direct_sums(const DirectSumArgs& a) {
  typedef double Four __attribute__((vector_size(32)));
  typedef float FourFloats __attribute__((vector_size(16)));
  const int64_t width = fixed > 0 ? fixed : a.width;
  for (int64_t i = 0; i < a.count; i += 4) {
    const uint8_t* code[4];
    int64_t stride[4];
    for (int64_t r = 0; r < 4; ++r) {
      const int64_t at = a.at[i + r < a.count ? i + r : a.count - 1],
                    first = at / code_group_rows * code_group_rows, left = a.rows - first;
      code[r] = a.codes + first * a.parts + (at - first);
      stride[r] = left < code_group_rows ? left : code_group_rows;
    }
    FourFloats sums{};
    const float* part = a.centroids;
    const double* query = a.query;
    for (int64_t m = 0; m < a.parts; ++m, part += 256 * width, query += width) {
      const float* centroid[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) centroid[r] = part + code[r][m * stride[r]] * width;
      Four one{};
      const auto product = [](double x, Four y) __attribute__((always_inline)) {
        const Four wide = x - Four{};
        return squared ? (wide - y) * (wide - y) : wide * y;
      };
      int64_t j = 0;
      if constexpr (fixed % 4 == 0 && fixed > 0) {
        for (; j < width; j += 4) {
          // Row by row, then turned around: columns are added in their order.
          Four row[4];
#pragma GCC unroll 4
          for (int r = 0; r < 4; ++r) {
            FourFloats x;
            __builtin_memcpy(&x, centroid[r] + j, sizeof x);
            row[r] = __builtin_convertvector(x, Four);
          }
          const Four low01 = __builtin_shufflevector(row[0], row[1], 0, 4, 2, 6),
                     high01 = __builtin_shufflevector(row[0], row[1], 1, 5, 3, 7),
                     low23 = __builtin_shufflevector(row[2], row[3], 0, 4, 2, 6),
                     high23 = __builtin_shufflevector(row[2], row[3], 1, 5, 3, 7);
          one += product(query[j], __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
          one += product(query[j + 1], __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
          one += product(query[j + 2], __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
          one += product(query[j + 3], __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
        }
      }
      for (; j < width; ++j)
        one +=
            product(query[j], Four{centroid[0][j], centroid[1][j], centroid[2][j], centroid[3][j]});
      sums += __builtin_convertvector(one, FourFloats);
    }
    for (int64_t r = 0; r < 4 && i + r < a.count; ++r) a.sums[i + r] = sums[r];
  }
}
template <bool squared>
static void direct_sums_of(const DirectSumArgs& a) {
  switch (a.width) {
    case 1:
      return direct_sums<squared, 1>(a);
    case 3:
      return direct_sums<squared, 3>(a);
    case 4:
      return direct_sums<squared, 4>(a);
    case 8:
      return direct_sums<squared, 8>(a);
    default:
      return direct_sums<squared, 0>(a);
  }
}
static void direct_sums8(const DirectSumArgs* a) {
  if (a->squared)
    direct_sums_of<true>(*a);
  else
    direct_sums_of<false>(*a);
}

}  // namespace
}  // namespace knear::detail
