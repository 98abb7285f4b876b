// knear/scan/kernels/bit_kernels.inl -- the loops over groups of rows, written once and compiled
// for each level: KNEAR_TABLE is the name of the table to define, and before this file stand
//
//   Words                       a register of 64-bit words, `lanes` of them
//   differing(rows, word)       words of memory xor one word in all lanes
//   bits_of(words)              the bits of each word; with KNEAR_ADDS_BYTES of each byte of them
//   plus(a, b)                  sums of words
//   plus_bytes(a, b), totals(bytes)   with KNEAR_ADDS_BYTES: sums of bytes, and those of a word
//   keep_near(bits, limit, first, out)   writes the lanes of at most `limit` bits, counted from
//                               `first` on, and returns how many
//
// No library code inside: the linker must not merge an inline function of this file with another
// level's.

namespace knear::detail {
namespace {

constexpr int64_t groups_at_once = bit_groups_together;
constexpr int64_t vectors = bit_rows_together / lanes;  // of a group
// A sum in a byte holds the bits of this number of words at most.
constexpr int64_t words_in_bytes = 31;

static int64_t within(const uint64_t* rows, int64_t groups, int64_t words, const uint64_t* query,
                      uint64_t limit, BitHit* out) {
  // Several groups side by side where registers are wide, so that a query's word is loaded once.
  constexpr int64_t side = lanes >= 4 ? groups_at_once : 1;
  const int64_t group = words * bit_rows_together;
  int64_t found = 0;
  for (int64_t g = 0; g < groups; g += side) {
    const uint64_t* const from = rows + g * group;
    Words sums[side * vectors] = {};
#if KNEAR_ADDS_BYTES
    for (int64_t first = 0; first < words; first += words_in_bytes) {
      const int64_t end = first + words_in_bytes < words ? first + words_in_bytes : words;
      Words bytes[side * vectors] = {};
      for (int64_t w = first; w < end; ++w)
#pragma GCC unroll 8
        for (int64_t v = 0; v < side * vectors; ++v)
          bytes[v] = plus_bytes(
              bytes[v], bits_of(differing(from + (v / vectors) * group + w * bit_rows_together +
                                              v % vectors * lanes,
                                          query[w])));
#pragma GCC unroll 8
      for (int64_t v = 0; v < side * vectors; ++v) sums[v] = plus(sums[v], totals(bytes[v]));
    }
#else
    for (int64_t w = 0; w < words; ++w)
#pragma GCC unroll 8
      for (int64_t v = 0; v < side * vectors; ++v)
        sums[v] = plus(sums[v], bits_of(differing(from + (v / vectors) * group +
                                                      w * bit_rows_together + v % vectors * lanes,
                                                  query[w])));
#endif
#pragma GCC unroll 8
    for (int64_t v = 0; v < side * vectors; ++v) {
      const int64_t first = (g + v / vectors) * bit_rows_together + v % vectors * lanes;
      found += keep_near(sums[v], limit, static_cast<uint32_t>(first), out + found);
    }
  }
  return found;
}

// whole: words that a row fills, if it is one of the usual numbers; 0: words of any number.
template <int64_t whole>
static void lay_out_words(const uint8_t* rows, int64_t stride, int64_t count, int64_t words,
                          int64_t all_words, uint64_t* out) {
  if constexpr (whole > 0) words = whole, all_words = whole;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t* const to =
        out + i / bit_rows_together * all_words * bit_rows_together + i % bit_rows_together;
    for (int64_t w = 0; w < words; ++w)
      __builtin_memcpy(to + w * bit_rows_together, rows + i * stride + w * 8, 8);
  }
}

static void lay_out(const void* first, int64_t stride, int64_t count, int64_t bytes,
                    uint64_t* out) {
  const uint8_t* const rows = static_cast<const uint8_t*>(first);
  const int64_t whole = bytes / 8, left = bytes % 8, words = (bytes + 7) / 8;
  if (left == 0 && words == 1) return lay_out_words<1>(rows, stride, count, 1, 1, out);
  if (left == 0 && words == 2) return lay_out_words<2>(rows, stride, count, 2, 2, out);
  if (left == 0 && words == 4) return lay_out_words<4>(rows, stride, count, 4, 4, out);
  if (left == 0 && words == 8) return lay_out_words<8>(rows, stride, count, 8, 8, out);
  lay_out_words<0>(rows, stride, count, whole, words, out);
  for (int64_t i = 0; left > 0 && i < count; ++i) {
    uint64_t word = 0;
    __builtin_memcpy(&word, rows + i * stride + whole * 8, static_cast<size_t>(left));
    out[(i / bit_rows_together * words + whole) * bit_rows_together + i % bit_rows_together] = word;
  }
}

template <int64_t whole>
static int64_t within_words(const uint8_t* rows, int64_t stride, int64_t count, int64_t bytes,
                            const uint64_t* query, uint64_t limit, BitHit* out) {
  const int64_t words = whole > 0 ? whole : bytes / 8, left = whole > 0 ? 0 : bytes % 8;
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* const row = rows + i * stride;
    uint64_t bits = 0;
    for (int64_t w = 0; w < words; ++w) {
      uint64_t word;
      __builtin_memcpy(&word, row + w * 8, 8);
      bits += static_cast<uint64_t>(__builtin_popcountll(word ^ query[w]));
    }
    if (left > 0) {
      uint64_t word = 0;
      __builtin_memcpy(&word, row + words * 8, static_cast<size_t>(left));
      bits += static_cast<uint64_t>(__builtin_popcountll(word ^ query[words]));
    }
    if (bits <= limit) out[found++] = {static_cast<uint32_t>(i), static_cast<uint32_t>(bits)};
  }
  return found;
}

static int64_t within_rows(const void* first, int64_t stride, int64_t count, int64_t bytes,
                           const uint64_t* query, uint64_t limit, BitHit* out) {
  const uint8_t* const rows = static_cast<const uint8_t*>(first);
  switch (bytes) {
    case 8:
      return within_words<1>(rows, stride, count, bytes, query, limit, out);
    case 16:
      return within_words<2>(rows, stride, count, bytes, query, limit, out);
    case 32:
      return within_words<4>(rows, stride, count, bytes, query, limit, out);
    case 64:
      return within_words<8>(rows, stride, count, bytes, query, limit, out);
    default:
      return within_words<0>(rows, stride, count, bytes, query, limit, out);
  }
}

}  // namespace

const BitKernels& KNEAR_TABLE() {
  static constexpr BitKernels table = {lay_out, within, within_rows};
  return table;
}

}  // namespace knear::detail
