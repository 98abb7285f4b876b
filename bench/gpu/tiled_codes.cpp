#include "bench/gpu/tiled_codes.hpp"

#include <algorithm>
#include <cmath>

#include "knear/core/threads.hpp"

namespace knear::bench {
namespace {

double largest_magnitude(MatrixView<float> vectors) {
  double out = 0;
  for (std::int64_t i = 0; i < vectors.rows(); ++i)
    for (std::int64_t j = 0; j < vectors.cols(); ++j)
      out = std::max(out, std::fabs(double{vectors.row(i)[j]}));
  return out;
}

template <class Code>
Code code_of(float x, double scale) {
  if constexpr (std::is_same_v<Code, float>)
    return x;
  else if constexpr (std::is_same_v<Code, bf16>)
    return to_bf16(x);
  else
    return static_cast<std::int8_t>(std::clamp(std::nearbyint(x / scale), -127.0, 127.0));
}

}  // namespace

template <class Code>
TiledCodes<Code> tiled_codes(MatrixView<float> vectors) {
  const auto rows = static_cast<std::size_t>(vectors.rows());
  const std::int64_t dim = vectors.cols();
  TiledCodes<Code> out;
  if constexpr (std::is_same_v<Code, std::int8_t>)
    if (const double most = largest_magnitude(vectors); most > 0) out.scale = most / 127;
  out.codes.resize(rows * static_cast<std::size_t>(dim));
  out.norms.resize(rows), out.lengths.resize(rows), out.errors.resize(rows);
  std::vector<double> code_lengths(rows);
  constexpr std::int64_t together = 1024;
  parallel_for(0, (vectors.rows() + together - 1) / together, [&](std::int64_t task) {
    const std::int64_t end = std::min(vectors.rows(), (task + 1) * together);
    for (std::int64_t i = task * together; i < end; ++i) {
      double squares = 0, error = 0, code_squares = 0;
      for (std::int64_t j = 0; j < dim; ++j) {
        const float x = vectors.row(i)[j];
        const Code code = code_of<Code>(x, out.scale);
        out.codes[static_cast<std::size_t>(i * dim + j)] = code;
        const double stands_for = out.scale * double{to_float(code)};
        squares += double{x} * x;
        error += (x - stands_for) * (x - stands_for);
        code_squares += stands_for * stands_for;
      }
      constexpr double up = 1 + 1e-9;  // covers the rounding of these sums
      const auto at = static_cast<std::size_t>(i);
      out.norms[at] = static_cast<float>(squares);
      out.lengths[at] = std::sqrt(squares) * up;
      out.errors[at] = std::sqrt(error) * up;
      code_lengths[at] = std::sqrt(code_squares) * up;
    }
  });
  for (std::size_t i = 0; i < rows; ++i) {
    out.most_error = std::max(out.most_error, out.errors[i]);
    out.most_length = std::max(out.most_length, code_lengths[i]);
  }
  return out;
}

template <class Code>
double slack_of(const TiledCodes<Code>& queries, std::int64_t q, const TiledCodes<Code>& base,
                std::int64_t dim) {
  const auto at = static_cast<std::size_t>(q);
  const double length = queries.lengths[at], error = queries.errors[at];
  const double of_codes = length * base.most_error + error * base.most_length;
  // |x'| |y'|, which no sum of products exceeds. Its additions err by 2^-22 of it each, truncation
  // and the hardware's order included; the key's by as much of its terms (N + E bounds |y|).
  const double most_product = (length + error) * base.most_length;
  const double most = base.most_length + base.most_error;
  const double of_rounding =
      0x1p-22 * (2 * static_cast<double>(dim + 4) * most_product + 4 * most * most);
  return 2 * of_codes + of_rounding + static_cast<double>(dim) * 0x1p-120;
}

template <class Code>
bool is_certain(const TiledCodes<Code>& queries, std::int64_t q, const TiledCodes<Code>& base,
                std::int64_t dim, double kth, float last_value, int last_place) {
  if (last_place < 0) return true;  // all rows were kept
  const double length = queries.lengths[static_cast<std::size_t>(q)];
  // The length was rounded up by 1e-9 of itself and the distance by less.
  const double kth_key = kth - length * length * (1 - 4e-9) + kth * 1e-9;
  return kth_key + slack_of(queries, q, base, dim) < last_value;
}

#define KNEAR_TILED_CODES(Code)                                                            \
  template TiledCodes<Code> tiled_codes(MatrixView<float>);                                \
  template double slack_of(const TiledCodes<Code>&, std::int64_t, const TiledCodes<Code>&, \
                           std::int64_t);                                                  \
  template bool is_certain(const TiledCodes<Code>&, std::int64_t, const TiledCodes<Code>&, \
                           std::int64_t, double, float, int);
KNEAR_TILED_CODES(float)
KNEAR_TILED_CODES(bf16)
KNEAR_TILED_CODES(std::int8_t)

}  // namespace knear::bench
