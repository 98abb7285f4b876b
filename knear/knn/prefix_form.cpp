#include "knear/knn/prefix_form.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "knear/cluster/k_means.hpp"
#include "knear/core/threads.hpp"
#include "knear/transform/pca.hpp"

namespace knear::detail {
namespace {

// A sample of the rows as doubles, of unit length for cosine.
Matrix<double> sample_of(const BaseRows& base, Metric metric, std::int64_t most) {
  const std::int64_t dim = base.cols(), n = std::min(base.rows(), most);
  const AnyMatrix rows = base.sample(n);
  CodingSpace plain;
  plain.metric = metric;
  plain.kernels = &scan_kernels(active_isa());
  Matrix<double> out(n, dim);
  for (std::int64_t i = 0; i < n; ++i) plain.load(rows, i, out.row(i));
  return out;
}

}  // namespace

std::shared_ptr<const PrefixBase> make_prefix(const BaseRows& base, Metric metric,
                                              const CodingSpace& space, bool integer,
                                              const DataSurvey& found, const PrefixPlan& plan,
                                              int threads, const Progress& progress) {
  auto made = std::make_shared<PrefixBase>();
  PrefixBase& out = *made;
  const std::int64_t columns = plan.columns;
  const PrincipalComponents pca = principal_components(sample_of(base, metric, 4096), columns - 1);
  const Rotation rotation = random_rotation(columns, 1);
  out.map = PrefixMap(metric, pca.mean, pca.basis, pca.defect, rotation.matrix, rotation.defect,
                      active_isa());

  const Duplicates duplicates = Duplicates::find(base, {}, threads);
  std::vector<std::uint32_t> order;
  if (duplicates.any()) {
    order = duplicates.distinct();
  } else {
    order.resize(static_cast<std::size_t>(base.rows()));
    std::iota(order.begin(), order.end(), 0u);
  }
  const std::int64_t rows = static_cast<std::int64_t>(order.size());
  Matrix<float> prefixes(base.rows(), columns);
  constexpr std::int64_t block = 256;
  parallel_for(threads, (rows + block - 1) / block, [&](std::int64_t task) {
    std::vector<std::byte> row(base.scratch_bytes());
    std::vector<double> scratch(out.map.scratch_doubles());
    for (std::int64_t i = task * block; i < std::min(rows, (task + 1) * block); ++i)
      out.map.map(base.row_view(order[i], row.data()), 0, scratch.data(), prefixes.row(order[i]));
  });

  // Clusters of a sample of the prefixes.
  const std::int64_t clusters = std::min(plan.clusters, rows);
  const std::int64_t sampled = std::min(rows, 100 * clusters);
  Matrix<float> sample(sampled, columns);
  for (std::int64_t i = 0; i < sampled; ++i)
    std::copy_n(prefixes.row(order[i * rows / sampled]), columns, sample.row(i));
  out.centroids = k_means(sample, clusters, {.iterations = 8, .threads = threads}, progress);
  out.centroid_panels = PackedBase::certified(
      out.centroids.view(), {}, format_int8,
      CodingSpace::choose(out.centroids.view(), Metric::l2, active_isa()), threads, {});
  const std::vector<std::uint32_t> cluster =
      NearestCentroid(out.centroids).of(prefixes.view(), threads);

  // By cluster, then by the largest coordinate, so that the rows of a panel fit one scale.
  std::vector<float> largest(static_cast<std::size_t>(base.rows()));
  for (const std::uint32_t row : order)
    for (std::int64_t j = 0; j < columns; ++j)
      largest[row] = std::max(largest[row], std::fabs(prefixes.row(row)[j]));
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (cluster[a] != cluster[b]) return cluster[a] < cluster[b];
    return std::pair(largest[a], a) < std::pair(largest[b], b);
  });
  out.cluster_begin.assign(static_cast<std::size_t>(clusters + 1), 0);
  for (const std::uint32_t row : order) ++out.cluster_begin[cluster[row] + 1];
  std::partial_sum(out.cluster_begin.begin(), out.cluster_begin.end(), out.cluster_begin.begin());

  CodingSpace prefix_space = CodingSpace::choose(prefixes.view(), Metric::l2, active_isa());
  prefix_space.off_relative = out.map.off_relative();
  prefix_space.off_absolute = out.map.off_absolute();
  out.panels = PackedBase::certified_in_order(prefixes.view(), order, format_int8, prefix_space,
                                              threads, progress);
  out.panels.duplicates = duplicates;
  out.codes = row_codes(base, order, space, integer, found, threads);
  return made;
}

}  // namespace knear::detail
