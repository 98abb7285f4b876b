#include "knear/index/coarse_quantizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "knear/cluster/centroid_scan.hpp"
#include "knear/cluster/k_means.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/index/index.hpp"

namespace knear::detail {
namespace {

// Fewer rows than these are searched like queries, by centroids that are packed already.
constexpr std::int64_t most_searched_rows = 1024;
// To learn a centroid from, where nothing else is said.
constexpr std::int64_t usual_rows_of_list = 128;
// Above so many centroids, each row is not compared with all of them when they are learned.
constexpr std::int64_t most_lists_of_one_level = 16384;

// Rounded up, of a key that was computed in float64.
float radius_of(double key, Metric metric) {
  // 1 - cosine is off by up to a few times dim 2^-53.
  const double squared = metric == Metric::cosine ? 2 * (std::max(0.0, key) + 1e-10) : key;
  const double radius = std::sqrt(squared) * (1 + 1e-9);
  return std::nextafter(static_cast<float>(radius), std::numeric_limits<float>::infinity());
}

}  // namespace

class CoarseQuantizer::Searcher {
 public:
  Searcher(MatrixView<float> centroids, Metric metric)
      : metric_(metric), searcher_(centroids, {.metric = metric}) {}

  Neighbors nearest(AnyMatrixView vectors, std::int64_t k, int threads) const {
    return searcher_.search(vectors, k, {.metric = metric_, .threads = threads});
  }

 private:
  Metric metric_;
  ExactSearcher searcher_;
};

CoarseQuantizer::CoarseQuantizer(Matrix<float> centroids, Metric metric)
    : centroids_(std::move(centroids)),
      metric_(metric),
      by_metric_(std::make_unique<Searcher>(centroids_.view(), metric)) {
  if (assigned_by() != metric)
    by_l2_ = std::make_unique<Searcher>(centroids_.view(), assigned_by());
}

CoarseQuantizer::~CoarseQuantizer() = default;

std::shared_ptr<const CoarseQuantizer> CoarseQuantizer::trained(AnyMatrixView vectors,
                                                                std::int64_t lists, Metric metric,
                                                                const TrainOptions& options) {
  if (vectors.rows() < lists)
    throw InvalidArgument("vectors are {} rows, but training {} lists takes as many at least",
                          vectors.rows(), lists);
  if (options.rows != 0 && options.rows < lists)
    throw InvalidArgument("rows is {}, but training {} lists takes as many at least", options.rows,
                          lists);
  AnyMatrix sample;
  if (const std::int64_t rows = options.rows > 0 ? options.rows : usual_rows_of_list * lists;
      rows < vectors.rows()) {
    Random random(options.seed);
    sample = rows_at(vectors, sample_of(vectors.rows(), rows, random));
    vectors = sample;
  }
  const Metric by = metric == Metric::cosine ? Metric::cosine : Metric::l2;
  const bool two_levels = lists > most_lists_of_one_level && by == Metric::l2;
  KMeans found = k_means(vectors, lists,
                         {.metric = by,
                          .iterations = options.iterations,
                          .seed = options.seed,
                          .levels = two_levels ? 2 : 1,
                          .threads = options.threads,
                          .progress = options.progress});
  return std::make_shared<CoarseQuantizer>(std::move(found.centroids), metric);
}

bool CoarseQuantizer::equals(const CoarseQuantizer& other) const {
  return lists() == other.lists() && centroids_.cols() == other.centroids_.cols() &&
         std::memcmp(centroids_.data(), other.centroids_.data(),
                     static_cast<std::size_t>(lists() * centroids_.cols()) * sizeof(float)) == 0;
}

ListAssignment CoarseQuantizer::assign(AnyMatrixView rows, int threads,
                                       const Progress& progress) const {
  const auto count = static_cast<std::size_t>(rows.rows());
  ListAssignment out;
  out.list_of.resize(count);
  out.radii.assign(static_cast<std::size_t>(lists()), 0);
  std::vector<double> keys(count);
  if (rows.rows() < most_searched_rows) {
    const Neighbors near = (by_l2_ ? *by_l2_ : *by_metric_).nearest(rows, 1, threads);
    for (std::size_t i = 0; i < count; ++i)
      out.list_of[i] = static_cast<std::uint32_t>(near.ids.data()[i]);
    ExactDistance distance(assigned_by(), ElementType::f32, active_isa());
    for (std::size_t i = 0; i < count; ++i) {
      distance.set_query(rows, static_cast<std::int64_t>(i));
      keys[i] = distance.key(centroids_.row(out.list_of[i]));
    }
  } else {
    CentroidScan scan(centroids_.view(), assigned_by(), resolve_threads(threads));
    scan.assign(rows, false, out.list_of, keys, progress);
  }
  for (std::size_t i = 0; i < count; ++i) {
    float& radius = out.radii[out.list_of[i]];
    radius = std::max(radius, radius_of(keys[i], assigned_by()));
  }
  return out;
}

Neighbors CoarseQuantizer::probe(AnyMatrixView queries, std::int64_t probes, int threads) const {
  return by_metric_->nearest(queries, probes, threads);
}

std::int64_t CoarseQuantizer::bytes() const {
  return centroids_.rows() * centroids_.cols() * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace knear::detail
