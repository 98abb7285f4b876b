// knear/scan/kernels/bit_kernels_avx512_words.inl -- registers of eight words, as both levels of
// AVX-512 have them; they differ in how bits are counted. See bit_kernels.inl.
namespace knear::detail {
namespace {

constexpr int64_t lanes = 8;
using Words = __m512i;

static inline Words differing(const uint64_t* rows, uint64_t word) {
  return _mm512_xor_si512(_mm512_loadu_si512(rows), _mm512_set1_epi64((long long)word));
}
static inline Words plus(Words a, Words b) { return _mm512_add_epi64(a, b); }
static inline int64_t keep_near(Words bits, uint64_t limit, uint32_t first, BitHit* out) {
  unsigned mask = _mm512_cmple_epu64_mask(bits, _mm512_set1_epi64((long long)limit));
  if (mask == 0) return 0;
  uint64_t of[8];
  _mm512_storeu_si512(of, bits);
  int64_t found = 0;
  for (; mask != 0; mask &= mask - 1) {
    const unsigned lane = (unsigned)__builtin_ctz(mask);
    out[found++] = {first + lane, (uint32_t)of[lane]};
  }
  return found;
}

}  // namespace
}  // namespace knear::detail
