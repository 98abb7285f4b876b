#include "knear/index/recall_rule.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "knear/core/threads.hpp"

namespace knear::detail {
namespace {

// Standard errors below the mean: 1 % on one side.
constexpr double one_sided = 2.33;
// Of a grid of rules: spreads, each so many times the one before (the sixteenth root of 2).
// Products alone: pow() and log() have not the same last bit on every machine.
constexpr int most_spreads = 400;
constexpr double next_spread = 1.0442737824274138;
constexpr int weights = 3;

// What a query costs, as nanoseconds of one core: the scoring of a row's coordinate, what a list
// takes beside that, a centroid that is put in order, and that more are for some queries.
constexpr double coordinate_cost = 0.004, list_cost = 190, centroid_cost = 75, order_cost = 3000;

// Of putting so many lists in order at first, and more for queries that want more; `wanted`
// ascends.
double cost_of_order(std::span<const std::int64_t> wanted, std::int64_t first, std::int64_t lists) {
  double cost = 0;
  std::int64_t ordered = first;
  for (auto open = wanted.begin();;) {
    const auto more = static_cast<double>(wanted.end() - open);
    cost += more * centroid_cost * static_cast<double>(ordered);
    if (ordered != first) cost += more * order_cost;
    open = ordered < lists ? std::lower_bound(open, wanted.end(), ordered) : wanted.end();
    if (open == wanted.end()) return cost;
    ordered = next_order(ordered, lists);
  }
}

struct Simulated {
  RecallPoint point;
  double cost = 0;
};

class Simulation {
 public:
  explicit Simulation(const CalibrationSample& sample)
      : sample_(sample), queries_(sample.keys.rows()), looked_at_(sample.keys.cols()) {}

  Simulated run(RecallRule rule) const {
    double sum = 0, squares = 0, lists = 0, rows = 0;
    std::vector<std::int64_t> wanted(static_cast<std::size_t>(queries_), rule.lists);
    for (std::int64_t q = 0; q < queries_; ++q) {
      std::int64_t& probed = wanted[static_cast<std::size_t>(q)];
      if (rule.spread >= 0) probed = lists_within(keys(q), rule);
      const std::int64_t enough = sample_.enough[static_cast<std::size_t>(q)];
      while (probed < enough) probed = std::min(2 * probed, sample_.lists);  // (ListProbing::widen)
      const double found = recall(q, probed);
      sum += found, squares += found * found;
      lists += static_cast<double>(probed);
      rows += sample_.rows.row(q)[std::min(probed, looked_at_) - 1];
    }
    const auto n = static_cast<double>(queries_);
    Simulated out;
    if (rule.spread >= 0) rule.lists = lists_to_order(wanted, sample_.lists);
    out.point.rule = rule;
    const double mean = sum / n, variance = std::max(0.0, squares / n - mean * mean);
    out.point.expected = mean;
    // A sample that found everything says what its size lets it say.
    out.point.promised = mean - one_sided * std::sqrt(variance / n) - 1 / n;
    out.point.lists = lists / n, out.point.rows = rows / n;
    std::sort(wanted.begin(), wanted.end());
    out.cost = out.point.rows * static_cast<double>(sample_.dim) * coordinate_cost +
               out.point.lists * list_cost + cost_of_order(wanted, rule.lists, sample_.lists) / n;
    return out;
  }

  // With which half of the queries want so many lists or fewer.
  double spread_to(std::int64_t lists, int weight) const {
    std::vector<double> all;
    for (std::int64_t q = 0; q < queries_; ++q)
      all.push_back(
          spread_of(keys(q)[static_cast<std::size_t>(lists - 1)], keys(q)[0], lists - 1, weight));
    std::nth_element(all.begin(), all.begin() + queries_ / 2, all.end());
    return all[static_cast<std::size_t>(queries_ / 2)];
  }

 private:
  std::span<const float> keys(std::int64_t q) const {
    return {sample_.keys.row(q), static_cast<std::size_t>(looked_at_)};
  }
  double recall(std::int64_t q, std::int64_t probed) const {
    const std::int32_t* ranks = sample_.ranks.row(q);
    std::int64_t there = 0, found = 0;
    for (std::int64_t j = 0; j < sample_.k; ++j)
      there += ranks[j] >= 0, found += ranks[j] >= 0 && ranks[j] < probed;
    return there == 0 ? 1 : static_cast<double>(found) / static_cast<double>(there);
  }

  const CalibrationSample& sample_;
  const std::int64_t queries_, looked_at_;
};

}  // namespace

double length_of(AnyMatrixView query) {
  return visit(query, [](auto view) {
    double sum = 0;
    for (std::int64_t j = 0; j < view.cols(); ++j)
      sum += to_double(view.row(0)[j]) * to_double(view.row(0)[j]);
    return std::sqrt(sum);
  });
}

double spread_of(float key, float nearest_key, std::int64_t at, int weight) {
  // Square roots are the same on every machine, other roots and powers are not.
  const double farther = std::sqrt(std::max(0.0, static_cast<double>(key))) -
                         std::sqrt(std::max(0.0, static_cast<double>(nearest_key)));
  if (weight == 0) return farther;
  const double root = std::sqrt(static_cast<double>(at + 1));
  return farther * (weight == 1 ? std::sqrt(root) : root);
}

std::int64_t lists_within(std::span<const float> keys, const RecallRule& rule) {
  std::int64_t low = 1, high = std::ssize(keys);
  while (low < high) {
    const std::int64_t at = (low + high) / 2;  // (the first list is always probed)
    const bool within =
        spread_of(keys[static_cast<std::size_t>(at)], keys[0], at, rule.weight) <= rule.spread;
    (within ? low : high) = within ? at + 1 : at;
  }
  return low;
}

std::int64_t next_order(std::int64_t ordered, std::int64_t lists) {
  return ordered > lists / 4 ? lists : 4 * ordered;
}

std::int64_t lists_to_order(std::vector<std::int64_t> wanted, std::int64_t most) {
  std::sort(wanted.begin(), wanted.end());
  std::int64_t best = std::min<std::int64_t>(2, most);
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t first = best; first <= most;) {
    const double cost = cost_of_order(wanted, first, most);
    if (cost < least) least = cost, best = first;
    if (first == most) break;
    first = std::min(most, std::max(first + 1, first + first / 4));
  }
  return best;
}

const RecallPoint* RecallCurve::find(double recall) const {
  for (const RecallPoint& point : points)
    if (point.promised >= recall) return &point;
  return nullptr;
}

RecallCurve calibrated(const CalibrationSample& sample, int threads) {
  RecallCurve out;
  out.k = sample.k;
  const std::int64_t queries = sample.keys.rows(), looked_at = sample.keys.cols();
  for (std::int64_t q = 0; q < queries; ++q) out.nearest_keys.push_back(sample.keys.row(q)[0]);
  std::sort(out.nearest_keys.begin(), out.nearest_keys.end());
  if (queries == 0) return out;

  const Simulation simulation(sample);
  std::vector<RecallRule> rules;
  if (sample.distances && looked_at > 1) {
    for (int weight = 0; weight < weights; ++weight) {
      const double high = simulation.spread_to(looked_at, weight);
      double spread = simulation.spread_to(2, weight) / 4;
      if (!(spread > 0)) spread = high / looked_at;
      for (int i = 0; i < most_spreads && spread < high * next_spread; ++i, spread *= next_spread)
        rules.push_back({.spread = spread, .weight = weight});
    }
    rules.push_back({.lists = 1});
    rules.push_back({.lists = looked_at});
  } else {
    for (std::int64_t lists = 1; lists <= looked_at; lists = std::max(lists + 1, lists * 9 / 8))
      rules.push_back({.lists = lists});
  }
  std::vector<Simulated> seen(rules.size());
  parallel_for(threads, std::ssize(rules), [&](std::int64_t i) {
    seen[static_cast<std::size_t>(i)] = simulation.run(rules[static_cast<std::size_t>(i)]);
  });
  std::stable_sort(seen.begin(), seen.end(),
                   [](const Simulated& a, const Simulated& b) { return a.cost < b.cost; });
  for (const Simulated& one : seen)
    if (out.points.empty() || one.point.promised > out.points.back().promised)
      out.points.push_back(one.point);
  return out;
}

RecallCurve curve_of(std::int64_t k, std::vector<RuleSeen> seen, std::vector<float> nearest_keys) {
  RecallCurve out;
  out.k = k, out.nearest_keys = std::move(nearest_keys);
  std::sort(out.nearest_keys.begin(), out.nearest_keys.end());
  std::stable_sort(seen.begin(), seen.end(),
                   [](const RuleSeen& a, const RuleSeen& b) { return a.cost < b.cost; });
  for (const RuleSeen& one : seen) {
    const auto n = static_cast<double>(one.recalls.size());
    double sum = 0, squares = 0;
    for (const double recall : one.recalls) sum += recall, squares += recall * recall;
    const double mean = sum / n, variance = std::max(0.0, squares / n - mean * mean);
    const double promised = mean - one_sided * std::sqrt(variance / n) - 1 / n;
    if (out.points.empty() || promised > out.points.back().promised)
      out.points.push_back({one.rule, promised, mean, one.lists, one.rows});
  }
  return out;
}

bool alike(std::span<const float> a, std::span<const float> b) {
  if (a.empty() || b.empty()) return true;
  // Kolmogorov and Smirnov: the largest difference of the two shares below a number.
  double most = 0;
  const auto n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const float x = std::min(a[i], b[j]);
    while (i < a.size() && a[i] <= x) ++i;
    while (j < b.size() && b[j] <= x) ++j;
    most = std::max(most, std::abs(static_cast<double>(i) / n - static_cast<double>(j) / m));
  }
  constexpr double unlikely = 6.103036322765087;  // -ln(1e-5 / 2) / 2: once in 100,000 times
  return most <= std::sqrt(unlikely * (1 / n + 1 / m));
}

std::shared_ptr<const RecallCurve> RecallCurves::get(std::int64_t k,
                                                     const std::function<RecallCurve()>& make) {
  const auto find = [&]() -> std::shared_ptr<const RecallCurve> {
    std::lock_guard lock(mutex_);
    const auto found = curves_.find(k);
    return found == curves_.end() ? nullptr : found->second;
  };
  if (auto found = find()) return found;
  std::lock_guard one(making_);
  if (auto found = find()) return found;
  auto made = std::make_shared<const RecallCurve>(make());
  std::lock_guard lock(mutex_);
  return curves_[k] = std::move(made);
}

void RecallCurves::set(RecallCurve curve) {
  auto made = std::make_shared<const RecallCurve>(std::move(curve));
  std::lock_guard lock(mutex_);
  curves_[made->k] = std::move(made);
}

std::vector<std::shared_ptr<const RecallCurve>> RecallCurves::all() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const RecallCurve>> out;
  for (const auto& [k, curve] : curves_) out.push_back(curve);
  return out;
}

}  // namespace knear::detail
