#include "knear/index/form/form_file.hpp"

#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/index/form/form.hpp"
#include "knear/index/sections/transform_sections.hpp"

namespace knear::detail {
namespace {

constexpr std::uint64_t no_type = 255;

struct IndexFields {
  std::uint64_t dim, metric, element_type;
  std::int64_t next_id, size;
  std::uint64_t segments;
};

[[noreturn]] void refuse_kind(const Sections& in, std::string_view kind) {
  std::vector<std::string> kinds = kinds_of_forms();
  const std::string last = kinds.back();
  kinds.pop_back();
  in.refuse("index", fmt::format("it is of kind '{}', this program reads {} and {}", kind,
                                 fmt::join(kinds, ", "), last));
}

}  // namespace

void add_sections(io::ArchiveWriter& writer, const IndexShape& shape, const State& state) {
  const IndexFields fields{static_cast<std::uint64_t>(shape.dim),
                           static_cast<std::uint64_t>(shape.metric),
                           state.type ? static_cast<std::uint64_t>(*state.type) : no_type,
                           state.next_id,
                           state.size,
                           state.segments.size()};
  writer.add_copy("index", &fields, sizeof fields);
  form_of(shape)->save(writer, state);
}

SavedIndex load_sections(Sections& in, std::string_view kind, MakeCentroidIndex make) {
  SavedIndex saved;
  IndexShape& shape = saved.shape;
  State& state = saved.state;
  const std::unique_ptr<const Form> form = form_of_kind(kind, shape);
  if (!form) refuse_kind(in, kind);
  const auto fields = in.fields<IndexFields>("index");
  if (fields.dim < 1 || fields.dim > 65536 || fields.metric >= std::size(all_metrics) ||
      (fields.element_type >= element_type_count && fields.element_type != no_type) ||
      fields.next_id < 0 || fields.segments > (1 << 20) ||
      (fields.segments > 0 && fields.element_type == no_type))
    in.refuse("index", "its dim, metric, element type or segments are none");
  shape.dim = static_cast<std::int64_t>(fields.dim);
  shape.metric = static_cast<Metric>(fields.metric);
  load_transforms(in, shape, state.transform);
  if (!traits_of(shape.metric).by_products &&
      (!form->takes_every_metric() || !shape.transforms.empty() || in.has("rounded")))
    in.refuse("index", fmt::format("its metric is {}, which only Flat has", name_of(shape.metric)));
  form->load_learned(in, {kind, fields.segments > 0, make}, shape, state);
  if (!shape.transforms.empty() && !state.transform && fields.segments > 0)
    in.refuse("transforms", "there are rows, but they are not trained");
  if (fields.element_type != no_type) state.type = static_cast<ElementType>(fields.element_type);
  state.next_id = fields.next_id;
  for (std::size_t s = 0; s < fields.segments; ++s) {
    state.segments.push_back(form->load_segment(in, s, state));
    state.size += state.segments.back().size();
  }
  if (state.size != fields.size) in.refuse("index", "it counts other rows");
  form->load_recall(in, state);
  return saved;
}

}  // namespace knear::detail
