// knear/select/sort/float_order.hpp -- the order of floats and doubles as that of unsigned numbers,
// in kernels.
#pragma once
#include <cstring>
#include <limits>

#include "knear/core/metric.hpp"
#include "knear/simt/warp.hpp"

namespace knear::detail {

// The bits by which those of a value are combined with ^, so that the smallest results are the
// wanted ones.
constexpr unsigned flip_of(Extreme extreme) {
  return extreme == Extreme::largest ? 0x80000000u : 0;
}

KNEAR_HD inline float flipped(float x, unsigned flip) {
  unsigned bits;
  memcpy(&bits, &x, sizeof(bits));
  bits ^= flip;
  memcpy(&x, &bits, sizeof(bits));
  return x;
}

// The key of NaN of either sign, after all others; +infinity has the one before key_after_numbers.
inline constexpr unsigned key_of_nan = 0xffffffffu;
inline constexpr unsigned key_after_numbers = 0xff800001u;

// Numbers compare as their keys do; -0 and +0 have the same.
KNEAR_HD inline unsigned ordered_key(float x, unsigned flip) {
  if (!(x == x)) return key_of_nan;
  unsigned bits;
  x = flipped(x, flip);
  memcpy(&bits, &x, sizeof(bits));
  if (bits == 0x80000000u) bits = 0;
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// The same without a flip, of a value that is a number.
KNEAR_HD inline unsigned key_of_number(float x) {
  unsigned bits;
  x += 0.0f;  // -0 becomes +0
  memcpy(&bits, &x, sizeof(bits));
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

// The number that has this key.
KNEAR_HD inline float number_of_key(unsigned key) {
  const unsigned bits = key ^ (key >> 31 ? 0x80000000u : 0xffffffffu);
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// The order of doubles, none of them NaN.
KNEAR_HD inline unsigned long long ordered_key(double x) {
  constexpr unsigned long long sign = 1ull << 63;
  unsigned long long bits;
  memcpy(&bits, &x, sizeof(bits));
  if (bits == sign) bits = 0;
  return bits ^ (bits & sign ? ~0ull : sign);
}

// The value in a place that none is left for, beside the place -1.
KNEAR_HD inline float no_value(unsigned flip) {
  return flipped(std::numeric_limits<float>::infinity(), flip);
}

}  // namespace knear::detail
