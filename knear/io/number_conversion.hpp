// knear/io/number_conversion.hpp -- converts numbers from one stored type to another, losing
// nothing unless asked to.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "knear/core/element_type.hpp"
#include "knear/io/layout.hpp"

namespace knear::io {

enum class Rounding : std::uint8_t {
  refused,  // every value must be the same number afterwards
  allowed   // f64, f32, f16 and bf16 take the nearest value, ties to even, if it is finite
};

// The place of the numbers in a file, for messages.
struct Place {
  const std::string& path;
  std::int64_t first_row;
};

// Converts packed rows [rows x cols]. u8, i8 and ids take whole numbers in their range only, under
// either rounding. NaN and infinity pass between floating types. Throws InvalidArgument with row,
// column and value of the first number that does not fit.
void convert_rows(Scalar from, const std::byte* in, std::int64_t rows, std::int64_t cols,
                  ElementType to, void* out, Rounding rounding, const Place& place);

// As convert_rows, to ids of 64 bits.
void convert_rows_to_ids(Scalar from, const std::byte* in, std::int64_t rows, std::int64_t cols,
                         std::int64_t* out, const Place& place);

// Calls f with a value of the C++ type that stores this scalar (f16 for f16).
template <class F>
decltype(auto) visit_scalar(Scalar scalar, F&& f) {
  switch (scalar) {
    case Scalar::f16:
      return f(f16{});
    case Scalar::f64:
      return f(double{});
    case Scalar::i8:
      return f(std::int8_t{});
    case Scalar::i16:
      return f(std::int16_t{});
    case Scalar::i32:
      return f(std::int32_t{});
    case Scalar::i64:
      return f(std::int64_t{});
    case Scalar::u8:
      return f(std::uint8_t{});
    case Scalar::u16:
      return f(std::uint16_t{});
    case Scalar::u32:
      return f(std::uint32_t{});
    case Scalar::u64:
      return f(std::uint64_t{});
    case Scalar::f32:
      break;
  }
  return f(float{});
}

// The number as text, in as few digits as distinguish it from its neighbours.
template <class T>
std::string number_text(T value);

}  // namespace knear::io
