#include "knear/index/impl/index_over_centroids.hpp"

#include <algorithm>
#include <utility>

#include "knear/index/form/form_file.hpp"
#include "knear/knn/knn.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t queries_tried = 256, neighbors_tried = 64;
constexpr double recall_wanted = 0.99;

// As many of the lists of `index` as find nearly all that is nearest to some of the centroids.
std::int64_t probes_wanted(const IndexImpl& index, MatrixView<float> centroids, Metric metric,
                           int threads) {
  const std::int64_t lists = index.shape.lists, n = centroids.rows();
  if (lists == 0) return 0;
  const std::int64_t count = std::min(n, queries_tried), k = std::min(n, neighbors_tried + 1);
  Matrix<float> queries(count, centroids.cols());
  for (std::int64_t q = 0; q < count; ++q)
    std::copy_n(centroids.row(q * (n / count)), centroids.cols(), queries.row(q));
  const ExactSearcher exact(centroids, {.metric = metric, .threads = threads});
  const Neighbors truth = exact.search(queries.view(), k, {.metric = metric, .threads = threads});
  double before = -1;
  for (std::int64_t probes = 1; probes < lists; probes = std::max(probes + 1, probes * 3 / 2)) {
    SearchOptions options;
    options.method.probes = probes, options.threads = threads;
    const Neighbors found = index.search(queries.view(), k, options, nullptr);
    std::int64_t there = 0;
    for (std::int64_t q = 0; q < count; ++q)
      for (std::int64_t i = 0; i < k; ++i)
        there += truth.ids.row(q)[i] != q * (n / count) &&
                 std::find(found.ids.row(q), found.ids.row(q) + k, truth.ids.row(q)[i]) !=
                     found.ids.row(q) + k;
    const double recall = static_cast<double>(there) /
                          static_cast<double>(std::max<std::int64_t>(1, count * (k - 1)));
    // Codes may never find as much.
    if (recall >= recall_wanted || (probes > 8 && recall < before + 0.001)) return probes;
    before = recall;
  }
  return lists;
}

}  // namespace

std::shared_ptr<const CentroidIndex> IndexOverCentroids::trained(const IndexShape& kind,
                                                                 MatrixView<float> centroids,
                                                                 Metric metric,
                                                                 const TrainOptions& options) {
  IndexShape shape = kind;
  shape.dim = centroids.cols(), shape.metric = metric;
  auto index = std::make_unique<IndexImpl>(shape);
  TrainOptions by_centroids = options;
  by_centroids.rows = 0;
  if (shape.lists == 0) by_centroids.iterations = TrainOptions().iterations;
  by_centroids.hold_out = false;  // they are all that it will ever have
  if (shape.learns()) index->train(centroids, by_centroids, nullptr);
  index->add(centroids, {.threads = options.threads, .progress = options.progress});
  const std::int64_t probes = probes_wanted(*index, centroids, metric, options.threads);
  return std::make_shared<const IndexOverCentroids>(std::move(index), probes);
}

std::shared_ptr<const CentroidIndex> IndexOverCentroids::loaded(const IndexShape& shape,
                                                                State state, std::int64_t lists,
                                                                std::int64_t probes) {
  auto index = std::make_unique<IndexImpl>(shape, std::move(state));
  if (index->ids() != first_ids(lists)) return nullptr;
  return std::make_shared<const IndexOverCentroids>(std::move(index), probes);
}

void IndexOverCentroids::save(io::ArchiveWriter& writer) const {
  add_sections(writer, index_->shape, *index_->state());
}

Neighbors IndexOverCentroids::nearest(AnyMatrixView vectors, std::int64_t k, int threads) const {
  SearchOptions options;
  options.method.probes = probes_, options.threads = threads;
  return index_->search(vectors, k, options, nullptr);
}

bool IndexOverCentroids::holds(MatrixView<float> centroids) const {
  const AnyMatrix own = index_->reconstruct(first_ids(centroids.rows()));
  AnyMatrix floats(ElementType::f32, centroids.rows(), centroids.cols());
  if (copy_exactly(own, ElementType::f32, floats.row(0)) >= 0) return false;
  const float* const all = static_cast<const float*>(floats.row(0));
  return std::equal(all, all + centroids.rows() * centroids.cols(), centroids.data());
}

bool IndexOverCentroids::equals(const CentroidIndex& other) const {
  return index_->shape.description() == other.index().shape.description() &&
         probes_ == other.probes() &&
         same_bits(index_->centroids().view(), other.index().centroids().view());
}

}  // namespace knear::detail
