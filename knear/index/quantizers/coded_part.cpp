#include "knear/index/quantizers/coded_part.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/unit_length.hpp"
#include "knear/index/recall/recall_rule.hpp"

namespace knear::detail {

void read_row(AnyMatrixView rows, std::int64_t row, Metric metric, double* out) {
  visit(rows, [&](auto typed) {
    std::transform(typed.row(row), typed.row(row) + rows.cols(), out,
                   [](auto x) { return to_double(x); });
  });
  if (!traits_of(metric).unit_rows) return;
  if (!give_unit_length(out, rows.cols())) return;
  for (std::int64_t j = 0; j < rows.cols(); ++j) out[j] = static_cast<float>(out[j]);
}

Matrix<float> coded_part(AnyMatrixView rows, std::int64_t begin, std::int64_t end, Metric metric,
                         MatrixView<float> centroids, std::span<const std::uint32_t> list_of) {
  const std::int64_t dim = rows.cols();
  Matrix<float> out(end - begin, dim);
  std::vector<double> row(static_cast<std::size_t>(dim));
  for (std::int64_t i = begin; i < end; ++i) {
    read_row(rows, i, metric, row.data());
    const float* centroid =
        centroids.rows() > 0 ? centroids.row(list_of[static_cast<std::size_t>(i)]) : nullptr;
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i - begin)[j] = static_cast<float>(row[static_cast<std::size_t>(j)] -
                                                 (centroid ? double{centroid[j]} : 0.0));
  }
  return out;
}

void refuse_length(std::int64_t row) {
  throw InvalidArgument("vectors hold a row {} whose squared length is beyond float32", row);
}

std::int64_t first_too_long(MatrixView<float> coded, Metric metric) {
  const double most = traits_of(metric).squared ? std::numeric_limits<float>::max()
                                                : std::numeric_limits<double>::max();
  for (std::int64_t i = 0; i < coded.rows(); ++i)
    if (!(length_of(coded.rows(i, i + 1)) <= std::sqrt(most))) return i;
  return coded.rows();
}

void check_lengths(MatrixView<float> coded, Metric metric, const RowNumber& number) {
  if (const std::int64_t row = first_too_long(coded, metric); row < coded.rows())
    refuse_length(number ? number(row) : row);
}

}  // namespace knear::detail
