// knear/index/quantizers/coarse_quantizer.hpp -- the centroids of inverted lists: which list a row
// goes to, and which lists are nearest to a query.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/index/quantizers/centroid_index.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear {
class Transform;
struct TrainOptions;
}  // namespace knear

namespace knear::detail {

struct IndexShape;

// The list of each row, and of each list how far its rows are from the centroid at most.
struct ListAssignment {
  std::vector<std::uint32_t> list_of;    // [rows]
  std::vector<std::uint32_t> second_of;  // [rows], the second list of each; empty: they have none
  // [lists], rounded up; between vectors of length 1 where the metric is cosine.
  std::vector<float> radii;
};

// For products, lists are found by distances too: with one column more, rows [x, sqrt(L^2 - |x|^2)]
// have one length L, and among these the nearest to the query [q L / |q|, 0] is the one of the
// largest product (Bachrach et al. 2014). The mean of that column over the rows of a list is
// its lift; nothing, and lists are in the order of their products with the query.
struct Lifts {
  double longest = 0;         // L; 0: there are none
  std::vector<float> values;  // [lists]
};

// Indexes over the centroids, by which rows are assigned, and over the lifted ones, if there are
// lifts; nullptr: each centroid is compared.
struct CentroidIndexes {
  std::shared_ptr<const CentroidIndex> plain = {}, lifted = {};
};

// Any number of threads may use one.
class CoarseQuantizer {
 public:
  // Centroids [lists x dim], finite. Lifts are for ip.
  CoarseQuantizer(Matrix<float> centroids, Metric metric, Lifts lifts = {},
                  CentroidIndexes indexes = {});
  ~CoarseQuantizer();
  // Learns as many as the shape has lists, by k-means, and the index over them, if it has one, for
  // which `index` is called; errors as those of Index::train().
  static std::shared_ptr<const CoarseQuantizer> trained(AnyMatrixView vectors,
                                                        const IndexShape& shape,
                                                        const TrainOptions& options,
                                                        TrainCentroidIndex index = nullptr);

  // How many rows it learns from, if nothing else is said.
  static std::int64_t training_rows(const IndexShape& shape);
  // Of vectors that a transform turns, which keeps their distances.
  std::shared_ptr<const CoarseQuantizer> turned(const Transform& turn, const IndexShape& shape,
                                                const TrainOptions& options,
                                                TrainCentroidIndex index = nullptr) const;

  // With other numbers: list i is list order[i] of this one, which has no index over its centroids.
  // order [lists] has each number once.
  std::shared_ptr<const CoarseQuantizer> renumbered(std::span<const std::uint32_t> order) const;

  std::int64_t lists() const { return centroids_->rows(); }
  MatrixView<float> centroids() const { return centroids_->view(); }
  // The centroids as what rows of their lists may be coded around.
  ListCentres centres() const { return {centroids(), centroids_, centres_}; }
  // Has centres() be equal to those of another quantiser, whose centroids were found to be these.
  void share_centres(const CoarseQuantizer& with) const { centres_->store(*with.centres_); }
  // Whether rows are assigned alike.
  bool equals(const CoarseQuantizer& other) const;

  // The nearest centroid of each row, ties to the smaller number; of more than 131,072 by an index
  // the nearest that it finds.
  ListAssignment assign(AnyMatrixView rows, int threads, const Progress& progress) const;
  // Rows in lists that somebody else chose, list_of [rows], each below lists().
  ListAssignment as_given(AnyMatrixView rows, std::span<const std::uint32_t> list_of,
                          int threads) const;
  // The second list of each row [rows], by SOAR (Sun et al., NeurIPS 2023): of a residual r to the
  // first list, in list_of, the one whose residual s has the least |s|^2 + 2 (r.s / |r|)^2 among
  // the row's 33 nearest lists. Queries that lie far from the first centroid along r then lie near
  // the second. Ties go to the smaller number. Requires two lists or more.
  std::vector<std::uint32_t> second_lists(AnyMatrixView rows,
                                          std::span<const std::uint32_t> list_of,
                                          int threads) const;
  // What is left of each row beside the centroid of its list.
  Matrix<float> residuals(AnyMatrixView rows, int threads, const Progress& progress) const;
  // The nearest `probes` lists of each query, nearest first, and keys [queries x probes], the
  // smaller the nearer: distances, with lifts those of the lifted vectors; without, products for ip
  // with their sign changed. By an index: those that it finds, then the others in the order of
  // their distances, with keys that are no smaller than the last one's before them. Always the
  // first of those for more probes.
  Neighbors probe(AnyMatrixView queries, std::int64_t probes, int threads) const;
  // The distance of each query to each centroid by the metric [queries x lists].
  Matrix<float> distances(AnyMatrixView queries, int threads) const;
  // Whether probe() gives the nearest lists, by distances from their centroids: without lifts or an
  // index over centroids, which may miss some.
  bool finds_nearest_lists() const { return !traits_of(metric_).lifted && !indexes_.plain; }
  // Whether the keys that probe() gives are squares of distances, or in proportion to these.
  bool keys_are_distances() const { return !traits_of(metric_).lifted || lifts_.longest > 0; }
  const Lifts& lifts() const { return lifts_; }
  const CentroidIndexes& indexes() const { return indexes_; }

  std::int64_t bytes() const;

 private:
  class Searcher;

  Metric assigned_by() const { return centroid_metric(metric_); }

  AnyMatrix lifted(AnyMatrixView queries) const;
  // How far each row is from the centroid of its list, by what rows are assigned by.
  void set_keys(AnyMatrixView rows, std::span<const std::uint32_t> list_of, int threads,
                std::span<double> keys) const;
  void set_radii(std::span<const double> keys, ListAssignment& to) const;

  const std::shared_ptr<const Matrix<float>> centroids_;
  const std::shared_ptr<std::atomic<std::uint64_t>> centres_;  // ListCentres::number
  const Metric metric_;
  const Lifts lifts_;
  const CentroidIndexes indexes_;
  Matrix<float> lifted_centroids_;
  std::unique_ptr<Searcher> by_metric_, by_l2_, by_lifted_;
};

}  // namespace knear::detail
