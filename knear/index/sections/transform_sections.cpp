#include "knear/index/sections/transform_sections.hpp"

#include <string>
#include <vector>

#include "knear/core/error.hpp"

namespace knear::detail {
namespace {

// TransformShape; and of what it was trained to, a step of a Transform.
struct TransformFields {
  std::uint64_t kind, whiten, rotate;
  std::int64_t dim_out, sub_quantizers, bits;
};
struct StepFields {
  std::uint64_t kind;
  std::int64_t dim_in, dim_out;
};

}  // namespace

void load_transforms(Sections& in, IndexShape& shape, std::optional<Transform>& trained) {
  using Kind = TransformShape::Kind;
  if (!in.has("transforms")) return;
  std::int64_t dim = shape.dim;
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
    shape.transforms.push_back({kind, dim, fields.whiten == 1, fields.rotate == 1,
                                fields.sub_quantizers, static_cast<int>(fields.bits)});
  }
  if (!in.has("transform/steps")) return;
  std::vector<Transform> chain;
  const auto steps = in.list<StepFields>("transform/steps");
  dim = shape.dim;
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
    if (in.has(prefix + "offset")) {
      const auto stored = in.finite(prefix + "offset", step.dim_out);
      offset.assign(stored.begin(), stored.end());
    }
    try {
      if (kind == Transform::Kind::linear) {
        const auto matrix = in.finite(prefix + "matrix", step.dim_out * step.dim_in);
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
  if (chain.empty() || dim != shape.inner_dim())
    in.refuse("transform/steps", "they lead to other columns");
  trained = Transform::chain(chain);
}

void add_transforms(io::ArchiveWriter& writer, const IndexShape& shape,
                    const std::optional<Transform>& trained) {
  if (shape.transforms.empty()) return;
  std::vector<TransformFields> all;
  for (const TransformShape& one : shape.transforms)
    all.push_back({static_cast<std::uint64_t>(one.kind), one.whiten, one.rotate, one.dim_out,
                   one.sub_quantizers, one.bits});
  writer.add_copy("transforms", all.data(), all.size() * sizeof all[0]);
  if (!trained) return;
  std::vector<StepFields> steps;
  for (const Transform::Step& step : trained->steps()) {
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

}  // namespace knear::detail
