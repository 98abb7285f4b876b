#include "knear/index/sections/code_sections.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "knear/index/sections/packed_sections.hpp"

namespace knear::detail {
namespace {

struct CodeFields {
  std::int64_t parts, bits;  // CodeShape
  std::uint64_t residual, trained;
};

// Codes are refined by the vectors (0), by halves of them (1), or by codes ("refine/codes", 2).
struct RefineFields {
  std::uint64_t form, type;  // type: of halves
};

// The numbers of a segment of codes.
struct CodedFields {
  std::int64_t rows, live, lists;  // lists that have rows
};

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
    const auto some = in.finite(section, numbers.count);
    all.insert(all.end(), some.begin(), some.end());
  }
  try {
    return RowCoder::of_numbers(shape, dim, metric, coarse, all);
  } catch (const InvalidArgument& wrong) {
    in.refuse(section, wrong.what());
  }
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

void load_refine(Sections& in, IndexShape& index, State& state) {
  if (!in.has("refine")) return;
  const auto fields = in.fields<RefineFields>("refine");
  const bool halves = fields.type == static_cast<std::uint64_t>(ElementType::f16) ||
                      fields.type == static_cast<std::uint64_t>(ElementType::bf16);
  if (fields.form > 2 || (fields.form == 1 && !halves)) in.refuse("refine", "its numbers are none");
  index.refine.emplace();
  if (fields.form == 1) index.refine->rounded = static_cast<ElementType>(fields.type);
  if (fields.form != 2) return;
  CodeShape shape;
  state.refiner = load_coder(in, "refine/", index.dim, index.metric, nullptr, shape);
  index.refine->codes = shape;
  if (!state.refiner && state.coder) in.refuse("refine/codes", "they have no quantizer");
}

void add_refine(io::ArchiveWriter& writer, const RefineShape& shape, const RowCoder* refiner) {
  const RefineFields fields{shape.rounded ? 1u
                            : shape.codes ? 2u
                                          : 0u,
                            static_cast<std::uint64_t>(shape.rounded.value_or(ElementType::f32))};
  writer.add_copy("refine", &fields, sizeof fields);
  if (shape.codes) add_coder(writer, "refine/", *shape.codes, refiner);
}

}  // namespace

void load_quantizers(Sections& in, IndexShape& index, State& state) {
  CodeShape codes;
  state.coder = load_coder(in, "", index.inner_dim(), index.metric, state.coarse, codes);
  index.codes = codes;
  load_refine(in, index, state);
}

void add_quantizers(io::ArchiveWriter& writer, const IndexShape& shape, const State& state) {
  add_coder(writer, "", *shape.codes, state.coder.get());
  if (shape.refine) add_refine(writer, *shape.refine, state.refiner.get());
}

Segment load_codes(Sections& in, std::size_t number, const IndexShape& index, const State& state) {
  const std::string prefix = fmt::format("{}/", number), about = prefix + "fields";
  const auto fields = in.fields<CodedFields>(about);
  const std::int64_t rows = fields.rows, index_lists = std::max<std::int64_t>(1, index.lists);
  const RowCoder& coder = *state.coder;
  if (rows < 1 || rows > max_rows || fields.live < 1 || fields.live > rows || fields.lists < 1 ||
      fields.lists > std::min(index_lists, rows))
    in.refuse(about, "its numbers of rows do not fit");
  const auto lists = in.array<std::uint32_t>(prefix + "lists", fields.lists);
  const auto begin = in.array<std::int64_t>(prefix + "begin", fields.lists + 1);
  for (std::size_t l = 0; l < lists.size(); ++l)
    if (lists[l] >= index_lists || (l > 0 && lists[l] <= lists[l - 1]))
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
    scalars =
        in.finite(prefix + "scalars", rows + static_cast<std::int64_t>(CodedLists::scalar_padding));
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
      const Id id = made.ids[row];
      if (id < 0 || (id >= state.next_id && state.next_id != most))
        in.refuse(prefix + "ids", "they are not those of the index");
      if (row > begin[l] && made.ids[row - 1] >= id)
        in.refuse(prefix + "ids", "they do not ascend in a list");
    }
  if (index.refine) {
    const RowCoder* refiner = state.refiner.get();
    const ElementType type = refiner ? ElementType::u8 : *state.type;
    const std::int64_t columns = refiner ? refiner->code_size() : index.dim;
    const auto vectors = in.guarded(prefix + "vectors", rows * columns * size_of(type));
    made.vectors = AnyMatrixView(type, vectors.section.data, rows, columns, columns);
    made.keeper = in.keeper(), made.guard = vectors.blocks;
  }
  Segment out{SegmentRows::of_codes(std::move(made)), load_live(in, prefix + "live", rows)};
  if (out.size() != fields.live) in.refuse(about, "it counts other live rows");
  return out;
}

void add_codes(io::ArchiveWriter& writer, std::size_t number, const Segment& segment) {
  const std::string prefix = fmt::format("{}/", number);
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
  writer.add(prefix + "vectors", rows.vectors.data(), rows.vectors.bytes());
}

}  // namespace knear::detail
