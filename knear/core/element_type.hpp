// knear/core/element_type.hpp -- what a vector's coordinates may be stored as: f32 f16 bf16 u8
// i8 f64.
//
// All six convert to double without rounding, all but f64 to float too, so "the value of an
// element" is never in doubt. f16 is IEEE binary16; bf16 is the upper half of a float.
#pragma once
#include <cstdint>
#include <cstring>
#include <string_view>

// Marks functions that kernels call too.
#if defined(__CUDACC__)
#define KNEAR_ANYWHERE __host__ __device__
#else
#define KNEAR_ANYWHERE
#endif

namespace knear {

struct f16 {
  std::uint16_t bits;
};
struct bf16 {
  std::uint16_t bits;
};

// The numbers stand in files.
enum class ElementType : std::uint8_t { f32, f16, bf16, u8, i8, f64 };

inline constexpr ElementType all_element_types[] = {ElementType::f32,  ElementType::f16,
                                                    ElementType::bf16, ElementType::u8,
                                                    ElementType::i8,   ElementType::f64};
inline constexpr int element_type_count = 6;

// Bytes of one element.
constexpr int size_of(ElementType type) {
  switch (type) {
    case ElementType::f64:
      return 8;
    case ElementType::f32:
      return 4;
    case ElementType::f16:
    case ElementType::bf16:
      return 2;
    case ElementType::u8:
    case ElementType::i8:
      return 1;
  }
  return 0;
}

// "f32", "f16", "bf16", "u8", "i8", "f64".
std::string_view name_of(ElementType type);
// The inverse; throws InvalidArgument for any other word.
ElementType parse_element_type(std::string_view name);

template <class T>
inline constexpr bool is_element = false;
template <>
inline constexpr bool is_element<float> = true;
template <>
inline constexpr bool is_element<f16> = true;
template <>
inline constexpr bool is_element<bf16> = true;
template <>
inline constexpr bool is_element<std::uint8_t> = true;
template <>
inline constexpr bool is_element<std::int8_t> = true;
template <>
inline constexpr bool is_element<double> = true;

template <class T>
constexpr ElementType element_type_of();
template <>
constexpr ElementType element_type_of<float>() {
  return ElementType::f32;
}
template <>
constexpr ElementType element_type_of<f16>() {
  return ElementType::f16;
}
template <>
constexpr ElementType element_type_of<bf16>() {
  return ElementType::bf16;
}
template <>
constexpr ElementType element_type_of<std::uint8_t>() {
  return ElementType::u8;
}
template <>
constexpr ElementType element_type_of<std::int8_t>() {
  return ElementType::i8;
}
template <>
constexpr ElementType element_type_of<double>() {
  return ElementType::f64;
}

// f(float{}), f(f16{}), ... as the type says.
template <class F>
decltype(auto) with_element(ElementType type, F f) {
  switch (type) {
    case ElementType::f16:
      return f(f16{});
    case ElementType::bf16:
      return f(bf16{});
    case ElementType::u8:
      return f(std::uint8_t{});
    case ElementType::i8:
      return f(std::int8_t{});
    case ElementType::f64:
      return f(double{});
    case ElementType::f32:
      break;
  }
  return f(float{});
}

// The exact value. Integer arithmetic only, so that a flush-to-zero mode of the caller cannot
// change a denormal.
KNEAR_ANYWHERE inline float to_float(float x) { return x; }
KNEAR_ANYWHERE inline float to_float(std::uint8_t x) { return x; }
KNEAR_ANYWHERE inline float to_float(std::int8_t x) { return x; }
KNEAR_ANYWHERE inline float to_float(bf16 x) {
  const std::uint32_t bits = std::uint32_t{x.bits} << 16;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
KNEAR_ANYWHERE inline float to_float(f16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  std::uint32_t exponent = (x.bits >> 10) & 31u, mantissa = x.bits & 1023u, bits;
  if (exponent == 31) {
    bits = sign | 0x7f800000u | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {  // a denormal f16 is a normal float: shift its leading one into place
    exponent = 113;
    while ((mantissa & 1024u) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    bits = sign | (exponent << 23) | ((mantissa & 1023u) << 13);
  }
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

// The exact value of any element. A double has no to_float: rounding is asked for by name.
template <class T>
KNEAR_ANYWHERE inline double to_double(T x) {
  return to_float(x);
}
KNEAR_ANYWHERE inline double to_double(double x) { return x; }
void to_float(double) = delete;
// Returns the exact value as a float, or for f64 as a double.
template <class T>
KNEAR_ANYWHERE inline float widened(T x) {
  return to_float(x);
}
KNEAR_ANYWHERE inline double widened(double x) { return x; }

// Rounds to nearest, ties to even; NaN stays NaN, overflow becomes infinity.
f16 to_f16(float x);
bf16 to_bf16(float x);
// The same of n numbers as bits of f16 or bf16, in loops that compilers vectorise. Returns false if
// some are not finite as such; then `out` has no meaning.
bool to_halves(ElementType half, const float* in, std::int64_t n, std::uint16_t* out);

}  // namespace knear
