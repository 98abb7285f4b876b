// knear/transform/eigen.hpp -- Eigen, with the same bits on every processor: what includes this
// header includes Eigen by nothing else.
//
// Eigen sums in another order for each kind of register, fuses products and sums where the
// processor can (64-bit ARM), and cuts matrices by the sizes of this machine's caches. Here it has
// no registers but those of one number and is told the sizes. Singular vectors of 768
// dimensions take 0.86 s instead of 0.55 (docs/processors.md).
//
// In a namespace of its own: a program that uses the library and Eigen with other settings would
// share functions with it that differ.
#pragma once
#define Eigen EigenWithTheSameBits
#define EIGEN_DONT_VECTORIZE
#include <Eigen/Dense>

namespace knear::detail {

inline const bool eigen_is_told_sizes = [] {
  Eigen::setCpuCacheSizes(32 << 10, 512 << 10, 512 << 10);
  return true;
}();

}  // namespace knear::detail
