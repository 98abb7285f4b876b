// knear/core/far_rows.hpp -- refuses f64 rows that become codes which were learned from other rows,
// and that lie too far from 0 for float32. Rows that codes are learned from: core/value_range.hpp.
#pragma once
#include <span>
#include <string_view>

#include "knear/core/matrix.hpp"

namespace knear {

// As check_float32_tells_apart(rows, argument, made) for f64 rows [n x dim], after `offset` [dim]
// is added to each; empty: 0. Rounding that is small beside `codes_variance`, the variance of what
// codes stand for, summed over the columns, changes no code, so that a few rows that are nearly
// alike are taken. Throws InvalidArgument. Cost: one pass over at most 2,000 rows.
void check_float32_tells_apart(AnyMatrixView rows, std::string_view argument, std::string_view made,
                               double codes_variance, std::span<const float> offset = {});

}  // namespace knear
