#include "knear/index/recall_rule.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "knear/core/threads.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// Standard errors below the mean: 1 % on one side.
constexpr double one_sided = 2.33;
// Of a grid of rules: reaches for each first round, each so many times the one before (the eighth
// root of 2). Products alone: pow() and log() have not the same last bit on every machine.
constexpr int most_reaches = 200;
constexpr double next_reach = 1.0905077326652577;

// What a query costs, as nanoseconds of one core: the scoring of a row's coordinate, what a list
// and a round take beside that, and a centroid that is put in order.
constexpr double coordinate_cost = 0.004, list_cost = 190, round_cost = 6500, centroid_cost = 130;

struct Simulated {
  RecallPoint point;
  double cost = 0;
};

class Simulation {
 public:
  explicit Simulation(const CalibrationSample& sample)
      : sample_(sample), queries_(sample.keys.rows()) {}

  Simulated run(RecallRule rule) const {
    const std::int64_t looked_at = sample_.keys.cols();
    double sum = 0, squares = 0, lists = 0, rows = 0, rounds = 0, ordered = 0;
    for (std::int64_t q = 0; q < queries_; ++q) {
      std::int64_t probed = std::min(rule.first, sample_.lists);
      rounds += 1, ordered += static_cast<double>(probed);
      const std::int64_t enough = rule.reach < 0 ? sample_.enough[static_cast<std::size_t>(q)] : 0;
      for (; probed < enough; rounds += 1, ordered += static_cast<double>(probed))
        probed = std::min(2 * probed, sample_.lists);  // (ListProbing::widen)
      while (rule.reach >= 0 && probed < sample_.lists) {
        const std::int64_t wanted =
            lists_within({sample_.keys.row(q), static_cast<std::size_t>(looked_at)}, rule.reach,
                         unit(q, probed));
        const std::int64_t end = RecallRule::next_end(probed, sample_.lists);
        // As ordered for all, and for queries that want more (index/list_probing.cpp).
        const std::int64_t likely = std::min(2 * probed + 1, looked_at);
        ordered += static_cast<double>(probed == rule.first ? likely - probed : likely);
        if (wanted > likely) ordered += static_cast<double>(std::min(end + 1, looked_at));
        if (wanted <= probed) break;
        rounds += 1;
        const bool goes_on = wanted > end;
        probed = std::min(wanted, end);
        if (!goes_on || probed >= looked_at) break;
      }
      const double found = recall(q, probed);
      sum += found, squares += found * found;
      lists += static_cast<double>(probed);
      rows += sample_.rows.row(q)[std::min(probed, looked_at) - 1];
    }
    const auto n = static_cast<double>(queries_);
    Simulated out;
    out.point.rule = rule;
    const double mean = sum / n, variance = std::max(0.0, squares / n - mean * mean);
    out.point.expected = mean;
    // A sample that found everything says what its size lets it say.
    out.point.promised = mean - one_sided * std::sqrt(variance / n) - 1 / n;
    out.point.lists = lists / n, out.point.rows = rows / n;
    out.cost = out.point.rows * static_cast<double>(sample_.dim) * coordinate_cost +
               out.point.lists * list_cost + rounds / n * round_cost + ordered / n * centroid_cost;
    return out;
  }

  // A reach with which about half of the queries go on to as many lists from the first round on.
  double reach_to(std::int64_t first, std::int64_t lists) const {
    std::vector<double> all;
    for (std::int64_t q = 0; q < queries_; ++q) {
      const double of = unit(q, first);
      const float* keys = sample_.keys.row(q);
      const double reach = (keys[lists - 1] - keys[0]) / of;
      all.push_back(of > 0 && reach < 1e30 ? reach : 0);
    }
    std::nth_element(all.begin(), all.begin() + queries_ / 2, all.end());
    return all[static_cast<std::size_t>(queries_ / 2)];
  }

 private:
  double unit(std::int64_t q, std::int64_t probed) const {
    const auto end = std::lower_bound(sample_.ends.begin(), sample_.ends.end(), probed);
    const auto at =
        std::min<std::int64_t>(end - sample_.ends.begin(), std::ssize(sample_.ends) - 1);
    return sample_.units.row(q)[at];
  }
  double recall(std::int64_t q, std::int64_t probed) const {
    const std::int32_t* ranks = sample_.ranks.row(q);
    std::int64_t there = 0, found = 0;
    for (std::int64_t j = 0; j < sample_.k; ++j)
      there += ranks[j] >= 0, found += ranks[j] >= 0 && ranks[j] < probed;
    return there == 0 ? 1 : static_cast<double>(found) / static_cast<double>(there);
  }

  const CalibrationSample& sample_;
  const std::int64_t queries_;
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

std::int64_t lists_within(std::span<const float> keys, double reach, double unit) {
  if (unit == infinity) return std::ssize(keys) + 1;  // k rows have not been found yet
  const double most = keys[0] + reach * unit;
  const auto end = std::upper_bound(keys.begin(), keys.end(), most,
                                    [](double value, float key) { return value < key; });
  return end == keys.end() ? std::ssize(keys) + 1 : end - keys.begin();
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
  for (std::int64_t first = 1; first <= looked_at; first = std::max(first + 1, first + first / 8))
    rules.push_back({first, -1});
  for (std::int64_t first = 1; first <= std::min<std::int64_t>(64, looked_at / 2); first *= 2) {
    const double high = simulation.reach_to(first, looked_at);
    double reach = std::max(1e-6, simulation.reach_to(first, std::min(looked_at, first + 1)) / 4);
    for (int i = 0; i < most_reaches && reach < high * next_reach; ++i, reach *= next_reach)
      rules.push_back({first, reach});
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
