#include "knear/graph/byte_codes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t task_rows = 256;

}  // namespace

ByteCodes::ByteCodes(AnyMatrixView base, std::span<const Id> order, Metric metric, int threads)
    : metric_(metric) {
  const std::int64_t n = base.rows(), dim = base.cols();
  steps_ = (dim + 3) / 4;
  codes_ = Matrix<std::int8_t>(n, steps_ * 4);
  squares_.resize(n);
  sums_.resize(n);
  // So that sums of products, and what they are compared with, stay well within 32 bits.
  const double most = std::min(127.0, std::floor(std::sqrt(0x1p28 / static_cast<double>(dim))));
  const bool bytes = base.type() == ElementType::u8 || base.type() == ElementType::i8;
  exact_ =
      bytes && most == 127 &&
      (traits_of(metric).squared || (traits_of(metric).product && base.type() == ElementType::i8));
  shift_.assign(dim, 0.0);
  if (exact_) {
    if (base.type() == ElementType::u8) shift_.assign(shift_.size(), 128.0);
  } else {
    choose_scale(base, most);
  }
  parallel_for(threads, (n + task_rows - 1) / task_rows, [&](std::int64_t task) {
    const std::int64_t begin = task * task_rows, end = std::min(n, begin + task_rows);
    std::vector<double> v(dim);
    for (std::int64_t i = begin; i < end; ++i) {
      load(base, order[i], v.data());
      std::int8_t* const out = codes_.row(i);
      std::int32_t sum = 0, squares = 0;
      for (std::int64_t j = 0; j < dim; ++j) {
        // Rounded by the addition of a number so large that it has no fraction.
        const double x = std::clamp(v[j] / scale_, exact_ ? -128.0 : -most, most);
        const auto code = static_cast<std::int32_t>((x + 0x1.8p52) - 0x1.8p52);
        out[j] = static_cast<std::int8_t>(code);
        sum += code, squares += code * code;
      }
      squares_[i] = squares;
      sums_[i] = sum;
    }
  });
}

std::int32_t ByteCodes::limit_of(std::int64_t i, double key) const {
  constexpr double end = 0x1p29;
  const double square = squares_[i];
  double limit = -end;
  if (key < std::numeric_limits<double>::infinity()) {
    const double dim = static_cast<double>(shift_.size());
    double bound = key / (scale_ * scale_);
    if (traits_of(metric_).product) {
      limit = -bound - (exact_ ? 0 : std::sqrt(std::max(1.0, square) / 6));
    } else {
      if (traits_of(metric_).unit_rows) bound *= 2;
      if (!exact_) bound += dim / 6 + std::sqrt(std::max(0.0, bound) * 2 / 3);
      limit = (square - bound) / 2;
    }
  }
  return static_cast<std::int32_t>(std::floor(std::clamp(limit, -end, end)));
}

void ByteCodes::load(AnyMatrixView base, std::int64_t i, double* v) const {
  row_as_doubles(base, i, v);
  if (traits_of(metric_).unit_rows) {
    double squares = 0;
    for (std::int64_t j = 0; j < base.cols(); ++j) squares += v[j] * v[j];
    const double factor = squares > 0 ? 1 / std::sqrt(squares) : 0;
    for (std::int64_t j = 0; j < base.cols(); ++j) v[j] *= factor;
  }
  if (!traits_of(metric_).product)
    for (std::int64_t j = 0; j < base.cols(); ++j) v[j] -= shift_[j];
}

// By 4,096 rows, evenly spaced: their mean, and the largest coordinate of all but 1 % of them, so
// that single rows far out do not make the codes of all others coarse.
void ByteCodes::choose_scale(AnyMatrixView base, double most) {
  const std::int64_t n = base.rows(), dim = base.cols(), count = std::min<std::int64_t>(n, 4096);
  std::vector<double> v(dim), largest, mean(shift_.size(), 0.0);
  const auto each = [&](auto take) {
    for (std::int64_t s = 0; s < count; ++s) load(base, s * (n / count), v.data()), take();
  };
  if (!traits_of(metric_).product) {
    each([&] {
      for (std::size_t j = 0; j < v.size(); ++j) mean[j] += v[j] / static_cast<double>(count);
    });
    shift_ = mean;
  }
  each([&] {
    double most_of_row = 0;
    for (const double x : v) most_of_row = std::max(most_of_row, std::abs(x));
    largest.push_back(most_of_row);
  });
  const auto at = largest.begin() + (std::ssize(largest) - 1) * 99 / 100;
  std::nth_element(largest.begin(), at, largest.end());
  scale_ = *at > 0 ? *at / most : 1;
  if (!(scale_ > 0x1p-500)) scale_ = 1;  // too small to be told apart
}

}  // namespace knear::detail
