// knear/transform/hadamard_rotation.hpp -- a random rotation that takes d log d steps instead of
// d^2: signs and fast Hadamard transforms, four times over (Ailon and Chazelle 2009). Of a width
// that is no power of two the first and the last columns take turns, as many as the largest power
// below it.
//
//   const HadamardRotation rotation(784, 1);
//   rotation.apply(x);   // x [784], in place
//
// Lengths and products stay but for rounding to float32. The same numbers come out on every
// machine: each is a sum or a product of two others, in a written order.
#pragma once
#include <cstdint>
#include <vector>

namespace knear::detail {

class HadamardRotation {
 public:
  // Requires at least one column.
  HadamardRotation(std::int64_t columns, std::uint64_t seed);

  std::int64_t columns() const { return columns_; }
  void apply(float* x) const;

 private:
  static constexpr int rounds = 4;

  const std::int64_t columns_;
  std::int64_t block_ = 1;    // the largest power of two that is not above columns
  std::vector<float> signs_;  // [rounds x columns], times what keeps lengths within a block
};

}  // namespace knear::detail
