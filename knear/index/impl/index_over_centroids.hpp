// knear/index/impl/index_over_centroids.hpp -- any index, as one over the centroids of inverted
// lists.
//
// Where it has inverted lists itself, it probes a fixed number of these, so that what it finds for
// a vector is a function of that vector alone, and the nearest few lists are the first of the
// nearest many.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/index/quantizers/centroid_index.hpp"

namespace knear::detail {

class IndexOverCentroids final : public CentroidIndex {
 public:
  // index: holds the centroids under their numbers. probes: of its lists, 0 if it has none.
  IndexOverCentroids(std::unique_ptr<const IndexImpl> index, std::int64_t probes)
      : index_(std::move(index)), probes_(probes) {}
  // Of this kind, whatever dim and metric that has, over centroids [n x dim] for a metric. Probes
  // as many lists as 256 of the centroids need to find 99 % of the 64 nearest others. Throws
  // InvalidArgument as Index::train() for too few centroids; Cancelled.
  static std::shared_ptr<const CentroidIndex> trained(const IndexShape& kind,
                                                      MatrixView<float> centroids, Metric metric,
                                                      const TrainOptions& options);

  // As MakeCentroidIndex says (form/form.hpp).
  static std::shared_ptr<const CentroidIndex> loaded(const IndexShape& shape, State state,
                                                     std::int64_t lists, std::int64_t probes);

  Neighbors nearest(AnyMatrixView vectors, std::int64_t k, int threads) const override;
  bool equals(const CentroidIndex& other) const override;
  bool holds(MatrixView<float> centroids) const override;
  std::int64_t memory_bytes() const override { return index_->memory_bytes(); }
  const IndexImpl& index() const override { return *index_; }
  std::int64_t probes() const override { return probes_; }
  void save(io::ArchiveWriter& writer) const override;

 private:
  const std::unique_ptr<const IndexImpl> index_;
  const std::int64_t probes_;
};

}  // namespace knear::detail
