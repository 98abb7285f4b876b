#include "knear/index/sections/vector_sections.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "knear/index/life/index_state.hpp"
#include "knear/index/sections/packed_sections.hpp"

namespace knear::detail {
namespace {

struct SegmentFields {
  std::int64_t rows, matrix_rows;  // matrix_rows 0: kept as panels
  std::int64_t first_id, live;
  std::int64_t integer, low, high;  // ValueRange
  std::uint64_t forms;              // bit p: has a form for FirstPass p
};

std::string packed_name(std::size_t segment, FirstPass pass) {
  return fmt::format("{}/{}/", segment, name_of(pass));
}

// Reads the first panel of each list of a packed form, and the end: lists + 1 numbers.
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
  std::vector<bool> seen(out->packed.rows);
  std::int64_t count = 0;
  const std::size_t end = out->first_panel.back() * panel_rows;
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

RowLists load_list_of(Sections& in, const std::string& name, std::int64_t lists,
                      std::int64_t rows) {
  const auto of = in.array<std::uint32_t>(name, rows);
  for (const std::uint32_t list : of)
    if (list >= lists) in.refuse(name, "it holds a list beyond the last");
  return {{of.data(), of.size()}, lists};
}

// Reads the second lists of rows whose first lists are known.
void load_second(Sections& in, const std::string& prefix, std::int64_t lists,
                 const PackedShape& shape, ListedRows& to) {
  if (to.numbers()) {
    to.set_second(std::make_shared<ListedRows>(load_list_of(in, prefix + "of", lists, shape.rows)));
    return;
  }
  const Coding& first = to.first_form()->packed;
  std::int64_t worth = 0;
  auto form = load_packed(in, prefix, first.is_integer ? FirstPass::integer : FirstPass::int8,
                          shape, worth);
  if (form->duplicates.any()) in.refuse(prefix + "fields", "its lists leave out copies of rows");
  form->centres = first.centres;
  if (!form->shares_queries(first))
    in.refuse(prefix + "fields", "its codes are not those of the first lists");
  to.set_second(std::make_shared<ListedRows>(
      load_lists(in, prefix + "lists", lists, shape.rows, std::move(*form))));
}

void add_second(io::ArchiveWriter& writer, const std::string& prefix, const ListedRows& second) {
  if (second.numbers()) {
    const std::vector<std::uint32_t> of = second.list_of();
    writer.add_copy(prefix + "of", of.data(), of.size() * sizeof of[0]);
    return;
  }
  const PackedLists& lists = *second.first_form();
  writer.add(prefix + "lists", lists.first_panel.data(),
             lists.first_panel.size() * sizeof lists.first_panel[0]);
  add_packed(writer, prefix, lists.packed, 0);
}

}  // namespace

Segment load_vectors(Sections& in, std::size_t number, const IndexShape& index,
                     const State& state) {
  const ElementType type = *state.type;
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
      if (ids[i - 1] >= ids[i]) in.refuse(prefix + "ids", "they do not ascend");
    first = ids[0], last = ids[rows - 1];
  } else if (__builtin_add_overflow(first, rows - 1, &last)) {
    in.refuse(about, "its ids are beyond 63 bits");
  }
  constexpr Id most = std::numeric_limits<Id>::max();
  const std::uint64_t known =
      panels ? 1u << static_cast<int>(FirstPass::integer) : (1u << first_pass_count) - 1;
  if (fields.forms & ~known) in.refuse(about, "it names a form that there is not");
  if (first < 0 || (last >= state.next_id && state.next_id != most))
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
      made->set_lists(
          std::make_shared<ListedRows>(load_list_of(in, prefix + "list_of", index.lists, rows)),
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
          form->centres = state.coarse->centres();
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
  if (index.in_two_lists) load_second(in, prefix + "second/", index.lists, shape, *made->lists());
  const std::string about_prefix = packed_name(number, FirstPass::prefix);
  if (has_prefix(in, about_prefix))
    made->prepared().adopt_prefix(load_prefix(in, about_prefix, shape, made->found()));
  out.rows = made;
  out.live = load_live(in, prefix + "live", rows);
  if (out.size() != fields.live) in.refuse(about, "it counts other live rows");
  return out;
}

void add_vectors(io::ArchiveWriter& writer, std::size_t number, const Segment& segment) {
  const SegmentRows& rows = *segment.rows;
  const std::string prefix = fmt::format("{}/", number);
  SegmentFields about{rows.rows(),          rows.is_panels() ? 0 : rows.matrix().rows(),
                      rows.first_id(),      segment.size(),
                      rows.found().integer, rows.found().low,
                      rows.found().high,    0};
  for (int p = 0; p < first_pass_count; ++p)
    if (rows.prepared().is_adopted(static_cast<FirstPass>(p))) about.forms |= std::uint64_t{1} << p;
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
    writer.add(prefix + "vectors", rows.matrix().data(), rows.matrix().bytes());
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
    if (const ListedRows* second = lists->second()) add_second(writer, prefix + "second/", *second);
  }
  if (around) {
    const std::int64_t yes = 1;
    writer.add_copy(prefix + "around", &yes, sizeof yes);
    add_packed(writer, packed_name(number, FirstPass::int8), around->packed, 0);
  }
  for (int p = 0; p < first_pass_count; ++p)
    if (const auto pass = static_cast<FirstPass>(p); !around && rows.prepared().is_adopted(pass))
      add_packed(writer, packed_name(number, pass), *rows.prepared().kept(pass),
                 rows.prepared().worth_up_to(pass));
  const AdoptedPrefix adopted = rows.prepared().adopted_prefix();
  if (!adopted.base) return;
  writer.keep(adopted.base);
  add_prefix(writer, packed_name(number, FirstPass::prefix), adopted);
}

void add_rounded(io::ArchiveWriter& writer, const IndexShape& shape) {
  if (!shape.rounded) return;
  const auto type = static_cast<std::uint64_t>(*shape.rounded);
  writer.add_copy("rounded", &type, sizeof type);
}

void load_rounded(Sections& in, IndexShape& shape) {
  if (!in.has("rounded")) return;
  const auto type = static_cast<ElementType>(in.fields<std::uint64_t>("rounded"));
  if (type != ElementType::f16 && type != ElementType::bf16)
    in.refuse("rounded", "it is no type of halves");
  shape.rounded = type;
}

}  // namespace knear::detail
