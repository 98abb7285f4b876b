// cli/plain_loop.hpp -- the search that anyone would write first, as a yardstick for the demo: a
// loop over all rows and columns in float32, compiled with -O3.
#pragma once
#include <cstdint>

#include "knear/core/matrix.hpp"

namespace knear::cli {

struct PlainLoop {
  std::int64_t queries = 0;  // searched
  double seconds = 0;
};

// Finds the k nearest rows of base [n x d] by squared Euclidean distance for the first of queries
// [q x d], each query on one thread. Stops after about a second, or after all queries. Throws if
// the user interrupts it.
PlainLoop plain_loop(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, int threads);

}  // namespace knear::cli
