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
  std::vector<double> row(dim);
  for (std::int64_t i = begin; i < end; ++i) {
    read_row(rows, i, metric, row.data());
    const float* centroid = centroids.rows() > 0 ? centroids.row(list_of[i]) : nullptr;
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i - begin)[j] = static_cast<float>(row[j] - (centroid ? double{centroid[j]} : 0.0));
  }
  return out;
}

void refuse_length(std::int64_t row) {
  throw InvalidArgument("vectors hold a row {} whose squared length is beyond float32", row);
}

std::int64_t first_too_long(AnyMatrixView rows) {
  const double most = std::sqrt(double{std::numeric_limits<float>::max()});
  for (std::int64_t i = 0; i < rows.rows(); ++i)
    if (!(length_of(rows.rows(i, i + 1)) <= most)) return i;
  return rows.rows();
}

void check_lengths(AnyMatrixView rows, const RowNumber& number) {
  if (const std::int64_t row = first_too_long(rows); row < rows.rows())
    refuse_length(number ? number(row) : row);
}

void check_not_all_too_short(AnyMatrixView rows) {
  const double least = std::sqrt(double{std::numeric_limits<float>::min()});
  double longest = 0;
  for (std::int64_t i = 0; i < rows.rows() && longest < least; ++i)
    longest = std::max(longest, length_of(rows.rows(i, i + 1)));
  if (longest > 0 && longest < least)
    throw InvalidArgument(
        "vectors are no longer than {:.3g}, so that their squared lengths vanish in float32: "
        "multiply vectors and queries by a power of two, such as 2^{}",
        longest, -std::ilogb(longest));
}

}  // namespace knear::detail
