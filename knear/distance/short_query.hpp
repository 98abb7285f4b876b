// knear/distance/short_query.hpp -- a query of few columns that is measured without memory of the
// heap, for calls that take less than a microsecond.
//
//   ShortQuery query;
//   query.set(Metric::l2, queries, 0);
//   query.keys(base.type(), rows, 20, keys);   // as ExactDistance::key() has them
#pragma once
#include <cstdint>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear {

class ShortQuery {
 public:
  static constexpr std::int64_t most_dim = 1024;

  ShortQuery() {}  // leaves its memory as it is, since zeroing it takes longer than a measurement
  // Makes row q of `queries`, which has at most most_dim columns, the one that is measured.
  void set(Metric metric, AnyMatrixView queries, std::int64_t q);

  // Writes the keys of rows[0 .. count) of an element type to out [count].
  void keys(ElementType row_type, const void* const* rows, std::int64_t count, double* out) const;

 private:
  Metric metric_ = Metric::l2;
  std::int64_t dim_ = 0;
  double xx_ = 0;
  double x_[most_dim];  // padded with zeros to a multiple of 16
};

}  // namespace knear
