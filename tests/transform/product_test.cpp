// Products of matrices have the bits of sums in their written order, at every level, for any number
// of threads.
#include "knear/transform/product.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "tests/small.hpp"

namespace knear {
namespace {

Matrix<double> random_matrix(std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Random random(seed);
  Matrix<double> out(rows, cols);
  for (std::int64_t i = 0; i < rows * cols; ++i)
    out.data()[i] = (random.uniform() - 0.5) * (random.below(9) == 0 ? 1e6 : 1);
  return out;
}

TEST(Product, IsTheSumsInTheirOrder) {
  for (Isa isa : test::levels()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    for (const std::int64_t rows : {1, 3, 4, 67, 130})
      for (const std::int64_t inner : {1, 64, 65, 200})
        for (const std::int64_t cols : {1, 2, 8, 31, 32, 40, 100}) {
          const Matrix<double> wide = random_matrix(rows, inner + 3, 1);
          const Matrix<double> b = random_matrix(inner, cols, 2);
          const MatrixView<double> a(wide.data() + 2, rows, inner, inner + 3);
          Matrix<double> turned(inner, rows), expected(rows, cols);
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t i = 0; i < inner; ++i) {
              turned.row(i)[r] = a.row(r)[i];
              for (std::int64_t c = 0; c < cols; ++c)
                expected.row(r)[c] += a.row(r)[i] * b.row(i)[c];
            }
          for (const int threads : {1, 3}) {
            Matrix<double> got = random_matrix(rows, cols, 3);
            multiply(a, b, got, threads);
            for (std::int64_t i = 0; i < rows * cols; ++i)
              ASSERT_EQ(got.data()[i], expected.data()[i])
                  << name_of(isa) << ' ' << rows << 'x' << inner << 'x' << cols;
            got = random_matrix(rows, cols, 4);
            multiply_transposed(turned, b, got, threads);
            for (std::int64_t i = 0; i < rows * cols; ++i)
              ASSERT_EQ(got.data()[i], expected.data()[i])
                  << name_of(isa) << ' ' << rows << 'x' << inner << 'x' << cols;
          }
          std::vector<double> here(static_cast<std::size_t>(rows * cols + 1), 77);
          detail::multiply_on_host(a, b, here.data());
          for (std::int64_t i = 0; i < rows * cols; ++i) ASSERT_EQ(here[i], expected.data()[i]);
          ASSERT_EQ(here.back(), 77);
        }
  }
  unsetenv("KNEAR_ISA");
}

}  // namespace
}  // namespace knear
