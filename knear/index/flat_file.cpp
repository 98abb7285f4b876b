// How a FlatIndex lies in a .knear file: docs/knear-files.md has the same for readers.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/flat_state.hpp"
#include "knear/io/archive.hpp"

namespace knear::detail {
namespace {

constexpr std::uint64_t no_type = 255;
constexpr std::int64_t max_rows = std::int64_t{1} << 31;

struct IndexFields {
  std::uint64_t dim, metric, element_type;
  std::int64_t next_id, size;
  std::uint64_t segments;
};

struct SegmentFields {
  std::int64_t rows, matrix_rows;  // matrix_rows 0: kept as panels
  std::int64_t first_id, live;
  std::int64_t integer, low, high;  // ValueRange
  std::uint64_t forms;              // bit p: has a form for FirstPass p
};

struct FormFields {
  std::int64_t rows, steps, tiles, panels_per_tile;
  std::int64_t row_offset, low, high;  // integer
  double mean_norm, slack, longest;    // certified
  std::int64_t worth_up_to;            // certified: the k up to which it is known to pay
};

template <class T>
void add(io::ArchiveWriter& writer, std::string name, const AlignedArray<T>& array) {
  if (array.size() > 0) writer.add(std::move(name), array.data(), array.bytes());
}
template <class T>
void add(io::ArchiveWriter& writer, std::string name, const std::vector<T>& list) {
  if (!list.empty()) writer.add(std::move(name), list.data(), list.size() * sizeof(T));
}

void add_form(io::ArchiveWriter& writer, const std::string& prefix, const PackedBase& form,
              std::int64_t worth_up_to) {
  const FormFields fields{form.rows,        form.steps,     form.tiles,      form.panels_per_tile,
                          form.row_offset,  form.range.low, form.range.high, form.space.mean_norm,
                          form.space.slack, form.longest,   worth_up_to};
  if (form.guard) form.guard->touch_all(1);  // what was altered must not get a new checksum
  writer.add_copy(prefix + "fields", &fields, sizeof fields);
  add(writer, prefix + "codes", form.codes);
  add(writer, prefix + "heads", form.heads);
  add(writer, prefix + "bias", form.row_bias);
  add(writer, prefix + "squares", form.row_squares);
  add(writer, prefix + "sums", form.row_sums);
  add(writer, prefix + "rows", form.ids);
  add(writer, prefix + "mean", form.space.mean);
  if (!form.duplicates.any()) return;
  add(writer, prefix + "distinct", form.duplicates.distinct());
  add(writer, prefix + "firsts", form.duplicates.firsts());
  add(writer, prefix + "begins", form.duplicates.begins());
  add(writer, prefix + "copies", form.duplicates.all_others());
}

std::string form_prefix(std::size_t segment, FirstPass pass) {
  return fmt::format("{}/{}/", segment, name_of(pass));
}

// Sections of a file, each asked for by name. What nobody asks for is an error in the end: it might
// change what the rest means.
class Sections {
 public:
  explicit Sections(std::shared_ptr<const io::Archive> archive) : archive_(std::move(archive)) {}

  bool has(const std::string& name) const { return archive_->has(name); }
  [[noreturn]] void refuse(const std::string& name, std::string_view what) const {
    throw CorruptFile("{}: section '{}' is wrong: {}", archive_->path(), name, what);
  }

  template <class T>
  T fields(const std::string& name) {
    const io::Section section = read(name);
    if (section.bytes != sizeof(T)) refuse(name, "it has another length");
    T out;
    std::memcpy(&out, section.data, sizeof out);
    return out;
  }
  // `count` elements, checked now.
  template <class T>
  AlignedArray<T> array(const std::string& name, std::int64_t count) {
    const io::Section section = read(name);
    check_length(name, section, count, sizeof(T));
    return borrowed<T>(section);
  }
  // As many as there are; none if there is no such section.
  template <class T>
  std::vector<T> list(const std::string& name) {
    if (!has(name)) return {};
    const io::Section section = read(name);
    if (section.bytes % sizeof(T) != 0) refuse(name, "its length is no multiple of its elements");
    std::vector<T> out(section.bytes / sizeof(T));
    std::memcpy(out.data(), section.data, section.bytes);
    return out;
  }
  // Checked when used.
  io::Archive::Guarded guarded(const std::string& name, std::int64_t bytes) {
    used_.insert(name);
    io::Archive::Guarded out = archive_->guarded(name);
    check_length(name, out.section, bytes, 1);
    return out;
  }
  template <class T>
  AlignedArray<T> borrowed(const io::Section& section) const {
    return AlignedArray<T>::borrowed(reinterpret_cast<const T*>(section.data),
                                     section.bytes / sizeof(T), archive_);
  }
  std::shared_ptr<const void> keeper() const { return archive_; }

  void check_all_used() const {
    for (const io::Section& section : archive_->sections())
      if (!section.optional && !used_.contains(section.name))
        throw CorruptFile("{}: section '{}' is unknown to this program", archive_->path(),
                          section.name);
  }

 private:
  io::Section read(const std::string& name) {
    used_.insert(name);
    return archive_->read(name);
  }
  void check_length(const std::string& name, const io::Section& section, std::int64_t count,
                    std::size_t size) const {
    if (section.bytes % size != 0 || section.bytes / size != static_cast<std::uint64_t>(count))
      refuse(name,
             fmt::format("it has {} bytes, where {} x {} are due", section.bytes, count, size));
  }

  std::shared_ptr<const io::Archive> archive_;
  std::set<std::string, std::less<>> used_;
};

std::shared_ptr<const PackedBase> load_form(Sections& in, std::size_t segment, FirstPass pass,
                                            std::int64_t rows, std::int64_t dim, Metric metric,
                                            std::int64_t& worth_up_to) {
  const std::string prefix = form_prefix(segment, pass), about = prefix + "fields";
  const auto fields = in.fields<FormFields>(about);
  auto form = std::make_shared<PackedBase>();
  worth_up_to = std::clamp<std::int64_t>(fields.worth_up_to, 0, max_k);
  form->is_integer = pass == FirstPass::integer;
  form->format = form->is_integer ? format_int8 : format_of(pass);
  const int per = form->format == format_int8 ? 4 : form->format == format_int16 ? 2 : 1;
  if (fields.rows < 1 || fields.rows > rows || (form->is_integer && fields.rows != rows) ||
      fields.steps != (dim + per - 1) / per || fields.tiles < 1 || fields.tiles > fields.rows ||
      fields.panels_per_tile < 1 || fields.panels_per_tile > 4096 ||
      fields.tiles * fields.panels_per_tile > max_rows ||
      fields.tiles * fields.panels_per_tile * panel_rows < fields.rows)
    in.refuse(about, "its numbers of rows and panels do not fit");
  form->rows = fields.rows, form->dim = dim, form->steps = fields.steps;
  form->tiles = fields.tiles, form->panels_per_tile = fields.panels_per_tile;
  const std::int64_t panels = form->panels(), slots = panels * panel_rows;
  form->space.metric = metric;
  form->space.kernels = &scan_kernels(active_isa());
  const auto codes = in.guarded(prefix + "codes", panels * form->steps * panel_step_bytes);
  form->codes = in.borrowed<std::uint8_t>(codes.section);
  form->guard = codes.blocks;
  form->ids = in.array<std::uint32_t>(prefix + "rows", slots);
  for (const std::uint32_t row : form->ids)
    if (row != PackedBase::no_row && row >= rows)
      in.refuse(prefix + "rows", "it holds a row beyond the last");
  if (form->is_integer) {
    if (metric == Metric::cosine || (fields.row_offset != 0 && fields.row_offset != 128) ||
        fields.low < -128 || fields.low > fields.high || fields.high > 255 ||
        (fields.low < 0 && (fields.high > 127 || fields.row_offset != 128)))
      in.refuse(about, "its range is none of 8 bits");
    form->row_offset = static_cast<int>(fields.row_offset);
    form->range.low = static_cast<int>(fields.low);
    form->range.high = static_cast<int>(fields.high);
    form->row_squares = in.array<std::uint32_t>(prefix + "squares", slots);
    form->row_sums = in.array<std::int32_t>(prefix + "sums", slots);
    return form;
  }
  form->heads = in.array<PanelHead>(prefix + "heads", panels);
  for (const PanelHead& head : form->heads)
    if (!(head.scale > 0) || !std::isfinite(head.scale) || !std::isfinite(head.bias_max) ||
        !std::isfinite(head.error) || !std::isfinite(head.norm) || !std::isfinite(head.slack))
      in.refuse(prefix + "heads", "it holds a NaN or infinity");
  form->row_bias = in.array<float>(prefix + "bias", slots);
  if (in.has(prefix + "mean")) {
    form->space.mean = in.list<double>(prefix + "mean");
    if (std::ssize(form->space.mean) != dim) in.refuse(prefix + "mean", "it has another length");
    for (const double x : form->space.mean)
      if (!std::isfinite(x)) in.refuse(prefix + "mean", "it holds a NaN or infinity");
  }
  if (!(fields.mean_norm >= 0) || !(fields.slack >= 0) || !(fields.longest >= 0))
    in.refuse(about, "its bounds are none");
  form->space.mean_norm = fields.mean_norm, form->space.slack = fields.slack;
  form->longest = fields.longest;
  if (in.has(prefix + "distinct")) {
    auto distinct = in.list<std::uint32_t>(prefix + "distinct");
    auto firsts = in.list<std::uint32_t>(prefix + "firsts");
    auto begins = in.list<std::uint32_t>(prefix + "begins");
    auto copies = in.list<std::uint32_t>(prefix + "copies");
    try {
      form->duplicates = Duplicates::from_lists(std::move(distinct), std::move(firsts),
                                                std::move(begins), std::move(copies), rows);
    } catch (const CorruptFile& error) {
      in.refuse(prefix + "distinct", error.what());
    }
  }
  return form;
}

Segment load_segment(Sections& in, std::size_t number, const SavedFlat& saved, ElementType type) {
  const std::string prefix = fmt::format("{}/", number), about = prefix + "fields";
  const auto fields = in.fields<SegmentFields>(about);
  const std::int64_t rows = fields.rows;
  const bool panels = fields.matrix_rows == 0;
  if (rows < 1 || rows > max_rows || fields.matrix_rows < 0 || fields.matrix_rows > max_rows ||
      (!panels && rows > fields.matrix_rows) || fields.live < 1 || fields.live > rows)
    in.refuse(about, "its numbers of rows do not fit");
  // Ids ascend, so the last one says whether they are below next_id.
  Id first = fields.first_id, last = 0;
  AlignedArray<Id> ids;
  if (in.has(prefix + "ids")) {
    ids = in.array<Id>(prefix + "ids", rows);
    for (std::int64_t i = 1; i < rows; ++i)
      if (ids[static_cast<std::size_t>(i - 1)] >= ids[static_cast<std::size_t>(i)])
        in.refuse(prefix + "ids", "they do not ascend");
    first = ids[0], last = ids[static_cast<std::size_t>(rows - 1)];
  } else if (__builtin_add_overflow(first, rows - 1, &last)) {
    in.refuse(about, "its ids are beyond 63 bits");
  }
  constexpr Id most = std::numeric_limits<Id>::max();
  const std::uint64_t known =
      panels ? 1u << static_cast<int>(FirstPass::integer) : (1u << first_pass_count) - 1;
  if (fields.forms & ~known) in.refuse(about, "it names a form that there is not");
  if (first < 0 || (last >= saved.state.next_id && saved.state.next_id != most))
    in.refuse(about, "its ids are not those of the index");
  AlignedArray<std::uint32_t> order;
  if (in.has(prefix + "order")) {
    order = in.array<std::uint32_t>(prefix + "order", rows);
  } else if (panels || rows != fields.matrix_rows) {
    in.refuse(prefix + "order", "it is missing");
  }
  ValueRange found;
  found.integer = fields.integer != 0;
  if (fields.low < -128 || fields.low > 255 || fields.high < -128 || fields.high > 255 ||
      (found.integer && fields.low > fields.high))
    in.refuse(about, "its range is none of 8 bits");
  found.low = static_cast<int>(fields.low), found.high = static_cast<int>(fields.high);

  Segment out;
  std::int64_t places = fields.matrix_rows, worth = 0;
  std::shared_ptr<SegmentRows> made;
  if (panels) {
    auto form = load_form(in, number, FirstPass::integer, rows, saved.dim, saved.metric, worth);
    places = form->panels() * panel_rows;
    // Each row has a slot, and no other slot has a row.
    std::int64_t filled = 0;
    for (const std::uint32_t row : form->ids) filled += row != PackedBase::no_row;
    if (filled != rows) in.refuse(prefix + "order", "it has other rows than the panels");
    for (std::size_t row = 0; row < order.size(); ++row)
      if (order[row] >= places || form->ids[order[row]] != row)
        in.refuse(prefix + "order", "it holds a place that is not that of its row");
    made = SegmentRows::of_panels(std::move(form), std::move(order), std::move(ids), first,
                                  saved.metric);
  } else {
    for (const std::uint32_t place : order)
      if (place >= places) in.refuse(prefix + "order", "it holds a place beyond the last");
    const auto vectors =
        in.guarded(prefix + "vectors", fields.matrix_rows * saved.dim * size_of(type));
    const AnyMatrixView view(type, vectors.section.data, fields.matrix_rows, saved.dim, saved.dim);
    made = SegmentRows::of_matrix(
        {view, in.keeper(), found, first, std::move(ids), std::move(order), vectors.blocks},
        saved.metric);
    for (int p = 0; p < first_pass_count; ++p) {
      const auto pass = static_cast<FirstPass>(p);
      if (!(fields.forms >> p & 1)) continue;
      if (pass != FirstPass::int8 && pass != FirstPass::int16 && pass != FirstPass::fp32)
        in.refuse(about, "it names a form that there is not");
      made->prepared().adopt(pass,
                             load_form(in, number, pass, rows, saved.dim, saved.metric, worth));
      made->prepared().note_worth(pass, worth, true);
    }
  }
  out.rows = made;
  out.live = RowSet(rows);
  if (in.has(prefix + "live")) {
    const auto words = in.array<std::uint64_t>(prefix + "live", (rows + 63) / 64);
    for (std::int64_t row = 0; row < rows; ++row)
      if (!(words[static_cast<std::size_t>(row / 64)] >> (row % 64) & 1)) out.live.remove(row);
  }
  if (out.size() != fields.live) in.refuse(about, "it counts other live rows");
  return out;
}

}  // namespace

void save_flat(const State& state, std::int64_t dim, Metric metric, const std::string& path,
               const Progress& progress) {
  io::ArchiveWriter writer("Flat");
  const IndexFields fields{static_cast<std::uint64_t>(dim),
                           static_cast<std::uint64_t>(metric),
                           state.type ? static_cast<std::uint64_t>(*state.type) : no_type,
                           state.next_id,
                           state.size,
                           state.segments.size()};
  writer.add_copy("index", &fields, sizeof fields);
  for (std::size_t s = 0; s < state.segments.size(); ++s) {
    const Segment& segment = state.segments[s];
    const SegmentRows& rows = *segment.rows;
    const std::string prefix = fmt::format("{}/", s);
    SegmentFields about{rows.rows(),          rows.is_panels() ? 0 : rows.matrix().rows(),
                        rows.first_id(),      segment.size(),
                        rows.found().integer, rows.found().low,
                        rows.found().high,    0};
    for (int p = 0; p < first_pass_count; ++p)
      if (rows.prepared().is_adopted(static_cast<FirstPass>(p)))
        about.forms |= std::uint64_t{1} << p;
    writer.add_copy(prefix + "fields", &about, sizeof about);
    if (rows.has_own_ids())
      writer.add(prefix + "ids", rows.own_ids().data(), rows.own_ids().size_bytes());
    if (!rows.order().empty())
      writer.add(prefix + "order", rows.order().data(), rows.order().size_bytes());
    if (!segment.live.all()) {
      std::vector<std::uint64_t> words(static_cast<std::size_t>((rows.rows() + 63) / 64), 0);
      for (std::int64_t row = 0; row < rows.rows(); ++row)
        words[static_cast<std::size_t>(row / 64)] |= std::uint64_t{segment.live.contains(row)}
                                                     << (row % 64);
      writer.add_copy(prefix + "live", words.data(), words.size() * 8);
    }
    if (!rows.is_panels()) {
      if (rows.guard()) rows.guard()->touch_all(1);
      writer.add(prefix + "vectors", rows.matrix().data(),
                 static_cast<std::size_t>(rows.matrix().bytes()));
    }
    for (int p = 0; p < first_pass_count; ++p)
      if (const auto pass = static_cast<FirstPass>(p); rows.prepared().is_adopted(pass))
        add_form(writer, form_prefix(s, pass), *rows.prepared().kept(pass),
                 rows.prepared().worth_up_to(pass));
  }
  writer.write(path, progress);
}

SavedFlat load_flat(const std::string& path) {
  auto archive = io::Archive::open(path);
  if (archive->kind() != "Flat")
    throw CorruptFile("{} holds an index of kind '{}', this program reads Flat", path,
                      archive->kind());
  Sections in(archive);
  const auto fields = in.fields<IndexFields>("index");
  SavedFlat saved;
  if (fields.dim < 1 || fields.dim > 65536 || fields.metric > 2 ||
      (fields.element_type > 4 && fields.element_type != no_type) || fields.next_id < 0 ||
      fields.segments > (1 << 20) || (fields.segments > 0 && fields.element_type == no_type))
    in.refuse("index", "its dim, metric, element type or segments are none");
  saved.dim = static_cast<std::int64_t>(fields.dim);
  saved.metric = static_cast<Metric>(fields.metric);
  if (fields.element_type != no_type)
    saved.state.type = static_cast<ElementType>(fields.element_type);
  saved.state.next_id = fields.next_id;
  for (std::size_t s = 0; s < fields.segments; ++s) {
    saved.state.segments.push_back(load_segment(in, s, saved, *saved.state.type));
    saved.state.size += saved.state.segments.back().size();
  }
  if (saved.state.size != fields.size) in.refuse("index", "it counts other rows");
  in.check_all_used();
  return saved;
}

}  // namespace knear::detail
