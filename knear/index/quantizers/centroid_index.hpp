// knear/index/quantizers/centroid_index.hpp -- what finds the centroids of inverted lists that are
// near a vector, where there are so many lists that comparing each row and query with all of their
// centroids takes too long: an index over them (index_over_centroids.hpp).
#pragma once
#include <cstdint>
#include <memory>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"

namespace knear {
struct TrainOptions;
}  // namespace knear

namespace knear::io {
class ArchiveWriter;
}  // namespace knear::io

namespace knear::detail {

class IndexImpl;
struct IndexShape;

class CentroidIndex {
 public:
  virtual ~CentroidIndex() = default;
  // The k nearest of each vector as far as it finds them, padded with no_id.
  virtual Neighbors nearest(AnyMatrixView vectors, std::int64_t k, int threads) const = 0;
  // Returns true if both find the same centroids for every vector.
  virtual bool equals(const CentroidIndex& other) const = 0;
  // Returns true if it keeps the centroids as they are, neither as codes nor rounded.
  virtual bool holds(MatrixView<float> centroids) const = 0;
  virtual std::int64_t memory_bytes() const = 0;
  // For files: the index, which holds the centroids under their numbers, and how many of its lists
  // a search probes, 0 if it has none.
  virtual const IndexImpl& index() const = 0;
  virtual std::int64_t probes() const = 0;
  // Adds the sections of the index to a file. It has to stay until that is written.
  virtual void save(io::ArchiveWriter& writer) const = 0;
};

// Makes an index of a kind over centroids (IndexOverCentroids::trained).
using TrainCentroidIndex = std::shared_ptr<const CentroidIndex> (*)(const IndexShape& kind,
                                                                    MatrixView<float> centroids,
                                                                    Metric metric,
                                                                    const TrainOptions& options);

}  // namespace knear::detail
