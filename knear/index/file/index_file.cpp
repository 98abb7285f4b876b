// How an index lies in a .knear file: docs/knear-files.md has the same for readers.
#include "knear/index/file/index_file.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/value_range.hpp"
#include "knear/index/file/graph_sections.hpp"
#include "knear/index/file/packed_sections.hpp"
#include "knear/index/file/recall_sections.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/impl/index_over_centroids.hpp"
#include "knear/index/life/index_state.hpp"

namespace knear::detail {
namespace {

constexpr std::uint64_t no_type = 255;

struct IndexFields {
  std::uint64_t dim, metric, element_type;
  std::int64_t next_id, size;
  std::uint64_t segments;
};

struct ListFields {
  std::int64_t lists;
  std::uint64_t trained;  // 1: there are centroids
  double longest;         // Lifts
};

struct SegmentFields {
  std::int64_t rows, matrix_rows;  // matrix_rows 0: kept as panels
  std::int64_t first_id, live;
  std::int64_t integer, low, high;  // ValueRange
  std::uint64_t forms;              // bit p: has a form for FirstPass p
};

struct CodeFields {
  std::int64_t parts, bits;  // CodeShape
  std::uint64_t residual, trained;
};

// What codes are refined by: 0 the vectors, 1 halves of them, 2 codes ("refine/codes").
struct RefineFields {
  std::uint64_t form, type;  // type: of halves
};

// TransformShape; and of what it was trained to, a step of a Transform.
struct TransformFields {
  std::uint64_t kind, whiten, rotate;
  std::int64_t dim_out, sub_quantizers, bits;
};
struct StepFields {
  std::uint64_t kind;
  std::int64_t dim_in, dim_out;
};

// Of a segment of codes.
struct CodedFields {
  std::int64_t rows, live, lists;  // lists that have rows
};

std::string packed_name(std::size_t segment, FirstPass pass) {
  return fmt::format("{}/{}/", segment, name_of(pass));
}

// Where lists begin among the panels of a packed form: lists + 1 numbers.
std::vector<std::int64_t> load_first_panels(Sections& in, const std::string& name,
                                            std::int64_t lists, std::int64_t panels) {
  const auto stored = in.array<std::int64_t>(name, lists + 1);
  std::vector<std::int64_t> out(stored.begin(), stored.end());
  if (out.front() != 0 || out.back() > panels || !std::is_sorted(out.begin(), out.end()))
    in.refuse(name, "they are no division of the panels");
  return out;
}

std::vector<float> load_radii(Sections& in, const std::string& name, std::int64_t lists) {
  const auto stored = in.array<float>(name, lists);
  for (const float radius : stored)
    if (!(radius >= 0)) in.refuse(name, "it holds none");
  return {stored.begin(), stored.end()};
}

// Each row is in one list.
std::shared_ptr<const PackedLists> load_lists(Sections& in, const std::string& name,
                                              std::int64_t lists, std::int64_t rows,
                                              PackedBase packed) {
  // Lists of several segments are scanned as one, in which rows are numbered on by either count.
  if (packed.rows != rows) in.refuse(name, "they hold fewer rows than there are");
  auto out = std::make_shared<PackedLists>();
  out->first_panel = load_first_panels(in, name, lists, packed.panels());
  out->packed = std::move(packed);
  std::vector<bool> seen(static_cast<std::size_t>(out->packed.rows));
  std::int64_t count = 0;
  const auto end = static_cast<std::size_t>(out->first_panel.back() * panel_rows);
  for (std::size_t slot = 0; slot < out->packed.ids.size(); ++slot) {
    const std::uint32_t row = out->packed.ids[slot];
    if (row == PackedBase::no_row) continue;
    if (slot >= end || row >= seen.size() || seen[row])
      in.refuse(name, "the panels hold a row twice or in no list");
    seen[row] = true, ++count;
  }
  if (count != out->packed.rows) in.refuse(name, "a row is in no list");
  return out;
}

RowSet load_live(Sections& in, const std::string& name, std::int64_t rows) {
  RowSet out(rows);
  if (!in.has(name)) return out;
  const auto words = in.array<std::uint64_t>(name, (rows + 63) / 64);
  for (std::int64_t row = 0; row < rows; ++row)
    if (!(words[static_cast<std::size_t>(row / 64)] >> (row % 64) & 1)) out.remove(row);
  return out;
}

std::vector<float> load_finite(Sections& in, const std::string& name, std::int64_t count) {
  const auto stored = in.array<float>(name, count);
  if (!std::all_of(stored.begin(), stored.end(), [](float x) { return std::isfinite(x); }))
    in.refuse(name, "it holds a NaN or infinity");
  return {stored.begin(), stored.end()};
}

// Codecs that a file does not name: the number of parts tells them apart.
bool is_unnamed(CodeKind kind) { return kind == CodeKind::product || kind == CodeKind::scalar; }
CodeKind codec_in_file(Sections& in, const std::string& prefix, std::int64_t parts) {
  const std::string section = prefix + "codec";
  if (!in.has(section)) return parts > 0 ? CodeKind::product : CodeKind::scalar;
  const std::vector<char> name = in.list<char>(section);
  const auto codecs = all_codecs();
  for (std::size_t i = 0; i < codecs.size(); ++i)
    if (codecs[i]->kind() == std::string_view(name.data(), name.size()))
      return static_cast<CodeKind>(i);
  in.refuse(section, "this program has no such codec");
}

// A quantiser of codes of `dim` columns, if it is trained, from sections whose names begin with
// `prefix`.
std::shared_ptr<const RowCoder> load_coder(Sections& in, const std::string& prefix,
                                           std::int64_t dim, Metric metric,
                                           const std::shared_ptr<const CoarseQuantizer>& coarse,
                                           CodeShape& shape) {
  const std::string about = prefix + "codes";
  const auto fields = in.fields<CodeFields>(about);
  const CodeKind kind = codec_in_file(in, prefix, fields.parts);
  const Codec& codec = codec_of(kind);
  shape = {kind, fields.parts, static_cast<int>(fields.bits), fields.residual == 1};
  if (fields.parts < 0 || fields.bits < 1 || fields.bits > 32 || !codec.is_valid(shape, dim) ||
      fields.residual > 1 || fields.trained > 1)
    in.refuse(about, "its numbers are none");
  if (fields.trained == 0) return nullptr;
  std::vector<float> all;
  std::string section;
  for (const Codec::Numbers& numbers : codec.numbers(shape, dim)) {
    section = prefix + std::string(numbers.section);
    const std::vector<float> some = load_finite(in, section, numbers.count);
    all.insert(all.end(), some.begin(), some.end());
  }
  try {
    return RowCoder::of_numbers(shape, dim, metric, coarse, all);
  } catch (const InvalidArgument& wrong) {
    in.refuse(section, wrong.what());
  }
}

void load_refine(Sections& in, SavedIndex& saved) {
  if (!in.has("refine")) return;
  const auto fields = in.fields<RefineFields>("refine");
  const bool halves = fields.type == static_cast<std::uint64_t>(ElementType::f16) ||
                      fields.type == static_cast<std::uint64_t>(ElementType::bf16);
  if (fields.form > 2 || (fields.form == 1 && !halves)) in.refuse("refine", "its numbers are none");
  saved.shape.refine.emplace();
  if (fields.form == 1) saved.shape.refine->rounded = static_cast<ElementType>(fields.type);
  if (fields.form != 2) return;
  CodeShape shape;
  saved.state.refiner =
      load_coder(in, "refine/", saved.shape.dim, saved.shape.metric, nullptr, shape);
  saved.shape.refine->codes = shape;
  if (!saved.state.refiner && saved.state.coder)
    in.refuse("refine/codes", "they have no quantizer");
}

void load_transforms(Sections& in, SavedIndex& saved) {
  using Kind = TransformShape::Kind;
  if (!in.has("transforms")) return;
  std::int64_t dim = saved.shape.dim;
  const auto all = in.list<TransformFields>("transforms");
  if (all.empty()) in.refuse("transforms", "there are none");
  for (const TransformFields& fields : all) {
    const auto kind = static_cast<Kind>(fields.kind);
    if (fields.kind > static_cast<std::uint64_t>(Kind::unit_norm) || fields.whiten > 1 ||
        fields.rotate > 1 || fields.dim_out < 1 || fields.dim_out > 65536 ||
        (kind == Kind::unit_norm && fields.dim_out != dim) ||
        ((kind == Kind::pca || kind == Kind::opq) && fields.dim_out > dim) ||
        (kind == Kind::opq &&
         (fields.sub_quantizers < 1 || fields.dim_out % fields.sub_quantizers != 0)) ||
        (fields.bits != 4 && fields.bits != 8))
      in.refuse("transforms", "their numbers are none");
    dim = fields.dim_out;
    saved.shape.transforms.push_back({kind, dim, fields.whiten == 1, fields.rotate == 1,
                                      fields.sub_quantizers, static_cast<int>(fields.bits)});
  }
  if (!in.has("transform/steps")) return;
  std::vector<Transform> chain;
  const auto steps = in.list<StepFields>("transform/steps");
  dim = saved.shape.dim;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const StepFields& step = steps[s];
    const std::string prefix = fmt::format("transform/{}/", s);
    if (step.kind > static_cast<std::uint64_t>(Transform::Kind::unit_norm) || step.dim_in != dim ||
        step.dim_out < 1 || step.dim_out > 65536)
      in.refuse("transform/steps", "they do not follow one another");
    const auto kind = static_cast<Transform::Kind>(step.kind);
    if (kind != Transform::Kind::linear && step.dim_out != dim)
      in.refuse("transform/steps", "a step changes the columns that has no matrix");
    std::vector<float> offset;
    if (in.has(prefix + "offset")) offset = load_finite(in, prefix + "offset", step.dim_out);
    try {
      if (kind == Transform::Kind::linear) {
        const auto matrix = load_finite(in, prefix + "matrix", step.dim_out * step.dim_in);
        chain.push_back(Transform::linear({matrix.data(), step.dim_out, step.dim_in}, offset));
      } else if (kind == Transform::Kind::shift) {
        chain.push_back(Transform::shift(offset));
      } else {
        chain.push_back(Transform::unit_norm(dim));
      }
    } catch (const Error& wrong) {
      in.refuse("transform/steps", wrong.what());
    }
    dim = step.dim_out;
  }
  if (chain.empty() || dim != saved.shape.inner_dim())
    in.refuse("transform/steps", "they lead to other columns");
  saved.state.transform = Transform::chain(chain);
}

Segment load_codes(Sections& in, std::size_t number, const SavedIndex& saved) {
  const std::string prefix = fmt::format("{}/", number), about = prefix + "fields";
  const auto fields = in.fields<CodedFields>(about);
  const std::int64_t rows = fields.rows, most_lists = std::max<std::int64_t>(1, saved.shape.lists);
  const RowCoder& coder = *saved.state.coder;
  if (rows < 1 || rows > max_rows || fields.live < 1 || fields.live > rows || fields.lists < 1 ||
      fields.lists > std::min(most_lists, rows))
    in.refuse(about, "its numbers of rows do not fit");
  const auto lists = in.array<std::uint32_t>(prefix + "lists", fields.lists);
  const auto begin = in.array<std::int64_t>(prefix + "begin", fields.lists + 1);
  for (std::size_t l = 0; l < lists.size(); ++l)
    if (lists[l] >= most_lists || (l > 0 && lists[l] <= lists[l - 1]))
      in.refuse(prefix + "lists", "they do not ascend");
  for (std::size_t l = 0; l < lists.size(); ++l)
    if (begin[l + 1] <= begin[l]) in.refuse(prefix + "begin", "a list is empty");
  if (begin[0] != 0 || begin[lists.size()] != rows)
    in.refuse(prefix + "begin", "they are no division of the rows");
  const auto codes =
      in.guarded(prefix + "codes",
                 rows * coder.code_size() + static_cast<std::int64_t>(CodedLists::code_padding));
  AlignedArray<float> scalars;
  if (coder.has_scalars()) {
    scalars = in.array<float>(prefix + "scalars",
                              rows + static_cast<std::int64_t>(CodedLists::scalar_padding));
    if (!std::all_of(scalars.begin(), scalars.end(), [](float x) { return std::isfinite(x); }))
      in.refuse(prefix + "scalars", "it holds a NaN or infinity");
  }
  CodedRows made;
  made.lists = std::make_shared<const CodedLists>(
      std::vector<std::uint32_t>(lists.begin(), lists.end()),
      std::vector<std::int64_t>(begin.begin(), begin.end()), coder.code_size(),
      in.borrowed<std::uint8_t>(codes.section), std::move(scalars), codes.blocks);
  made.ids = in.array<Id>(prefix + "ids", rows);
  constexpr Id most = std::numeric_limits<Id>::max();
  for (std::size_t l = 0; l < lists.size(); ++l)
    for (std::int64_t row = begin[l]; row < begin[l + 1]; ++row) {
      const Id id = made.ids[static_cast<std::size_t>(row)];
      if (id < 0 || (id >= saved.state.next_id && saved.state.next_id != most))
        in.refuse(prefix + "ids", "they are not those of the index");
      if (row > begin[l] && made.ids[static_cast<std::size_t>(row) - 1] >= id)
        in.refuse(prefix + "ids", "they do not ascend in a list");
    }
  if (saved.shape.refine) {
    const RowCoder* refiner = saved.state.refiner.get();
    const ElementType type = refiner ? ElementType::u8 : *saved.state.type;
    const std::int64_t columns = refiner ? refiner->code_size() : saved.shape.dim;
    const auto vectors = in.guarded(prefix + "vectors", rows * columns * size_of(type));
    made.vectors = AnyMatrixView(type, vectors.section.data, rows, columns, columns);
    made.keeper = in.keeper(), made.guard = vectors.blocks;
  }
  Segment out{SegmentRows::of_codes(std::move(made)), load_live(in, prefix + "live", rows)};
  if (out.size() != fields.live) in.refuse(about, "it counts other live rows");
  return out;
}

Segment load_segment(Sections& in, std::size_t number, const SavedIndex& saved, ElementType type) {
  const IndexShape& index = saved.shape;
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

  const PackedShape shape{rows, index.inner_dim(), index.metric};
  std::vector<float> radii;
  if (index.lists > 0) radii = load_radii(in, prefix + "radii", index.lists);
  Segment out;
  std::int64_t places = fields.matrix_rows, worth = 0;
  std::shared_ptr<SegmentRows> made;
  if (panels) {
    auto form =
        load_packed(in, packed_name(number, FirstPass::integer), FirstPass::integer, shape, worth);
    places = form->panels() * panel_rows;
    // Each row has a slot, and no other slot has a row.
    std::int64_t filled = 0;
    for (const std::uint32_t row : form->ids) filled += row != PackedBase::no_row;
    if (filled != rows) in.refuse(prefix + "order", "it has other rows than the panels");
    for (std::size_t row = 0; row < order.size(); ++row)
      if (order[row] >= places || form->ids[order[row]] != row)
        in.refuse(prefix + "order", "it holds a place that is not that of its row");
    if (index.lists > 0)
      made = SegmentRows::of_listed_panels(
          load_lists(in, prefix + "lists", index.lists, rows, std::move(*form)), std::move(radii),
          std::move(order), std::move(ids), first, index.metric);
    else
      made = SegmentRows::of_panels(std::move(form), std::move(order), std::move(ids), first,
                                    index.metric);
  } else {
    for (const std::uint32_t place : order)
      if (place >= places) in.refuse(prefix + "order", "it holds a place beyond the last");
    const auto vectors =
        in.guarded(prefix + "vectors", fields.matrix_rows * index.inner_dim() * size_of(type));
    const AnyMatrixView view(type, vectors.section.data, fields.matrix_rows, index.inner_dim(),
                             index.inner_dim());
    made = SegmentRows::of_matrix(
        {view, in.keeper(), found, first, std::move(ids), std::move(order), vectors.blocks},
        index.metric);
    const bool few = index.lists > 0 && in.has(prefix + "list_of");
    if (few) {
      const auto of = in.array<std::uint32_t>(prefix + "list_of", rows);
      for (const std::uint32_t list : of)
        if (list >= index.lists) in.refuse(prefix + "list_of", "it holds a list beyond the last");
      made->set_lists(std::make_shared<ListedRows>(RowLists({of.data(), of.size()}, index.lists)),
                      std::move(radii));
    } else if (index.lists > 0 && fields.forms != 1u << static_cast<int>(FirstPass::int8)) {
      in.refuse(about, "its lists are packed in no form");
    }
    for (int p = 0; p < first_pass_count; ++p) {
      const auto pass = static_cast<FirstPass>(p);
      if (!(fields.forms >> p & 1)) continue;
      if (pass != FirstPass::int8 && pass != FirstPass::int16 && pass != FirstPass::fp32)
        in.refuse(about, "it names a form that there is not");
      if (few) in.refuse(about, "it names a form, but its lists are not packed");
      auto form = load_packed(in, packed_name(number, pass), pass, shape, worth);
      if (index.lists > 0) {
        if (form->duplicates.any()) in.refuse(about, "its lists leave out copies of rows");
        if (in.has(prefix + "around")) {
          if (in.fields<std::int64_t>(prefix + "around") != 1)
            in.refuse(prefix + "around", "it must be 1");
          form->centres = saved.state.coarse->centres();
        }
        made->set_lists(std::make_shared<ListedRows>(
                            load_lists(in, prefix + "lists", index.lists, rows, std::move(*form))),
                        std::move(radii));
      } else {
        made->prepared().adopt(pass, std::move(form));
      }
      if (made->prepared().is_adopted(pass)) made->prepared().note_worth(pass, worth, true);
    }
  }
  const std::string about_prefix = packed_name(number, FirstPass::prefix);
  if (has_prefix(in, about_prefix))
    made->prepared().adopt_prefix(load_prefix(in, about_prefix, shape, made->found()));
  out.rows = made;
  out.live = load_live(in, prefix + "live", rows);
  if (out.size() != fields.live) in.refuse(about, "it counts other live rows");
  return out;
}

void add_live(io::ArchiveWriter& writer, const std::string& name, const RowSet& live) {
  if (live.all()) return;
  std::vector<std::uint64_t> words(static_cast<std::size_t>((live.rows() + 63) / 64), 0);
  for (std::int64_t row = 0; row < live.rows(); ++row)
    words[static_cast<std::size_t>(row / 64)] |= std::uint64_t{live.contains(row)} << (row % 64);
  writer.add_copy(name, words.data(), words.size() * 8);
}

void add_coder(io::ArchiveWriter& writer, const std::string& prefix, const CodeShape& shape,
               const RowCoder* coder) {
  const CodeFields fields{shape.parts, shape.bits, shape.residual, coder != nullptr};
  writer.add_copy(prefix + "codes", &fields, sizeof fields);
  const Codec& codec = codec_of(shape);
  if (!is_unnamed(shape.kind))
    writer.add_copy(prefix + "codec", codec.kind().data(), codec.kind().size());
  if (!coder) return;
  const RowQuantizer& quantizer = coder->quantizer();
  const std::vector<Codec::Numbers> sections = codec.numbers(shape, quantizer.dim());
  for (std::size_t i = 0; const std::span<const float> some : quantizer.numbers())
    writer.add(prefix + std::string(sections[i++].section), some.data(), some.size_bytes());
}

void add_refine(io::ArchiveWriter& writer, const RefineShape& shape, const RowCoder* refiner) {
  const RefineFields fields{shape.rounded ? 1u
                            : shape.codes ? 2u
                                          : 0u,
                            static_cast<std::uint64_t>(shape.rounded.value_or(ElementType::f32))};
  writer.add_copy("refine", &fields, sizeof fields);
  if (shape.codes) add_coder(writer, "refine/", *shape.codes, refiner);
}

void add_transforms(io::ArchiveWriter& writer, const IndexShape& shape,
                    const std::optional<Transform>& transform) {
  std::vector<TransformFields> all;
  for (const TransformShape& one : shape.transforms)
    all.push_back({static_cast<std::uint64_t>(one.kind), one.whiten, one.rotate, one.dim_out,
                   one.sub_quantizers, one.bits});
  writer.add_copy("transforms", all.data(), all.size() * sizeof all[0]);
  if (!transform) return;
  std::vector<StepFields> steps;
  for (const Transform::Step& step : transform->steps()) {
    const std::string prefix = fmt::format("transform/{}/", steps.size());
    steps.push_back({static_cast<std::uint64_t>(step.kind), step.dim_in, step.dim_out});
    if (step.matrix.rows() > 0)
      writer.add_copy(
          prefix + "matrix", step.matrix.data(),
          static_cast<std::size_t>(step.matrix.rows() * step.matrix.cols()) * sizeof(float));
    if (!step.offset.empty())
      writer.add_copy(prefix + "offset", step.offset.data(), step.offset.size_bytes());
  }
  writer.add_copy("transform/steps", steps.data(), steps.size() * sizeof steps[0]);
}

void add_codes(io::ArchiveWriter& writer, const std::string& prefix, const Segment& segment) {
  const CodedRows& rows = segment.rows->coded();
  const CodedLists& lists = *rows.lists;
  const CodedFields fields{lists.rows(), segment.size(), std::ssize(lists.lists())};
  writer.add_copy(prefix + "fields", &fields, sizeof fields);
  writer.add(prefix + "lists", lists.lists().data(), lists.lists().size() * sizeof(std::uint32_t));
  writer.add(prefix + "begin", lists.begin().data(), lists.begin().size() * sizeof(std::int64_t));
  writer.add(prefix + "codes", lists.codes().data(), lists.codes().bytes());
  if (lists.has_scalars())
    writer.add(prefix + "scalars", lists.scalars(), lists.all_scalars().bytes());
  writer.add(prefix + "ids", rows.ids.data(), rows.ids.bytes());
  add_live(writer, prefix + "live", segment.live);
  if (rows.vectors.cols() == 0) return;
  if (rows.guard) rows.guard->touch_all(1);
  writer.add(prefix + "vectors", rows.vectors.data(),
             static_cast<std::size_t>(rows.vectors.bytes()));
}

SavedIndex load_parts(Sections& in, std::string_view kind);

// An index over centroids [lists x dim], nullptr if it is not trained; its shape.
std::shared_ptr<const CentroidIndex> load_centroid_index(Sections in, std::int64_t lists,
                                                         std::int64_t dim, Metric metric,
                                                         bool trained, IndexShape& shape) {
  const std::vector<char> kind = in.list<char>("kind");
  SavedIndex saved = load_parts(in, {kind.data(), kind.size()});
  shape = saved.shape;
  if (shape.dim != dim || shape.metric != metric || !shape.coarse.empty())
    in.refuse("index", "it is none over these centroids");
  const auto probes = in.fields<std::int64_t>("probes");
  if (!trained) return nullptr;
  if (shape.lists > 0 ? probes < 1 || probes > shape.lists : probes != 0)
    in.refuse("probes", "they are more than the lists, or none");
  auto index = std::make_unique<IndexImpl>(shape, std::move(saved.state));
  std::vector<Id> numbers(static_cast<std::size_t>(lists));
  std::iota(numbers.begin(), numbers.end(), 0);
  if (index->ids() != numbers) in.refuse("index", "it holds others than the centroids");
  return std::make_shared<const IndexOverCentroids>(std::move(index), probes);
}

// The centroids of inverted lists, if they are trained.
void load_coarse(Sections& in, SavedIndex& saved) {
  const auto fields = in.fields<ListFields>("lists");
  if (fields.lists < 1 || fields.lists > (1 << 24) || fields.trained > 1)
    in.refuse("lists", "its numbers are none");
  saved.shape.lists = fields.lists;
  const std::int64_t dim = saved.shape.inner_dim();
  const Metric metric = saved.shape.metric;
  CentroidIndexes indexes;
  if (in.has("coarse/kind")) {
    IndexShape shape;
    indexes.plain = load_centroid_index(in.nested("coarse/"), fields.lists, dim,
                                        centroid_metric(metric), fields.trained == 1, shape);
    saved.shape.coarse = {shape};
  }
  if (fields.trained == 0) return;
  const auto stored = in.array<float>("centroids", fields.lists * dim);
  if (!std::all_of(stored.begin(), stored.end(), [](float x) { return std::isfinite(x); }))
    in.refuse("centroids", "it holds a NaN or infinity");
  Matrix<float> centroids(fields.lists, dim);
  std::copy_n(stored.data(), stored.size(), centroids.data());
  Lifts lifts;
  if (fields.longest != 0) {
    lifts.longest = fields.longest;
    lifts.values = in.list<float>("lifts");
    if (!traits_of(saved.shape.metric).lifted || std::ssize(lifts.values) != fields.lists ||
        !(fields.longest > 0 && fields.longest < 1e15) ||
        !std::all_of(lifts.values.begin(), lifts.values.end(),
                     [](float x) { return x >= 0 && std::isfinite(x); }))
      in.refuse("lifts", "they are none");
    if (indexes.plain) {
      IndexShape shape;
      indexes.lifted =
          load_centroid_index(in.nested("lifted/"), fields.lists, dim + 1, Metric::l2, true, shape);
    }
  }
  saved.state.coarse = std::make_shared<const CoarseQuantizer>(
      std::move(centroids), metric, std::move(lifts), std::move(indexes));
}

// Written after add_parts(): what it borrows that nobody else holds.
struct Kept {
  std::vector<AdoptedPrefix> prefixes;
  std::shared_ptr<const RowGraph> graph;
};
void add_parts(io::ArchiveWriter& writer, const State& state, const IndexShape& shape, Kept& kept);

// index: nullptr before training.
void add_centroid_index(io::ArchiveWriter& writer, const std::string& prefix,
                        const IndexShape& shape, const CentroidIndex* index, Kept& kept) {
  writer.set_prefix(prefix);
  const std::string kind = shape.kind();
  const std::int64_t probes = index ? index->probes() : 0;
  writer.add_copy("kind", kind.data(), kind.size());
  writer.add_copy("probes", &probes, sizeof probes);
  if (index) {
    const IndexImpl& impl = index->index();
    add_parts(writer, *impl.state(), impl.shape, kept);
  } else {
    add_parts(writer, {}, shape, kept);
  }
  writer.set_prefix("");
}

void add_coarse(io::ArchiveWriter& writer, const State& state, const IndexShape& shape,
                Kept& kept) {
  const CoarseQuantizer* const coarse = state.coarse.get();
  const ListFields lists{shape.lists, coarse != nullptr, coarse ? coarse->lifts().longest : 0};
  writer.add_copy("lists", &lists, sizeof lists);
  if (coarse) {
    const MatrixView<float> centroids = coarse->centroids();
    writer.add("centroids", centroids.data(),
               static_cast<std::size_t>(centroids.rows() * centroids.cols()) * sizeof(float));
  }
  if (lists.longest > 0)
    writer.add("lifts", coarse->lifts().values.data(),
               coarse->lifts().values.size() * sizeof(float));
  if (shape.coarse.empty()) return;
  IndexShape inner = shape.coarse.front();
  inner.dim = shape.inner_dim();
  inner.metric = centroid_metric(shape.metric);
  add_centroid_index(writer, "coarse/", inner, coarse ? coarse->indexes().plain.get() : nullptr,
                     kept);
  if (coarse && coarse->indexes().lifted)
    add_centroid_index(writer, "lifted/", inner, coarse->indexes().lifted.get(), kept);
}

void add_parts(io::ArchiveWriter& writer, const State& state, const IndexShape& shape, Kept& kept) {
  const IndexFields fields{static_cast<std::uint64_t>(shape.dim),
                           static_cast<std::uint64_t>(shape.metric),
                           state.type ? static_cast<std::uint64_t>(*state.type) : no_type,
                           state.next_id,
                           state.size,
                           state.segments.size()};
  writer.add_copy("index", &fields, sizeof fields);
  const auto made = state.graph ? state.graph->made() : std::nullopt;
  if (shape.has_graph()) {
    add_graph(writer, shape, made);
    if (made) kept.graph = made->graph;
  }
  if (shape.lists > 0) add_coarse(writer, state, shape, kept);
  if (!shape.transforms.empty()) add_transforms(writer, shape, state.transform);
  if (shape.rounded) {
    const auto type = static_cast<std::uint64_t>(*shape.rounded);
    writer.add_copy("rounded", &type, sizeof type);
  }
  if (shape.codes) add_coder(writer, "", *shape.codes, state.coder.get());
  if (shape.refine) add_refine(writer, *shape.refine, state.refiner.get());
  for (std::size_t s = 0; s < state.segments.size(); ++s) {
    const Segment& segment = state.segments[s];
    const SegmentRows& rows = *segment.rows;
    const std::string prefix = fmt::format("{}/", s);
    if (rows.is_codes()) {
      add_codes(writer, prefix, segment);
      continue;
    }
    SegmentFields about{rows.rows(),          rows.is_panels() ? 0 : rows.matrix().rows(),
                        rows.first_id(),      segment.size(),
                        rows.found().integer, rows.found().low,
                        rows.found().high,    0};
    for (int p = 0; p < first_pass_count; ++p)
      if (rows.prepared().is_adopted(static_cast<FirstPass>(p)))
        about.forms |= std::uint64_t{1} << p;
    // Lists that are coded around their centroids are no form for a scan of all rows.
    const auto around =
        rows.lists() && !rows.lists()->numbers() && rows.lists()->first_form()->has_centres()
            ? rows.lists()->first_form()
            : nullptr;
    if (around) about.forms |= std::uint64_t{1} << static_cast<int>(FirstPass::int8);
    writer.add_copy(prefix + "fields", &about, sizeof about);
    if (rows.has_own_ids())
      writer.add(prefix + "ids", rows.own_ids().data(), rows.own_ids().size_bytes());
    if (!rows.order().empty())
      writer.add(prefix + "order", rows.order().data(), rows.order().size_bytes());
    add_live(writer, prefix + "live", segment.live);
    if (!rows.is_panels()) {
      if (rows.guard()) rows.guard()->touch_all(1);
      writer.add(prefix + "vectors", rows.matrix().data(),
                 static_cast<std::size_t>(rows.matrix().bytes()));
    }
    if (const ListedRows* lists = rows.lists()) {
      writer.add(prefix + "radii", rows.radii().data(), rows.radii().size_bytes());
      if (lists->numbers()) {
        const std::vector<std::uint32_t> of = lists->list_of();
        writer.add_copy(prefix + "list_of", of.data(), of.size() * sizeof of[0]);
      } else {
        const std::vector<std::int64_t>& first = lists->first_form()->first_panel;
        writer.add(prefix + "lists", first.data(), first.size() * sizeof first[0]);
      }
    }
    if (around) {
      const std::int64_t yes = 1;
      writer.add_copy(prefix + "around", &yes, sizeof yes);
      add_packed(writer, packed_name(s, FirstPass::int8), around->packed, 0);
    }
    for (int p = 0; p < first_pass_count; ++p)
      if (const auto pass = static_cast<FirstPass>(p); !around && rows.prepared().is_adopted(pass))
        add_packed(writer, packed_name(s, pass), *rows.prepared().kept(pass),
                   rows.prepared().worth_up_to(pass));
    const AdoptedPrefix& adopted = kept.prefixes.emplace_back(rows.prepared().adopted_prefix());
    if (adopted.base) add_prefix(writer, packed_name(s, FirstPass::prefix), adopted);
  }
  if (state.recall) add_curves(writer, *state.recall, state.changed_rows, state.fresh_keys.get());
  if (made) add_curves(writer, *made->curves, 0, nullptr);
  if (state.known) add_known(writer, *state.known);
}

void check_kind(const Sections& in, std::string_view kind) {
  std::vector<std::string> kinds = {"Flat", "GraphFlat"};
  for (const std::string_view lists : {"", "IVF"}) {
    if (!lists.empty()) kinds.push_back("IVFFlat");
    for (const Codec* codec : all_codecs())
      kinds.push_back(fmt::format("{}{}", lists, codec->kind()));
  }
  if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end()) return;
  const std::string last = kinds.back();
  kinds.pop_back();
  in.refuse("index", fmt::format("it is of kind '{}', this program reads {} and {}", kind,
                                 fmt::join(kinds, ", "), last));
}

SavedIndex load_parts(Sections& in, std::string_view kind) {
  const bool has_lists = kind.starts_with("IVF"), has_codes = !kind.ends_with("Flat");
  check_kind(in, kind);
  const auto fields = in.fields<IndexFields>("index");
  SavedIndex saved;
  if (fields.dim < 1 || fields.dim > 65536 || fields.metric >= std::size(all_metrics) ||
      (fields.element_type >= element_type_count && fields.element_type != no_type) ||
      fields.next_id < 0 || fields.segments > (1 << 20) ||
      (fields.segments > 0 && fields.element_type == no_type))
    in.refuse("index", "its dim, metric, element type or segments are none");
  saved.shape.dim = static_cast<std::int64_t>(fields.dim);
  saved.shape.metric = static_cast<Metric>(fields.metric);
  load_transforms(in, saved);
  if (!traits_of(saved.shape.metric).by_products &&
      (kind != "Flat" || !saved.shape.transforms.empty() || in.has("rounded")))
    in.refuse("index",
              fmt::format("its metric is {}, which only Flat has", name_of(saved.shape.metric)));
  if (kind == "GraphFlat") {
    auto made = load_graph(in, saved.shape);
    if (made && in.has("recall/rows")) made->curves = load_curves(in, 1, true);
    saved.state.graph =
        made ? std::make_shared<GraphOfState>(std::move(*made)) : std::make_shared<GraphOfState>();
  }
  if (in.has("rounded")) {
    const auto type = static_cast<ElementType>(in.fields<std::uint64_t>("rounded"));
    if (has_codes || (type != ElementType::f16 && type != ElementType::bf16))
      in.refuse("rounded", "it is no type of halves");
    saved.shape.rounded = type;
  }
  if (has_lists) load_coarse(in, saved);
  if (has_codes) {
    CodeShape codes;
    saved.state.coder =
        load_coder(in, "", saved.shape.inner_dim(), saved.shape.metric, saved.state.coarse, codes);
    saved.shape.codes = codes;
    load_refine(in, saved);
    if (saved.shape.kind() != kind) in.refuse("codes", "they are those of another kind of index");
    if (!saved.state.coder && fields.segments > 0)
      in.refuse("codes", "there are rows, but no quantizer");
    if (saved.state.coder && has_lists && !saved.state.coarse)
      in.refuse("lists", "there is a quantizer, but no centroids");
  }
  if (!saved.shape.transforms.empty() && !saved.state.transform && fields.segments > 0)
    in.refuse("transforms", "there are rows, but they are not trained");
  if (has_lists && !saved.state.coarse && fields.segments > 0)
    in.refuse("lists", "there are rows, but no centroids");
  if (fields.element_type != no_type)
    saved.state.type = static_cast<ElementType>(fields.element_type);
  saved.state.next_id = fields.next_id;
  for (std::size_t s = 0; s < fields.segments; ++s) {
    saved.state.segments.push_back(has_codes ? load_codes(in, s, saved)
                                             : load_segment(in, s, saved, *saved.state.type));
    saved.state.size += saved.state.segments.back().size();
  }
  if (saved.state.size != fields.size) in.refuse("index", "it counts other rows");
  if (saved.state.coder) saved.state.known = load_known(in, saved.shape);
  if (in.has("recall/changed")) {
    saved.state.changed_rows = in.fields<std::int64_t>("recall/changed");
    if (saved.state.changed_rows < 0 || saved.state.changed_rows > (std::int64_t{1} << 40))
      in.refuse("recall/changed", "it is no number of rows");
  }
  if (in.has("recall/fresh")) {
    std::vector<float> keys = in.list<float>("recall/fresh");
    if (keys.empty() || !saved.state.coarse || !are_ascending(keys))
      in.refuse("recall/fresh", "they are no keys in order");
    saved.state.fresh_keys = std::make_shared<const std::vector<float>>(std::move(keys));
  }
  if (saved.state.coarse || saved.state.coder)
    saved.state.recall = in.has("recall/rows")
                             ? load_curves(in, std::max<std::int64_t>(1, saved.shape.lists))
                             : std::make_shared<RecallCurves>(saved.state.size);
  return saved;
}

}  // namespace

void save_index(const State& state, const IndexShape& shape, const std::string& path,
                const Progress& progress) {
  io::ArchiveWriter writer(shape.kind());
  Kept kept;
  add_parts(writer, state, shape, kept);
  writer.write(path, progress);
}

SavedIndex load_index(std::shared_ptr<const io::Archive> archive) {
  if (archive->kind() == kind_of_shards)
    throw InvalidArgument("{} is an index in shards, of which 'knear convert' makes one file",
                          archive->path());
  Sections in(archive);
  SavedIndex saved = load_parts(in, archive->kind());
  in.check_all_used();
  return saved;
}

std::unique_ptr<IndexImpl> open_index(const std::string& path) {
  SavedIndex saved = load_index(io::Archive::open(path));
  return std::make_unique<IndexImpl>(saved.shape, std::move(saved.state));
}

}  // namespace knear::detail
