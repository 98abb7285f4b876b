// tests/scan/device/vector_kinds.hpp -- vectors that are hard on a scan in different ways, and
// their coding on a device.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"
#include "knear/scan/device/packing.hpp"

namespace knear::detail {

enum class Kind { uniform, clustered, sorted, copies, sizes, outlier, zeros };

template <class T>
Matrix<T> vectors(Kind kind, std::int64_t rows, std::int64_t dim, Random& random) {
  Matrix<T> out(rows, dim);
  const auto put = [&](std::int64_t i, std::int64_t j, double x) {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
      out.row(i)[j] = static_cast<T>(x);
    else if constexpr (std::is_same_v<T, std::uint8_t>)
      out.row(i)[j] = static_cast<std::uint8_t>(std::fabs(x) * 255);
    else if constexpr (std::is_same_v<T, std::int8_t>)
      out.row(i)[j] = static_cast<std::int8_t>(x * 127);
    else if constexpr (std::is_same_v<T, bf16>)
      out.row(i)[j].bits =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
    else  // f16: 1 + x / 4 as bits, all normal numbers
      out.row(i)[j].bits =
          static_cast<std::uint16_t>(15 << 10 | static_cast<int>(std::fabs(x) * 1023));
  };
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < dim; ++j) {
      const double u = 2 * random.uniform() - 1;
      switch (kind) {
        case Kind::uniform:
          put(i, j, u);
          break;
        case Kind::clustered:
          put(i, j, 0.9 * std::sin(static_cast<double>(i % 7 * 31 + j)) + 0.05 * u);
          break;
        case Kind::sorted:
          put(i, j, static_cast<double>(i) / static_cast<double>(rows) * 0.9 + 0.05 * u);
          break;
        case Kind::copies:
          put(i, j, std::sin(static_cast<double>(i % 40 * 17 + j)));
          break;
        case Kind::sizes:  // lengths over six decades
          put(i, j, u * std::pow(10.0, -static_cast<double>(i % 7)));
          break;
        case Kind::outlier:
          put(i, j, i % 97 == 5 ? u : u * 1e-3);
          break;
        case Kind::zeros:
          put(i, j, i % 5 == 0 ? 0.0 : u);
          break;
      }
    }
  return out;
}

// The coding of a base on a device, in tiles of so many panels.
inline Coding coding_of(const BaseRows& base, Metric metric, bool integer, const ValueRange& found,
                        std::int64_t panels) {
  Coding out = integer ? Coding::whole_numbers(metric, active_isa(), found)
                       : certified_coding(CodingSpace::choose(base, metric, active_isa()));
  out.tile_bytes = panels * ((base.cols() + 3) / 4) * panel_step_bytes;
  return device_coding(out, base.rows(), base.cols());
}

}  // namespace knear::detail
