#include "knear/scan/prefix_base.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "knear/core/threads.hpp"
#include "knear/scan/coding.hpp"

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
  const std::int64_t m = basis.rows();
  for (std::int64_t c = 0; c < columns_; ++c) {
    for (std::int64_t j = 0; j < m; ++j)
      for (std::int64_t i = 0; i < dim_; ++i)
        matrix_.row(i)[c] += rotation.row(c)[j] * basis.row(j)[i];
    rest_[c] = rotation.row(c)[m];
  }
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
  map_.space_.load(data, i, vectors_.data() + count_ * map_.dim_);
  prefixes_[count_++] = prefix;
  if (count_ == at_once) finish();
}

void PrefixMapper::finish() {
  const std::int64_t dim = map_.dim_, columns = map_.columns_;
  const ScanKernels& kernels = *map_.space_.kernels;
  if (count_ == at_once)
    kernels.project[1](vectors_.data(), map_.matrix_.data(), dim, columns, products_.data());
  for (std::int64_t j = 0; j < count_; ++j) {
    double *v = vectors_.data() + j * dim, *y = products_.data() + j * columns;
    if (count_ < at_once) kernels.project[0](v, map_.matrix_.data(), dim, columns, y);
    const double squares = kernels.measure(v, dim).squares;
    const double rest = std::sqrt(std::max(0.0, squares - dot(y, y, columns)));
    for (std::int64_t c = 0; c < columns; ++c)
      prefixes_[j][c] = static_cast<float>(y[c] + map_.rest_[c] * rest);
  }
  count_ = 0;
}

std::int64_t PrefixBase::bytes() const {
  return map.bytes() + panels.bytes() + codes.bytes() + centroid_panels.bytes() +
         static_cast<std::int64_t>(cluster_begin.size() * 4) +
         centroids.rows() * centroids.cols() * 4;
}

RowCodes row_codes(const BaseRows& base, std::span<const std::uint32_t> order,
                   const CodingSpace& space, bool integer, const DataSurvey& found, int threads,
                   const Progress& progress) {
  RowCodes out;
  out.is_integer = integer;
  out.space = space;
  out.dim = base.cols(), out.stride = (out.dim + 3) / 4 * 4;
  const std::int64_t rows = static_cast<std::int64_t>(order.size());
  out.codes = AlignedArray<std::uint8_t>(checked_size(rows, out.stride) + 64);
  if (integer) {
    out.row_offset = found.low < 0 ? 128 : 0;
    out.range = found;
    out.squares = AlignedArray<std::uint32_t>(rows);
    out.sums = AlignedArray<std::int32_t>(rows);
  } else {
    out.heads = AlignedArray<RowCodes::Head>(rows);
  }
  const bool l2 = space.metric == Metric::l2;
  constexpr std::int64_t block = 1024;
  Reporter reporter(progress, "code rows", (rows + block - 1) / block);
  parallel_for(threads, (rows + block - 1) / block, [&](std::int64_t task) {
    reporter.add(1);
    std::vector<std::byte> scratch(base.scratch_bytes());
    std::vector<double> v(out.dim);
    for (std::int64_t i = task * block; i < std::min(rows, (task + 1) * block); ++i) {
      if (i + 4 < rows) base.prefetch(order[i + 4], base.row_bytes());
      const AnyMatrixView row = base.row_view(order[i], scratch.data());
      std::uint8_t* codes = out.codes.data() + i * out.stride;
      if (integer) {
        visit(row, [&](auto view) {
          const auto* values = view.row(0);
          std::uint32_t squares = 0;
          std::int32_t sum = 0;
          for (std::int64_t j = 0; j < out.dim; ++j) {
            const int y = static_cast<int>(to_float(values[j]));
            squares += static_cast<std::uint32_t>(y * y), sum += y;
            codes[j] = static_cast<std::uint8_t>(y + out.row_offset);
          }
          out.squares[i] = l2 ? squares : 0, out.sums[i] = sum;
        });
        continue;
      }
      space.load(row, 0, v.data());
      const VectorSize size = space.kernels->measure(v.data(), out.dim);
      const double scale =
          std::max(scale_for(format_int8, size.largest, std::sqrt(size.squares)), 0x1p-100);
      const CodeSize code =
          space.kernels->encode[format_int8](v.data(), out.dim, scale, 128, codes, step_bytes);
      const double norm = norm_above(size.squares, space.slack);
      const double whole = norm + space.mean_norm + (space.metric == Metric::cosine ? 1.0 : 0.0);
      RowCodes::Head& head = out.heads[i];
      head.scale = static_cast<float>(scale);
      head.error = float_above(error_above(code.error, 0, space.slack) +
                               (norm + (l2 ? 0 : whole)) * space.slack);
      head.norm = float_above(std::max(norm, norm_above(code.squares, space.slack) * scale));
      const double bias = l2                   ? -size.squares / 2
                          : space.mean.empty() ? 0
                                               : dot(v.data(), space.mean.data(), out.dim);
      head.bias = static_cast<float>(bias / (scale * scale));
    }
  });
  return out;
}

CodedQuery code_query(const RowCodes& rows, AnyMatrixView queries, std::int64_t i,
                      const DataSurvey& found, double* scratch, std::int8_t* codes) {
  const CodingSpace& space = rows.space;
  const std::int64_t dim = rows.dim;
  CodedQuery out;
  std::fill(codes, codes + (dim + 63) / 64 * 64, std::int8_t{0});
  if (rows.is_integer) {
    const int offset = found.high > 127 ? 128 : 0;
    out.sum_shift_mask = offset ? -1 : 0;
    std::int64_t sum = 0, squares = 0;
    visit(queries, [&](auto view) {
      const auto* x = view.row(i);
      for (std::int64_t j = 0; j < dim; ++j) {
        const int value = static_cast<int>(to_float(x[j]));
        codes[j] = static_cast<std::int8_t>(value - offset);
        squares += value * value, sum += value - offset;
      }
    });
    out.squares = static_cast<double>(squares);
    out.correction = static_cast<std::int32_t>(rows.row_offset * sum);
    return out;
  }
  space.load(queries, i, scratch);
  const VectorSize size = space.kernels->measure(scratch, dim);
  out.squares = size.squares;
  out.scale = scale_for(format_int8, size.largest, std::sqrt(size.squares));
  if (space.metric != Metric::l2 && !space.mean.empty())
    out.constant =
        dot(scratch, space.mean.data(), dim) + dot(space.mean.data(), space.mean.data(), dim);
  const CodeSize code = space.kernels->encode[format_int8](
      scratch, dim, out.scale, 0, reinterpret_cast<std::uint8_t*>(codes), step_bytes);
  out.norm = norm_above(size.squares, space.slack);
  out.error =
      error_above(code.error, out.norm + (space.metric == Metric::cosine ? 1 : 0), space.slack);
  out.correction = static_cast<std::int32_t>(128 * code.sum);
  return out;
}

}  // namespace knear::detail
