// knear/cluster/k_means.hpp -- k-means: rows in groups around centroids.
//
//   const Matrix<float> centroids = k_means(sample, 256, {.iterations = 8});
//   const NearestCentroid nearest(centroids.view());
//   std::vector<std::uint32_t> group = nearest.of(rows, threads);
//
// Assignment is the scan with k = 1, so exact, ties to the centroid of the smaller number: the same
// groups for any number of threads and instruction set.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"
#include "knear/scan/scan.hpp"

namespace knear {

class NearestCentroid {
 public:
  // Keeps a reference to the centroids [c x dim], c >= 1.
  explicit NearestCentroid(MatrixView<float> centroids);

  // The nearest centroid of each of rows [n x dim], by squared distance. Threads: calls may run at
  // once.
  std::vector<std::uint32_t> of(AnyMatrixView rows, int threads) const;
  // The `count` nearest [n x count], nearest first; 1 <= count <= c.
  Matrix<Id> of(AnyMatrixView rows, std::int64_t count, int threads) const;

 private:
  detail::BaseRows centroids_;
  detail::PackedBase packed_;
};

struct KMeansOptions {
  int iterations = 10;
  int threads = 0;
  std::uint64_t seed = 1;
};

// Lloyd's iterations from `count` rows chosen at random, 1 <= count <= rows.rows(). A centroid that
// loses all its rows starts anew beside the one that has most. Throws InvalidArgument.
Matrix<float> k_means(MatrixView<float> rows, std::int64_t count, const KMeansOptions& options = {},
                      const Progress& progress = {});

}  // namespace knear
