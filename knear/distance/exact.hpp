// knear/distance/exact.hpp -- the float64 reference, fast: the same bits as reference_distance.
//
//   ExactDistance measure(Metric::l2, queries, q);      // one query, made double once
//   double key = measure.key(base.row(id));             // as order_key(metric, reference_distance)
//
// Rescoring, the direct path and the tests of every index call this. Its sixteen partial sums fill
// vector registers; element types other than f32 are widened in registers, not in memory.
#pragma once
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear {

class ExactDistance {
 public:
  // For rows of `row_type` with queries.cols() elements. Threads: const calls at once are fine.
  ExactDistance(Metric metric, ElementType row_type, Isa isa = active_isa());

  // Makes row q of `queries` the one that key() measures from.
  void set_query(AnyMatrixView queries, std::int64_t q);

  // order_key(metric, reference_distance(metric, query, row, dim)).
  double key(const void* row) const {
    double sums[2] = {0, 0};
    sums_(x_.data(), row, dim_, sums);
    return key_of(sums);
  }
  // The sums of squares of the query's elements, in the reference's order.
  double query_squares() const { return xx_; }

 private:
  double key_of(const double* sums) const;

  using Sums = void (*)(const double* x, const void* row, std::int64_t dim, double* sums);
  Metric metric_;
  Sums sums_, squares_;
  std::vector<double> x_;  // [dim, padded with zeros to a multiple of 16]
  std::int64_t dim_ = 0;
  double xx_ = 0;
};

}  // namespace knear
