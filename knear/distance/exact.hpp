// knear/distance/exact.hpp -- the float64 reference, fast: the same bits as reference_distance.
//
//   ExactDistance measure(Metric::l2, queries, q);      // one query, made double once
//   double key = measure.key(base.row(id));             // as order_key(metric, reference_distance)
//
// ExactGroup does so for a few queries at once, for which each row is widened once.
//
// Rescoring, the direct path and the tests of every index call this. Its sixteen partial sums fill
// vector registers; element types other than f32 are widened in registers, not in memory.
#pragma once
#include <cmath>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear {
namespace detail {

// order_key of the sums: those of squared differences (l2), of differences (l1), of bits that
// differ (hamming) or of products; for cosine, of squares too.
inline double exact_key(Metric metric, double sum, double xx, double yy) {
  switch (metric) {
    case Metric::l2:
    case Metric::l1:
    case Metric::hamming:
      return sum;
    case Metric::ip:
      return 0.0 - sum;
    case Metric::cosine:
      break;
  }
  const double key = xx == 0 || yy == 0 ? 1.0 : 1.0 - sum / std::sqrt(xx * yy);
  return key < 0 ? 0.0 : key > 2 ? 2.0 : key;
}

struct ExactKernels;

// Row i of `rows` as doubles [dim], exactly.
void row_as_doubles(AnyMatrixView rows, std::int64_t i, double* out);

}  // namespace detail

class ExactDistance {
 public:
  // Measures rows of `row_type`, u8 for hamming, with queries.cols() elements. Threads: const calls
  // may run at once.
  ExactDistance(Metric metric, ElementType row_type, Isa isa = active_isa());

  // Makes row q of `queries` the one that key() measures from.
  void set_query(AnyMatrixView queries, std::int64_t q);

  // order_key(metric, reference_distance(metric, query, row, dim)).
  double key(const void* row) const {
    double sums[2] = {0, 0};
    one_(x_.data(), &row, dim_, sums);
    return detail::exact_key(metric_, sums[0], xx_, sums[1]);
  }
  // As key(), for rows[0 .. count) at once, 1 <= count <= most_rows: their sums go on side by side.
  static constexpr int most_rows = 4;
  void keys(const void* const* rows, int count, double* out) const {
    if (count < most_rows) {
      for (int r = 0; r < count; ++r) out[r] = key(rows[r]);
      return;
    }
    double sums[2 * most_rows] = {};
    group_(x_.data(), rows, dim_, sums);
    for (int r = 0; r < most_rows; ++r)
      out[r] = detail::exact_key(metric_, sums[r], xx_, sums[most_rows + r]);
  }

 private:
  using Sums = void (*)(const double* x, const void* const* rows, std::int64_t dim, double* sums);
  Metric metric_;
  const detail::ExactKernels* kernels_;
  Sums one_, group_, squares_;
  std::vector<double> x_;  // [dim, padded with zeros to a multiple of 16]; bytes for hamming
  std::int64_t dim_ = 0;
  double xx_ = 0;
};

// Up to four queries, measured together: more than twice as fast per pair as one by one.
class ExactGroup {
 public:
  static constexpr int size = 4;

  // As the constructor of ExactDistance.
  ExactGroup(Metric metric, ElementType row_type, Isa isa = active_isa());

  // Makes rows which[0 .. count) of `queries` those that keys() measures from, 1 <= count <= size.
  void set_queries(AnyMatrixView queries, const std::int64_t* which, int count);
  int count() const { return count_; }

  // The keys of a row from each query; out [count()].
  void keys(const void* row, double* out) const {
    double sums[size + 1] = {};
    sums_(x_.data(), &row, dim_, sums);
    for (int q = 0; q < count_; ++q)
      out[q] = detail::exact_key(metric_, sums[q], xx_[q], sums[size]);
  }

 private:
  using Sums = void (*)(const double* x, const void* const* rows, std::int64_t dim, double* sums);
  Metric metric_;
  const detail::ExactKernels* kernels_;
  Sums sums_, squares_;
  std::vector<double> x_;  // [size][dim, padded with zeros to a multiple of 16], as above
  std::int64_t dim_ = 0;
  int count_ = 0;
  double xx_[size] = {};
};

}  // namespace knear
