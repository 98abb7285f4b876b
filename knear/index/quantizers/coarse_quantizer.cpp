#include "knear/index/quantizers/coarse_quantizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "knear/cluster/centroid_scan.hpp"
#include "knear/cluster/k_means.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/sample.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/value_range.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/distance/exact.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/index/options.hpp"
#include "knear/index/quantizers/coded_part.hpp"
#include "knear/index/recall/recall_rule.hpp"
#include "knear/knn/search/nearest_search.hpp"
#include "knear/knn/search/search.hpp"
#include "knear/transform/transform.hpp"

namespace knear::detail {
namespace {

// Fewer rows than these are searched like queries, by centroids that are packed already.
constexpr std::int64_t most_searched_rows = 1024;
// Above so many centroids, rows that are added go by an index over these, if there is one: with
// fewer the scan is faster.
constexpr std::int64_t most_lists_compared_with_rows = 131072;
// To learn a centroid from, where nothing else is said; so many centroids make do with half, which
// is copied.
constexpr std::int64_t usual_rows_of_list = 256;
// Most iterations see a quarter of the rows or less, if a list has so many of these.
constexpr std::int64_t rows_of_list_at_first = 32;

// Columns of vectors that are searched. A lift is one more.
constexpr std::int64_t most_columns = 65536;

// Rounded up, of a key that was computed in float64.
float radius_of(double key, Metric metric) {
  // 1 - cosine is off by up to a few times dim 2^-53.
  const double squared = traits_of(metric).unit_rows ? 2 * (std::max(0.0, key) + 1e-10) : key;
  const double radius = std::sqrt(squared) * (1 + 1e-9);
  return std::nextafter(static_cast<float>(radius), std::numeric_limits<float>::infinity());
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

Lifts lifts_of(AnyMatrixView rows, MatrixView<float> centroids, int threads,
               const Progress& progress) {
  // Without lifts, lists are in the order of products.
  if (rows.cols() >= most_columns) return {};
  const std::size_t count = rows.rows();
  std::vector<double> squares(count);
  Lifts out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const double length = length_of(rows.rows(row, row + 1));
    squares[i] = length * length, out.longest = std::max(out.longest, length);
  }
  // Beyond these squares are not floats.
  if (!(out.longest > 1e-15 && out.longest < 1e15)) return {};
  std::vector<std::uint32_t> list_of(count);
  CentroidScan(centroids, Metric::l2, resolve_threads(threads))
      .assign(rows, false, list_of, {}, progress);
  std::vector<double> sums(centroids.rows()), counts(sums.size());
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

Matrix<float> lifted_by(MatrixView<float> centroids, const Lifts& lifts) {
  const std::int64_t dim = centroids.cols();
  Matrix<float> out(centroids.rows(), dim + 1);
  for (std::int64_t l = 0; l < centroids.rows(); ++l) {
    std::copy_n(centroids.row(l), dim, out.row(l));
    out.row(l)[dim] = lifts.values[l];
  }
  return out;
}

}  // namespace

class CoarseQuantizer::Searcher {
 public:
  Searcher(MatrixView<float> centroids, Metric metric,
           std::shared_ptr<const CentroidIndex> index = {})
      : centroids_(centroids.rows()),
        metric_(metric),
        index_(std::move(index)),
        rows_(centroids, metric, find_value_range(centroids, metric, "centroids", 0)) {}

  bool has_index() const { return index_ != nullptr; }
  Neighbors exact(AnyMatrixView vectors, std::int64_t k, int threads) const {
    const SearchSegment all{.rows = &rows_};
    const SearchRequest request(SearchKind::nearest, {&all, 1}, vectors, k,
                                {.metric = metric_, .threads = threads}, Reuse::expected);
    ExactNeighbors found;
    Search(request).run_from(found);
    return rounded_answer(found, request);
  }
  Neighbors nearest(AnyMatrixView vectors, std::int64_t k, int threads) const {
    if (!index_) return exact(vectors, k, threads);
    Neighbors near = index_->nearest(vectors, k, threads);
    complete(near, vectors, threads);
    return near;
  }

 private:
  // Puts what the index did not find behind what it did.
  void complete(Neighbors& near, AnyMatrixView vectors, int threads) const {
    const std::int64_t k = near.ids.cols();
    std::vector<std::int64_t> open;
    for (std::int64_t q = 0; q < vectors.rows(); ++q)
      if (k > 0 && near.ids.row(q)[k - 1] == no_id) open.push_back(q);
    const std::size_t block = std::max<std::int64_t>(1, (1 << 22) / centroids_);
    for (std::size_t begin = 0; begin < open.size(); begin += block) {
      const std::span<const std::int64_t> some(open.data() + begin,
                                               std::min(block, open.size() - begin));
      const Neighbors all = exact(rows_at(vectors, some), centroids_, threads);
      parallel_for(threads, std::ssize(some), [&](std::int64_t i) {
        Id* const ids = near.ids.row(some[i]);
        float* const keys = near.distances.row(some[i]);
        const std::int64_t found = std::find(ids, ids + k, no_id) - ids;
        std::vector<bool> taken(centroids_);
        for (std::int64_t j = 0; j < found; ++j) taken[ids[j]] = true;
        std::int64_t to = found;
        for (std::int64_t j = 0; to < k; ++j) {
          const Id id = all.ids.row(i)[j];
          if (taken[id]) continue;
          const float key = all.distances.row(i)[j];
          ids[to] = id, keys[to] = found > 0 ? std::max(key, keys[found - 1]) : key, ++to;
        }
      });
    }
  }

  const std::int64_t centroids_;
  const Metric metric_;
  const std::shared_ptr<const CentroidIndex> index_;
  mutable PreparedRows rows_;  // has its own lock
};

CoarseQuantizer::CoarseQuantizer(Matrix<float> centroids, Metric metric, Lifts lifts,
                                 CentroidIndexes indexes)
    : centroids_(std::make_shared<const Matrix<float>>(std::move(centroids))),
      centres_(std::make_shared<std::atomic<std::uint64_t>>(next_number())),
      metric_(metric),
      lifts_(std::move(lifts)),
      indexes_(std::move(indexes)),
      by_metric_(std::make_unique<Searcher>(centroids_->view(), metric,
                                            assigned_by() == metric ? indexes_.plain : nullptr)) {
  if (assigned_by() != metric)
    by_l2_ = std::make_unique<Searcher>(centroids_->view(), assigned_by(), indexes_.plain);
  if (lifts_.longest == 0) return;
  lifted_centroids_ = lifted_by(centroids_->view(), lifts_);
  by_lifted_ = std::make_unique<Searcher>(lifted_centroids_.view(), Metric::l2, indexes_.lifted);
}

CoarseQuantizer::~CoarseQuantizer() = default;

namespace {

bool has_two_levels(const IndexShape& shape) {
  return shape.lists > most_lists_of_one_level && !traits_of(shape.metric).unit_rows;
}

CentroidIndexes indexes_of(const IndexShape& shape, MatrixView<float> centroids, const Lifts& lifts,
                           const TrainOptions& options, TrainCentroidIndex index) {
  if (shape.coarse.empty()) return {};
  const Metric by = centroid_metric(shape.metric);
  CentroidIndexes out;
  out.plain = index(shape.coarse.front(), centroids, by, options);
  if (lifts.longest != 0)
    out.lifted =
        index(shape.coarse.front(), lifted_by(centroids, lifts).view(), Metric::l2, options);
  return out;
}

}  // namespace

std::int64_t CoarseQuantizer::training_rows(const IndexShape& shape) {
  return shape.lists * (has_two_levels(shape) ? usual_rows_of_list / 2 : usual_rows_of_list);
}

std::shared_ptr<const CoarseQuantizer> CoarseQuantizer::turned(const Transform& turn,
                                                               const IndexShape& shape,
                                                               const TrainOptions& options,
                                                               TrainCentroidIndex index) const {
  Matrix<float> centroids = turn.apply(centroids_->view(), options.threads);
  CentroidIndexes indexes = indexes_of(shape, centroids.view(), lifts_, options, index);
  return std::make_shared<CoarseQuantizer>(std::move(centroids), metric_, lifts_,
                                           std::move(indexes));
}

std::shared_ptr<const CoarseQuantizer> CoarseQuantizer::renumbered(
    std::span<const std::uint32_t> order) const {
  Matrix<float> centroids(lists(), centroids_->cols());
  Lifts lifts{lifts_.longest, std::vector<float>(lifts_.values.size())};
  for (std::size_t i = 0; i < order.size(); ++i) {
    std::copy_n(centroids_->row(order[i]), centroids_->cols(),
                centroids.row(static_cast<std::int64_t>(i)));
    if (!lifts.values.empty()) lifts.values[i] = lifts_.values[order[i]];
  }
  return std::make_shared<CoarseQuantizer>(std::move(centroids), metric_, std::move(lifts));
}

Matrix<float> CoarseQuantizer::residuals(AnyMatrixView rows, int threads,
                                         const Progress& progress) const {
  const std::vector<std::uint32_t> list_of = assign(rows, threads, progress).list_of;
  return coded_part(rows, 0, rows.rows(), metric_, centroids(), list_of);
}

std::shared_ptr<const CoarseQuantizer> CoarseQuantizer::trained(AnyMatrixView vectors,
                                                                const IndexShape& shape,
                                                                const TrainOptions& options,
                                                                TrainCentroidIndex index) {
  const std::int64_t lists = shape.lists;
  const Metric metric = shape.metric;
  if (vectors.rows() < lists)
    throw InvalidArgument("vectors are {} rows, but training {} lists takes as many at least",
                          vectors.rows(), lists);
  if (options.rows != 0 && options.rows < lists)
    throw InvalidArgument("rows is {}, but training {} lists takes as many at least", options.rows,
                          lists);
  find_value_range(vectors, metric, "vectors", options.threads);  // of all, by their own numbers
  const Metric by = centroid_metric(metric);
  const bool two_levels = has_two_levels(shape);
  AnyMatrix sample;
  vectors = sampled_rows(vectors, options.rows > 0 ? options.rows : training_rows(shape),
                         options.seed, sample);
  KMeansOptions by_rows = {.metric = by,
                           .iterations = options.iterations,
                           .seed = options.seed,
                           .levels = two_levels ? 2 : 1,
                           .takes_far_rows = true,  // all in one list then
                           .threads = options.threads,
                           .progress = options.progress};
  // On more and more of them: most of what centroids have to move they move on the first few.
  std::vector<Matrix<float>> stages;
  if (const std::int64_t of_list = vectors.rows() / (4 * lists);
      !two_levels && of_list >= rows_of_list_at_first && options.iterations > 1) {
    const int half = (options.iterations + 1) / 2;
    KMeansOptions by_some = by_rows;
    by_some.rows_per_centroid = rows_of_list_at_first / 2;
    by_some.iterations = half;
    by_some.seeding = Seeding::k_means_plus_plus;
    stages.push_back(k_means(vectors, lists, by_some).centroids);
    by_some.rows_per_centroid = of_list;
    by_some.iterations = options.iterations;
    by_some.initial = stages.back().view();
    stages.push_back(k_means(vectors, lists, by_some).centroids);
    by_rows.initial = stages.back().view();
    by_rows.iterations = half;
  }
  KMeans found = k_means(vectors, lists, by_rows);
  Lifts lifts;
  if (traits_of(metric).lifted)
    lifts = lifts_of(vectors, found.centroids.view(), options.threads, options.progress);
  CentroidIndexes indexes = indexes_of(shape, found.centroids.view(), lifts, options, index);
  return std::make_shared<CoarseQuantizer>(std::move(found.centroids), metric, std::move(lifts),
                                           std::move(indexes));
}

bool CoarseQuantizer::equals(const CoarseQuantizer& other) const {
  const auto same = [&](const CentroidIndex* a, const CentroidIndex* b) {
    return a && b ? a->equals(*b) : a == b;
  };
  return same_bits(centroids(), other.centroids()) &&
         same(indexes_.plain.get(), other.indexes_.plain.get());
}

ListAssignment CoarseQuantizer::assign(AnyMatrixView rows, int threads,
                                       const Progress& progress) const {
  const std::size_t count = rows.rows();
  ListAssignment out;
  out.list_of.resize(count);
  std::vector<double> keys(count);
  const Searcher& searcher = by_l2_ ? *by_l2_ : *by_metric_;
  const bool by_index = searcher.has_index() && lists() > most_lists_compared_with_rows;
  if (by_index || rows.rows() < most_searched_rows) {
    const Neighbors near =
        by_index ? searcher.nearest(rows, 1, threads) : searcher.exact(rows, 1, threads);
    for (std::size_t i = 0; i < count; ++i)
      out.list_of[i] = static_cast<std::uint32_t>(near.ids.data()[i]);
    set_keys(rows, out.list_of, threads, keys);
  } else {
    CentroidScan scan(centroids_->view(), assigned_by(), resolve_threads(threads));
    scan.assign(rows, false, out.list_of, keys, progress);
  }
  set_radii(keys, out);
  return out;
}

ListAssignment CoarseQuantizer::as_given(AnyMatrixView rows, std::span<const std::uint32_t> list_of,
                                         int threads) const {
  ListAssignment out;
  out.list_of.assign(list_of.begin(), list_of.end());
  std::vector<double> keys(list_of.size());
  set_keys(rows, list_of, threads, keys);
  set_radii(keys, out);
  return out;
}

std::vector<std::uint32_t> CoarseQuantizer::second_lists(AnyMatrixView rows,
                                                         std::span<const std::uint32_t> list_of,
                                                         int threads) const {
  constexpr std::int64_t block = 4096, candidates = 33;  // of all lists, 32 besides the first
  constexpr double weight = 2;                           // lambda of the paper
  const std::int64_t nearest = std::min(lists(), candidates), dim = centroids_->cols();
  const Searcher& searcher = by_l2_ ? *by_l2_ : *by_metric_;
  const bool unit_rows = traits_of(metric_).unit_rows;
  std::vector<std::uint32_t> out(list_of.size());
  for (std::int64_t begin = 0; begin < rows.rows(); begin += block) {
    const AnyMatrixView some = rows.rows(begin, std::min(rows.rows(), begin + block));
    const Neighbors near = searcher.nearest(some, nearest, threads);
    constexpr std::int64_t each = 64;
    parallel_for(threads, (some.rows() + each - 1) / each, [&](std::int64_t task) {
      ExactDistance products(Metric::ip, ElementType::f32, active_isa());
      std::vector<double> row(dim);
      Matrix<float> residual(1, dim);
      for (std::int64_t i = task * each; i < std::min(some.rows(), (task + 1) * each); ++i) {
        const std::uint32_t first = list_of[begin + i];
        row_as_doubles(some, i, row.data());
        double squares = 0;
        for (const double x : row) squares += x * x;
        const double scale = unit_rows && squares > 0 ? 1 / std::sqrt(squares) : 1;
        const float* const centroid = centroids_->row(first);
        double length = 0, along = 0;  // |r|^2, r.x
        for (std::int64_t j = 0; j < dim; ++j) {
          const double x = row[j] * scale, r = x - centroid[j];
          constexpr double most = std::numeric_limits<float>::max();
          residual.row(0)[j] = static_cast<float>(std::clamp(r, -most, most));
          length += r * r, along += r * x;
        }
        products.set_query(AnyMatrixView(residual.view()), 0);
        std::uint32_t best = first;
        double least = std::numeric_limits<double>::infinity();
        for (std::int64_t p = 0; p < nearest; ++p) {
          const Id list = near.ids.row(i)[p];
          if (list == first) continue;
          const double distance = near.distances.row(i)[p],
                       part = along + products.key(centroids_->row(list));
          const double cost = (unit_rows ? 2 * distance : distance) +
                              (length > 0 ? weight * part * part / length : 0);
          // Costs beyond float64 leave the nearest.
          if (best != first && !(cost < least) && !(cost == least && list < best)) continue;
          best = static_cast<std::uint32_t>(list), least = cost;
        }
        out[begin + i] = best;
      }
    });
  }
  return out;
}

void CoarseQuantizer::set_keys(AnyMatrixView rows, std::span<const std::uint32_t> list_of,
                               int threads, std::span<double> keys) const {
  constexpr std::int64_t block = 256;
  parallel_for(threads, (rows.rows() + block - 1) / block, [&](std::int64_t b) {
    ExactDistance distance(assigned_by(), ElementType::f32, active_isa());
    for (std::int64_t i = b * block; i < std::min(rows.rows(), (b + 1) * block); ++i) {
      const std::size_t at = i;
      distance.set_query(rows, i);
      keys[at] = distance.key(centroids_->row(list_of[at]));
    }
  });
}

void CoarseQuantizer::set_radii(std::span<const double> keys, ListAssignment& to) const {
  to.radii.assign(lists(), 0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    float& radius = to.radii[to.list_of[i]];
    radius = std::max(radius, radius_of(keys[i], assigned_by()));
  }
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
  if (traits_of(metric_).lifted)
    for (std::int64_t i = 0; i < near.distances.rows() * probes; ++i)
      near.distances.data()[i] = -near.distances.data()[i];
  return near;
}

Matrix<float> CoarseQuantizer::distances(AnyMatrixView queries, int threads) const {
  const Neighbors near = by_metric_->exact(queries, lists(), threads);
  Matrix<float> out(queries.rows(), lists());
  for (std::int64_t q = 0; q < queries.rows(); ++q)
    for (std::int64_t p = 0; p < lists(); ++p)
      out.row(q)[near.ids.row(q)[p]] = near.distances.row(q)[p];
  return out;
}

std::int64_t CoarseQuantizer::bytes() const {
  std::int64_t out =
      centroids_->rows() * centroids_->cols() * static_cast<std::int64_t>(sizeof(float));
  for (const CentroidIndex* index : {indexes_.plain.get(), indexes_.lifted.get()})
    if (index) out += index->memory_bytes();
  return out;
}

}  // namespace knear::detail
