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

}  // namespace knear::detail
