#include "knear/index/recall/recall_rule.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "knear/core/mean_interval.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"

namespace knear::detail {
namespace {

// Standard errors: half a per cent on one side.
constexpr double one_sided = 2.58;
// Of the rules that are tried: spreads, each so many times the one before (the sixteenth root of
// 2). Products alone: pow() and log() have not the same last bit on every machine.
constexpr int most_spreads = 400;
constexpr double next_spread = 1.0442737824274138;
// The share of the queries that a rule's number of lists is enough for.
constexpr double share_with_enough = 0.9;

// Of a sample that hardly misses anything the worst query is not known: it may miss half.
constexpr double least_shortfall = 0.5;
// How many queries that miss something weigh as much as what is assumed before any was seen.
constexpr double prior = 4;

// What a query costs, as nanoseconds of one core: the scoring of a row's coordinate, what a list
// takes beside that, and a centroid that is put in order.
constexpr double coordinate_cost = 0.004, list_cost = 190, centroid_cost = 75;

class Simulation {
 public:
  explicit Simulation(const CalibrationSample& sample)
      : sample_(sample), queries_(sample.keys.rows()), looked_at_(sample.keys.cols()) {
    found_ = Matrix<std::int32_t>(queries_, looked_at_);
    for (std::int64_t q = 0; q < queries_; ++q) {
      std::int32_t* const found = found_.row(q);
      std::fill_n(found, looked_at_, 0);
      for (std::int64_t j = 0; j < sample.k; ++j)
        if (const std::int32_t rank = sample.ranks.row(q)[j]; rank >= 0 && rank < looked_at_)
          ++found[rank];
      std::partial_sum(found, found + looked_at_, found);
      there_.push_back(std::count_if(sample.ranks.row(q), sample.ranks.row(q) + sample.k,
                                     [](std::int32_t rank) { return rank >= 0; }));
    }
  }

  // The rule with this spread; negative: that all queries probe so many lists.
  RecallRule rule_of(double spread, std::int64_t lists) const {
    if (spread < 0) return {.lists = lists};
    std::vector<std::int64_t> wanted;
    for (std::int64_t q = 0; q < queries_; ++q)
      wanted.push_back(lists_within(keys(q), {.lists = looked_at_, .spread = spread}));
    return {.lists = lists_enough(std::move(wanted)), .spread = spread};
  }
  RuleSeen run(const RecallRule& rule) const {
    RuleSeen seen;
    seen.rule = rule;
    for (std::int64_t q = 0; q < queries_; ++q) {
      const std::size_t at = q;
      std::int64_t probed = lists_within(keys(q), rule);
      while (probed < sample_.enough[at])
        probed = std::min(2 * probed, sample_.lists);  // (ListProbing::widen)
      const std::int64_t known = std::min(probed, looked_at_) - 1;
      seen.recalls.push_back(there_[at] == 0 ? 1
                                             : static_cast<double>(found_.row(q)[known]) /
                                                   static_cast<double>(there_[at]));
      seen.lists += static_cast<double>(probed), seen.rows += sample_.rows.row(q)[known];
      seen.probed.push_back(known + 1);
    }
    const auto n = static_cast<double>(queries_);
    seen.lists /= n, seen.rows /= n;
    seen.cost = seen.rows * static_cast<double>(sample_.dim) * coordinate_cost +
                seen.lists * list_cost + static_cast<double>(rule.lists) * centroid_cost;
    return seen;
  }

  // With which half of the queries want so many lists or fewer.
  double spread_to(std::int64_t lists) const {
    std::vector<double> all;
    for (std::int64_t q = 0; q < queries_; ++q)
      all.push_back(spread_of(keys(q)[lists - 1], keys(q)[0], lists - 1));
    std::nth_element(all.begin(), all.begin() + queries_ / 2, all.end());
    return all[queries_ / 2];
  }

 private:
  std::span<const float> keys(std::int64_t q) const {
    return {sample_.keys.row(q), static_cast<std::size_t>(looked_at_)};
  }

  const CalibrationSample& sample_;
  const std::int64_t queries_, looked_at_;
  Matrix<std::int32_t> found_;  // [queries x lists looked at]: neighbours in the first 1, 2, ...
  std::vector<std::int64_t> there_;  // [queries]: neighbours
};

// Recall by one measure of nearness, which is noted.
RecallByNearness by_nearness(const RuleSeen& seen, std::size_t measure) {
  // Fewer queries in a group show little of its recall. The farthest may be of another kind than
  // the rest, so they are told apart down to the last one.
  constexpr std::size_t usual_group = 50, most_groups = 20;
  RecallByNearness out;
  const std::size_t count = seen.recalls.size();
  std::vector<float> all;
  for (const Nearness& one : seen.nearness) all.push_back(one[measure]);
  std::sort(all.begin(), all.end());
  out.queries = static_cast<std::int64_t>(count), out.least = all.front(), out.most = all.back();
  const auto bound_at = [&](std::size_t place) {
    const float bound = all[place - 1];
    if (bound < out.most && (out.bounds.empty() || bound > out.bounds.back()))
      out.bounds.push_back(bound);
  };
  const std::size_t groups = std::clamp<std::size_t>(count / usual_group, 1, most_groups);
  for (std::size_t g = 1; g < groups; ++g) bound_at(g * count / groups);
  for (std::size_t left = count / groups / 2; left >= 1; left /= 2) bound_at(count - left);
  std::vector<double> sums(out.bounds.size() + 1), counts(sums.size());
  for (std::size_t q = 0; q < count; ++q) {
    const std::size_t group = out.group_of(seen.nearness[q][measure]);
    sums[group] += seen.recalls[q], ++counts[group];
  }
  for (std::size_t g = 0; g < sums.size(); ++g) {
    out.recalls.push_back(static_cast<float>(sums[g] / counts[g]));
    out.shares.push_back(static_cast<float>(counts[g] / static_cast<double>(count)));
  }
  return out;
}

// What a rule is worth for k neighbours.
RecallPoint point_of(const RuleSeen& seen, std::int64_t k) {
  const auto n = static_cast<double>(seen.recalls.size());
  double sum = 0, squares = 0, worst = 1;
  for (const double recall : seen.recalls)
    sum += recall, squares += recall * recall, worst = std::min(worst, recall);
  const double mean = sum / n, variance = std::max(0.0, squares / n - mean * mean);
  // A sample that hardly misses anything shows no variance: some neighbours are missed together.
  const double most = mean * (1 - mean), usual = std::min(1.0, 2 / static_cast<double>(k));
  // What the sample shows of it counts by the queries that miss something.
  const double missing = static_cast<double>(
      std::count_if(seen.recalls.begin(), seen.recalls.end(), [](double x) { return x < 1; }));
  const double part = std::min(
      1.0, ((most > 0 ? variance / most : 0) * missing + usual * prior) / (missing + prior));
  const RecallSpread spread{std::max(variance, usual * most), part,
                            std::max(mean - worst, least_shortfall), std::ssize(seen.recalls)};
  RecallPoint out{.rule = seen.rule,
                  .promised = promised_recall(mean, spread, promised_batch),
                  .expected = mean,
                  .lists = seen.lists,
                  .rows = seen.rows,
                  .spread = spread};
  if (!seen.nearness.empty())
    for (std::size_t m = 0; m < nearness_measures; ++m) out.by_nearness[m] = by_nearness(seen, m);
  return out;
}

struct PricedPoint {
  RecallPoint point;
  double cost;
};

// From the cheapest on, those that promise more than the ones before.
std::vector<RecallPoint> worth_using(std::vector<PricedPoint> points) {
  std::stable_sort(points.begin(), points.end(),
                   [](const PricedPoint& a, const PricedPoint& b) { return a.cost < b.cost; });
  std::vector<RecallPoint> out;
  for (const PricedPoint& one : points)
    if (out.empty() || one.point.promised > out.back().promised) out.push_back(one.point);
  return out;
}

}  // namespace

std::vector<float> keys_in_order(std::vector<float> keys) {
  constexpr float most = std::numeric_limits<float>::max();
  for (float& key : keys) key = std::clamp(key, -most, most);
  std::sort(keys.begin(), keys.end());
  return keys;
}

float nearness_of(double key, double scale) {
  constexpr double least = std::numeric_limits<float>::min(),
                   most = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(key / std::max(scale, least), -most, most));
}

double length_of(AnyMatrixView query) {
  return visit(query, [](auto view) {
    double sum = 0;
    for (std::int64_t j = 0; j < view.cols(); ++j)
      sum += to_double(view.row(0)[j]) * to_double(view.row(0)[j]);
    return std::sqrt(sum);
  });
}

double promised_recall(double mean, const RecallSpread& spread, std::int64_t batch) {
  if (spread.queries < 1 || batch < 2) return 0;
  constexpr double quantile = 3.090232306167813;  // of the normal distribution: one in 1,000
  const auto n = static_cast<double>(batch), m = static_cast<double>(spread.queries);
  // The means of the batch and of the sample differ by the variance of a query over this number.
  const double counted = n * m / (n + m), square = quantile * quantile;
  const double skew = square * spread.shortfall / (6 * counted);
  const double margin = skew + std::sqrt(skew * skew + square * spread.variance / counted);
  // Roots of shares that are missed differ by the same whatever the shares, as counts of Poisson
  // do: this holds where a sample misses hardly anything, and its variance says little.
  constexpr double seen_more = 1.2;  // for a sample that misses nothing
  const double root = std::sqrt(1 - mean + seen_more * spread.part / m) +
                      quantile / 2 * std::sqrt(spread.part / counted);
  return std::max(0.0, std::min(mean - margin, 1 - root * root));
}

double promised_mean(double mean, double variance, double count, std::int64_t k) {
  const double most = mean * (1 - mean), part = 2 / static_cast<double>(k);
  // A sample that hardly misses anything shows no variance: some neighbours are missed together.
  const double ratio = std::min(1.0, std::max(most > 0 ? variance / most : 0, part));
  return wilson_interval(mean, count / ratio, one_sided).low;
}

double spread_of(float key, float nearest_key, std::int64_t at) {
  // Square roots are the same on every machine, other roots are not.
  const double farther = std::sqrt(std::max(0.0, static_cast<double>(key))) -
                         std::sqrt(std::max(0.0, static_cast<double>(nearest_key)));
  return farther * std::sqrt(std::sqrt(static_cast<double>(at + 1)));
}

std::int64_t lists_enough(std::vector<std::int64_t> wanted) {
  const auto at = wanted.begin() + static_cast<std::ptrdiff_t>(
                                       share_with_enough * static_cast<double>(wanted.size() - 1));
  std::nth_element(wanted.begin(), at, wanted.end());
  return *at;
}

std::int64_t lists_within(std::span<const float> keys, const RecallRule& rule) {
  std::int64_t low = 1, high = std::min(rule.lists, std::ssize(keys));
  if (rule.spread < 0) return high;
  while (low < high) {
    const std::int64_t at = (low + high) / 2;
    const bool within = spread_of(keys[at], keys[0], at) <= rule.spread;
    (within ? low : high) = within ? at + 1 : at;
  }
  return low;
}

const RecallPoint* RecallCurve::find(double recall) const {
  for (const RecallPoint& point : points)
    if (point.promised >= recall) return &point;
  return nullptr;
}

RecallCurve calibrated(const CalibrationSample& sample, int threads, const NearnessOf& nearness) {
  RecallCurve out;
  out.k = sample.k;
  const std::int64_t queries = sample.keys.rows(), looked_at = sample.keys.cols();
  for (std::int64_t q = 0; q < queries; ++q) out.nearest_keys.push_back(sample.keys.row(q)[0]);
  out.nearest_keys = keys_in_order(std::move(out.nearest_keys));
  if (queries == 0) return out;

  const Simulation simulation(sample);
  // Each finds what those before it do, so that the first to promise a recall is no lucky one of
  // many: all are wrong at once.
  std::vector<RecallRule> rules{{.lists = 1}};
  if (sample.distances && looked_at > 1) {
    const double high = simulation.spread_to(looked_at);
    double spread = simulation.spread_to(2) / 4;
    if (!(spread > 0)) spread = high / static_cast<double>(looked_at);
    for (int i = 0; i < most_spreads && spread < high * next_spread; ++i, spread *= next_spread)
      rules.push_back({.spread = spread});
  } else {
    for (std::int64_t lists = 2; lists < looked_at; lists = std::max(lists + 1, lists * 9 / 8))
      rules.push_back({.lists = lists});
  }
  rules.push_back({.lists = looked_at});
  std::vector<PricedPoint> points(rules.size());
  parallel_for(threads, std::ssize(rules), [&](std::int64_t i) {
    const std::size_t at = i;
    const RuleSeen seen = simulation.run(simulation.rule_of(rules[at].spread, rules[at].lists));
    points[at] = {point_of(seen, sample.k), seen.cost};
  });
  out.points = worth_using(std::move(points));
  for (RecallPoint& point : out.points) {
    if (!nearness) break;
    RuleSeen seen = simulation.run(point.rule);
    seen.nearness = nearness(point.rule, seen.probed);
    point = point_of(seen, sample.k);
  }
  return out;
}

RecallCurve curve_of(std::int64_t k, std::vector<RuleSeen> seen, std::vector<float> nearest_keys) {
  RecallCurve out;
  out.k = k, out.nearest_keys = keys_in_order(std::move(nearest_keys));
  std::vector<PricedPoint> points;
  for (const RuleSeen& one : seen) points.push_back({point_of(one, k), one.cost});
  out.points = worth_using(std::move(points));
  return out;
}

bool alike(std::span<const float> a, std::span<const float> b) {
  if (a.empty() || b.empty()) return true;
  if (a.size() > b.size()) std::swap(a, b);
  // Kolmogorov and Smirnov: the largest difference of the two shares below a number, which is just
  // before one of the fewer numbers or at it.
  double most = 0;
  const auto n = static_cast<double>(a.size()), m = static_cast<double>(b.size());
  for (std::size_t i = 0; i < a.size();) {
    const auto [first, last] = std::equal_range(b.begin(), b.end(), a[i]);
    const auto share = [&](auto end) { return static_cast<double>(end - b.begin()) / m; };
    most = std::max(most, std::abs(static_cast<double>(i) / n - share(first)));
    const float x = a[i];
    while (i < a.size() && a[i] <= x) ++i;
    most = std::max(most, std::abs(static_cast<double>(i) / n - share(last)));
  }
  constexpr double unlikely = 6.103036322765087;  // -ln(1e-5 / 2) / 2: once in 100,000 times
  return most <= std::sqrt(unlikely * (1 / n + 1 / m));
}

std::shared_ptr<const RecallCurve> RecallCurves::get(std::int64_t k,
                                                     const std::function<RecallCurve()>& make) {
  if (auto found = find(k)) return found;
  // Before the lock, which is held as long as another curve is made.
  if (StopCheck::preparing() == Preparing::refused)
    throw NotPrepared(fmt::format("recall of {} neighbours has not been calibrated yet", k));
  std::lock_guard one(making_);
  if (auto found = find(k)) return found;
  auto made = std::make_shared<const RecallCurve>(make());
  keep(k, made);
  return made;
}

// Publishes a copy, so that a child process never finds half a change.
template <class Change>
auto RecallCurves::change(std::int64_t k, Change change) {
  std::lock_guard lock(mutex_);
  LearnedOf next = *learned_;
  const auto publish = [&] {
    auto made = std::make_shared<const LearnedOf>(std::move(next));
    learned_.swap(made);
  };
  if constexpr (std::is_void_v<decltype(change(next[k]))>) {
    change(next[k]);
    publish();
  } else {
    const auto out = change(next[k]);
    publish();
    return out;
  }
}

void RecallCurves::set(RecallCurve curve) {
  const std::int64_t k = curve.k;
  keep(k, std::make_shared<const RecallCurve>(std::move(curve)));
  change(k, [](Learned& learned) { learned = {}; });
}

void RecallCurves::take_learned(const RecallCurves& other) {
  const auto learned = [&] {
    std::lock_guard lock(other.mutex_);
    return other.learned_;
  }();
  std::lock_guard lock(mutex_);
  learned_ = learned;
}

RecallCurves::Kinds RecallCurves::kinds(std::int64_t k) const {
  std::lock_guard lock(mutex_);
  const auto found = learned_->find(k);
  return found == learned_->end() ? Kinds{} : found->second.kinds;
}

std::shared_ptr<const RecallCurve> RecallCurves::harder(std::int64_t k) const {
  std::lock_guard lock(mutex_);
  const auto found = learned_->find(k);
  return found == learned_->end() ? nullptr : found->second.harder;
}

void RecallCurves::learn(RecallCurve curve) {
  const std::int64_t k = curve.k;
  auto kind = std::make_shared<const RecallCurve>(std::move(curve));
  change(k, [&](Learned& learned) {
    learned.kinds.insert(learned.kinds.begin(), std::move(kind));
    if (learned.kinds.size() > most_kinds) learned.kinds.resize(most_kinds);
  });
}

void RecallCurves::learn_harder(RecallCurve curve) {
  const std::int64_t k = curve.k;
  auto kind = std::make_shared<const RecallCurve>(std::move(curve));
  change(k, [&](Learned& learned) { learned.harder = std::move(kind); });
}

std::optional<std::int64_t> RecallCurves::next_check(std::int64_t k, double cost_of_batch,
                                                     double cost_of_check) {
  constexpr double share = 0.1;
  return change(k, [&](Learned& learned) -> std::optional<std::int64_t> {
    learned.saved = std::min(learned.saved + share * cost_of_batch, 2 * cost_of_check);
    if (learned.checks > 0 && learned.saved < cost_of_check) return {};
    if (learned.checks > 0) learned.saved -= cost_of_check;
    return learned.checks++;
  });
}

bool RecallCurves::finds_less(std::int64_t k, std::span<const double> recalls, double promised) {
  // A bet against each query: fair, or worse, while the mean recall is what was promised.
  double won = 0;
  for (const double recall : recalls) won += std::log1p(promised - recall);
  constexpr double enough = 2.995732273553991;  // ln(20)
  return change(k, [&](Learned& learned) {
    learned.evidence = std::max(0.0, learned.evidence + won);
    const bool out = learned.evidence >= enough;
    if (out) learned.evidence = 0;
    return out;
  });
}

// Publishes a copy, so that a child process never finds half a change (core/process_mutex.hpp).
void RecallCurves::keep(std::int64_t k, std::shared_ptr<const RecallCurve> curve) {
  std::lock_guard lock(mutex_);
  Curves next = *curves_;
  next[k] = std::move(curve);
  auto made = std::make_shared<const Curves>(std::move(next));
  curves_.swap(made);
}

std::shared_ptr<const RecallCurve> RecallCurves::find(std::int64_t k) const {
  const std::shared_ptr<const Curves> all = curves();
  const auto curve = all->find(k);
  return curve == all->end() ? nullptr : curve->second;
}

std::vector<std::shared_ptr<const RecallCurve>> RecallCurves::all() const {
  std::vector<std::shared_ptr<const RecallCurve>> out;
  const std::shared_ptr<const Curves> all = curves();
  for (const auto& [k, curve] : *all) out.push_back(curve);
  return out;
}

}  // namespace knear::detail
