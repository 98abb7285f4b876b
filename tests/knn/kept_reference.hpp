// tests/knn/kept_reference.hpp -- reference_knn() once for the same vectors: tests ask for the same
// answers at every level of instructions and for several numbers of neighbours, and measuring all
// pairs takes longer than the searches that are tested, most of all under a sanitiser.
#pragma once
#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "knear/distance/reference.hpp"

namespace knear::test {

// The elements of a matrix without the gaps between its rows.
inline std::vector<std::byte> elements_of(AnyMatrixView matrix) {
  const auto bytes = static_cast<std::size_t>(matrix.cols() * size_of(matrix.type()));
  std::vector<std::byte> out(static_cast<std::size_t>(matrix.rows()) * bytes);
  if (bytes > 0)
    for (std::int64_t i = 0; i < matrix.rows(); ++i)
      std::memcpy(out.data() + static_cast<std::size_t>(i) * bytes, matrix.row(i), bytes);
  return out;
}

// As reference_knn(). Keeps the answers of the last 32 pairs of matrices that differed, for as many
// neighbours as were asked or 128. For one thread at a time.
inline Neighbors kept_reference(AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
                                Metric metric) {
  struct Kept {
    ElementType query_type, base_type;
    std::int64_t query_rows, rows, dim;
    Metric metric;
    std::vector<std::byte> queries, base;
    Neighbors answers;
  };
  static std::deque<Kept> all;
  Kept wanted{queries.type(), base.type(),          queries.rows(),    base.rows(), base.cols(),
              metric,         elements_of(queries), elements_of(base), {}};
  auto found = std::find_if(all.begin(), all.end(), [&](const Kept& kept) {
    return kept.query_type == wanted.query_type && kept.base_type == wanted.base_type &&
           kept.query_rows == wanted.query_rows && kept.rows == wanted.rows &&
           kept.dim == wanted.dim && kept.metric == metric && kept.queries == wanted.queries &&
           kept.base == wanted.base;
  });
  if (found == all.end() || found->answers.ids.cols() < k) {
    wanted.answers = reference_knn(queries, base, std::max<std::int64_t>(k, 128), metric);
    if (found != all.end()) all.erase(found);
    if (all.size() == 32) all.pop_front();
    all.push_back(std::move(wanted));
    found = all.end() - 1;
  }
  Neighbors out{Matrix<Id>(queries.rows(), k), Matrix<float>(queries.rows(), k)};
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    std::copy_n(found->answers.ids.row(q), k, out.ids.row(q));
    std::copy_n(found->answers.distances.row(q), k, out.distances.row(q));
  }
  return out;
}

}  // namespace knear::test
