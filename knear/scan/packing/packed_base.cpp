#include "knear/scan/packing/packed_base.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/packing/coded_queries.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/packing/interleaving.hpp"
#include "knear/scan/packing/whole_numbers.hpp"

namespace knear::detail {

std::int64_t usual_tile_bytes() {
  static const std::int64_t cache = cache_bytes(2);
  return cache == 0 ? 512 << 10 : std::clamp<std::int64_t>(cache / 2, 128 << 10, 2 << 20);
}

std::int64_t CodingSpace::sample_size(std::int64_t rows, std::int64_t dim) {
  return std::min<std::int64_t>(
      rows, std::max<std::int64_t>(64, std::min<std::int64_t>(4096, (1 << 21) / dim)));
}

CodingSpace CodingSpace::choose(const BaseRows& base, Metric metric, Isa isa) {
  check_by_products(metric, "a scan by codes");
  CodingSpace space;
  space.metric = metric;
  space.kernels = &scan_kernels(isa);
  const std::int64_t dim = base.cols();
  space.slack = (static_cast<double>(dim) + 32) * 0x1p-50;
  const std::int64_t sample = sample_size(base.rows(), dim);
  if (sample == 0) return space;
  const AnyMatrix rows = base.sample(sample);
  std::vector<double> v(dim), norms(sample);
  const auto norm_of = [&](const std::vector<double>& x) {
    return std::sqrt(space.kernels->measure(x.data(), dim).squares);
  };
  const auto median_of = [&](std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + sample / 2, values.end());
    return values[sample / 2];
  };
  for (std::int64_t i = 0; i < sample; ++i) {
    space.load(rows, i, v.data());
    norms[i] = norm_of(v);
  }
  const double median = median_of(norms);
  // Rows far longer than the typical one are left out, or one outlier would move the mean away
  // from all others.
  std::vector<double> mean(dim, 0.0);
  std::int64_t used = 0;
  for (std::int64_t i = 0; i < sample; ++i) {
    if (norms[i] > 8 * median) continue;
    space.load(rows, i, v.data());
    for (std::int64_t j = 0; j < dim; ++j) mean[j] += v[j];
    ++used;
  }
  if (used == 0 || median == 0) return space;
  for (double& m : mean) m /= static_cast<double>(used);
  for (std::int64_t i = 0; i < sample; ++i) {
    space.load(rows, i, v.data());
    for (std::int64_t j = 0; j < dim; ++j) v[j] -= mean[j];
    norms[i] = norm_of(v);
  }
  if (median_of(norms) < 0.95 * median) {
    space.mean_norm = norm_of(mean) * (1 + space.slack);
    space.mean = std::move(mean);
  }
  return space;
}

CodingSpace CodingSpace::around(const float* centre, std::int64_t dim) const {
  CodingSpace out = *this;
  out.mean.assign(centre, centre + dim);
  out.mean_norm = std::sqrt(kernels->measure(out.mean.data(), dim).squares) * (1 + slack);
  return out;
}

void CodingSpace::load(AnyMatrixView data, std::int64_t i, double* v) const {
  const std::int64_t dim = data.cols();
  const double* m = mean.empty() ? nullptr : mean.data();
  if (data.type() == ElementType::f32 && !traits_of(metric).unit_rows) {
    kernels->load_floats(static_cast<const float*>(data.row(i)), m, dim, v);
    return;
  }
  row_as_doubles(data, i, v);
  if (traits_of(metric).unit_rows) {
    const double norm = std::sqrt(kernels->measure(v, dim).squares);
    if (norm != 0)
      for (std::int64_t j = 0; j < dim; ++j) v[j] /= norm;
  }
  if (m)
    for (std::int64_t j = 0; j < dim; ++j) v[j] -= m[j];
}

double CodingSpace::squares_of(const BaseRows& rows) const {
  std::vector<double> v(rows.cols());
  std::vector<std::byte> scratch(rows.scratch_bytes());
  double sum = 0;
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    load(rows.row_view(i, scratch.data()), 0, v.data());
    sum += kernels->measure(v.data(), rows.cols()).squares;
  }
  return sum;
}

std::int64_t PackedBase::bytes_for(std::int64_t rows, std::int64_t dim, Format format,
                                   bool integer) {
  const int per = elements_per_step(format);
  const std::int64_t slots = (rows + panel_rows - 1) / panel_rows * panel_rows;
  // Up to one panel of padding for each tile, which is at most a few per cent.
  return (slots + slots / 16) * ((dim + per - 1) / per * step_bytes + (integer ? 12 : 9));
}

std::int64_t PackedBase::bytes() const {
  return static_cast<std::int64_t>(codes.bytes() + heads.bytes() + row_bias.bytes() +
                                   row_squares.bytes() + row_sums.bytes() + ids.bytes() +
                                   space.mean.size() * sizeof(double)) +
         duplicates.bytes();
}

void Coding::lay_out(std::int64_t packed_rows, std::int64_t columns) {
  rows = packed_rows, dim = columns;
  const int per = elements_per_step(format);
  steps = (dim + per - 1) / per;
  // Tiles of short rows have no more than 4,096 rows: thresholds tighten from the second tile on.
  const std::int64_t most =
      tile_bytes > 0
          ? std::clamp<std::int64_t>(tile_bytes / (steps * panel_step_bytes), 1, 4096)
          : std::clamp<std::int64_t>(usual_tile_bytes() / (steps * panel_step_bytes), 1, 128);
  const Tiling tiling = Tiling::of(rows, most);
  tiles = tiling.tiles, panels_per_tile = tiling.panels_per_tile;
}

Coding Coding::of_list(std::int64_t list) const {
  Coding out;
  out.format = format, out.dim = dim, out.steps = steps;
  out.space = space.around(centres.values.row(list), dim);
  return out;
}

Coding Coding::whole_numbers(Metric metric, Isa isa, const ValueRange& found) {
  Coding out;
  out.is_integer = true;
  out.space.metric = metric;
  out.space.kernels = &scan_kernels(isa);
  out.row_offset = found.low < 0 ? 128 : 0;
  out.range = found;
  return out;
}

void PackedBase::make_room(std::int64_t packed_rows, std::int64_t columns) {
  lay_out(packed_rows, columns);
  codes = AlignedArray<std::uint8_t>(panels() * steps * panel_step_bytes);
  ids = AlignedArray<std::uint32_t>(panels() * panel_rows);
}

namespace {

// The largest N of a panel that is not beyond comparison with the typical one. It chooses the unit
// in which lists of thresholds keep floats (LargestK): in that of one row of 3e38 all others would
// be the same, and no threshold would leave a row out.
double longest_comparable(const AlignedArray<PanelHead>& heads) {
  std::vector<double> norms;
  for (const PanelHead& head : heads)
    if (head.norm > 2 * least_length) norms.push_back(head.norm);
  if (norms.empty()) return 0;
  const auto middle = norms.begin() + std::ssize(norms) / 2;
  std::nth_element(norms.begin(), middle, norms.end());
  const double most = 0x1p32 * *middle;
  double longest = 0;
  for (const double norm : norms)
    if (norm <= most) longest = std::max(longest, norm);
  return longest;
}

}  // namespace

PackedBase PackedBase::certified(const BaseRows& base, std::span<const std::uint32_t> subset,
                                 Format format, CodingSpace space, int threads,
                                 const Progress& progress, std::int64_t tile_bytes,
                                 bool find_copies) {
  PackedBase out;
  out.tile_bytes = tile_bytes;
  out.format = format;
  out.space = std::move(space);
  if (find_copies) out.duplicates = Duplicates::find(base, subset, threads);
  pack_certified(out, base, out.duplicates.any() ? out.duplicates.distinct() : subset, false, {},
                 {}, threads, progress);
  return out;
}

PackedBase PackedBase::certified_in_order(const BaseRows& base,
                                          std::span<const std::uint32_t> order, Format format,
                                          CodingSpace space, const RowTerms& terms, int threads,
                                          const Progress& progress, std::int64_t tile_bytes) {
  PackedBase out;
  out.tile_bytes = tile_bytes;
  out.format = format;
  out.space = std::move(space);
  pack_certified(out, base, order, true, terms, {}, threads, progress);
  return out;
}

PackedBase PackedBase::certified_around(const BaseRows& base, std::span<const std::uint32_t> order,
                                        std::span<const std::int64_t> first_panel, Format format,
                                        CodingSpace space, ListCentres centres, int threads,
                                        const Progress& progress) {
  PackedBase out;
  out.format = format;
  out.space = std::move(space), out.centres = std::move(centres);
  pack_certified(out, base, order, true, {}, first_panel, threads, progress);
  return out;
}

void PackedBase::pack_certified(PackedBase& out, const BaseRows& base,
                                std::span<const std::uint32_t> subset, bool in_order,
                                const RowTerms& terms, std::span<const std::int64_t> first_panel,
                                int threads, const Progress& progress) {
  out.make_room(subset.empty() ? base.rows() : static_cast<std::int64_t>(subset.size()),
                base.cols());
  out.heads = AlignedArray<PanelHead>(out.panels());
  out.row_bias = AlignedArray<float>(out.panels() * panel_rows);
  const std::int64_t dim = out.dim;
  const Format format = out.format;
  const double slack = out.space.slack;
  const bool l2 = traits_of(out.space.metric).squared;
  const Interleaving interleaving{out.rows, out.tiles};
  Reporter reporter(progress, "pack base", out.tiles);
  parallel_for(threads, out.tiles, [&](std::int64_t tile) {
    const std::int64_t tile_rows = out.panels_per_tile * panel_rows;
    const std::int64_t count =
        in_order ? std::clamp<std::int64_t>(out.rows - tile * tile_rows, 0, tile_rows)
                 : interleaving.rows_of(tile);
    const auto row_of = [&](std::int64_t j) {
      const std::int64_t place = in_order ? tile * tile_rows + j : interleaving.row(tile, j);
      return subset.empty() ? place : std::int64_t{subset[place]};
    };
    // The rows of a tile lie far apart, so that the hardware does not prefetch the next.
    std::vector<std::byte> scratch(base.scratch_bytes());
    CodingSpace of_list;
    const CodingSpace* space = &out.space;
    const auto load = [&](std::int64_t row, double* to) {
      space->load(base.row_view(row, scratch.data()), 0, to);
    };
    // The end of the panels that are coded around one centre.
    std::int64_t end_of_list = 0;
    const auto enter_list = [&](std::int64_t panel) {
      if (!out.centres.any() || panel < end_of_list || panel >= first_panel.back()) return;
      const auto next = std::upper_bound(first_panel.begin(), first_panel.end(), panel);
      of_list = out.space.around(out.centres.values.row(next - first_panel.begin() - 1), dim);
      space = &of_list, end_of_list = *next;
    };
    const auto prefetch = [&](std::int64_t row) { base.prefetch(row, base.row_bytes()); };
    // Sorted by largest coordinate, then coded 32 at a time.
    std::vector<double> v(panel_rows * dim);
    std::vector<std::pair<float, std::uint32_t>> order(count);
    for (std::int64_t j = 0; j < count; ++j) {
      if (in_order) {
        order[j].second = static_cast<std::uint32_t>(row_of(j));
        continue;
      }
      if (j + 4 < count) prefetch(row_of(j + 4));
      load(row_of(j), v.data());
      order[j] = {static_cast<float>(out.space.kernels->measure(v.data(), dim).largest),
                  static_cast<std::uint32_t>(row_of(j))};
    }
    if (!in_order) std::sort(order.begin(), order.end());
    for (std::int64_t p = 0; p < out.panels_per_tile; ++p) {
      const std::int64_t panel = tile * out.panels_per_tile + p;
      enter_list(panel);
      const std::int64_t first = p * panel_rows;
      int filled = static_cast<int>(std::clamp<std::int64_t>(count - first, 0, panel_rows));
      while (filled > 0 && order[first + filled - 1].second == no_row) --filled;
      std::uint32_t* ids = out.ids.data() + panel * panel_rows;
      std::uint8_t* codes = out.codes.data() + panel * out.steps * panel_step_bytes;
      float* bias = out.row_bias.data() + panel * panel_rows;
      PanelHead& head = out.heads[panel];
      std::fill(ids + filled, ids + panel_rows, no_row);
      if (filled == 0) {  // nothing can pass: its largest g is far below any threshold
        head = {1, -std::numeric_limits<double>::max(), 0, 0, 0};
        continue;
      }
      double max_coordinate = 0, squares[panel_rows], max_squares = 0;
      for (int r = 0; r < panel_rows; ++r) {  // padding repeats the last row
        const std::int64_t j = first + std::min(r, filled - 1);
        if (r < filled) ids[r] = order[j].second;
        if (j + 4 < count && order[j + 4].second != no_row) prefetch(order[j + 4].second);
        load(order[j].second, v.data() + r * dim);
        const VectorSize size = space->kernels->measure(v.data() + r * dim, dim);
        max_coordinate = std::max(max_coordinate, size.largest);
        squares[r] = size.squares;
        max_squares = std::max(max_squares, squares[r]);
      }
      head.scale = scale_for(format, max_coordinate, std::sqrt(max_squares));
      head.norm = head.error = 0;
      for (int r = 0; r < panel_rows; ++r) {
        const CodeSize code = space->kernels->encode[format](
            v.data() + r * dim, dim, head.scale, format == format_int8 ? 128 : 0,
            codes + r * step_bytes, panel_step_bytes);
        const double norm = norm_above(squares[r], slack);
        head.norm = std::max({head.norm, norm, norm_above(code.squares, slack) * head.scale});
        // A row of a cosine space was divided by its length first: the error is relative to unit
        // size, whatever v is.
        const double size = traits_of(space->metric).unit_rows ? norm + space->mean_norm + 1
                                                               : norm + space->mean_norm;
        head.error =
            std::max(head.error, error_above(code.error, 0, slack) + (l2 ? norm : size) * slack);
      }
      // Float products that underflow are accounted for by N >= s / 2 (code_queries), which holds
      // but for rows that are too short for any scale.
      if (format == format_fp32 && max_coordinate > 0)
        head.norm = std::max(head.norm, head.scale / 2);
      const double off = space->off_of(head.norm);
      head.error += off;
      head.norm += off;
      // The row behind one with a given term is at most this long; `moved` is what its products
      // were moved by.
      const double moved = terms.values ? space->mean_norm + terms.norm : 0;
      const double longest = head.norm + moved;
      if (terms.values) head.error += terms.slack * longest;
      head.error += accumulation_error(format, dim) * head.norm;
      double b[panel_rows], lowest = 0;
      head.bias_max = 0;
      for (int r = 0; r < panel_rows; ++r) {
        b[r] = l2                    ? -squares[r] / 2
               : space->mean.empty() ? 0
                                     : dot(v.data() + r * dim, space->mean.data(), dim);
        if (terms.values) b[r] += terms.values[order[first + std::min(r, filled - 1)].second];
        head.bias_max = r == 0 ? b[r] : std::max(head.bias_max, b[r]);
        lowest = r == 0 ? b[r] : std::min(lowest, b[r]);
      }
      const double unit = 1 / (head.scale * head.scale);
      for (int r = 0; r < panel_rows; ++r)  // rounded towards zero: never below the true value
        bias[r] = static_cast<float>((b[r] - head.bias_max) * unit) * (1.0f - 0x1p-22f);
      const double mean_norm = space->mean_norm;
      head.slack = 2 * slack *
                       (l2 ? head.norm * head.norm
                           : mean_norm * (head.norm + mean_norm) +
                                 (traits_of(space->metric).unit_rows ? 1.0 : 0.0)) +
                   off * (l2 ? head.norm : mean_norm) + 2 * terms.slack * moved * longest;
      if (format == format_fp32) {  // the rounding of sum + row term, in float
        head.error += 0x1p-22 * head.norm;
        head.slack += 0x1p-22 * (head.norm * head.norm + (head.bias_max - lowest));
      }
      head.bias_max += head.slack;
    }
    reporter.add(1);
  });
  out.longest = longest_comparable(out.heads);
}

PackedBase PackedBase::integer(const BaseRows& base, std::span<const std::uint32_t> subset,
                               Metric metric, Isa isa, const ValueRange& found, int threads,
                               const Progress& progress, std::int64_t tile_bytes) {
  PackedBase out;
  static_cast<Coding&>(out) = whole_numbers(metric, isa, found);
  out.tile_bytes = tile_bytes;
  pack_integer(out, base, subset, false, threads, progress);
  return out;
}

PackedBase PackedBase::integer_in_order(const BaseRows& base, std::span<const std::uint32_t> order,
                                        Metric metric, Isa isa, const ValueRange& found,
                                        int threads, const Progress& progress,
                                        std::int64_t tile_bytes) {
  PackedBase out;
  static_cast<Coding&>(out) = whole_numbers(metric, isa, found);
  out.tile_bytes = tile_bytes;
  pack_integer(out, base, order, true, threads, progress);
  return out;
}

void PackedBase::sort_for_panels(const BaseRows& base, Metric metric,
                                 std::span<std::uint32_t> rows) {
  if (!traits_of(metric).squared) return;
  // The sum of a row has the parity of its sum of squares.
  std::vector<std::byte> scratch(base.scratch_bytes());
  const auto odd = std::stable_partition(rows.begin(), rows.end(), [&](std::uint32_t id) {
    return visit(base.row_view(id, scratch.data()),
                 [&](auto view) { return !has_odd_sum(view.row(0), view.cols()); });
  });
  // The one panel that has rows of both kinds.
  const std::int64_t mixed = (odd - rows.begin()) / panel_rows * panel_rows;
  std::sort(rows.begin() + mixed,
            rows.begin() + std::min<std::int64_t>(std::ssize(rows), mixed + panel_rows));
}

void PackedBase::pack_integer(PackedBase& out, const BaseRows& base,
                              std::span<const std::uint32_t> subset, bool in_order, int threads,
                              const Progress& progress) {
  out.make_room(subset.empty() ? base.rows() : static_cast<std::int64_t>(subset.size()),
                base.cols());
  out.row_squares = AlignedArray<std::uint32_t>(out.panels() * panel_rows);
  out.row_sums = AlignedArray<std::int32_t>(out.panels() * panel_rows);
  const Metric metric = out.space.metric;
  const Interleaving interleaving{out.rows, out.tiles};
  Reporter reporter(progress, "pack base", out.tiles);
  parallel_for(threads, out.tiles, [&](std::int64_t tile) {
    const std::int64_t tile_rows = out.panels_per_tile * panel_rows;
    const std::int64_t count =
        in_order ? std::clamp<std::int64_t>(out.rows - tile * tile_rows, 0, tile_rows)
                 : interleaving.rows_of(tile);
    std::vector<std::uint32_t> order(count);
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t place = in_order ? tile * tile_rows + j : interleaving.row(tile, j);
      order[j] = subset.empty() ? static_cast<std::uint32_t>(place) : subset[place];
    }
    std::vector<std::byte> scratch(base.scratch_bytes());
    std::vector<std::uint8_t> row_codes(out.steps * step_bytes);
    if (!in_order) sort_for_panels(base, metric, order);
    std::uint32_t last = no_row;
    for (std::int64_t p = 0; p < out.panels_per_tile; ++p) {
      const std::int64_t panel = tile * out.panels_per_tile + p, first = p * panel_rows;
      std::uint8_t* codes = out.codes.data() + panel * out.steps * panel_step_bytes;
      for (int r = 0; r < panel_rows; ++r) {
        const std::int64_t slot = panel * panel_rows + r;
        const bool real = first + r < count && order[first + r] != no_row;
        // Padding repeats the last row before it; there is none where nothing of a tile is filled.
        if (real) last = order[first + r];
        const std::uint32_t id = last;
        out.ids[slot] = real ? id : no_row;
        if (id == no_row) continue;
        visit(base.row_view(id, scratch.data()), [&](auto view) {
          const WholeSums sums =
              code_whole_numbers(view.row(0), out.dim, out.row_offset, row_codes.data());
          for (std::int64_t step = 0; step < out.steps; ++step)
            std::memcpy(codes + step * panel_step_bytes + r * step_bytes,
                        row_codes.data() + step * step_bytes, step_bytes);
          out.row_squares[slot] = traits_of(metric).squared ? sums.squares : 0;
          out.row_sums[slot] = sums.sum;
        });
      }
    }
    reporter.add(1);
  });
}

double code_queries(const Coding& base, AnyMatrixView queries, const std::int64_t* which,
                    std::int64_t count, const ValueRange& found, std::uint8_t* codes,
                    std::int64_t stride, QueryCode* out, double least_scale, double* own_scale) {
  const CodingSpace& space = base.space;
  const std::int64_t dim = base.dim;
  const double slack = space.slack;
  const int query_offset = base.shifts_queries(found) ? 128 : 0;
  std::vector<double> u(count * dim);
  double max_coordinate = 0, max_squares = 0;
  for (std::int64_t q = 0; q < count; ++q) {
    double* v = u.data() + q * dim;
    space.load(queries, which[q], v);
    const auto [coordinate, squares] = space.kernels->measure(v, dim);
    max_coordinate = std::max(max_coordinate, coordinate);
    max_squares = std::max(max_squares, squares);
    out[q].squares = squares;
  }
  const bool zero = max_coordinate == 0;
  const double own =
      base.is_integer ? 1 : scale_for(base.format, max_coordinate, std::sqrt(max_squares));
  if (own_scale) *own_scale = zero ? 0 : own;
  const double scale = zero && least_scale > 0 ? least_scale  // any suits zeros
                                               : std::max(least_scale, own);
  for (std::int64_t q = 0; q < count; ++q) {
    double* v = u.data() + q * dim;
    for (std::int64_t i = 0; query_offset && i < dim; ++i) v[i] -= query_offset;
    const CodeSize code =
        space.kernels->encode[base.format](v, dim, scale, 0, codes + q * step_bytes, stride);
    const double norm = norm_above(out[q].squares, slack);
    const double off = base.is_integer ? 0 : space.off_of(norm);
    out[q].norm = norm + off;
    // The rounding of centring, and for cosine that of normalising.
    out[q].error =
        error_above(code.error, traits_of(space.metric).unit_rows ? norm + 1 : norm, slack) + off;
    // The underflow of float products; a panel's N is at least half its scale.
    if (base.format == format_fp32) out[q].error += static_cast<double>(dim) * 0x1p-147 * scale;
    const int offset = base.is_integer ? base.row_offset : base.format == format_int8 ? 128 : 0;
    out[q].correction = static_cast<std::int32_t>(offset * code.sum);
    out[q].constant =
        !traits_of(space.metric).squared && !space.mean.empty()
            ? dot(v, space.mean.data(), dim) + dot(space.mean.data(), space.mean.data(), dim)
            : 0;
  }
  return scale;
}

PackedQueries pack_queries(const Coding& base, AnyMatrixView queries, const std::int64_t* which,
                           std::int64_t count, int group_size, const ValueRange& found,
                           const CodedQueries* coded, bool fits_last) {
  PackedQueries out;
  out.group_size = group_size, out.steps = base.steps;
  out.groups = (count + group_size - 1) / group_size;
  out.last_group_size = group_size;
  if (fits_last)
    for (const int size : group_sizes)
      if (size >= count - (out.groups - 1) * group_size) {
        out.last_group_size = std::min(size, group_size);
        break;
      }
  const auto codes = std::make_shared<AlignedArray<std::uint8_t>>(out.groups * out.steps *
                                                                  group_size * step_bytes);
  out.codes = codes;
  out.heads.resize(out.groups);
  out.squares.resize(count), out.constant.resize(count);
  out.sum_shift_mask = base.shifts_queries(found) ? -1 : 0;
  for (std::int64_t g = 0; g < out.groups; ++g) {
    GroupHead& head = out.heads[g];
    head.count = static_cast<int>(std::min<std::int64_t>(group_size, count - g * group_size));
    const int size = out.size_of(g);
    std::int64_t members[max_group];
    QueryCode known[max_group];
    for (int q = 0; q < size; ++q) members[q] = which[g * group_size + std::min(q, head.count - 1)];
    std::uint8_t* to = codes->data() + g * out.steps * group_size * step_bytes;
    if (coded && coded->have(members, size)) {
      head.scale = coded->scale;
      for (int q = 0; q < size; ++q) {
        known[q] = coded->heads[members[q]];
        const std::uint8_t* from = coded->codes.data() + members[q] * coded->stride;
        for (std::int64_t step = 0; step < out.steps; ++step)
          std::memcpy(to + (step * size + q) * step_bytes, from + step * step_bytes, step_bytes);
      }
    } else {
      head.scale = code_queries(base, queries, members, size, found, to, size * step_bytes, known);
    }
    for (int q = 0; q < head_lanes; ++q) {
      // Lanes without a query repeat the last, so that no NaN arises from them.
      const QueryCode& code = known[std::min(q, size - 1)];
      head.norm[q] = code.norm, head.error[q] = code.error;
      const bool real = q < size;
      head.correction[q] = real ? code.correction : 0;
      head.threshold[q] = real ? -std::numeric_limits<double>::infinity() : 0;
      if (!real) head.limit[q] = 0, head.limit_bit[q] = 0, head.bound_row[q] = 0;
      if (q >= head.count) continue;
      out.squares[g * group_size + q] = code.squares;
      out.constant[g * group_size + q] = code.constant;
    }
  }
  return out;
}

}  // namespace knear::detail
