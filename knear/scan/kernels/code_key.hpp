// knear/scan/kernels/code_key.hpp -- the key of a row that is kept as a code, in float32 and in one
// order of operations, on the processor and on a GPU.
#pragma once
#include <limits>

#include "knear/core/host_device.hpp"
#include "knear/core/metric.hpp"

namespace knear::detail {

// Of the term of a query and a list, the sum of the entries of a code, and the scalar of the row, 0
// where rows have none (methods/code_scan.hpp has the formulas). Infinity where float32 does not
// reach, and never NaN. No product is added to anything, so that no compiler can contract it.
KNEAR_HD inline float code_key(Metric metric, float term, float sum, float scalar) {
  float key = 0;
  switch (metric) {
    case Metric::l2:
      key = (term + scalar) + sum;
      if (key < 0) key = 0;
      break;
    case Metric::ip:
      key = term + sum;
      break;
    case Metric::l1:  // these have no codes
    case Metric::hamming:
    case Metric::cosine:
      key = scalar > 0 ? 1 + (term + sum) / scalar : 1;
      break;
  }
  const float largest = std::numeric_limits<float>::infinity();
  return key < largest ? key : largest;
}

}  // namespace knear::detail
