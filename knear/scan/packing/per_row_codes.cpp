#include "knear/scan/packing/per_row_codes.hpp"

#include <algorithm>
#include <cmath>

#include "knear/core/threads.hpp"
#include "knear/scan/packing/coding.hpp"

namespace knear::detail {

PerRowCodes per_row_codes(const BaseRows& base, std::span<const std::uint32_t> order,
                          const CodingSpace& space, bool integer, const ValueRange& found,
                          int threads, const Progress& progress) {
  PerRowCodes out;
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
    out.heads = AlignedArray<PerRowCodes::Head>(rows);
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
            const int y = static_cast<int>(to_double(values[j]));
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
      PerRowCodes::Head& head = out.heads[i];
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

CodedQuery code_query(const PerRowCodes& rows, AnyMatrixView queries, std::int64_t i,
                      const ValueRange& found, double* scratch, std::int8_t* codes) {
  const CodingSpace& space = rows.space;
  const std::int64_t dim = rows.dim;
  CodedQuery out;
  const std::int64_t plane = plane_bytes(dim);
  std::fill(codes, codes + (rows.is_integer ? 1 : 2) * plane, std::int8_t{0});
  if (rows.is_integer) {
    const int offset = found.high > 127 ? 128 : 0;
    out.sum_shift_mask = offset ? -1 : 0;
    std::int32_t sum = 0;
    std::uint32_t squares = 0;  // holds 65,536 of 255 * 255
    visit(queries, [&](auto view) {
      const auto* x = view.row(i);
      for (std::int64_t j = 0; j < dim; ++j) {
        int value;
        if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(*x)>>)
          value = x[j];
        else
          value = static_cast<int>(to_double(x[j]));
        codes[j] = static_cast<std::int8_t>(value - offset);
        squares += static_cast<std::uint32_t>(value * value), sum += value - offset;
      }
    });
    out.squares = static_cast<double>(squares);
    out.correction = static_cast<std::int32_t>(rows.row_offset * std::int64_t{sum});
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
  const double whole = out.norm + (space.metric == Metric::cosine ? 1 : 0);
  out.error = error_above(code.error, whole, space.slack);
  out.correction = static_cast<std::int32_t>(128 * code.sum);
  // What the codes leave out, up to one rounding per coordinate, which the slack covers.
  for (std::int64_t j = 0; j < dim; ++j) scratch[j] -= out.scale * codes[j];
  const VectorSize rest = space.kernels->measure(scratch, dim);
  out.fine_scale = scale_for(format_int8, rest.largest, std::sqrt(rest.squares));
  const CodeSize fine = space.kernels->encode[format_int8](
      scratch, dim, out.fine_scale, 0, reinterpret_cast<std::uint8_t*>(codes + plane), step_bytes);
  out.fine_error = error_above(fine.error, whole, space.slack);
  out.fine_correction = static_cast<std::int32_t>(128 * fine.sum);
  return out;
}

}  // namespace knear::detail
