#include "knear/index/index_shape.hpp"

#include <fmt/format.h>

namespace knear::detail {

std::string TransformShape::name() const {
  switch (kind) {
    case Kind::pca:
      return fmt::format("PCA{}{}{}", whiten ? "W" : "", rotate ? "R" : "", dim_out);
    case Kind::opq:
      return fmt::format("OPQ{}_{}", sub_quantizers, dim_out);
    case Kind::rotation:
      return fmt::format("RR{}", dim_out);
    case Kind::unit_norm:
      return "L2norm";
  }
  return "?";
}

namespace {
std::string name_of_rounded(ElementType type) {
  return type == ElementType::f16 ? "SQfp16" : "SQbf16";
}
}  // namespace

std::string RefineShape::name() const {
  if (rounded) return fmt::format("Refine({})", name_of_rounded(*rounded));
  return codes ? fmt::format("Refine({})", codes->name()) : "RFlat";
}

std::string IndexShape::kind() const {
  if (graph_degree > 0) return "GraphFlat";
  if (!codes) return lists > 0 ? "IVFFlat" : "Flat";
  return fmt::format("{}{}", lists > 0 ? "IVF" : "", codec_of(*codes).kind());
}

std::string IndexShape::description() const {
  std::string out;
  for (const TransformShape& transform : transforms) out += transform.name() + ",";
  if (lists > 0) {
    out += fmt::format("IVF{}", lists);
    if (!coarse.empty()) out += "(" + coarse.front().description() + ")";
    out += ",";
  }
  if (graph_degree > 0) return out + fmt::format("Graph{}", graph_degree);
  out += codes ? codes->name() : rounded ? name_of_rounded(*rounded) : "Flat";
  if (refine) out += "," + refine->name();
  return out;
}

}  // namespace knear::detail
