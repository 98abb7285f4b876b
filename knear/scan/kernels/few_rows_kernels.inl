// knear/scan/kernels/few_rows_kernels.inl -- the candidates for the nearest of a few rows, written
// once and compiled for each level.
//
// The including file defines KNEAR_TABLE, KNEAR_WIDTH (floats of a register), KNEAR_CHUNK
// (registers of scores computed together), the type Floats and the few functions without a portable
// spelling:
//   Floats multiply_add(Floats sum, Floats rows, Floats query)
//   Floats smaller(Floats, Floats)
//   Floats least(Floats)                                the least lane, in every lane
//   uint32_t not_above(Floats, Floats limit)            one bit a lane; true for NaN
//   uint64_t sixty_four(const Floats*, Floats limit)    the same for 64 rows
// Everything is static and of C types: no inline function may be shared with another level.
//
// At AVX-512 the scores of 256 rows fill 16 registers, and each step of a query is one broadcast
// and 16 multiply-adds from memory. They are then compared where they are.

namespace knear::detail {
namespace {

static inline Floats load_floats(const float* p) {
  Floats v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
// x - 0, not x + 0: that would turn -0 into +0, so it can't be left out.
static inline Floats broadcast(float x) { return x - Floats{}; }

// What a score of a query may exceed the least one by; squares: |x - m|^2. The row of the least
// score is no longer than the longest one, nor than its distance from the query allows.
static inline Floats slack_of(const FewRowsArgs& a, Floats squares, Floats least_score) {
  const Floats twice = 8.2f * squares + 4.2f * (least_score > 0.0f ? least_score : Floats{});
  const Floats size = squares + smaller(twice, Floats{} + a.twice_largest);
  const Floats slack = a.relative_slack * size + a.absolute_slack;
  return squares + a.twice_largest < 1e38f ? slack : Floats{} + __builtin_inff();
}

// The scores of registers [first, first + count) of the rows; returns |x - m|^2 in each lane.
template <int count>
static inline Floats score(const FewRowsArgs& a, const float* u, int64_t first, Floats* s) {
  Floats squares = {};
#pragma GCC unroll 16
  for (int v = 0; v < count; ++v) s[v] = load_floats(a.squares + (first + v) * KNEAR_WIDTH);
  const float* factors = a.factors + first * KNEAR_WIDTH;
  for (int64_t j = 0; j < a.dim; ++j, factors += a.padded) {
    const Floats x = broadcast(u[j]);
    squares = multiply_add(squares, x, x);
#pragma GCC unroll 16
    for (int v = 0; v < count; ++v)
      s[v] = multiply_add(s[v], load_floats(factors + v * KNEAR_WIDTH), x);
  }
  return squares;
}
template <int count>
static inline Floats smallest(const Floats* s) {
  Floats m[count];
#pragma GCC unroll 16
  for (int v = 0; v < count; ++v) m[v] = s[v];
#pragma GCC unroll 4
  for (int half = count / 2; half > 0; half /= 2)
#pragma GCC unroll 8
    for (int v = 0; v < half; ++v) m[v] = smaller(m[v], m[v + half]);
  return m[0];
}
// Whether rows are candidates, in the words of a query.
template <int count>
static inline void mark(const Floats* s, Floats limit, uint64_t* words) {
  constexpr int per_word = 64 / KNEAR_WIDTH;
  if constexpr (count < per_word) {
    uint64_t bits = 0;
    for (int v = 0; v < count; ++v)
      bits |= static_cast<uint64_t>(not_above(s[v], limit)) << (v * KNEAR_WIDTH);
    words[0] = bits;
  } else {
#pragma GCC unroll 4
    for (int v = 0; v < count; v += per_word) words[v / per_word] = sixty_four(s + v, limit);
  }
}
// Counts the candidates of query i, whose words end the list of the undecided ones; returns the new
// number of these. No branch: which word has the row differs from query to query.
static inline int64_t decide(const FewRowsArgs& a, int64_t i, int64_t undecided, int64_t words) {
  const uint64_t* bits = a.candidates + undecided * words;
  int64_t several = 0, place = 0;
#pragma GCC unroll 4
  for (int64_t w = 0; w < words; ++w) {
    several += __builtin_popcountll(bits[w]);
    // Of a word without candidates 63, and then 0.
    const int64_t at = 64 * w + __builtin_ctzll(bits[w] | uint64_t{1} << 63);
    place |= at & -static_cast<int64_t>(bits[w] != 0);
  }
  a.nearest[i] = static_cast<uint32_t>(place);
  a.undecided[undecided] = static_cast<uint32_t>(i);
  return undecided + (several != 1);
}

// All rows in one chunk.
template <int count>
static int64_t in_registers(const FewRowsArgs* args) {
  const FewRowsArgs a = *args;
  constexpr int64_t words = (count * KNEAR_WIDTH + 63) / 64;
  int64_t undecided = 0;
  for (int64_t i = 0; i < a.count; ++i) {
    const float* u = a.queries + i * a.dim;
    Floats s[count];
    const Floats squares = score<count>(a, u, 0, s), m = least(smallest<count>(s));
    mark<count>(s, m + slack_of(a, squares, m), a.candidates + undecided * words);
    undecided = decide(a, i, undecided, words);
  }
  return undecided;
}

// Chunk by chunk: the scores of a query wait in the first cache. `rows`: all of them; 0: as many as
// args says.
template <int rows>
static int64_t in_cache(const FewRowsArgs* args) {
  const FewRowsArgs a = *args;
  Floats s[most_few_rows / KNEAR_WIDTH];
  constexpr int64_t together = 64 / KNEAR_WIDTH;  // registers of a word of candidates
  const int64_t all = (rows > 0 ? rows : a.padded) / KNEAR_WIDTH, words = all / together;
  int64_t undecided = 0;
  for (int64_t i = 0; i < a.count; ++i) {
    const float* u = a.queries + i * a.dim;
    Floats m = Floats{} + __builtin_inff(), squares = {};
    for (int64_t first = 0; first < all; first += KNEAR_CHUNK) {
      squares = score<KNEAR_CHUNK>(a, u, first, s + first);
      m = smaller(smallest<KNEAR_CHUNK>(s + first), m);
    }
    m = least(m);
    const Floats limit = m + slack_of(a, squares, m);
    for (int64_t w = 0; w < words; ++w)
      mark<together>(s + w * together, limit, a.candidates + undecided * words + w);
    undecided = decide(a, i, undecided, words);
  }
  return undecided;
}

template <int rows>
constexpr FewRowsKernel kernel_of() {
  if constexpr (rows / KNEAR_WIDTH <= KNEAR_CHUNK)
    return in_registers<rows / KNEAR_WIDTH>;
  else
    return in_cache<rows>;
}

}  // namespace

const FewRowsKernels& KNEAR_TABLE() {
  static constexpr FewRowsKernels table = {
      {kernel_of<16>(), kernel_of<64>(), kernel_of<256>(), in_cache<0>}};
  return table;
}

}  // namespace knear::detail
