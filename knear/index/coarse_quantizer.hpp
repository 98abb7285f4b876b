// knear/index/coarse_quantizer.hpp -- the centroids of inverted lists: which list a row goes to,
// and which lists are nearest to a query.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"

namespace knear {
struct TrainOptions;
}

namespace knear::detail {

// The list of each row, and of each list how far its rows are from the centroid at most.
struct ListAssignment {
  std::vector<std::uint32_t> list_of;  // [rows]
  // [lists], rounded up; between vectors of length 1 where the metric is cosine.
  std::vector<float> radii;
};

// Any number of threads may use one.
class CoarseQuantizer {
 public:
  // Centroids [lists x dim], finite.
  CoarseQuantizer(Matrix<float> centroids, Metric metric);
  ~CoarseQuantizer();
  // Learns them by k-means; errors as those of Index::train().
  static std::shared_ptr<const CoarseQuantizer> trained(AnyMatrixView vectors, std::int64_t lists,
                                                        Metric metric, const TrainOptions& options);

  std::int64_t lists() const { return centroids_.rows(); }
  MatrixView<float> centroids() const { return centroids_.view(); }
  // Whether rows are assigned alike.
  bool equals(const CoarseQuantizer& other) const;

  // The nearest centroid of each row, ties to the smaller number.
  ListAssignment assign(AnyMatrixView rows, int threads, const Progress& progress) const;
  // The nearest `probes` lists of each query, nearest first, and the distances [queries x probes].
  Neighbors probe(AnyMatrixView queries, std::int64_t probes, int threads) const;

  std::int64_t bytes() const;

 private:
  class Searcher;

  Metric assigned_by() const { return metric_ == Metric::cosine ? Metric::cosine : Metric::l2; }

  const Matrix<float> centroids_;
  const Metric metric_;
  std::unique_ptr<Searcher> by_metric_, by_l2_;
};

}  // namespace knear::detail
