// knear/index/centroid_index.hpp -- an index over the centroids of inverted lists, for so many
// lists that comparing each row and query with all of their centroids takes too long.
//
// It may be of any kind. Where it has inverted lists itself, it probes a fixed number of these, so
// that what it finds for a vector is a function of that vector alone, and the nearest few lists are
// the first of the nearest many.
#pragma once
#include <cstdint>
#include <memory>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/index.hpp"
#include "knear/index/index_shape.hpp"

namespace knear::detail {

class CentroidIndex {
 public:
  // index: holds the centroids under their numbers. probes: of its lists, 0 if it has none.
  CentroidIndex(Index index, std::int64_t probes) : index_(std::move(index)), probes_(probes) {}
  // Of this kind, whatever dim and metric that has, over centroids [n x dim] for a metric. Probes
  // as many lists as 256 of the centroids need to find 99 % of the 64 nearest others. Throws
  // InvalidArgument as Index::train() for too few centroids; Cancelled.
  static std::shared_ptr<const CentroidIndex> trained(IndexShape shape, MatrixView<float> centroids,
                                                      Metric metric, const TrainOptions& options);

  // The k nearest of each vector as far as it finds them, padded with no_id.
  Neighbors nearest(AnyMatrixView vectors, std::int64_t k, int threads) const;

  const Index& index() const { return index_; }
  std::int64_t probes() const { return probes_; }

 private:
  Index index_;
  const std::int64_t probes_;
};

}  // namespace knear::detail
