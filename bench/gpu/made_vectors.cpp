#include "bench/gpu/made_vectors.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "bench/gpu/hash.hpp"
#include "knear/core/threads.hpp"

namespace knear::bench {
namespace {

double signed_unit(std::uint64_t bits) { return 2 * static_cast<double>(bits >> 11) * 0x1p-53 - 1; }

double value(VectorKind kind, std::int64_t i, std::int64_t j, std::int64_t rows, double u) {
  const auto at = [&](std::int64_t place) { return std::sin(static_cast<double>(place + j)); };
  switch (kind) {
    case VectorKind::uniform:
      return u;
    case VectorKind::clustered:
      return 0.9 * at(i % 7 * 31) + 0.05 * u;
    case VectorKind::sorted:
      return 0.9 * static_cast<double>(i) / static_cast<double>(rows) + 0.05 * u;
    case VectorKind::copies:
      return at(i % 40 * 17);
    case VectorKind::sizes:
      return u * std::pow(10.0, -static_cast<double>(i % 7));
    case VectorKind::outlier:
      return i % 97 == 5 ? u : u * 1e-3;
    case VectorKind::zeros:
      return i % 5 == 0 ? 0 : u;
    case VectorKind::alike:
      return 0.25 + 1e-6 * u + (i % 97 == 0 ? 0.7 : 0);
  }
  return 0;
}

void put(ElementType type, void* row, std::int64_t j, double x) {
  switch (type) {
    case ElementType::f32:
      static_cast<float*>(row)[j] = static_cast<float>(x);
      break;
    case ElementType::f16:  // sign, exponent of 1, fraction
      static_cast<f16*>(row)[j].bits = static_cast<std::uint16_t>(
          (x < 0 ? 1 << 15 : 0) | 15 << 10 | static_cast<int>(std::fabs(x) * 1023));
      break;
    case ElementType::bf16:
      static_cast<bf16*>(row)[j].bits =
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
      break;
    case ElementType::u8:
      static_cast<std::uint8_t*>(row)[j] = static_cast<std::uint8_t>(std::fabs(x) * 255);
      break;
    case ElementType::i8:
      static_cast<std::int8_t*>(row)[j] = static_cast<std::int8_t>(x * 127);
      break;
    case ElementType::f64:
      static_cast<double*>(row)[j] = x;
      break;
  }
}

// Box and Muller's method, by place. The first uniform number is in (0, 1].
double normal(std::uint64_t seed, std::uint64_t place) {
  const double u = static_cast<double>((hash(seed, 2 * place) >> 11) + 1) * 0x1p-53;
  const double v = static_cast<double>(hash(seed, 2 * place + 1) >> 11) * 0x1p-53;
  return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v);
}

// Makes rows in parallel, some at a time.
template <class F>
void for_rows(std::int64_t rows, F make_row) {
  constexpr std::int64_t together = 256;
  parallel_for(0, (rows + together - 1) / together, [&](std::int64_t task) {
    const std::int64_t end = std::min(rows, (task + 1) * together);
    for (std::int64_t i = task * together; i < end; ++i) make_row(i);
  });
}

}  // namespace

std::string_view name_of(VectorKind kind) {
  constexpr std::string_view names[] = {"uniform", "clustered", "sorted", "copies",
                                        "sizes",   "outlier",   "zeros",  "alike"};
  return names[static_cast<int>(kind)];
}

AnyMatrix make_vectors(VectorKind kind, ElementType type, std::int64_t rows, std::int64_t dim,
                       std::uint64_t seed) {
  AnyMatrix out(type, rows, dim);
  for_rows(rows, [&](std::int64_t i) {
    for (std::int64_t j = 0; j < dim; ++j)
      put(type, out.row(i), j,
          value(kind, i, j, rows,
                signed_unit(hash(seed, static_cast<std::uint64_t>(i * dim + j)))));
  });
  return out;
}

AnyMatrix make_clusters(ElementType type, std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  constexpr std::int64_t clusters = 1000;
  Matrix<float> centres(clusters, dim);
  for_rows(clusters, [&](std::int64_t c) {
    for (std::int64_t j = 0; j < dim; ++j)
      centres.row(c)[j] = static_cast<float>(normal(77, static_cast<std::uint64_t>(c * dim + j)));
  });
  AnyMatrix out(type, rows, dim);
  for_rows(rows, [&](std::int64_t i) {
    const float* centre = centres.row(
        static_cast<std::int64_t>(hash(seed + 1, static_cast<std::uint64_t>(i)) % clusters));
    for (std::int64_t j = 0; j < dim; ++j) {
      const double x = centre[j] + 0.6 * normal(seed, static_cast<std::uint64_t>(i * dim + j));
      if (type == ElementType::u8)
        static_cast<std::uint8_t*>(out.row(i))[j] =
            static_cast<std::uint8_t>(std::clamp(std::nearbyint(30 + 45 * x), 0.0, 255.0));
      else
        static_cast<float*>(out.row(i))[j] = static_cast<float>(x);
    }
  });
  return out;
}

}  // namespace knear::bench
