// The loss of a partial reduction: its law in one bin, and its expectation (contract in bins.hpp).
#include "knear/select/bins.hpp"

#include <algorithm>
#include <vector>

#include "knear/core/error.hpp"

namespace knear {
namespace {

// The law of the number of neighbours that one bin loses: probability[j] that it is j. All terms
// are positive and come by recurrence from the most likely count, normalised by their sum: exact to
// some 1e-13, where differences of log-gamma at 1e9 rows would leave five digits.
struct BinLoss {
  std::vector<double> probability{1.0};
  double mean = 0;

  double over() const {  // the probability that anything is lost
    double sum = 0;
    for (std::size_t j = probability.size(); --j > 0;) sum += probability[j];
    return sum;
  }
};

// up(r) = P(c = r + 1) / P(c = r) for r in [low, high), falling. Terms below 1e-100 of the largest
// are cut.
template <class Ratio>
BinLoss bin_loss(std::int64_t low, std::int64_t mode, std::int64_t high, int kept, Ratio&& up) {
  constexpr double least = 1e-100;
  mode = std::clamp(mode, low, high);
  std::vector<double> below;  // mode - 1, mode - 2, ...
  double weight = 1;
  for (std::int64_t r = mode; r > low && weight > least; --r) below.push_back(weight /= up(r - 1));
  BinLoss loss;
  loss.probability[0] = 0;
  double sum = 0;
  const auto add = [&](std::int64_t r, double w) {
    const std::size_t lost = std::max<std::int64_t>(0, r - kept);
    if (lost >= loss.probability.size()) loss.probability.resize(lost + 1);
    loss.probability[lost] += w;
    sum += w;
  };
  for (std::size_t i = below.size(); i-- > 0;)
    add(mode - 1 - static_cast<std::int64_t>(i), below[i]);
  weight = 1;
  for (std::int64_t r = mode;; ++r) {
    add(r, weight);
    if (r == high || weight < least) break;
    weight *= up(r);
  }
  for (double& p : loss.probability) p /= sum;
  for (std::size_t j = loss.probability.size(); --j > 0;)
    loss.mean += static_cast<double>(j) * loss.probability[j];
  return loss;
}

// k of `rows` rows are neighbours; `size` of the rows make a bin.
BinLoss hypergeometric_loss(std::int64_t k, std::int64_t rows, std::int64_t size, int kept) {
  const double K = static_cast<double>(k), N = static_cast<double>(rows),
               n = static_cast<double>(size);
  const auto mode = static_cast<std::int64_t>((K + 1) * (n + 1) / (N + 2));
  return bin_loss(std::max<std::int64_t>(0, k - (rows - size)), mode, std::min(k, size), kept,
                  [=](std::int64_t count) {
                    const double r = static_cast<double>(count);
                    return (K - r) * (n - r) / ((r + 1) * (N - K - n + r + 1));
                  });
}

// Bins whose losses have one law.
struct BinGroup {
  double bins;
  BinLoss loss;
};
using BinGroups = std::vector<BinGroup>;

// Bins of sizes as equal as possible: rows % bins of them have one row more.
BinGroups groups_of(std::int64_t k, std::int64_t rows, const Reduction& reduction) {
  const std::int64_t size = rows / reduction.bins, larger = rows % reduction.bins;
  BinGroups groups;
  groups.push_back({static_cast<double>(reduction.bins - larger),
                    hypergeometric_loss(k, rows, size, reduction.kept)});
  if (larger > 0)
    groups.push_back(
        {static_cast<double>(larger), hypergeometric_loss(k, rows, size + 1, reduction.kept)});
  return groups;
}

void check(std::int64_t k, std::int64_t rows, const Reduction& reduction) {
  if (k < 1 || k > rows)
    throw InvalidArgument("k must be between 1 and the rows, {}, but is {}", rows, k);
  if (reduction.kept < 1 || reduction.kept > most_kept)
    throw InvalidArgument("kept must be between 1 and {}, but is {}", most_kept, reduction.kept);
  if (reduction.bins < 1 || reduction.bins > rows)
    throw InvalidArgument("bins must be between 1 and the rows, {}, but are {}", rows,
                          reduction.bins);
}

}  // namespace

double expected_recall(std::int64_t k, std::int64_t rows, const Reduction& reduction) {
  check(k, rows, reduction);
  double lost = 0;
  for (const BinGroup& group : groups_of(k, rows, reduction)) lost += group.bins * group.loss.mean;
  return 1 - lost / static_cast<double>(k);
}

double uncertified_share(std::int64_t k, std::int64_t rows, const Reduction& reduction) {
  check(k, rows, reduction);
  double sum = 0;
  for (const BinGroup& group : groups_of(k, rows, reduction)) sum += group.bins * group.loss.over();
  return std::min(1.0, sum);
}

}  // namespace knear
