// The nearest of a few rows against the reference, at every level: ties, sizes at the edges of the
// kernels, numbers that float32 can hardly tell apart, and those that overflow it.
#include "knear/scan/methods/few_rows_scan.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/knn/knn_cases.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

using namespace test;
using detail::FewRowsScan;

// By the definition: the first row of the least distance.
std::uint32_t nearest_by_reference(AnyMatrixView query, MatrixView<float> rows) {
  std::uint32_t best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const double distance = visit(query, [&](auto typed) {
      return reference_distance(Metric::l2, typed.row(0), rows.row(r), rows.cols());
    });
    if (distance < least) least = distance, best = static_cast<std::uint32_t>(r);
  }
  return best;
}

// Returns how many pairs were measured.
std::int64_t expect_nearest(AnyMatrixView queries, MatrixView<float> rows, const char* what) {
  std::int64_t measured = 0;
  for (const Isa isa : test::levels()) {
    std::vector<std::uint32_t> nearest(static_cast<std::size_t>(queries.rows()), 12345);
    measured = FewRowsScan(rows).find(queries, isa, nearest);
    for (std::int64_t q = 0; q < queries.rows(); ++q)
      EXPECT_EQ(nearest[static_cast<std::size_t>(q)],
                nearest_by_reference(queries.rows(q, q + 1), rows))
          << what << ", " << name_of(isa) << ", query " << q << ", " << rows.rows() << " x "
          << rows.cols();
  }
  return measured;
}

Matrix<float> floats(const AnyMatrix& from) {
  Matrix<float> out(from.rows(), from.cols());
  std::memcpy(out.data(), from.view().data(),
              static_cast<std::size_t>(from.rows() * from.cols()) * 4);
  return out;
}

TEST(FewRowsScan, IsTheReferenceForEverySize) {
  std::uint64_t seed = 1;
  for (const std::int64_t rows :
       {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 513, 1023, 1024})
    for (const std::int64_t dim : {1, 2, 3, 4, 7, 16, 33}) {
      const Matrix<float> base = floats(gaussians(rows, dim, ++seed));
      const AnyMatrix queries = gaussians(37, dim, ++seed, 1.5);
      const std::int64_t measured = expect_nearest(queries.view(), base.view(), "gaussian");
      EXPECT_LE(measured, dim > 2 ? 8 : 37 * 8) << rows << " x " << dim;  // scores decide
    }
}

TEST(FewRowsScan, TiesGoToTheFirst) {
  Random random(7);
  for (const std::int64_t dim : {1, 2, 4}) {
    const auto small = [&](auto, auto) { return double(random.below(3)); };
    const Matrix<float> base = floats(make(ElementType::f32, 200, dim, small));
    for (const ElementType type : all_element_types)
      expect_nearest(make(type, 60, dim, small).view(), base.view(), "grid");
  }
}

TEST(FewRowsScan, TakesEveryTypeAndRowsThatLieApart) {
  Random random(8);
  const Matrix<float> base = floats(
      make(ElementType::f32, 100, 5, [&](auto, auto) { return 200 * random.uniform() - 70; }));
  for (const ElementType type : all_element_types) {
    const AnyMatrix wide =
        make(type, 300, 11, [&](auto, auto) { return std::floor(100 * random.uniform()); });
    const AnyMatrixView part(
        type, static_cast<const std::byte*>(wide.view().data()) + 3 * size_of(type), 300, 5, 11);
    expect_nearest(part, base.view(), "a part of each row");
  }
}

// Rows that differ in the last bits of a float far from zero, and f64 queries between them.
TEST(FewRowsScan, RowsThatFloatsHardlyTellApart) {
  Random random(9);
  for (const double offset : {0.0, 1.0, 1e6, -3e20})
    for (const double step : {1e-7, 1e-5, 1e-2}) {
      const double scale = offset == 0 ? 1 : std::fabs(offset);
      const auto near = [&](auto, auto) {
        return offset + scale * step * (random.uniform() - 0.5);
      };
      const Matrix<float> base = floats(make(ElementType::f32, 90, 3, near));
      expect_nearest(make(ElementType::f64, 50, 3, near).view(), base.view(), "near, f64");
      expect_nearest(make(ElementType::f32, 50, 3, near).view(), base.view(), "near, f32");
      expect_nearest(
          make(ElementType::f64, 50, 3, [&](auto, auto) { return -5 * scale * random.uniform(); })
              .view(),
          base.view(), "far");
    }
}

// Where squares overflow or vanish in float32, all rows are measured.
// One far row made every row a candidate for every query: training product codes took 245 times as
// long.
TEST(FewRowsScan, OneFarRowLeavesOthersDecided) {
  for (const double far : {1e3, 1e6, 1e12})
    for (const std::int64_t rows : {16, 64, 256, 600}) {
      Matrix<float> base = floats(gaussians(rows, 4, 5));
      std::fill_n(base.row(7), 4, static_cast<float>(far));
      const AnyMatrix queries = gaussians(400, 4, 6);
      EXPECT_LT(expect_nearest(queries, base.view(), "beside a far row"), 80) << far << " " << rows;
      const AnyMatrix near_it = make(ElementType::f32, 20, 4, [&](std::int64_t i, std::int64_t j) {
        return far * (1 + 0.1 * static_cast<double>(i)) + static_cast<double>(j);
      });
      expect_nearest(near_it, base.view(), "near a far row");
    }
}

TEST(FewRowsScan, NumbersBeyondTheRangeOfFloats) {
  Random random(10);
  for (const double size : {3e38, 1e30, 2e19, 9e18, 4e18, 1e-19, 1e-25, 1e-38, 1e-44}) {
    const auto value = [&](auto, auto) { return size * (2 * random.uniform() - 1); };
    const Matrix<float> base = floats(make(ElementType::f32, 70, 4, value));
    expect_nearest(make(ElementType::f32, 40, 4, value).view(), base.view(), "size");
    expect_nearest(make(ElementType::f64, 40, 4, value).view(), base.view(),
                   fmt::format("size {}, f64", size).c_str());
    const auto unit = [&](auto, auto) { return 2 * random.uniform() - 1; };
    expect_nearest(make(ElementType::f32, 40, 4, unit).view(), base.view(), "queries of size 1");
    const Matrix<float> units = floats(make(ElementType::f32, 300, 4, unit));
    expect_nearest(make(ElementType::f64, 40, 4, value).view(), units.view(), "rows of size 1");
  }
}

}  // namespace
}  // namespace knear
