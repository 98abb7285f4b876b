// tests/select/reduction_cases.hpp -- where neighbours fall, drawn and counted: the truth with
// which the theory of bins is compared.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <unordered_set>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/select/bins.hpp"

namespace knear::test {

// k different places below rows, every set of them equally likely (Floyd's sampling).
inline std::vector<std::int64_t> random_places(Random& random, std::int64_t k, std::int64_t rows) {
  std::unordered_set<std::int64_t> taken;
  std::vector<std::int64_t> places;
  for (std::int64_t j = rows - k; j < rows; ++j) {
    auto place = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(j + 1)));
    if (!taken.insert(place).second) taken.insert(place = j);
    places.push_back(place);
  }
  return places;
}

// How many of the neighbours at these places a strided reduction loses.
inline std::int64_t lost(const std::vector<std::int64_t>& places, const Reduction& reduction) {
  thread_local std::vector<int> count;
  count.assign(static_cast<std::size_t>(reduction.bins), 0);
  std::int64_t sum = 0;
  for (const std::int64_t place : places)
    sum += ++count[static_cast<std::size_t>(place % reduction.bins)] > reduction.kept;
  return sum;
}

// The exact law of that number for a true shuffle: counts all ways to divide k over the bins. For
// small k.
inline std::vector<double> law_of_lost(std::int64_t k, std::int64_t rows,
                                       const Reduction& reduction) {
  const auto n = static_cast<std::size_t>(k) + 1;
  // ways[y][l]: y neighbours placed so far, l lost; divided by the total, to stay in range.
  std::vector<std::vector<long double>> ways(n, std::vector<long double>(n));
  ways[0][0] = 1;
  for (std::int64_t b = 0; b < reduction.bins; ++b) {
    const std::int64_t size = rows / reduction.bins + (b < rows % reduction.bins);
    std::vector<std::vector<long double>> next(n, std::vector<long double>(n));
    for (std::size_t y = 0; y < n; ++y)
      for (std::size_t l = 0; l <= y; ++l) {
        if (ways[y][l] == 0) continue;
        long double choose = 1;  // C(size, r)
        for (std::size_t r = 0; y + r < n && r <= static_cast<std::size_t>(size); ++r) {
          const auto kept = static_cast<std::size_t>(reduction.kept);
          next[y + r][l + (r > kept ? r - kept : 0)] += ways[y][l] * choose;
          choose *= static_cast<long double>(size - static_cast<std::int64_t>(r)) /
                    static_cast<long double>(r + 1);
        }
      }
    ways.swap(next);
  }
  long double all = 0;
  for (const long double w : ways[n - 1]) all += w;
  std::vector<double> law;
  for (const long double w : ways[n - 1]) law.push_back(static_cast<double>(w / all));
  return law;
}

// Whether counts fit probabilities: Pearson's statistic in standard deviations above its mean, with
// cells of fewer than 10 expected combined into one.
inline double misfit(const std::vector<std::int64_t>& counts, const std::vector<double>& law) {
  double runs = 0;
  for (const std::int64_t c : counts) runs += static_cast<double>(c);
  double statistic = 0, rare_expected = 0, rare = 0;
  int cells = 0;
  const auto add = [&](double seen, double expected) {
    if (expected <= 0) {
      statistic += seen > 0 ? 1e9 : 0;
      return;
    }
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = runs * (i < law.size() ? law[i] : 0);
    if (expected < 10)
      rare += static_cast<double>(counts[i]), rare_expected += expected;
    else
      add(static_cast<double>(counts[i]), expected);
  }
  if (rare_expected >= 1)
    add(rare, rare_expected);
  else if (rare > 8)
    return 1e9;  // e^-20 and less
  const double freedom = std::max(1, cells - 1);
  return (statistic - freedom) / std::sqrt(2 * freedom);
}

}  // namespace knear::test
