#include "knear/cluster/k_means.hpp"

#include <algorithm>
#include <numeric>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/random.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/peak_cache.hpp"

namespace knear {

using detail::BaseRows;
using detail::PackedBase;

NearestCentroid::NearestCentroid(MatrixView<float> centroids)
    : centroids_(centroids),
      packed_(PackedBase::certified(
          centroids_, {}, detail::format_int8,
          detail::CodingSpace::choose(centroids_, Metric::l2, active_isa()), 1, {})) {}

Matrix<Id> NearestCentroid::of(AnyMatrixView rows, std::int64_t count, int threads) const {
  ExactNeighbors out(rows.rows(), count);
  std::vector<std::int64_t> which(static_cast<std::size_t>(rows.rows()));
  std::iota(which.begin(), which.end(), 0);
  const int used = resolve_threads(threads);
  const Isa isa = active_isa();
  const detail::ScanJob job{.queries = rows,
                            .base = centroids_,
                            .metric = Metric::l2,
                            .k = count,
                            .threads = used,
                            .isa = isa,
                            .peaks = &planning_peaks(isa, used)};
  detail::ScanStats stats;
  detail::scan(packed_, job, which, out, stats, {});
  return std::move(out.ids);
}

std::vector<std::uint32_t> NearestCentroid::of(AnyMatrixView rows, int threads) const {
  const Matrix<Id> nearest = of(rows, 1, threads);
  return {nearest.data(), nearest.data() + rows.rows()};
}

Matrix<float> k_means(MatrixView<float> rows, std::int64_t count, const KMeansOptions& options,
                      const Progress& progress) {
  return detail::public_call([&] {
    const std::int64_t n = rows.rows(), dim = rows.cols();
    if (count < 1 || count > n)
      throw InvalidArgument("count must be from 1 to {}, the number of rows, but is {}", n, count);
    if (options.iterations < 0)
      throw InvalidArgument("iterations must not be negative, but is {}", options.iterations);
    const int threads = resolve_threads(options.threads);
    Random random(options.seed);
    // The first `count` rows of a random order.
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    Matrix<float> centroids(count, dim);
    for (std::int64_t c = 0; c < count; ++c) {
      std::swap(
          order[c],
          order[c + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(n - c)))]);
      std::copy_n(rows.row(order[c]), dim, centroids.row(c));
    }
    Reporter reporter(progress, "k-means", options.iterations);
    for (int round = 0; round < options.iterations; ++round) {
      const std::vector<std::uint32_t> group = NearestCentroid(centroids).of(rows, threads);
      // Sums are taken in the order of the rows, whatever the threads.
      Matrix<double> sums(count, dim);
      std::vector<std::int64_t> sizes(static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < n; ++i) {
        double* sum = sums.row(group[i]);
        for (std::int64_t j = 0; j < dim; ++j) sum[j] += rows.row(i)[j];
        ++sizes[group[i]];
      }
      for (std::int64_t c = 0; c < count; ++c) {
        for (std::int64_t j = 0; j < dim && sizes[c] > 0; ++j)
          centroids.row(c)[j] = static_cast<float>(sums.row(c)[j] / static_cast<double>(sizes[c]));
      }
      for (std::int64_t c = 0; c < count; ++c) {
        if (sizes[c] > 0) continue;
        const auto largest = std::max_element(sizes.begin(), sizes.end()) - sizes.begin();
        std::int64_t skip = static_cast<std::int64_t>(
            random.below(static_cast<std::uint64_t>(std::max<std::int64_t>(1, sizes[largest]))));
        for (std::int64_t i = 0; i < n; ++i)
          if (group[i] == static_cast<std::uint32_t>(largest) && skip-- == 0)
            std::copy_n(rows.row(i), dim, centroids.row(c));
        sizes[largest] /= 2;
      }
      reporter.add(1);
    }
    return centroids;
  });
}

}  // namespace knear
