// knear/graph/byte_codes.hpp -- vectors as whole numbers of 8 bits, by which it is seen which pairs
// of them are worth measuring.
//
//   ByteCodes codes(base, order, Metric::l2, threads);
//   codes.limit_of(17, key)     // of the products of row 17 with rows that may be as near as `key`
//
// v ~ scale * code, moved by the mean of all vectors where that does not change which are near.
// Distances of codes are whole numbers; of u8 and i8 they are the distances themselves. They bound
// nothing: what is farther off than usual is missed.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::detail {

class ByteCodes {
 public:
  // Row i is row order[i] of base [n x dim], finite.
  ByteCodes(AnyMatrixView base, std::span<const Id> order, Metric metric, int threads);

  std::int64_t steps() const { return steps_; }
  const std::int8_t* row(std::int64_t i) const { return codes_.row(i); }
  std::int32_t square(std::int64_t i) const { return squares_[i]; }
  std::int32_t sum(std::int64_t i) const { return sums_[i]; }
  static std::int64_t bytes_of_row(std::int64_t dim) { return (dim + 3) / 4 * 4 + 8; }

  // The least product, less half of the other's square for l2 and cosine, that a row has with row i
  // if its key may be at most `key`. Codes are off by a third of a step on average; what is farther
  // off than usual is not found, which an exact search would not do.
  std::int32_t limit_of(std::int64_t i, double key) const;
  // What stands for half of the square of a row in the kernels: none for products.
  std::uint32_t term_of(std::int64_t i) const {
    return traits_of(metric_).product ? 0 : static_cast<std::uint32_t>(square(i));
  }

 private:
  void load(AnyMatrixView base, std::int64_t i, double* v) const;
  void choose_scale(AnyMatrixView base, double most);

  const Metric metric_;
  bool exact_ = false;
  double scale_ = 1;
  std::vector<double> shift_;  // [dim]
  std::int64_t steps_ = 0;     // of four codes
  Matrix<std::int8_t> codes_;  // [n x steps * 4]
  std::vector<std::int32_t> squares_, sums_;
};

}  // namespace knear::detail
