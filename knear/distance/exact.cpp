#include "knear/distance/exact.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "knear/distance/exact_kernels.hpp"

namespace knear {
namespace {

detail::ExactSums sums_for(const detail::ExactKernels& table, Metric metric, ElementType type,
                           detail::ExactShape shape) {
  const auto of = [&](const auto& kind) { return kind[shape][static_cast<int>(type)]; };
  switch (metric) {
    case Metric::l2:
      return of(table.l2);
    case Metric::l1:
      return of(table.l1);
    case Metric::hamming:
      return table.bits[shape];
    case Metric::ip:
      return of(table.product);
    case Metric::cosine:
      break;
  }
  return of(table.product_and_squares);
}

std::int64_t padded(std::int64_t dim) { return (dim + 15) / 16 * 16; }

// Row q of `queries` as doubles [padded dim], for hamming as it is; and for cosine its sum of
// squares.
double load_query(const detail::ExactKernels& kernels, AnyMatrixView queries, std::int64_t q,
                  Metric metric, detail::ExactSums squares, double* x) {
  const std::int64_t dim = queries.cols();
  if (traits_of(metric).bits) {
    std::memcpy(x, queries.row(q), dim);
    return 0;
  }
  kernels.to_doubles[static_cast<int>(queries.type())](queries.row(q), dim, x);
  double xx = 0;
  if (!traits_of(metric).unit_rows) return xx;
  // The reference sums x_i^2 in the same order as a product of x with itself.
  const void* row = x;
  squares(x, &row, dim, &xx);
  return xx;
}

}  // namespace

void detail::row_as_doubles(AnyMatrixView rows, std::int64_t i, double* out) {
  // Looked up once: the level is an environment variable, and no level changes a bit.
  static const detail::ExactKernels& kernels = detail::exact_kernels(active_isa());
  kernels.to_doubles[static_cast<int>(rows.type())](rows.row(i), rows.cols(), out);
}

ExactDistance::ExactDistance(Metric metric, ElementType row_type, Isa isa)
    : metric_(metric),
      kernels_(&detail::exact_kernels(isa)),
      one_(sums_for(detail::exact_kernels(isa), metric, row_type, detail::one_to_one)),
      group_(sums_for(detail::exact_kernels(isa), metric, row_type, detail::one_to_group)),
      squares_(
          sums_for(detail::exact_kernels(isa), Metric::ip, ElementType::f64, detail::one_to_one)) {
  static_assert(most_rows == detail::exact_group && element_type_count == detail::exact_types);
}

void ExactDistance::set_query(AnyMatrixView queries, std::int64_t q) {
  dim_ = queries.cols();
  x_.resize(padded(dim_));
  std::fill(x_.begin() + dim_, x_.end(), 0.0);
  xx_ = load_query(*kernels_, queries, q, metric_, squares_, x_.data());
}

ExactGroup::ExactGroup(Metric metric, ElementType row_type, Isa isa)
    : metric_(metric),
      kernels_(&detail::exact_kernels(isa)),
      sums_(sums_for(detail::exact_kernels(isa), metric, row_type, detail::group_to_one)),
      squares_(
          sums_for(detail::exact_kernels(isa), Metric::ip, ElementType::f64, detail::one_to_one)) {
  static_assert(size == detail::exact_group);
}

void ExactGroup::set_queries(AnyMatrixView queries, const std::int64_t* which, int count) {
  dim_ = queries.cols(), count_ = count;
  x_.assign(size * padded(dim_), 0.0);
  for (int q = 0; q < count; ++q)
    xx_[q] =
        load_query(*kernels_, queries, which[q], metric_, squares_, x_.data() + q * padded(dim_));
}

}  // namespace knear
