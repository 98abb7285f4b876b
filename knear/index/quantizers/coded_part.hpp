// knear/index/quantizers/coded_part.hpp -- what quantisers code of rows: all of them, or what is
// left beside the centroids of their lists.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"

namespace knear::detail {

// Writes a row [dim] as float64 numbers to `out`, of length 1 for cosine unless it is zero.
void read_row(AnyMatrixView rows, std::int64_t row, Metric metric, double* out);
// What is coded of rows [begin, end): what is left beside the centroids of their lists; without
// centroids all. Of length 1 before that for cosine.
Matrix<float> coded_part(AnyMatrixView rows, std::int64_t begin, std::int64_t end, Metric metric,
                         MatrixView<float> centroids, std::span<const std::uint32_t> list_of);
// Returns the first row [n x dim] whose squared length, and so its distances, are beyond float32;
// n: there is none.
std::int64_t first_too_long(AnyMatrixView rows);

// Which vector of its caller's a row is, for messages; empty: that of the same number.
using RowNumber = std::function<std::int64_t(std::int64_t)>;
// Throws InvalidArgument for a row that is too long; so does the first, for a row that is known to
// be.
[[noreturn]] void refuse_length(std::int64_t row);
void check_lengths(AnyMatrixView rows, const RowNumber& number);
// Throws InvalidArgument if there are rows other than zero and the squared lengths of all of them
// are below the least normal float32, in which distances to codes are summed.
void check_not_all_too_short(AnyMatrixView rows);

}  // namespace knear::detail
