#include "knear/distance/reference.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "knear/core/public_call.hpp"

namespace knear {
namespace {

// Sixteen partial sums and their tree, as reference.hpp defines them.
template <class Term>
double ordered_sum(std::int64_t dim, Term term) {
  double s[16] = {};
  for (std::int64_t i = 0; i < dim; ++i) s[i % 16] += term(i);
  for (int half = 8; half >= 1; half /= 2)
    for (int j = 0; j < half; ++j) s[j] += s[j + half];
  return s[0];
}

}  // namespace

template <class Q, class B>
double reference_distance(Metric metric, const Q* query, const B* row, std::int64_t dim) {
  const auto x = [&](std::int64_t i) { return to_double(query[i]); };
  const auto y = [&](std::int64_t i) { return to_double(row[i]); };
  const auto product = [&] {
    return ordered_sum(dim, [&](std::int64_t i) { return x(i) * y(i); });
  };
  switch (metric) {
    case Metric::l2:
      return ordered_sum(dim, [&](std::int64_t i) { return (x(i) - y(i)) * (x(i) - y(i)); });
    case Metric::ip:
      return product();
    case Metric::l1:
      return ordered_sum(dim, [&](std::int64_t i) { return std::fabs(x(i) - y(i)); });
    case Metric::hamming:
      if constexpr (std::is_same_v<Q, std::uint8_t> && std::is_same_v<B, std::uint8_t>) {
        std::int64_t bits = 0;
        for (std::int64_t i = 0; i < dim; ++i)
          bits += std::popcount(static_cast<std::uint8_t>(query[i] ^ row[i]));
        return static_cast<double>(bits);
      } else {
        throw InvalidArgument("metric is hamming, which is of vectors of type u8 alone");
      }
    case Metric::cosine:
      break;
  }
  const double xx = ordered_sum(dim, [&](std::int64_t i) { return x(i) * x(i); });
  const double yy = ordered_sum(dim, [&](std::int64_t i) { return y(i) * y(i); });
  const double distance = xx == 0 || yy == 0 ? 1.0 : 1.0 - product() / std::sqrt(xx * yy);
  return distance < 0 ? 0.0 : distance > 2 ? 2.0 : distance;
}

#define KNEAR_INSTANTIATE(Q, B) \
  template double reference_distance(Metric, const Q*, const B*, std::int64_t);
#define KNEAR_INSTANTIATE_ROW(Q)     \
  KNEAR_INSTANTIATE(Q, float)        \
  KNEAR_INSTANTIATE(Q, f16)          \
  KNEAR_INSTANTIATE(Q, bf16)         \
  KNEAR_INSTANTIATE(Q, std::uint8_t) \
  KNEAR_INSTANTIATE(Q, std::int8_t)  \
  KNEAR_INSTANTIATE(Q, double)
KNEAR_INSTANTIATE_ROW(float)
KNEAR_INSTANTIATE_ROW(f16)
KNEAR_INSTANTIATE_ROW(bf16)
KNEAR_INSTANTIATE_ROW(std::uint8_t)
KNEAR_INSTANTIATE_ROW(std::int8_t)
KNEAR_INSTANTIATE_ROW(double)

Neighbors reference_knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, Metric metric) {
  return detail::public_call([&] {
    Neighbors out{Matrix<Id>(queries.rows(), k), Matrix<float>(queries.rows(), k)};
    std::vector<std::pair<double, Id>> all(base.rows());
    visit(queries, [&](auto x) {
      visit(base, [&](auto y) {
        for (std::int64_t q = 0; q < x.rows(); ++q) {
          for (Id id = 0; id < y.rows(); ++id)
            all[id] = {order_key(metric, reference_distance(metric, x.row(q), y.row(id), x.cols())),
                       id};
          std::sort(all.begin(), all.end());
          for (std::int64_t j = 0; j < k; ++j) {
            const bool found = j < y.rows();
            out.ids.row(q)[j] = found ? all[j].second : no_id;
            out.distances.row(q)[j] =
                found ? static_cast<float>(distance_of_key(metric, all[j].first))
                      : no_distance(metric);
          }
        }
      });
    });
    return out;
  });
}

}  // namespace knear
