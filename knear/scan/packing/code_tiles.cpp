#include "knear/scan/packing/code_tiles.hpp"

#include <algorithm>
#include <cmath>

#include "knear/scan/kernels/code_kernels.hpp"
#include "knear/scan/kernels/levels.hpp"
#include "knear/scan/packing/code_book.hpp"
#include "knear/scan/packing/coding.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t centroids_of_part = 256;

}  // namespace

CodeTiles::CodeTiles(const CodeBook& book)
    : dim_(book.dim()), width_(book.width()), parts_(book.parts()) {
  // Beyond, a product of codes would not fit an int32.
  constexpr std::int64_t most_columns = 1 << 15;
  if (book.bits() != 8 || dim_ > most_columns) return;
  mean.assign(dim_, 0.0);
  for (std::int64_t m = 0; m < parts_; ++m)
    for (std::int64_t j = 0; j < width_; ++j) {
      double& of_column = mean[m * width_ + j];
      for (std::int64_t c = 0; c < centroids_of_part; ++c) of_column += book.part(m).row(c)[j];
      of_column /= centroids_of_part;
    }
  // The largest of each part, added up: no row is longer.
  double largest = 0, squares = 0, row_squares = 0;
  const auto each_part = [&](auto f) {
    for (std::int64_t m = 0; m < parts_; ++m)
      for (std::int64_t c = 0; c < centroids_of_part; ++c)
        f(m, c, book.part(m).row(c), mean.data() + m * width_);
  };
  std::vector<double> most(parts_), most_row = most, most_error = most, most_code = most;
  each_part([&](std::int64_t m, std::int64_t, const float* centroid, const double* middle) {
    double of_v = 0, of_row = 0;
    for (std::int64_t j = 0; j < width_; ++j) {
      const double x = centroid[j], v = x - middle[j];
      largest = std::max(largest, std::abs(v));
      of_v += v * v, of_row += x * x;
    }
    const std::size_t at = m;
    most[at] = std::max(most[at], of_v), most_row[at] = std::max(most_row[at], of_row);
  });
  for (const double part : most) squares += part;
  for (const double part : most_row) row_squares += part;
  constexpr double least_size = 0x1p-60, most_size = 0x1p60;
  if (!(row_squares < most_size * most_size) || largest < least_size) return;
  scale = scale_for(format_int8, largest, std::sqrt(squares));
  by_code_.resize(parts_ * centroids_of_part * width_);
  if (width_ > 1) by_column_.resize(by_code_.size());
  each_part([&](std::int64_t m, std::int64_t c, const float* centroid, const double* middle) {
    double of_error = 0, of_code = 0;
    for (std::int64_t j = 0; j < width_; ++j) {
      const double v = centroid[j] - middle[j], code = std::nearbyint(v / scale),
                   off = v - scale * code;
      of_error += off * off, of_code += scale * code * scale * code;
      const auto byte = static_cast<std::uint8_t>(static_cast<int>(code) + 128);
      by_code_[(m * centroids_of_part + c) * width_ + j] = byte;
      if (width_ > 1) by_column_[(m * width_ + j) * centroids_of_part + c] = byte;
    }
    const std::size_t at = m;
    most_error[at] = std::max(most_error[at], of_error);
    most_code[at] = std::max(most_code[at], of_code);
  });
  double errors = 0, code_squares = 0;
  for (const double part : most_error) errors += part;
  for (const double part : most_code) code_squares += part;
  // For the roundings of float64 here, and of v itself.
  const double slack = static_cast<double>(dim_ + 32) * 0x1p-50;
  row_norm = norm_above(row_squares, slack);
  norm = norm_above(std::max(squares, code_squares), slack);
  error = error_above(errors, norm + row_norm, slack);
  usable_ = true;
}

void CodeTiles::decode(const std::uint8_t* codes, std::int64_t rows, Isa isa,
                       std::uint8_t* panels) const {
  const std::vector<std::uint8_t>& by_column = width_ > 1 ? by_column_ : by_code_;
  const CodeDecodeArgs args{codes, rows, parts_, width_, by_code_.data(), by_column.data(), panels};
  code_kernels(isa).decode8(&args);
}

}  // namespace knear::detail
