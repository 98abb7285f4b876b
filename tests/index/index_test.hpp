// tests/index/index_test.hpp -- what tests of several indexes share: made vectors that lie in
// clusters, as real ones do, and equal answers.
#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/random.hpp"

namespace knear {

struct Clusters {
  std::int64_t count = 12;
  double spread = 0.6;  // of a column, where those of centres lie within 1
  float offset = 0;     // of all vectors from the origin, in every column
};
// Rows [rows x dim] around centres that are the same for every seed.
inline Matrix<float> clustered(std::int64_t rows, std::int64_t dim, std::uint64_t seed,
                               const Clusters& how = {}) {
  Random random(7), around(seed);
  Matrix<float> centres(how.count, dim), out(rows, dim);
  for (std::int64_t i = 0; i < how.count * dim; ++i)
    centres.data()[i] = static_cast<float>(random.uniform() - 0.5) + how.offset;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* centre =
        centres.row(static_cast<std::int64_t>(around.below(static_cast<std::uint64_t>(how.count))));
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i)[j] = centre[j] + static_cast<float>(how.spread * (around.uniform() - 0.5));
  }
  return out;
}

// `count` of the ids that a map of rows has, or all of them, drawn without repetition.
template <class Rows>
std::vector<Id> drawn_ids(const Rows& rows, std::int64_t count, Random& random) {
  std::vector<Id> all, out;
  for (const auto& [id, row] : rows) all.push_back(id);
  for (; count > 0 && !all.empty(); --count) {
    const std::size_t i = random.below(all.size());
    out.push_back(all[i]);
    all[i] = all.back(), all.pop_back();
  }
  return out;
}

inline void expect_equal(const Neighbors& a, const Neighbors& b) {
  ASSERT_EQ(a.ids.rows(), b.ids.rows());
  ASSERT_EQ(a.ids.cols(), b.ids.cols());
  for (std::int64_t i = 0; i < a.ids.rows() * a.ids.cols(); ++i) {
    ASSERT_EQ(a.ids.data()[i], b.ids.data()[i]) << "place " << i;
    ASSERT_EQ(a.distances.data()[i], b.distances.data()[i]) << "place " << i;
  }
}

}  // namespace knear
