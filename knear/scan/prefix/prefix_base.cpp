#include "knear/scan/prefix/prefix_base.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/transform/product.hpp"

namespace knear::detail {

PrefixMap::PrefixMap(Metric metric, Parts parts, Isa isa) : parts_(std::move(parts)) {
  space_.metric = metric;
  space_.kernels = &scan_kernels(isa);
  space_.slack = (static_cast<double>(dim()) + 32) * 0x1p-50;
  space_.mean = parts_.mean;
  space_.mean_norm =
      std::sqrt(dot(parts_.mean.data(), parts_.mean.data(), dim())) * (1 + space_.slack);
}

PrefixMap PrefixMap::from_basis(Metric metric, const std::vector<double>& mean,
                                MatrixView<double> basis, double basis_defect,
                                MatrixView<double> rotation, double rotation_defect,
                                double usual_length, Isa isa) {
  // The basis as columns, turned.
  const std::int64_t m = basis.rows(), dim = basis.cols(), columns = m + 1;
  Parts parts{mean, AlignedArray<double>(checked_size(dim, columns)), std::vector<double>(columns)};
  Matrix<double> directions(dim, m), turn(m, columns);
  for (std::int64_t j = 0; j < m; ++j) {
    for (std::int64_t i = 0; i < dim; ++i) directions.row(i)[j] = basis.row(j)[i];
    for (std::int64_t c = 0; c < columns; ++c) turn.row(j)[c] = rotation.row(c)[j];
  }
  multiply_on_host(directions, turn, parts.matrix.data());
  for (std::int64_t c = 0; c < columns; ++c) parts.rest[c] = rotation.row(c)[m];
  const double d = static_cast<double>(dim), k = static_cast<double>(columns);
  const double turned =
      1.1 * (basis_defect + rotation_defect) + ((d + 4) * std::sqrt(k) + (k + 4) * k) * 0x1p-52;
  const double rest_squared = 2.1 * turned + 4 * (d + k + 8) * 0x1p-53;
  parts.off_relative =
      1.01 * (turned + std::sqrt(rest_squared) + rotation_defect + 0x1p-24 + 8 * 0x1p-53);
  parts.off_absolute = 0x1p-140;
  parts.usual_length = usual_length;
  PrefixMap out(metric, std::move(parts), isa);
  if (traits_of(metric).unit_rows)
    out.parts_.off_absolute += 2 * out.space_.slack * (1 + out.space_.mean_norm);
  return out;
}

ScaledQuery scale_query(const std::vector<double>& mean, double usual_length, double* v) {
  const std::int64_t dim = std::ssize(mean);
  ScaledQuery out;
  const double length = std::sqrt(dot(v, v, dim));
  if (const double ratio = usual_length / length; ratio > 0 && std::isfinite(ratio)) {
    int exponent;
    std::frexp(ratio, &exponent);
    out.scale = std::ldexp(1.0, exponent);
  }
  for (std::int64_t j = 0; j < dim; ++j) v[j] *= out.scale;
  out.product = dot(v, mean.data(), dim);
  for (std::int64_t j = 0; j < dim; ++j) v[j] -= mean[j];
  return out;
}

void PrefixMapper::take(float* prefix) {
  prefixes_.push_back(prefix);
  if (std::ssize(prefixes_) == vectors_.rows()) finish();
}

double PrefixMapper::add(AnyMatrixView data, std::int64_t i, float* prefix) {
  double* v = next();
  map_.space_.load(data, i, v);
  const double term =
      traits_of(map_.space_.metric).product ? dot(v, map_.space_.mean.data(), map_.dim()) : 0;
  take(prefix);
  return term;
}

ScaledQuery PrefixMapper::add_query(AnyMatrixView data, std::int64_t i, float* prefix) {
  ScaledQuery out;
  if (!traits_of(map_.space_.metric).product) {
    add(data, i, prefix);
    return out;
  }
  double* v = next();
  visit(data, [&](auto view) {
    const auto* row = view.row(i);
    for (std::int64_t j = 0; j < view.cols(); ++j) v[j] = to_double(row[j]);
  });
  out = scale_query(map_.space_.mean, map_.parts_.usual_length, v);
  take(prefix);
  return out;
}

void PrefixMapper::finish() {
  const std::int64_t dim = map_.dim(), columns = map_.columns(), count = std::ssize(prefixes_);
  multiply_on_host(vectors_.view().rows(0, count), {map_.parts_.matrix.data(), dim, columns},
                   products_.data());
  for (std::int64_t j = 0; j < count; ++j) {
    const double *v = vectors_.row(j), *y = products_.row(j);
    const double squares = map_.space_.kernels->measure(v, dim).squares;
    const double rest = std::sqrt(std::max(0.0, squares - dot(y, y, columns)));
    for (std::int64_t c = 0; c < columns; ++c)
      prefixes_[j][c] = static_cast<float>(y[c] + map_.parts_.rest[c] * rest);
  }
  prefixes_.clear();
}

std::int64_t PrefixBase::bytes() const {
  return map.bytes() + panels.bytes() + codes.bytes() + centroid_panels.bytes() +
         static_cast<std::int64_t>(cluster_begin.size() * 4) +
         centroids.rows() * centroids.cols() * 4;
}

void PrefixBase::pack_centroids(Metric metric, int threads) {
  centroid_panels = PackedBase::certified(
      centroids.view(), {}, format_int8,
      CodingSpace::choose(centroids.view(), traits_of(metric).product ? metric : Metric::l2,
                          active_isa()),
      threads, {});
}

}  // namespace knear::detail
