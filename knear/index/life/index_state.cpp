// Whether the transforms of two indexes are the same.
#include "knear/index/life/index_state.hpp"

#include <algorithm>

namespace knear::detail {

bool equal(const Transform& a, const Transform& b) {
  const auto row = [](const auto& offset) {
    return MatrixView<float>(offset.data(), 1, static_cast<std::int64_t>(offset.size()));
  };
  const std::vector<Transform::Step> left = a.steps(), right = b.steps();
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](const Transform::Step& x, const Transform::Step& y) {
                      return x.kind == y.kind && x.dim_in == y.dim_in && x.dim_out == y.dim_out &&
                             same_bits(x.matrix, y.matrix) &&
                             same_bits(row(x.offset), row(y.offset));
                    });
}

}  // namespace knear::detail
