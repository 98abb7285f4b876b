// knear/scan/kernels/code_kernels.inl -- the kernels of code_kernels.hpp in plain form: tables for
// every level, look-ups for those without the shuffles that they need.
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

[[maybe_unused]] static void plain_bits8(const CodeScanArgs* args) {
  const CodeScanArgs& a = *args;
  const uint8_t* codes = a.codes;
  for (int64_t first = 0; first < a.rows; first += code_group_rows) {
    const int64_t rows = a.rows - first < code_group_rows ? a.rows - first : code_group_rows;
    uint16_t sums[code_group_rows] = {};
    for (int64_t b = 0; b < a.width; ++b, codes += rows) {
      const uint8_t* table = a.tables + 256 * b;
      for (int64_t i = 0; i < rows; ++i) sums[i] = static_cast<uint16_t>(sums[i] + table[codes[i]]);
    }
    a.near[first / code_group_rows] =
        small_sums(a, sums, a.scalars ? a.scalars + first : nullptr, rows);
  }
}

[[maybe_unused]] static void plain_bits4(const CodeScanArgs* args) {
  const CodeScanArgs& a = *args;
  const uint8_t* codes = a.codes;
  for (int64_t first = 0; first < a.rows; first += code_group_rows) {
    const int64_t rows = a.rows - first < code_group_rows ? a.rows - first : code_group_rows;
    uint16_t sums[code_group_rows] = {};
    for (int64_t b = 0; b < a.width; ++b, codes += rows) {
      const uint8_t* table = a.tables + 32 * b;
      for (int64_t i = 0; i < rows; ++i)
        sums[i] =
            static_cast<uint16_t>(sums[i] + table[codes[i] & 15] + table[16 + (codes[i] >> 4)]);
    }
    a.near[first / code_group_rows] =
        small_sums(a, sums, a.scalars ? a.scalars + first : nullptr, rows);
  }
}

typedef double Doubles __attribute__((vector_size(64)));
typedef float EightFloats __attribute__((vector_size(32)));

template <bool squared>
static inline void fill(CodeTableArgs& a) {
  a.least = __builtin_inff(), a.largest = -__builtin_inff();
  for (int64_t c = 0; c < a.count; c += 16) {
    Doubles low = {}, high = {};
    const float* column = a.columns + c;
    for (int64_t j = 0; j < a.width; ++j, column += a.count) {
      EightFloats x[2];
      __builtin_memcpy(x, column, sizeof x);
      // x - 0, not x + 0: that would turn -0 into +0, so it can't be left out.
      const Doubles query = a.query[j] - Doubles{};
      const Doubles l = __builtin_convertvector(x[0], Doubles),
                    h = __builtin_convertvector(x[1], Doubles);
      if (squared) {
        low += (query - l) * (query - l);
        high += (query - h) * (query - h);
      } else {
        low += query * l;
        high += query * h;
      }
    }
    const EightFloats sums[2] = {__builtin_convertvector(low, EightFloats),
                                 __builtin_convertvector(high, EightFloats)};
    __builtin_memcpy(a.table + c, sums, sizeof sums);
  }
  float least = a.least, largest = a.largest;
  for (int64_t c = 0; c < a.count; ++c) {
    least = a.table[c] < least ? a.table[c] : least;
    largest = a.table[c] > largest ? a.table[c] : largest;
  }
  a.least = least, a.largest = largest;
}
static void fill_table(CodeTableArgs* a) {
  if (a->squared)
    fill<true>(*a);
  else
    fill<false>(*a);
}

static void round_down(const RoundDownArgs* args) {
  const RoundDownArgs& a = *args;
  for (int64_t i = 0; i < a.count; ++i) {
    const float x = (a.table[i] - a.least) * a.scale - 1e-4f;
    a.out[i] = static_cast<uint8_t>(static_cast<int32_t>(x > 0 ? x : 0));
  }
}

}  // namespace
}  // namespace knear::detail
