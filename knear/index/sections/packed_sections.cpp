#include "knear/index/sections/packed_sections.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace knear::detail {
namespace {

struct PackedFields {
  std::int64_t rows, steps, tiles, panels_per_tile;
  std::int64_t row_offset, low, high;  // integer
  double mean_norm, slack, longest;    // certified
  std::int64_t worth_up_to;            // certified: the k up to which it is known to pay
};

struct PrefixFields {
  std::int64_t columns, clusters;
  std::int64_t integer;                             // 1 if codes of rows are the values themselves
  double off_relative, off_absolute, usual_length;  // PrefixMap::Parts
  double row_mean_norm, row_slack;                  // the space of codes of rows
};

struct OutlookFields {
  std::int64_t k, format, possible;
  double passed;
};

template <class T>
void add(io::ArchiveWriter& writer, std::string name, const AlignedArray<T>& array) {
  if (array.size() > 0) writer.add(std::move(name), array.data(), array.bytes());
}
template <class T>
void add(io::ArchiveWriter& writer, std::string name, const std::vector<T>& list) {
  if (!list.empty()) writer.add(std::move(name), list.data(), list.size() * sizeof(T));
}

bool is_bound(double x) { return x >= 0 && x <= 1e60; }

// Whether no element is a NaN or larger than `most`, by default the largest float: what a mean of
// rows can be, and what can be squared and summed.
template <class List>
bool all_within(const List& list, double most = std::numeric_limits<float>::max()) {
  return std::all_of(list.begin(), list.end(), [&](auto x) { return std::fabs(x) <= most; });
}

}  // namespace

void add_packed(io::ArchiveWriter& writer, const std::string& prefix, const PackedBase& packed,
                std::int64_t worth_up_to) {
  const PackedFields fields{
      packed.rows,        packed.steps,     packed.tiles,      packed.panels_per_tile,
      packed.row_offset,  packed.range.low, packed.range.high, packed.space.mean_norm,
      packed.space.slack, packed.longest,   worth_up_to};
  if (packed.guard) packed.guard->touch_all(1);  // what was altered must not get a new checksum
  writer.add_copy(prefix + "fields", &fields, sizeof fields);
  add(writer, prefix + "codes", packed.codes);
  add(writer, prefix + "heads", packed.heads);
  add(writer, prefix + "bias", packed.row_bias);
  add(writer, prefix + "squares", packed.row_squares);
  add(writer, prefix + "sums", packed.row_sums);
  add(writer, prefix + "rows", packed.ids);
  add(writer, prefix + "mean", packed.space.mean);
  if (!packed.duplicates.any()) return;
  add(writer, prefix + "distinct", packed.duplicates.distinct());
  add(writer, prefix + "firsts", packed.duplicates.firsts());
  add(writer, prefix + "begins", packed.duplicates.begins());
  add(writer, prefix + "copies", packed.duplicates.all_others());
}

std::shared_ptr<PackedBase> load_packed(Sections& in, const std::string& prefix, FirstPass pass,
                                        const PackedShape& shape, std::int64_t& worth_up_to) {
  const std::string about = prefix + "fields";
  const auto fields = in.fields<PackedFields>(about);
  auto packed = std::make_shared<PackedBase>();
  worth_up_to = std::clamp<std::int64_t>(fields.worth_up_to, 0, max_k);
  packed->is_integer = pass == FirstPass::integer;
  packed->format = packed->is_integer ? format_int8 : format_of(pass);
  const int per = packed->format == format_int8 ? 4 : packed->format == format_int16 ? 2 : 1;
  if (fields.rows < 1 || fields.rows > shape.rows ||
      (packed->is_integer && fields.rows != shape.rows) ||
      fields.steps != (shape.dim + per - 1) / per || fields.tiles < 1 ||
      fields.tiles > fields.rows || fields.panels_per_tile < 1 || fields.panels_per_tile > 4096 ||
      fields.tiles * fields.panels_per_tile > max_rows ||
      fields.tiles * fields.panels_per_tile * panel_rows < fields.rows)
    in.refuse(about, "its numbers of rows and panels do not fit");
  packed->rows = fields.rows, packed->dim = shape.dim, packed->steps = fields.steps;
  packed->tiles = fields.tiles, packed->panels_per_tile = fields.panels_per_tile;
  const std::int64_t panels = packed->panels(), slots = panels * panel_rows;
  packed->space.metric = shape.metric;
  packed->space.kernels = &scan_kernels(active_isa());
  const auto codes = in.guarded(prefix + "codes", panels * packed->steps * panel_step_bytes);
  packed->codes = in.borrowed<std::uint8_t>(codes.section);
  packed->guard = codes.blocks;
  packed->ids = in.array<std::uint32_t>(prefix + "rows", slots);
  for (const std::uint32_t row : packed->ids)
    if (row != PackedBase::no_row && row >= shape.rows)
      in.refuse(prefix + "rows", "it holds a row beyond the last");
  if (packed->is_integer) {
    if (traits_of(shape.metric).unit_rows || (fields.row_offset != 0 && fields.row_offset != 128) ||
        fields.low < -128 || fields.low > fields.high || fields.high > 255 ||
        (fields.low < 0 && (fields.high > 127 || fields.row_offset != 128)))
      in.refuse(about, "its range is none of 8 bits");
    packed->row_offset = static_cast<int>(fields.row_offset);
    packed->range.low = static_cast<int>(fields.low);
    packed->range.high = static_cast<int>(fields.high);
    packed->row_squares = in.array<std::uint32_t>(prefix + "squares", slots);
    packed->row_sums = in.array<std::int32_t>(prefix + "sums", slots);
    return packed;
  }
  packed->heads = in.array<PanelHead>(prefix + "heads", panels);
  for (const PanelHead& head : packed->heads)
    if (!(head.scale > 0) || !std::isfinite(head.scale) || !std::isfinite(head.bias_max) ||
        !std::isfinite(head.error) || !std::isfinite(head.norm) || !std::isfinite(head.slack))
      in.refuse(prefix + "heads", "it holds a NaN or infinity");
  packed->row_bias = in.array<float>(prefix + "bias", slots);
  if (in.has(prefix + "mean")) {
    packed->space.mean = in.list<double>(prefix + "mean");
    if (std::ssize(packed->space.mean) != shape.dim)
      in.refuse(prefix + "mean", "it has another length");
    if (!all_within(packed->space.mean)) in.refuse(prefix + "mean", "it holds a NaN or infinity");
  }
  if (!(fields.mean_norm >= 0) || !(fields.slack >= 0) || !(fields.longest >= 0))
    in.refuse(about, "its bounds are none");
  packed->space.mean_norm = fields.mean_norm, packed->space.slack = fields.slack;
  packed->longest = fields.longest;
  if (in.has(prefix + "distinct")) {
    auto distinct = in.list<std::uint32_t>(prefix + "distinct");
    auto firsts = in.list<std::uint32_t>(prefix + "firsts");
    auto begins = in.list<std::uint32_t>(prefix + "begins");
    auto copies = in.list<std::uint32_t>(prefix + "copies");
    try {
      packed->duplicates = Duplicates::from_lists(std::move(distinct), std::move(firsts),
                                                  std::move(begins), std::move(copies), shape.rows);
    } catch (const CorruptFile& error) {
      in.refuse(prefix + "distinct", error.what());
    }
  }
  return packed;
}

void add_prefix(io::ArchiveWriter& writer, const std::string& prefix,
                const AdoptedPrefix& adopted) {
  const PrefixBase& base = *adopted.base;
  const PrefixMap::Parts& map = base.map.parts();
  const PerRowCodes& codes = base.codes;
  if (codes.guard) codes.guard->touch_all(1);  // what was altered must not get a new checksum
  writer.set_optional(true);
  const PrefixFields fields{base.map.columns(),    base.clusters(),  codes.is_integer,
                            map.off_relative,      map.off_absolute, map.usual_length,
                            codes.space.mean_norm, codes.space.slack};
  writer.add_copy(prefix + "fields", &fields, sizeof fields);
  add(writer, prefix + "mean", map.mean);
  add(writer, prefix + "matrix", map.matrix);
  add(writer, prefix + "rest", map.rest);
  add_packed(writer, prefix + "panels/", base.panels, 0);
  writer.add(prefix + "centroids", base.centroids.data(),
             checked_size(base.clusters(), base.centroids.cols(), sizeof(float)));
  add(writer, prefix + "clusters", base.cluster_begin);
  add(writer, prefix + "row_codes", codes.codes);
  add(writer, prefix + "row_heads", codes.heads);
  add(writer, prefix + "row_squares", codes.squares);
  add(writer, prefix + "row_sums", codes.sums);
  add(writer, prefix + "row_mean", codes.space.mean);
  std::vector<OutlookFields> outlook;
  for (const PrefixOutlook& at : adopted.outlook)
    outlook.push_back({at.k, at.forecast.format, at.forecast.possible, at.forecast.passed});
  writer.add_copy(prefix + "outlook", outlook.data(), outlook.size() * sizeof(OutlookFields));
  writer.set_optional(false);
}

bool has_prefix(const Sections& in, const std::string& prefix) { return in.has(prefix + "fields"); }

namespace {

PrefixMap load_map(Sections& in, const std::string& prefix, const PrefixFields& fields,
                   const PackedShape& shape) {
  PrefixMap::Parts parts;
  parts.mean = in.list<double>(prefix + "mean");
  if (std::ssize(parts.mean) != shape.dim) in.refuse(prefix + "mean", "it has another length");
  parts.matrix = in.array<double>(prefix + "matrix", shape.dim * fields.columns);
  parts.rest = in.list<double>(prefix + "rest");
  if (std::ssize(parts.rest) != fields.columns) in.refuse(prefix + "rest", "it has another length");
  if (!all_within(parts.mean)) in.refuse(prefix + "mean", "it holds a NaN or infinity");
  // Their vectors are orthonormal, so no entry exceeds 1 by more than rounding.
  if (!all_within(parts.matrix, 1.01)) in.refuse(prefix + "matrix", "it turns no vector");
  if (!all_within(parts.rest, 1.01)) in.refuse(prefix + "rest", "it turns no vector");
  parts.off_relative = fields.off_relative, parts.off_absolute = fields.off_absolute;
  parts.usual_length = fields.usual_length;
  return PrefixMap(shape.metric, std::move(parts), active_isa());
}

// The panels of a prefix hold each row once, or each of the distinct ones, and no other slot has a
// row.
void check_slots(Sections& in, const std::string& prefix, const PackedBase& panels,
                 std::int64_t rows) {
  const Duplicates& duplicates = panels.duplicates;
  const std::string about = prefix + "panels/rows";
  const auto copies = std::ssize(duplicates.all_others());
  if (panels.rows + copies != rows) in.refuse(about, "it has other rows than the segment");
  std::vector<char> in_slot(rows, 0);
  for (std::int64_t slot = 0; slot < std::ssize(panels.ids); ++slot) {
    const std::uint32_t row = panels.ids[slot];
    if ((row == PackedBase::no_row) != (slot >= panels.rows))
      in.refuse(about, "it has a row where there is padding, or none where there is not");
    if (row == PackedBase::no_row) continue;
    if (in_slot[row]) in.refuse(about, "it has a row twice");
    in_slot[row] = 1;
  }
  for (const std::uint32_t row : duplicates.all_others())
    if (in_slot[row]++) in.refuse(prefix + "panels/copies", "it has a row that is no copy");
}

PerRowCodes load_row_codes(Sections& in, const std::string& prefix, const PrefixFields& fields,
                           const PackedShape& shape, const ValueRange& found, std::int64_t slots) {
  PerRowCodes codes;
  codes.is_integer = fields.integer != 0;
  codes.dim = shape.dim, codes.stride = (shape.dim + 3) / 4 * 4;
  codes.space.metric = shape.metric;
  codes.space.kernels = &scan_kernels(active_isa());
  codes.space.mean_norm = fields.row_mean_norm, codes.space.slack = fields.row_slack;
  const auto bytes = in.guarded(prefix + "row_codes", slots * codes.stride + 64);
  codes.codes = in.borrowed<std::uint8_t>(bytes.section);
  codes.guard = bytes.blocks;
  if (codes.is_integer) {
    codes.row_offset = found.low < 0 ? 128 : 0;
    codes.range = found;
    codes.squares = in.array<std::uint32_t>(prefix + "row_squares", slots);
    codes.sums = in.array<std::int32_t>(prefix + "row_sums", slots);
    return codes;
  }
  codes.heads = in.array<PerRowCodes::Head>(prefix + "row_heads", slots);
  for (const PerRowCodes::Head& head : codes.heads)
    if (!(head.scale > 0) || !std::isfinite(head.scale) || !is_bound(head.error) ||
        !is_bound(head.norm) || !std::isfinite(head.bias))
      in.refuse(prefix + "row_heads", "it holds what is no bound");
  codes.space.mean = in.list<double>(prefix + "row_mean");
  if (!codes.space.mean.empty() && std::ssize(codes.space.mean) != shape.dim)
    in.refuse(prefix + "row_mean", "it has another length");
  if (!all_within(codes.space.mean)) in.refuse(prefix + "row_mean", "it holds a NaN or infinity");
  return codes;
}

}  // namespace

AdoptedPrefix load_prefix(Sections& in, const std::string& prefix, const PackedShape& shape,
                          const ValueRange& found) {
  const std::string about = prefix + "fields";
  const auto fields = in.fields<PrefixFields>(about);
  const bool ip = traits_of(shape.metric).product;
  if (fields.columns < least_prefix_dim || fields.columns > shape.dim || fields.columns % 8 != 0 ||
      fields.clusters < 1 || fields.clusters > shape.rows || shape.rows < least_prefix_rows)
    in.refuse(about, "its numbers of columns and clusters do not fit");
  if (fields.integer != 0 &&
      (fields.integer != 1 || !found.integer || traits_of(shape.metric).unit_rows))
    in.refuse(about, "its codes of rows are not those of this segment");
  if (!is_bound(fields.off_relative) || !is_bound(fields.off_absolute) ||
      !is_bound(fields.usual_length) || !is_bound(fields.row_mean_norm) ||
      !is_bound(fields.row_slack))
    in.refuse(about, "its bounds are none");
  auto made = std::make_shared<PrefixBase>();
  PrefixBase& base = *made;
  base.map = load_map(in, prefix, fields, shape);
  std::int64_t worth = 0;
  base.panels =
      std::move(*load_packed(in, prefix + "panels/", FirstPass::int8,
                             {shape.rows, fields.columns, ip ? Metric::ip : Metric::l2}, worth));
  base.panels.space.off_relative = fields.off_relative;
  base.panels.space.off_absolute = fields.off_absolute;
  check_slots(in, prefix, base.panels, shape.rows);
  base.codes = load_row_codes(in, prefix, fields, shape, found, base.panels.rows);
  const std::int64_t of_centroid = fields.columns + ip;
  const auto centroids = in.array<float>(prefix + "centroids", fields.clusters * of_centroid);
  if (!all_within(centroids)) in.refuse(prefix + "centroids", "it holds a NaN or infinity");
  base.centroids = Matrix<float>(fields.clusters, of_centroid);
  std::copy_n(centroids.data(), centroids.size(), base.centroids.data());
  base.pack_centroids(shape.metric, 1);
  base.cluster_begin = in.list<std::uint32_t>(prefix + "clusters");
  if (std::ssize(base.cluster_begin) != fields.clusters + 1 || base.cluster_begin.front() != 0 ||
      base.cluster_begin.back() != base.panels.rows ||
      !std::is_sorted(base.cluster_begin.begin(), base.cluster_begin.end()))
    in.refuse(prefix + "clusters", "they are no division of the rows");
  AdoptedPrefix out{std::move(made), {}};
  for (const auto& at : in.list<OutlookFields>(prefix + "outlook")) {
    if (at.k < 1 || at.k > max_k || at.format < 0 || at.format >= format_count || at.possible < 0 ||
        at.possible > 1 || !is_bound(at.passed))
      in.refuse(prefix + "outlook", "it holds what nobody can expect");
    PrefixForecast forecast{{fields.columns, fields.clusters}};
    forecast.passed = at.passed, forecast.possible = at.possible != 0;
    forecast.format = static_cast<Format>(at.format);
    out.outlook.push_back({at.k, forecast});
  }
  return out;
}

}  // namespace knear::detail
