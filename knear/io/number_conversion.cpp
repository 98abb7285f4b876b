// Every conversion between stored numbers and element types, one value at a time.
#include "knear/io/number_conversion.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear::io {
namespace {

// 64 bits of mantissa hold every scalar exactly.
static_assert(std::numeric_limits<long double>::digits >= 64);

// The number that arithmetic takes: f16 is a struct.
template <class T>
auto number(T x) {
  if constexpr (std::is_same_v<T, f16>)
    return to_float(x);
  else
    return x;
}

// x cut off to float, its last bit set if anything was lost. Rounding that to a shorter type gives
// the same as rounding x itself would, where rounding twice to nearest may not.
float round_to_odd(long double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<long double>(nearest) == x || std::isnan(nearest)) return nearest;
  std::uint32_t bits;
  std::memcpy(&bits, &nearest, 4);
  if (std::fabs(static_cast<long double>(nearest)) > std::fabs(x)) --bits;
  bits |= 1u;
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}

// False if the value does not fit.
template <class N, class To>
bool convert(N x, To& out, Rounding rounding) {
  if constexpr (std::is_integral_v<To>) {
    if constexpr (std::is_floating_point_v<N>) {
      // Both bounds are powers of two or zero, exact in every floating type; NaN fails the test.
      constexpr N low = static_cast<N>(std::numeric_limits<To>::min());
      constexpr N high = static_cast<N>(std::numeric_limits<To>::max() / 2 + 1) * 2;
      if (!(x >= low && x < high) || x != std::trunc(x)) return false;
    } else {
      if (!std::in_range<To>(x)) return false;
    }
    out = static_cast<To>(x);
    return true;
  } else if constexpr (std::is_same_v<To, double>) {
    out = static_cast<double>(x);
    return sizeof(N) <= 4 || std::is_floating_point_v<N> || rounding == Rounding::allowed ||
           static_cast<long double>(out) == static_cast<long double>(x);
  } else if constexpr (std::is_same_v<To, float>) {
    out = static_cast<float>(x);
    if constexpr (std::is_same_v<N, float> || sizeof(N) <= 2) {
      return true;
    } else if constexpr (std::is_same_v<N, double>) {
      if (std::isnan(x) || out == x) return true;
      return rounding == Rounding::allowed && std::isfinite(out);
    } else {
      return rounding == Rounding::allowed ||
             static_cast<long double>(out) == static_cast<long double>(x);
    }
  } else {  // f16, bf16
    float f;
    if constexpr (std::is_same_v<N, float> || sizeof(N) <= 2)
      f = static_cast<float>(x);
    else
      f = round_to_odd(static_cast<long double>(x));
    if constexpr (std::is_same_v<To, f16>)
      out = to_f16(f);
    else
      out = to_bf16(f);
    const float back = to_float(out);
    if (rounding == Rounding::refused)
      return std::isnan(f) || static_cast<long double>(back) == static_cast<long double>(x);
    return std::isfinite(back) || !std::isfinite(static_cast<long double>(x));
  }
}

template <class To>
std::string_view name_of_target() {
  if constexpr (std::is_same_v<To, std::int64_t>)
    return "an id of 64 bits";
  else
    return name_of(element_type_of<To>());
}

template <class From, class To>
[[noreturn]] void fail(From x, std::int64_t row, std::int64_t col, Rounding rounding,
                       const Place& place) {
  const bool would_round =
      rounding == Rounding::refused && (std::is_same_v<To, float> || std::is_same_v<To, double>);
  throw InvalidArgument(
      "'{}': row {}, column {} is {}, which {} cannot hold{}", place.path, row, col, number_text(x),
      name_of_target<To>(),
      would_round ? fmt::format(" exactly (type {} asks for rounding)", name_of_target<To>()) : "");
}

template <class From, class To>
void convert_block(const std::byte* in, std::int64_t rows, std::int64_t cols, To* out,
                   Rounding rounding, const Place& place) {
  const DefaultFloatMode mode;  // a caller's flush-to-zero would lose denormals
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      From x;
      std::memcpy(&x, in + (i * cols + j) * static_cast<std::int64_t>(sizeof x), sizeof x);
      if (!convert(number(x), out[i * cols + j], rounding))
        fail<From, To>(x, place.first_row + i, j, rounding, place);
    }
  }
}

}  // namespace

template <class T>
std::string number_text(T value) {
  return fmt::format("{}", number(value));
}
template std::string number_text(f16);
template std::string number_text(float);
template std::string number_text(double);
template std::string number_text(std::int64_t);
template std::string number_text(std::uint64_t);

void convert_rows(Scalar from, const std::byte* in, std::int64_t rows, std::int64_t cols,
                  ElementType to, void* out, Rounding rounding, const Place& place) {
  if (element_type(from) == to) {
    if (rows * cols > 0)
      std::memcpy(out, in, static_cast<std::size_t>(rows * cols) * size_t(size_of(to)));
    return;
  }
  visit_scalar(from, [&](auto scalar) {
    using From = decltype(scalar);
    switch (to) {
      case ElementType::f32:
        return convert_block<From>(in, rows, cols, static_cast<float*>(out), rounding, place);
      case ElementType::f16:
        return convert_block<From>(in, rows, cols, static_cast<f16*>(out), rounding, place);
      case ElementType::bf16:
        return convert_block<From>(in, rows, cols, static_cast<bf16*>(out), rounding, place);
      case ElementType::u8:
        return convert_block<From>(in, rows, cols, static_cast<std::uint8_t*>(out), rounding,
                                   place);
      case ElementType::i8:
        return convert_block<From>(in, rows, cols, static_cast<std::int8_t*>(out), rounding, place);
      case ElementType::f64:
        return convert_block<From>(in, rows, cols, static_cast<double*>(out), rounding, place);
    }
  });
}

void convert_rows_to_ids(Scalar from, const std::byte* in, std::int64_t rows, std::int64_t cols,
                         std::int64_t* out, const Place& place) {
  visit_scalar(from, [&](auto scalar) {
    convert_block<decltype(scalar)>(in, rows, cols, out, Rounding::refused, place);
  });
}

}  // namespace knear::io
