#include "knear/scan/packing/per_row_codes.hpp"

#include <algorithm>
#include <cmath>

#include "knear/core/threads.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/packing/whole_numbers.hpp"

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
  const bool l2 = traits_of(space.metric).squared;
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
          const WholeSums sums = code_whole_numbers(view.row(0), out.dim, out.row_offset, codes);
          out.squares[i] = l2 ? sums.squares : 0, out.sums[i] = sums.sum;
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
      const double whole = norm + space.mean_norm + (traits_of(space.metric).unit_rows ? 1.0 : 0.0);
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

namespace {

// What goes with the codes of a query of whole numbers that are `offset` less than its values.
CodedQuery of_whole_numbers(const PerRowCodes& rows, int offset, const WholeSums& sums) {
  CodedQuery out;
  out.sum_shift_mask = offset ? -1 : 0;
  out.squares = static_cast<double>(sums.squares);
  out.correction = static_cast<std::int32_t>(rows.row_offset * (sums.sum - offset * rows.dim));
  return out;
}
int query_offset(const ValueRange& found) { return found.high > 127 ? 128 : 0; }

}  // namespace

CodedQuery code_query(const PerRowCodes& rows, std::uint32_t slot, const ValueRange& found,
                      std::int8_t* codes) {
  const int offset = query_offset(found), shift = rows.row_offset + offset;
  const std::int64_t dim = rows.dim;
  const std::uint8_t* const own = rows.codes.data() + slot * rows.stride;
  for (std::int64_t j = 0; j < dim; ++j) codes[j] = static_cast<std::int8_t>(own[j] - shift);
  std::fill(codes + dim, codes + plane_bytes(dim), std::int8_t{0});
  return of_whole_numbers(rows, offset, {rows.sums[slot], rows.squares[slot]});
}

CodedQuery code_query(const PerRowCodes& rows, AnyMatrixView queries, std::int64_t i,
                      const ValueRange& found, double* scratch, std::int8_t* codes) {
  const CodingSpace& space = rows.space;
  const std::int64_t dim = rows.dim;
  CodedQuery out;
  const std::int64_t plane = plane_bytes(dim);
  std::fill(codes, codes + (rows.is_integer ? 1 : 2) * plane, std::int8_t{0});
  if (rows.is_integer) {
    const int offset = query_offset(found);
    const WholeSums sums = visit(queries, [&](auto view) {
      return code_whole_numbers(view.row(i), dim, -offset, reinterpret_cast<std::uint8_t*>(codes));
    });
    return of_whole_numbers(rows, offset, sums);
  }
  space.load(queries, i, scratch);
  const VectorSize size = space.kernels->measure(scratch, dim);
  out.squares = size.squares;
  out.scale = scale_for(format_int8, size.largest, std::sqrt(size.squares));
  if (!traits_of(space.metric).squared && !space.mean.empty())
    out.constant =
        dot(scratch, space.mean.data(), dim) + dot(space.mean.data(), space.mean.data(), dim);
  const CodeSize code = space.kernels->encode[format_int8](
      scratch, dim, out.scale, 0, reinterpret_cast<std::uint8_t*>(codes), step_bytes);
  out.norm = norm_above(size.squares, space.slack);
  const double whole = out.norm + (traits_of(space.metric).unit_rows ? 1 : 0);
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
