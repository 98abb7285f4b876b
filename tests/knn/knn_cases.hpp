// tests/knn/knn_cases.hpp -- matrices to search, levels to force, and comparison with the
// reference, to the bit.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <string>

#include "knear/core/cpu.hpp"
#include "knear/core/random.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/knn.hpp"
#include "tests/small.hpp"

namespace knear::test {

inline constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};
inline constexpr FirstPass certified[] = {FirstPass::int8, FirstPass::int16, FirstPass::fp32};

// Forces a level for a scope.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) { setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1); }
  ~ForcedIsa() { unsetenv("KNEAR_ISA"); }
};

inline double gaussian(Random& random) {
  return std::sqrt(-2 * std::log(1 - random.uniform())) *
         std::cos(6.283185307179586 * random.uniform());
}

inline void set(AnyMatrix& m, std::int64_t i, double value) {
  switch (m.type()) {
    case ElementType::f32:
      static_cast<float*>(m.row(0))[i] = static_cast<float>(value);
      break;
    case ElementType::f16:
      static_cast<f16*>(m.row(0))[i] = to_f16(static_cast<float>(value));
      break;
    case ElementType::bf16:
      static_cast<bf16*>(m.row(0))[i] = to_bf16(static_cast<float>(value));
      break;
    case ElementType::u8:
      static_cast<std::uint8_t*>(m.row(0))[i] =
          std::uint8_t(std::clamp(std::lround(value), 0l, 255l));
      break;
    case ElementType::i8:
      static_cast<std::int8_t*>(m.row(0))[i] =
          std::int8_t(std::clamp(std::lround(value), -128l, 127l));
      break;
    case ElementType::f64:
      static_cast<double*>(m.row(0))[i] = value;
  }
}

template <class F>
AnyMatrix make(ElementType type, std::int64_t rows, std::int64_t cols, F value) {
  AnyMatrix out(type, rows, cols);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < cols; ++c) set(out, r * cols + c, value(r, c));
  return out;
}

inline AnyMatrix gaussians(std::int64_t rows, std::int64_t cols, std::uint64_t seed,
                           double scale = 1, double offset = 0) {
  Random random(seed);
  return make(ElementType::f32, rows, cols,
              [&](auto, auto) { return gaussian(random) * scale + offset; });
}

inline ::testing::AssertionResult same(const Neighbors& got, const Neighbors& expected) {
  if (got.ids.rows() != expected.ids.rows() || got.ids.cols() != expected.ids.cols())
    return ::testing::AssertionFailure() << "shapes differ";
  for (std::int64_t q = 0; q < got.ids.rows(); ++q)
    for (std::int64_t j = 0; j < got.ids.cols(); ++j)
      if (got.ids.row(q)[j] != expected.ids.row(q)[j] ||
          std::bit_cast<std::uint32_t>(got.distances.row(q)[j]) !=
              std::bit_cast<std::uint32_t>(expected.distances.row(q)[j]))
        return ::testing::AssertionFailure()
               << "query " << q << " place " << j << ": id " << got.ids.row(q)[j] << " distance "
               << got.distances.row(q)[j] << ", expected id " << expected.ids.row(q)[j]
               << " distance " << expected.distances.row(q)[j];
  return ::testing::AssertionSuccess();
}

inline constexpr Method other_methods[] = {Method::threshold_heap, Method::partial_reduce};

// Compares with the reference: automatic at every level, and every first pass forced.
inline void check_all(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, Metric metric,
                      const std::string& what) {
  SCOPED_TRACE(what + " " + std::string(name_of(metric)) + " n=" + std::to_string(base.rows()) +
               " d=" + std::to_string(base.cols()) + " q=" + std::to_string(queries.rows()) +
               " k=" + std::to_string(k));
  const Neighbors expected = reference_knn(queries, base, k, metric);
  for (Isa isa : test::levels()) {
    ForcedIsa forced(isa);
    SCOPED_TRACE(name_of(isa));
    EXPECT_TRUE(same(knn(queries, base, k, {.metric = metric}), expected)) << "automatic";
    for (FirstPass pass : certified)
      EXPECT_TRUE(same(knn(queries, base, k, {.metric = metric, .first_pass = pass}), expected))
          << name_of(pass);
    // The other methods, which are exact when full recall is asked for.
    for (Method method : other_methods) {
      EXPECT_TRUE(
          same(knn(queries, base, k, {.metric = metric, .method = {.kind = method}}), expected))
          << name_of(method);
      for (FirstPass pass : {FirstPass::int8, FirstPass::fp32})
        EXPECT_TRUE(same(knn(queries, base, k,
                             {.metric = metric, .first_pass = pass, .method = {.kind = method}}),
                         expected))
            << name_of(method) << ' ' << name_of(pass);
    }
  }
  EXPECT_TRUE(
      same(knn(queries, base, k, {.metric = metric, .first_pass = FirstPass::direct}), expected))
      << "direct";
}

}  // namespace knear::test
