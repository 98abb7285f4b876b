#include "knear/scan/prefix/prefix_base.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "knear/core/threads.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/transform/product.hpp"

namespace knear::detail {

PrefixMap::PrefixMap(Metric metric, const std::vector<double>& mean, MatrixView<double> basis,
                     double basis_defect, MatrixView<double> rotation, double rotation_defect,
                     Isa isa)
    : dim_(basis.cols()), columns_(basis.rows() + 1), matrix_(dim_, columns_), rest_(columns_) {
  space_.metric = metric;
  space_.kernels = &scan_kernels(isa);
  space_.slack = (static_cast<double>(dim_) + 32) * 0x1p-50;
  space_.mean = mean;
  space_.mean_norm = std::sqrt(dot(mean.data(), mean.data(), dim_)) * (1 + space_.slack);
  // The basis as columns, turned.
  const std::int64_t m = basis.rows();
  Matrix<double> directions(dim_, m), turn(m, columns_);
  for (std::int64_t j = 0; j < m; ++j) {
    for (std::int64_t i = 0; i < dim_; ++i) directions.row(i)[j] = basis.row(j)[i];
    for (std::int64_t c = 0; c < columns_; ++c) turn.row(j)[c] = rotation.row(c)[j];
  }
  multiply_here(directions, turn, matrix_.data());
  for (std::int64_t c = 0; c < columns_; ++c) rest_[c] = rotation.row(c)[m];
  const double d = static_cast<double>(dim_), k = static_cast<double>(columns_);
  const double turned =
      1.1 * (basis_defect + rotation_defect) + ((d + 4) * std::sqrt(k) + (k + 4) * k) * 0x1p-52;
  const double rest_squared = 2.1 * turned + 4 * (d + k + 8) * 0x1p-53;
  off_relative_ =
      1.01 * (turned + std::sqrt(rest_squared) + rotation_defect + 0x1p-24 + 8 * 0x1p-53);
  off_absolute_ = 0x1p-140;
  if (metric == Metric::cosine) off_absolute_ += 2 * space_.slack * (1 + space_.mean_norm);
}

void PrefixMapper::add(AnyMatrixView data, std::int64_t i, float* prefix) {
  map_.space_.load(data, i, vectors_.row(std::ssize(prefixes_)));
  prefixes_.push_back(prefix);
  if (std::ssize(prefixes_) == vectors_.rows()) finish();
}

void PrefixMapper::finish() {
  const std::int64_t dim = map_.dim_, columns = map_.columns_, count = std::ssize(prefixes_);
  multiply_here(vectors_.view().rows(0, count), map_.matrix_, products_.data());
  for (std::int64_t j = 0; j < count; ++j) {
    const double *v = vectors_.row(j), *y = products_.row(j);
    const double squares = map_.space_.kernels->measure(v, dim).squares;
    const double rest = std::sqrt(std::max(0.0, squares - dot(y, y, columns)));
    for (std::int64_t c = 0; c < columns; ++c)
      prefixes_[j][c] = static_cast<float>(y[c] + map_.rest_[c] * rest);
  }
  prefixes_.clear();
}

std::int64_t PrefixBase::bytes() const {
  return map.bytes() + panels.bytes() + codes.bytes() + centroid_panels.bytes() +
         static_cast<std::int64_t>(cluster_begin.size() * 4) +
         centroids.rows() * centroids.cols() * 4;
}

}  // namespace knear::detail
