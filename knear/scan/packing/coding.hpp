// knear/scan/packing/coding.hpp -- what every coding of vectors shares, on any device: scales, and
// bounds of lengths and errors that hold for the exact vectors (docs/bounds.md, 2).
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "knear/core/host_device.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

namespace knear::detail {

// Codes are kept no longer than this, so that a dot product stays below 2^29 in magnitude: rounding
// to integers makes a vector longer by at most sqrt(65536) / 2 = 128, and 22128^2 < 2^29.
inline constexpr double longest_code = 22000;

inline int elements_per_step(Format format) {
  return format == format_int8 ? 4 : format == format_int16 ? 2 : 1;
}

inline double dot(const double* a, const double* b, std::int64_t n) {
  double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    s0 += a[i] * b[i], s1 += a[i + 1] * b[i + 1];
    s2 += a[i + 2] * b[i + 2], s3 += a[i + 3] * b[i + 3];
  }
  for (; i < n; ++i) s0 += a[i] * b[i];
  return (s0 + s1) + (s2 + s3);
}

// The next double above x with at most 24 bits of mantissa, so that its product with a 16-bit code
// is exact. x > 0.
KNEAR_HD inline double round_up_to_24_bits(double x) {
  constexpr std::uint64_t low = (std::uint64_t{1} << 29) - 1;
  return std::bit_cast<double>((std::bit_cast<std::uint64_t>(x) + low) & ~low);
}

// The value of a code unit for vectors with this largest coordinate and largest norm.
KNEAR_HD inline double scale_for(Format format, double max_coordinate, double max_norm) {
  if (max_coordinate == 0) return 1;
  if (format == format_fp32) {  // a power of two: coding only rounds to 24 bits
    int exponent;
    std::frexp(max_coordinate, &exponent);
    return std::ldexp(1.0, std::max(exponent, -250));
  }
  const double steps = format == format_int8 ? 127 : 32767;
  const double wanted = std::max(max_coordinate / steps, max_norm / longest_code);
  return round_up_to_24_bits(std::max(wanted, 1e-75));
}

// Bounds that hold for the exact vector, not only for its rounded doubles (docs/bounds.md, 2).
// Squares of coordinates below 2^-511, which f64 vectors may have, vanish, with those of a vector
// no longer than this.
inline constexpr double least_length = 0x1p-500;
KNEAR_HD inline double norm_above(double squares, double slack) {
  return std::sqrt(squares) * (1 + slack) + least_length;
}
KNEAR_HD inline double error_above(double squares, double norm, double slack) {
  return std::sqrt(squares) * (1 + slack) + norm * slack + least_length;
}

// A float larger than x, which must not be negative: infinity beyond the largest float.
inline float float_above(double x) {
  constexpr double largest = std::numeric_limits<float>::max();
  const float near = static_cast<float>(std::min(x, largest));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(near) + 1);
}
// The same of any x but NaN.
inline float any_float_above(double x) {
  if (x > 0) return float_above(x);
  constexpr double largest = std::numeric_limits<float>::max();
  const float size = static_cast<float>(std::min(-x, largest));
  if (size == 0) return std::numeric_limits<float>::denorm_min();
  return -std::bit_cast<float>(std::bit_cast<std::uint32_t>(size) - 1);
}

// Error of accumulating a dot product of `steps` floats, relative to |u| |v|.
inline double accumulation_error(Format format, std::int64_t dim) {
  return format == format_fp32 ? (static_cast<double>(dim) + 16) * 0x1p-24 * 1.01 : 0;
}

}  // namespace knear::detail
