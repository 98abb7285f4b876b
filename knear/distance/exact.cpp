#include "knear/distance/exact.hpp"

#include <cmath>

#include "knear/distance/exact_kernels.hpp"

namespace knear {
namespace {

const detail::ExactKernels& kernels_for(Isa isa) {
  if (isa >= Isa::avx512) return detail::exact_kernels_avx512();
  if (isa >= Isa::avx2) return detail::exact_kernels_avx2();
  return detail::exact_kernels_scalar();
}

}  // namespace

ExactDistance::ExactDistance(Metric metric, ElementType row_type, Isa isa) : metric_(metric) {
  const detail::ExactKernels& table = kernels_for(isa);
  const int type = static_cast<int>(row_type);
  sums_ = metric == Metric::l2   ? table.l2[type]
          : metric == Metric::ip ? table.product[type]
                                 : table.product_and_squares[type];
  squares_ = table.product[static_cast<int>(ElementType::f32)];
}

void ExactDistance::set_query(AnyMatrixView queries, std::int64_t q) {
  dim_ = queries.cols();
  x_.assign((dim_ + 15) / 16 * 16, 0.0);
  visit(queries.rows(q, q + 1), [&](auto view) {
    for (std::int64_t i = 0; i < dim_; ++i) x_[i] = to_float(view.data()[i]);
  });
  if (metric_ != Metric::cosine) return;
  // The reference sums x_i^2 in the same order as a product of x with itself; elements are floats.
  std::vector<float> x(x_.begin(), x_.end());
  squares_(x_.data(), x.data(), dim_, &xx_);
}

double ExactDistance::key_of(const double* sums) const {
  if (metric_ == Metric::l2) return sums[0];
  if (metric_ == Metric::ip) return 0.0 - sums[0];
  return xx_ == 0 || sums[1] == 0 ? 1.0 : 1.0 - sums[0] / std::sqrt(xx_ * sums[1]);
}

}  // namespace knear
