#include "knear/cluster/far_rows.hpp"

#include <algorithm>
#include <cmath>

#include "knear/cluster/row_values.hpp"
#include "knear/core/random.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"

namespace knear::detail {
namespace {

// Writes centroid c a short way from the donor towards a row, farther if float32 cannot tell it
// from the donor. Returns false if it cannot tell the row itself from the donor.
bool put_towards(AnyMatrixView rows, std::int64_t row, Metric metric, std::int64_t donor,
                 std::int64_t c, Matrix<float>& centroids) {
  const std::size_t dim = centroids.cols();
  std::vector<double> target(dim), between(dim);
  load_row(rows, row, metric, target.data());
  if (is_spherical(metric)) {
    double squares = 0;
    for (const double x : target) squares += x * x;
    if (!(squares > 0)) return false;
    for (double& x : target) x /= std::sqrt(squares);
  }
  const float* from = centroids.row(donor);
  for (double share = 0x1p-6; share <= 1; share *= 2) {
    for (std::size_t j = 0; j < dim; ++j) between[j] = from[j] + share * (target[j] - from[j]);
    if (write_centroid(between, is_spherical(metric), centroids.row(c)) &&
        !std::equal(from, from + dim, centroids.row(c)))
      return true;
  }
  return false;
}
// Writes centroid c a short way from the donor in a direction that is drawn for c.
void put_beside(std::int64_t donor, double spread, Metric metric, std::int64_t c,
                Matrix<float>& centroids) {
  Random signs(static_cast<std::uint64_t>(c));
  std::vector<double> beside(centroids.cols());
  for (std::size_t j = 0; j < beside.size(); ++j) {
    const double x = centroids.row(donor)[j];
    const double step = 0x1p-6 * spread + 0x1p-22 * std::fabs(x);
    beside[j] = signs.below(2) == 0 ? x + step : x - step;
  }
  write_centroid(beside, is_spherical(metric), centroids.row(c));
}

}  // namespace

void to_gains(AnyMatrixView rows, Metric metric, std::span<const float> weights, int threads,
              std::span<double> keys) {
  constexpr std::int64_t together = 1024;
  parallel_for(threads, (rows.rows() + together - 1) / together, [&](std::int64_t task) {
    std::vector<double> row(rows.cols());
    const std::int64_t end = std::min(rows.rows(), (task + 1) * together);
    for (std::int64_t i = task * together; i < end; ++i) {
      double& value = keys[i];
      double gain = distance_of_key(metric, value);
      if (is_spherical(metric)) {
        load_row(rows, i, metric, row.data());
        double squares = 0;
        for (const double x : row) squares += x * x;
        if (traits_of(metric).product)
          gain = std::sqrt(squares) - gain;
        else if (squares == 0)  // has no direction
          gain = 0;
      }
      value = (weights.empty() ? 1.0 : double{weights[i]}) * gain;
    }
  });
}

std::vector<Split> splits_for_empty(std::span<const FarRow> far, std::span<const double> weights,
                                    const std::vector<double>& all_costs, Metric metric,
                                    std::int64_t dim, std::int64_t fixed) {
  const double columns = static_cast<double>(dim);
  // What each centroid costs, and how far its rows are from it in a coordinate, are known here.
  std::vector<double> costs = all_costs, spreads(costs.size());
  const bool no_costs =
      traits_of(metric).product ||
      std::none_of(costs.begin(), costs.end(), [](double cost) { return cost > 0; });
  const bool some_gain =
      std::any_of(far.begin(), far.end(), [](const FarRow& one) { return one.gain > 0; });
  for (std::int64_t c = 0; c < std::ssize(weights); ++c) {
    const std::size_t at = c;
    if (no_costs) costs[at] = weights[at];
    if (some_gain && far[at].gain == 0) costs[at] = 0;  // dividing equal rows gains nothing
    if (traits_of(metric).product)
      spreads[at] = 1 / std::sqrt(columns);
    else if (weights[at] > 0)  // |x - c|^2 of rows of length 1 is twice 1 - cos
      spreads[at] =
          std::sqrt((is_spherical(metric) ? 2 : 1) * all_costs[at] / (weights[at] * columns));
  }
  std::vector<Split> splits;
  std::vector<bool> is_split(costs.size());
  for (std::int64_t c = fixed; c < std::ssize(weights); ++c) {
    const std::size_t at = c;
    if (weights[at] > 0) continue;
    const std::int64_t donor = std::max_element(costs.begin(), costs.end()) - costs.begin();
    const std::size_t from = donor;
    costs[from] /= 2, costs[at] = costs[from], spreads[at] = spreads[from];
    splits.push_back({c, donor, is_split[from] ? -1 : far[from].row, 0});
    is_split[from] = true;
  }

  for (Split& split : splits) split.spread = spreads[split.donor];
  return splits;
}

void make_splits(std::span<const Split> splits, std::span<const std::int64_t> numbers,
                 AnyMatrixView rows, Metric metric, Matrix<float>& centroids) {
  for (const Split& split : splits) {
    const auto at = std::lower_bound(numbers.begin(), numbers.end(), split.row) - numbers.begin();
    if (split.row < 0 || !put_towards(rows, at, metric, split.donor, split.empty, centroids))
      put_beside(split.donor, split.spread, metric, split.empty, centroids);
  }
}

}  // namespace knear::detail
