// tests/index/sharded_cases.hpp -- what the tests of an index in shards share.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>

#include "knear/core/neighbors.hpp"
#include "tests/index/index_test.hpp"

namespace knear {

inline AnyMatrix rows_in_clusters(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  const Matrix<float> from = clustered(rows, dim, seed);
  AnyMatrix out(ElementType::f32, rows, dim);
  for (std::int64_t i = 0; i < rows; ++i)
    std::copy_n(from.row(i), dim, static_cast<float*>(out.row(i)));
  return out;
}

inline void expect_same(const Neighbors& got, const Neighbors& wanted) {
  ASSERT_EQ(got.ids.rows(), wanted.ids.rows());
  ASSERT_EQ(got.ids.cols(), wanted.ids.cols());
  for (std::int64_t i = 0; i < wanted.ids.rows() * wanted.ids.cols(); ++i)
    ASSERT_EQ(got.ids.data()[i], wanted.ids.data()[i]) << "place " << i;
  EXPECT_TRUE(same_bits(got.distances, wanted.distances));
}

}  // namespace knear
