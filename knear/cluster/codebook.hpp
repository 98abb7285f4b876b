// knear/cluster/codebook.hpp -- k-means for quantisers: centroids alone.
#pragma once
#include "knear/cluster/k_means.hpp"

namespace knear::detail {

// The centroids [k x dim] of k_means(), the same bits, without the objective of each iteration,
// which takes as long as the assignment where rows are short. Uses metric, iterations, seed,
// seeding, initial, threads and progress of the options, on all rows; requires 1 <= k <= rows and
// what k_means() checks.
Matrix<float> codebook(AnyMatrixView rows, std::int64_t k, const KMeansOptions& options);

}  // namespace knear::detail
