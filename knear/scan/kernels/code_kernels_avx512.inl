// knear/scan/kernels/code_kernels_avx512.inl -- the kernels for codes with 64 rows a register,
// written once for the levels that have those.
//
// The including file defines KNEAR_CODES8(table, codes): the entries of 64 codes of 8 bits, or
// leaves 8 bits to the plain form. Tables are read once for four groups of rows. Two entries are
// added as bytes, and widened together. For the plain intrinsics GCC 12 warns of a variable of its
// own header; those with a mask, which is all ones here, compile to the same.

namespace knear::detail {
namespace {

typedef __m512i Bytes;

static inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }

// Sums of 64 rows: those of even rows and of odd ones, 16 bits each.
struct Sums {
  Bytes even, odd;
};

static inline void add_bytes(Sums& s, Bytes bytes) {
  s.even = _mm512_add_epi16(s.even, _mm512_and_si512(bytes, _mm512_set1_epi16(255)));
  s.odd = _mm512_add_epi16(s.odd, _mm512_srli_epi16(bytes, 8));
}

// In the order of rows: word i of the first register is row i.
static inline void in_order(const Sums& s, Bytes& low, Bytes& high) {
  const Bytes places = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40,
                                        8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  low = _mm512_permutex2var_epi16(s.even, places, s.odd);
  high = _mm512_permutex2var_epi16(s.even, _mm512_add_epi16(places, _mm512_set1_epi16(16)), s.odd);
}

static inline uint64_t near_rows(const CodeScanArgs& a, const CodeRun& run, const Sums& s,
                                 int64_t first, uint16_t limit) {
  if (!run.scalars) {
    const uint64_t even = _mm512_cmple_epu16_mask(s.even,
                                                  _mm512_set1_epi16(static_cast<short>(limit))),
                   odd =
                       _mm512_cmple_epu16_mask(s.odd, _mm512_set1_epi16(static_cast<short>(limit)));
    return _pdep_u64(even, 0x5555555555555555) | _pdep_u64(odd, 0xaaaaaaaaaaaaaaaa);
  }
  Bytes low, high;
  in_order(s, low, high);
  const __m512 offset = _mm512_set1_ps(a.offset), slope = _mm512_set1_ps(a.slope);
  uint64_t near = 0;
  const auto part = [&](__m256i words, int at) {
    const __m512 sum = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, words));
    const __m512 limits =
        _mm512_add_ps(offset, _mm512_mul_ps(slope, _mm512_loadu_ps(run.scalars + first + at)));
    near |= static_cast<uint64_t>(_mm512_cmp_ps_mask(sum, limits, _CMP_LE_OQ)) << at;
  };
  part(_mm512_maskz_extracti64x4_epi64(0xff, low, 0), 0);
  part(_mm512_maskz_extracti64x4_epi64(0xff, low, 1), 16);
  part(_mm512_maskz_extracti64x4_epi64(0xff, high, 0), 32);
  part(_mm512_maskz_extracti64x4_epi64(0xff, high, 1), 48);
  return near;
}

// Values of 64 rows; those beyond the last one are of no use to anybody.
static inline void put_values_of(const CodeScanArgs& a, const CodeRun& run, const Bytes* ordered,
                                 int64_t first) {
  const __m512 slope = _mm512_set1_ps(a.slope), most = _mm512_set1_ps(1 << 30),
               least = _mm512_set1_ps(-(1 << 30));
  const auto part = [&](__m256i words, int64_t at) {
    __m512 value = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, words));
    if (run.scalars)
      value = _mm512_sub_ps(value, _mm512_mul_ps(slope, _mm512_loadu_ps(run.scalars + at)));
    value = _mm512_maskz_max_ps(0xffff, _mm512_maskz_min_ps(0xffff, value, most), least);
    _mm512_storeu_si512(
        run.values + at,
        _mm512_maskz_cvt_roundps_epi32(0xffff, value, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  };
  for (int half = 0; half < 2; ++half) {
    part(_mm512_maskz_extracti64x4_epi64(0xff, ordered[half], 0), first + 32 * half);
    part(_mm512_maskz_extracti64x4_epi64(0xff, ordered[half], 1), first + 32 * half + 16);
  }
}

// What a sum must not exceed where rows have no scalars.
static inline uint16_t whole_limit(float offset) {
  return offset >= 65535 ? 65535 : static_cast<uint16_t>(offset);
}

// The codes of `count` groups, one after another. The last one may be short, and then the bytes of
// a code lie closer there.
template <int count>
struct Groups {
  const uint8_t* first;
  int64_t group;  // bytes of a whole one
  const uint8_t* last;
  int64_t last_stride;

  // The next byte of the codes of group g.
  inline Bytes operator[](int g) const {
    return load_bytes(g + 1 < count ? first + g * group : last);
  }
  inline void next() { first += code_group_rows, last += last_stride; }
};

// Adds the entries of the `count` groups of a run from row `first` on.
template <int count, class Entries>
static inline void scan_groups(const CodeScanArgs& a, const CodeRun& run, int64_t first,
                               uint16_t limit, Entries entries) {
  const uint8_t* const codes = run.codes + first * a.width;
  const int64_t before = (count - 1) * code_group_rows, left = run.rows - first - before,
                last_rows = left < code_group_rows ? left : code_group_rows;
  Sums sums[count];
#pragma GCC unroll 4
  for (int g = 0; g < count; ++g) sums[g] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  entries(Groups<count>{codes, code_group_rows * a.width, codes + before * a.width, last_rows},
          sums);
#pragma GCC unroll 4
  for (int g = 0; g < count; ++g) {
    const int64_t row = first + g * code_group_rows;
    if (a.values) {
      Bytes ordered[2];
      in_order(sums[g], ordered[0], ordered[1]);
      put_values_of(a, run, ordered, row);
      continue;
    }
    uint64_t near = near_rows(a, run, sums[g], row, limit);
    if (g + 1 == count && last_rows < code_group_rows) near &= (uint64_t{1} << last_rows) - 1;
    run.near[row / code_group_rows] = near;
  }
}

template <template <int> class Entries>
static inline void scan_all(const CodeScanArgs& a) {
  for (int64_t r = 0; r < a.run_count; ++r) {
    const CodeRun& run = a.runs[r];
    const int64_t groups = (run.rows + code_group_rows - 1) / code_group_rows;
    if (!a.values && run.scalars == nullptr && !(a.offset >= 0)) {
      for (int64_t g = 0; g < groups; ++g) run.near[g] = 0;
      continue;
    }
    const uint16_t limit = run.scalars ? 0 : whole_limit(a.offset);
    int64_t g = 0;
    for (; g + 4 <= groups; g += 4)
      scan_groups<4>(a, run, g * code_group_rows, limit, Entries<4>{a});
    // Those that are left at once too: a list, or what a segment has of it, often has no more.
    const int64_t first = g * code_group_rows;
    if (groups - g == 3) scan_groups<3>(a, run, first, limit, Entries<3>{a});
    if (groups - g == 2) scan_groups<2>(a, run, first, limit, Entries<2>{a});
    if (groups - g == 1) scan_groups<1>(a, run, first, limit, Entries<1>{a});
  }
}

template <int count>
struct Entries4 {
  const CodeScanArgs& a;
  inline void operator()(Groups<count> codes, Sums* sums) const {
    const Bytes nibble = _mm512_set1_epi8(15);
    const uint8_t* table = a.tables;
    for (int64_t b = 0; b < a.width; ++b, codes.next(), table += 32) {
      const Bytes lower = _mm512_maskz_broadcast_i32x4(
                      0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table))),
                  upper = _mm512_maskz_broadcast_i32x4(
                      0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16)));
#pragma GCC unroll 4
      for (int g = 0; g < count; ++g) {
        const Bytes code = codes[g];
        add_bytes(sums[g], _mm512_add_epi8(
                               _mm512_shuffle_epi8(lower, _mm512_and_si512(code, nibble)),
                               _mm512_shuffle_epi8(
                                   upper, _mm512_and_si512(_mm512_srli_epi16(code, 4), nibble))));
      }
    }
  }
};
static void bits4_avx512(const CodeScanArgs* a) { scan_all<Entries4>(*a); }

#ifdef KNEAR_CODES8
template <int count>
struct Entries8 {
  const CodeScanArgs& a;
  inline void operator()(Groups<count> codes, Sums* sums) const {
    const uint8_t* table = a.tables;
    int64_t b = 0;
    for (; b + 2 <= a.width; b += 2, table += 512) {
      Bytes entries[count];
      {
        const Bytes t[4] = {load_bytes(table), load_bytes(table + 64), load_bytes(table + 128),
                            load_bytes(table + 192)};
#pragma GCC unroll 4
        for (int g = 0; g < count; ++g) entries[g] = KNEAR_CODES8(t, codes[g]);
      }
      codes.next();
      const Bytes t[4] = {load_bytes(table + 256), load_bytes(table + 320), load_bytes(table + 384),
                          load_bytes(table + 448)};
#pragma GCC unroll 4
      for (int g = 0; g < count; ++g)
        add_bytes(sums[g], _mm512_add_epi8(entries[g], KNEAR_CODES8(t, codes[g])));
      codes.next();
    }
    if (b == a.width) return;
    const Bytes t[4] = {load_bytes(table), load_bytes(table + 64), load_bytes(table + 128),
                        load_bytes(table + 192)};
#pragma GCC unroll 4
    for (int g = 0; g < count; ++g) add_bytes(sums[g], KNEAR_CODES8(t, codes[g]));
  }
};
static void bits8_avx512(const CodeScanArgs* a) { scan_all<Entries8>(*a); }
#endif

}  // namespace
}  // namespace knear::detail
