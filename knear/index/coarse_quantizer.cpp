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
#include "knear/core/value_range.hpp"
#include "knear/distance/exact.hpp"
#include "knear/index/index.hpp"
#include "knear/index/recall_rule.hpp"

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

Lifts lifts_of(AnyMatrixView rows, MatrixView<float> centroids, int threads,
               const Progress& progress) {
  const auto count = static_cast<std::size_t>(rows.rows());
  std::vector<double> squares(count);
  Lifts out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const double length = length_of(rows.rows(row, row + 1));
    squares[i] = length * length, out.longest = std::max(out.longest, length);
  }
  // Beyond these squares are not floats; then lists are in the order of products.
  if (!(out.longest > 1e-15 && out.longest < 1e15)) return {};
  std::vector<std::uint32_t> list_of(count);
  CentroidScan(centroids, Metric::l2, resolve_threads(threads))
      .assign(rows, false, list_of, {}, progress);
  std::vector<double> sums(static_cast<std::size_t>(centroids.rows())), counts(sums.size());
  for (std::size_t i = 0; i < count; ++i) {
    sums[list_of[i]] += std::sqrt(std::max(0.0, out.longest * out.longest - squares[i]));
    counts[list_of[i]] += 1;
  }
  for (std::size_t l = 0; l < sums.size(); ++l) {
    // A list without rows is where its centroid is.
    const auto list = static_cast<std::int64_t>(l);
    const double length = length_of(centroids.rows(list, list + 1));
    out.values.push_back(static_cast<float>(
        counts[l] > 0 ? sums[l] / counts[l]
                      : std::sqrt(std::max(0.0, out.longest * out.longest - length * length))));
  }
  return out;
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

CoarseQuantizer::CoarseQuantizer(Matrix<float> centroids, Metric metric, Lifts lifts)
    : centroids_(std::move(centroids)),
      metric_(metric),
      lifts_(std::move(lifts)),
      by_metric_(std::make_unique<Searcher>(centroids_.view(), metric)) {
  if (assigned_by() != metric)
    by_l2_ = std::make_unique<Searcher>(centroids_.view(), assigned_by());
  if (lifts_.longest == 0) return;
  const std::int64_t dim = centroids_.cols();
  lifted_centroids_ = Matrix<float>(lists(), dim + 1);
  for (std::int64_t l = 0; l < lists(); ++l) {
    std::copy_n(centroids_.row(l), dim, lifted_centroids_.row(l));
    lifted_centroids_.row(l)[dim] = lifts_.values[static_cast<std::size_t>(l)];
  }
  by_lifted_ = std::make_unique<Searcher>(lifted_centroids_.view(), Metric::l2);
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
  find_value_range(vectors, metric, "vectors", options.threads);  // of all, by their own numbers
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
  Lifts lifts;
  if (metric == Metric::ip)
    lifts = lifts_of(vectors, found.centroids.view(), options.threads, options.progress);
  return std::make_shared<CoarseQuantizer>(std::move(found.centroids), metric, std::move(lifts));
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

AnyMatrix CoarseQuantizer::lifted(AnyMatrixView queries) const {
  const std::int64_t dim = queries.cols();
  AnyMatrix out(ElementType::f32, queries.rows(), dim + 1);
  for (std::int64_t q = 0; q < queries.rows(); ++q) {
    const double length = length_of(queries.rows(q, q + 1));
    const double scale = length > 0 ? lifts_.longest / length : 0;
    float* const to = static_cast<float*>(out.row(q));
    visit(queries, [&](auto view) {
      for (std::int64_t j = 0; j < dim; ++j)
        to[j] = static_cast<float>(scale * to_double(view.row(q)[j]));
    });
    to[dim] = 0;
  }
  return out;
}

Neighbors CoarseQuantizer::probe(AnyMatrixView queries, std::int64_t probes, int threads) const {
  if (by_lifted_) return by_lifted_->nearest(lifted(queries).view(), probes, threads);
  Neighbors near = by_metric_->nearest(queries, probes, threads);
  if (metric_ == Metric::ip)
    for (std::int64_t i = 0; i < near.distances.rows() * probes; ++i)
      near.distances.data()[i] = -near.distances.data()[i];
  return near;
}

Matrix<float> CoarseQuantizer::distances(AnyMatrixView queries, int threads) const {
  const Neighbors near = by_metric_->nearest(queries, lists(), threads);
  Matrix<float> out(queries.rows(), lists());
  for (std::int64_t q = 0; q < queries.rows(); ++q)
    for (std::int64_t p = 0; p < lists(); ++p)
      out.row(q)[near.ids.row(q)[p]] = near.distances.row(q)[p];
  return out;
}

double CoarseQuantizer::reach_unit(double key, double query_length) const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (key == infinity) return infinity;
  if (metric_ != Metric::ip) return std::max(0.0, key);
  if (lifts_.longest > 0)  // |q' - x'|^2 for two vectors of length L
    return query_length > 0
               ? std::max(0.0, 2 * lifts_.longest * (lifts_.longest + key / query_length))
               : 0;
  return std::abs(key);
}

std::int64_t CoarseQuantizer::bytes() const {
  return centroids_.rows() * centroids_.cols() * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace knear::detail
