// knear/scan/packing/whole_numbers.hpp -- vectors of whole numbers from -128 to 255 as bytes, with
// their sums.
//
//   WholeSums sums = code_whole_numbers(row, dim, 0, codes);      // codes[j] = row[j]
//
// The loops go over 16-bit numbers in parts whose sums fit 32 bits, which compilers vectorise.
#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "knear/core/element_type.hpp"

namespace knear::detail {

template <class T>
std::int16_t whole_number(T x) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<std::int16_t>(x);
  else
    return static_cast<std::int16_t>(widened(x));
}

// Of the values, not of their codes. `squares` holds 65,536 times 255 * 255.
struct WholeSums {
  std::int32_t sum = 0;
  std::uint32_t squares = 0;
};

// codes[j] = x[j] + offset, as a byte, for x [dim], dim up to 65,536.
template <class T>
WholeSums code_whole_numbers(const T* x, std::int64_t dim, int offset, std::uint8_t* codes) {
  constexpr std::int64_t part = 16384;  // whose squares sum to less than 2^30
  WholeSums out;
  for (std::int64_t first = 0; first < dim; first += part) {
    const std::int64_t count = std::min(part, dim - first);
    const T* const values = x + first;
    std::int32_t sum = 0, squares = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int16_t y = whole_number(values[j]);
      sum += y, squares += y * y;
    }
    for (std::int64_t j = 0; j < count; ++j)
      codes[first + j] = static_cast<std::uint8_t>(whole_number(values[j]) + offset);
    out.sum += sum, out.squares += static_cast<std::uint32_t>(squares);
  }
  return out;
}

// Whether the sum of x [dim], and with it that of its squares, is odd.
template <class T>
bool has_odd_sum(const T* x, std::int64_t dim) {
  if constexpr (sizeof(T) == 1) {
    T odd = 0;
    for (std::int64_t j = 0; j < dim; ++j) odd = static_cast<T>(odd ^ x[j]);
    return odd & 1;
  } else {
    int odd = 0;
    for (std::int64_t j = 0; j < dim; ++j) odd ^= whole_number(x[j]);
    return odd & 1;
  }
}

}  // namespace knear::detail
