#include "knear/distance/exact.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "knear/distance/exact_kernels.hpp"
#include "knear/distance/short_query.hpp"

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

// Looked up once: the level is an environment variable, and no level changes a bit.
const detail::ExactKernels& usual_kernels() {
  static const detail::ExactKernels& kernels = detail::exact_kernels(active_isa());
  return kernels;
}

}  // namespace

void detail::row_as_doubles(AnyMatrixView rows, std::int64_t i, double* out) {
  usual_kernels().to_doubles[static_cast<int>(rows.type())](rows.row(i), rows.cols(), out);
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

void ShortQuery::set(Metric metric, AnyMatrixView queries, std::int64_t q) {
  metric_ = metric, dim_ = queries.cols();
  const detail::ExactKernels& kernels = usual_kernels();
  std::fill(x_ + dim_, x_ + padded(dim_), 0.0);
  xx_ = load_query(kernels, queries, q, metric,
                   sums_for(kernels, Metric::ip, ElementType::f64, detail::one_to_one), x_);
}

void ShortQuery::keys(ElementType row_type, const void* const* rows, std::int64_t count,
                      double* out) const {
  constexpr std::int64_t together = detail::exact_group;
  const detail::ExactSums group =
      sums_for(usual_kernels(), metric_, row_type, detail::one_to_group);
  double sums[2 * together];
  std::int64_t r = 0;
  for (; r + together <= count; r += together) {
    std::fill_n(sums, 2 * together, 0.0);
    group(x_, rows + r, dim_, sums);
    for (std::int64_t i = 0; i < together; ++i)
      out[r + i] = detail::exact_key(metric_, sums[i], xx_, sums[together + i]);
  }
  const detail::ExactSums one = sums_for(usual_kernels(), metric_, row_type, detail::one_to_one);
  for (; r < count; ++r) {
    sums[0] = sums[1] = 0;
    one(x_, rows + r, dim_, sums);
    out[r] = detail::exact_key(metric_, sums[0], xx_, sums[1]);
  }
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
