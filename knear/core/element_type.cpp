#include "knear/core/element_type.hpp"

#include <algorithm>
#include <bit>

#include "knear/core/error.hpp"

namespace knear {

std::string_view name_of(ElementType type) {
  switch (type) {
    case ElementType::f32:
      return "f32";
    case ElementType::f16:
      return "f16";
    case ElementType::bf16:
      return "bf16";
    case ElementType::u8:
      return "u8";
    case ElementType::i8:
      return "i8";
    case ElementType::f64:
      return "f64";
  }
  return "?";
}

ElementType parse_element_type(std::string_view name) {
  for (ElementType type : all_element_types)
    if (name == name_of(type)) return type;
  throw InvalidArgument("type must be one of f64, f32, f16, bf16, u8, i8, but is '{}'", name);
}

bf16 to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {std::uint16_t((bits >> 16) | 64u)};  // quiet NaN
  return {std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

f16 to_f16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return {std::uint16_t(sign | 0x7e00u)};
  if (bits >= 0x477ff000u) return {std::uint16_t(sign | 0x7c00u)};  // rounds to 2^16 or beyond
  if (bits >= 0x38800000u)  // a normal f16: drop 13 bits of the mantissa
    return {std::uint16_t(sign | ((bits - 0x38000000u + 0xfffu + ((bits >> 13) & 1u)) >> 13))};
  if (bits < 0x33000000u) return {std::uint16_t(sign)};  // below half of the smallest denormal
  // A denormal f16 counts units of 2^-24: shift the full mantissa right, to nearest even.
  const std::uint32_t shift = 126u - (bits >> 23), mantissa = (bits & 0x7fffffu) | 0x800000u;
  const std::uint32_t half = 1u << (shift - 1), kept = mantissa >> shift;
  const std::uint32_t rest = mantissa & ((1u << shift) - 1);
  return {std::uint16_t(sign | (kept + (rest > half || (rest == half && (kept & 1u)))))};
}

bool to_halves(ElementType half, const float* in, std::int64_t n, std::uint16_t* out) {
  const auto bits_of = [in](std::int64_t i) { return std::bit_cast<std::uint32_t>(in[i]); };
  std::int32_t largest = 0;
  if (half == ElementType::bf16) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t bits = bits_of(i);
      largest = std::max(largest, static_cast<std::int32_t>(bits & 0x7fffffffu));
      out[i] = static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
    return largest < 0x7f7f8000;  // which rounds to infinity
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = bits_of(i), size = bits & 0x7fffffffu;
    largest = std::max(largest, static_cast<std::int32_t>(size));
    const std::uint32_t normal = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    // The last place of 0.5f is 2^-24, the unit of denormal f16: the sum is rounded to it.
    const std::uint32_t denormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5f) - 0x3f000000u;
    const std::uint32_t rounded = size < 0x38800000u ? denormal : normal;
    out[i] = static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | rounded);
  }
  return largest < 0x477ff000;
}

}  // namespace knear
