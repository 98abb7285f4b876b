// The loss of a partial reduction: its law in one bin, its expectation, and bounds that hold for
// any set of queries (contract in bins.hpp).
#include "knear/select/bins.hpp"

#include <algorithm>
#include <cmath>
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
  double last_ratio = 0;  // the terms that were cut fall by at least this factor each

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
    const auto lost = static_cast<std::size_t>(std::max<std::int64_t>(0, r - kept));
    if (lost >= loss.probability.size()) loss.probability.resize(lost + 1);
    loss.probability[lost] += w;
    sum += w;
  };
  for (std::size_t i = below.size(); i-- > 0;)
    add(mode - 1 - static_cast<std::int64_t>(i), below[i]);
  weight = 1;
  for (std::int64_t r = mode;; ++r) {
    add(r, weight);
    if (r == high) break;
    if (weight < least) {
      loss.last_ratio = up(r);
      break;
    }
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

// Each of k neighbours falls into the bin with probability 1 / bins.
BinLoss binomial_loss(std::int64_t k, std::int64_t bins, int kept) {
  const double K = static_cast<double>(k), others = static_cast<double>(bins - 1);
  const auto mode = static_cast<std::int64_t>((K + 1) / (others + 1));
  return bin_loss(bins == 1 ? k : 0, mode, k, kept, [=](std::int64_t count) {
    const double r = static_cast<double>(count);
    return (K - r) / ((r + 1) * others);
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

double expected_loss(const BinGroups& groups) {
  double sum = 0;
  for (const BinGroup& group : groups) sum += group.bins * group.loss.mean;
  return sum;
}

// The margin. ----------------------------------------------------------------------------------
//
// Let X_q be the number of its k neighbours that query q loses, and a the number that it may lose.
// Only the order of the base is random. The placement of any k rows has the same law, so all X_q
// have that of one X, but their dependence may be any: the queries may be copies of one another.
//
// 1. For convex increasing phi >= 0 with phi(a) > 0, Markov's and Jensen's inequalities give
//      P(mean of X_q >= a) <= E phi(mean of X_q) / phi(a) <= E phi(X) / phi(a).
//    The best such phi is x -> max(0, x - t) for some t < a, as these generate all others:
//      P(mean >= a) <= min over 0 <= t < a of E max(0, X - t) / (a - t).          (*)
//    (The dual of expected shortfall, and sharp for X alone: no further argument from X's law
//    without the queries' dependence could improve it.) E max(0, X - t) is linear between whole
//    numbers, so the quotient is monotone there, and whole t are enough.
//
// 2. X = sum over bins of max(0, c_b - kept). The counts c_b are sums over disjoint sets of places
//    of the indicators of a random permutation, hence negatively associated, and so are increasing
//    functions of each (Joag-Dev and Proschan, "Negative association of random variables", Annals
//    of Statistics 11 (1983), theorem 2.11 and property P6); bins of unequal size, bins of one row
//    and k close to the number of rows are all covered. For convex phi the expectation of phi(sum)
//    is then at most that with independent terms of the same laws (Shao, Journal of Theoretical
//    Probability 13 (2000), theorem 1: phi(u + v) has increasing differences, so replacing one
//    term by an independent copy raises the expectation, as it is negatively dependent on the sum
//    of the others). So X may be taken for a sum of independent terms: its law is a product of
//    powers of power series, wanted up to a only. (The price is largest where a bin holds about
//    one neighbour: X varies half as much as such a sum. By simulation, 4 to 12 % more bins than
//    needed at recalls of .9 and above, 22 % at .5.)
//
// 3. For large a the exponential phi is nearly as good and needs no series: Chernoff's bound,
//    with the same independent terms.

// min over s >= 0 of exp(-s a) prod E exp(s loss): its logarithm is convex in s.
double chernoff_bound(const BinGroups& groups, double a) {
  const auto exponent = [&](double s) {
    double sum = -s * a;
    for (const BinGroup& group : groups) {
      // E (exp(s j) - 1), summed in this form: the probabilities may be 1e-12 each.
      double excess = 0, power = 1;
      const double step = std::exp(s);
      for (std::size_t j = 1; j < group.loss.probability.size(); ++j) {
        power *= step;
        excess += group.loss.probability[j] * (power - 1);
      }
      // The terms that were cut are at most a geometric series of ratio 1/2 after the last term.
      if (group.loss.last_ratio > 0) excess += group.loss.probability.back() * power;
      sum += group.bins * std::log1p(excess);
    }
    return std::isnan(sum) ? HUGE_VAL : sum;
  };
  double low = 0, high = 30;
  for (const BinGroup& group : groups)
    if (group.loss.last_ratio > 0) high = std::min(high, std::log(0.5 / group.loss.last_ratio));
  if (high <= 0) return 1;
  constexpr double golden = 0.6180339887498949;
  double left = high - golden * (high - low), right = low + golden * (high - low);
  double at_left = exponent(left), at_right = exponent(right);
  for (int i = 0; i < 40; ++i) {
    if (at_left <= at_right) {
      high = right, right = left, at_right = at_left;
      left = high - golden * (high - low), at_left = exponent(left);
    } else {
      low = left, left = right, at_left = at_right;
      right = low + golden * (high - low), at_right = exponent(right);
    }
  }
  return std::exp(std::min({0.0, at_left, at_right}));
}

// (*) is computed by power series for a up to this; beyond it Chernoff's bound costs at most some 5
// % more bins.
constexpr double longest_series = 128;

// The first `count` coefficients of prod g_i(z)^bins_i. With h = z G' / G, which is the sum of
// bins_i z g_i' / g_i, they follow from n G_n = sum_j h_j G_{n - j}.
std::vector<double> law_of_sum(const BinGroups& groups, std::size_t count) {
  std::vector<double> h(count), quotient(count), law(count);
  double log_first = 0;
  for (const BinGroup& group : groups) {
    const std::vector<double>& g = group.loss.probability;
    log_first += group.bins * std::log(g[0]);
    for (std::size_t n = 1; n < count; ++n) {
      double sum = n < g.size() ? static_cast<double>(n) * g[n] : 0.0;
      for (std::size_t j = 1; j < std::min(n, g.size()); ++j) sum -= g[j] * quotient[n - j];
      quotient[n] = sum / g[0];
      h[n] += group.bins * quotient[n];
    }
  }
  if (count > 0) law[0] = std::exp(log_first);
  for (std::size_t n = 1; n < count; ++n) {
    double sum = 0;
    for (std::size_t j = 1; j <= n; ++j) sum += h[j] * law[n - j];
    law[n] = sum / static_cast<double>(n);
  }
  return law;
}

double series_bound(const BinGroups& groups, double a) {
  const auto steps = static_cast<std::size_t>(std::ceil(a));  // t = 0 .. steps - 1, all below a
  const std::vector<double> law = law_of_sum(groups, steps - 1);
  double over = expected_loss(groups);  // E max(0, X - t)
  double at_most_t = 0, best = over / a;
  for (std::size_t t = 1; t < steps; ++t) {
    at_most_t += law[t - 1];
    over -= 1 - at_most_t;
    // Each step may have rounded by some 1e-15 of the subtracted value.
    const double rounding = 1e-14 * static_cast<double>(t * t);
    best = std::min(best, (std::max(0.0, over) + rounding) / (a - static_cast<double>(t)));
  }
  return best;
}

// Whether the series converge well enough: their first terms are not small, and the powers are
// higher than the terms are many, so that hardly anything cancels.
bool series_serves(const BinGroups& groups, double a) {
  double bins = 0;
  for (const BinGroup& group : groups) {
    if (group.loss.probability[0] < 0.6) return false;
    bins += group.bins;
  }
  return a <= longest_series && a <= bins;
}

// A bound on the probability that a set of queries loses `a` or more in the mean; stops at the
// first argument by which it is at most `enough`.
double mean_loss_bound(const BinGroups& groups, double a, double enough) {
  const double expected = expected_loss(groups);
  if (expected == 0) return 0;
  if (expected >= a) return 1;
  double bound = expected / a;
  if (bound <= enough) return bound;
  bound = std::min(bound, chernoff_bound(groups, a));
  if (bound <= enough || !series_serves(groups, a)) return bound;
  return std::min(bound, series_bound(groups, a));
}

double bound_of_uncertified(const BinGroups& groups) {
  double sum = 0;
  for (const BinGroup& group : groups) sum += group.bins * group.loss.over();
  return std::min(1.0, sum);
}

// Bins for any split. --------------------------------------------------------------------------
//
// Shard i has n_i rows and k_i of the k nearest, sum k_i = k, divided by an adversary. Give every
// shard bins of at most floor(n_i / B) rows. Then the merged loss X = sum of X_i is, in the mean of
// every convex increasing phi, at most that of B independent bins into which k neighbours fall with
// probability 1 / B each:
//
// 1. Drawing k_i places with replacement instead of without raises the mean of phi(X_i). Given how
//    often each place was drawn, the counts are sums of weights on random places, phi of the loss
//    is convex in the counts, so its mean is a convex symmetric function of the weights, and
//    weights with repetition majorise k_i ones.
// 2. The bins' shares, none above 1 / B, are majorised by B equal ones and nothing else; for
//    multinomial counts the mean of a function that is Schur-convex in the counts, as the loss is,
//    is Schur-convex in the shares (Marshall and Olkin, "Inequalities" (1979), 11.E).
// 3. Now all shards have the same B bins. Lay the i-th bins of all shards on each other: max(0, u -
//    kept) + max(0, v - kept) <= max(0, u + v - kept), so the loss only grows, and k neighbours
//    have been thrown into B bins.
// 4. Multinomial counts are negatively associated: independent ones are worse, as above.
//
// The expected loss is the case phi(x) = x, and bounds the share of uncertified queries: one that
// is not certified has lost a neighbour.
BinGroups groups_of_any_split(std::int64_t k, const Reduction& reduction) {
  return {{static_cast<double>(reduction.bins), binomial_loss(k, reduction.bins, reduction.kept)}};
}

// Checks. --------------------------------------------------------------------------------------

void check_k(std::int64_t k, std::int64_t rows) {
  if (k < 1 || k > rows)
    throw InvalidArgument("k must be between 1 and the rows, {}, but is {}", rows, k);
}
void check_kept(int kept) {
  if (kept < 1 || kept > most_kept)
    throw InvalidArgument("kept must be between 1 and {}, but is {}", most_kept, kept);
}
void check(std::int64_t k, std::int64_t rows, const Reduction& reduction) {
  check_k(k, rows);
  check_kept(reduction.kept);
  if (reduction.bins < 1 || reduction.bins > rows)
    throw InvalidArgument("bins must be between 1 and the rows, {}, but are {}", rows,
                          reduction.bins);
}
void check_share(const char* name, double x) {
  if (!(x > 0 && x < 1))
    throw InvalidArgument("{} must be above 0 and below 1, but is {}", name, x);
}
void check_goal(const ReductionGoal& goal) {
  if (const auto* promised = std::get_if<RecallGoal>(&goal)) {
    check_share("recall", promised->recall);
    if (!(promised->risk >= 1e-9 && promised->risk < 1))
      throw InvalidArgument("risk must be at least 1e-9 and below 1, but is {}", promised->risk);
  } else if (const auto* expected = std::get_if<ExpectedRecallGoal>(&goal)) {
    check_share("recall", expected->recall);
  } else {
    check_share("uncertified", std::get<CertificateGoal>(goal).uncertified);
  }
}
void check_base(std::int64_t k, const ReducedBase& base) {
  if (base.rows < 1) throw InvalidArgument("rows must be at least 1, but are {}", base.rows);
  if (base.logical_rows != 0 && base.logical_rows < base.rows)
    throw InvalidArgument("logical_rows must be 0 or at least the rows, {}, but are {}", base.rows,
                          base.logical_rows);
  check_k(k, std::max(base.rows, base.logical_rows));
}

bool meets(const ReductionGoal& goal, std::int64_t k, const BinGroups& groups, bool shards) {
  const double wanted = static_cast<double>(k);
  if (const auto* promised = std::get_if<RecallGoal>(&goal))
    return mean_loss_bound(groups, (1 - promised->recall) * wanted, promised->risk) <=
           promised->risk;
  if (const auto* expected = std::get_if<ExpectedRecallGoal>(&goal))
    return expected_loss(groups) <= (1 - expected->recall) * wanted;
  return (shards ? expected_loss(groups) : bound_of_uncertified(groups)) <=
         std::get<CertificateGoal>(goal).uncertified;
}

// The smallest number in [1, most] that is good, if any. Assumes that all numbers above it are
// good too.
template <class Good>
std::optional<std::int64_t> first_good(std::int64_t most, Good&& good) {
  std::int64_t bad = 0, step = 1;
  for (;; bad = step, step *= 2) {
    if (step >= most) {
      if (most < 1 || !good(most)) return std::nullopt;
      step = most;
      break;
    }
    if (good(step)) break;
  }
  while (step - bad > 1) {
    const std::int64_t middle = bad + (step - bad) / 2;
    (good(middle) ? step : bad) = middle;
  }
  return step;
}

}  // namespace

double expected_recall(std::int64_t k, std::int64_t rows, const Reduction& reduction) {
  check(k, rows, reduction);
  return 1 - expected_loss(groups_of(k, rows, reduction)) / static_cast<double>(k);
}

double shortfall_probability(std::int64_t k, std::int64_t rows, const Reduction& reduction,
                             double recall) {
  check(k, rows, reduction);
  check_share("recall", recall);
  return mean_loss_bound(groups_of(k, rows, reduction), (1 - recall) * static_cast<double>(k), 0);
}

double uncertified_share(std::int64_t k, std::int64_t rows, const Reduction& reduction) {
  check(k, rows, reduction);
  return bound_of_uncertified(groups_of(k, rows, reduction));
}

double paper_expected_recall(std::int64_t k, std::int64_t bins) {
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  if (bins < 1) throw InvalidArgument("bins must be at least 1, but are {}", bins);
  if (k == 1) return 1;
  return std::exp(static_cast<double>(k - 1) * std::log1p(-1 / static_cast<double>(bins)));
}

double paper_bins_approximation(std::int64_t k, double recall) {
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  check_share("recall", recall);
  return std::max(1.0, static_cast<double>(k - 1) / (1 - recall));
}

std::int64_t paper_bins(std::int64_t k, double recall) {
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  check_share("recall", recall);
  if (k == 1) return 1;
  const double bins = -1 / std::expm1(std::log(recall) / static_cast<double>(k - 1));
  if (bins > 0x1p62)
    throw InvalidArgument("recall must be lower: {} for k {} takes {} bins", recall, k, bins);
  // Rounding may have put the quotient on the wrong side of a whole number.
  std::int64_t whole = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(bins)) - 1);
  while (paper_expected_recall(k, whole) < recall) ++whole;
  return whole;
}

std::optional<std::int64_t> fewest_bins(const ReductionGoal& goal, std::int64_t k,
                                        const ReducedBase& base, int kept) {
  check_goal(goal);
  check_base(k, base);
  check_kept(kept);
  const std::int64_t most = (base.rows - 1) / kept;  // bins * kept < rows
  std::optional<std::int64_t> bins;
  if (base.logical_rows <= base.rows) {
    return first_good(most, [&](std::int64_t count) {
      return meets(goal, k, groups_of(k, base.rows, {count, kept}), false);
    });
  }
  // Bins of the logical base: none has more than `size` rows in any shard.
  std::int64_t size = 0;
  if (base.split == Split::any) {
    // A limit by which all shards, whatever their size, find the same number.
    bins = first_good(std::int64_t{1} << 50, [&](std::int64_t count) {
      return meets(goal, k, groups_of_any_split(k, {count, kept}), true);
    });
    if (bins) size = base.rows / *bins;
  } else {
    bins = first_good(base.logical_rows, [&](std::int64_t count) {
      return meets(goal, k, groups_of(k, base.logical_rows, {count, kept}), false);
    });
    if (bins) size = base.logical_rows / *bins;
  }
  if (size < 1) return std::nullopt;
  const std::int64_t own = (base.rows + size - 1) / size;
  return own <= most ? std::optional(own) : std::nullopt;
}

std::optional<Reduction> choose_reduction(const ReductionGoal& goal, std::int64_t k,
                                          const ReducedBase& base, const ReductionCost& cost) {
  std::optional<Reduction> best;
  double least = 0;
  for (int kept = 1; kept <= 8; ++kept) {
    const auto bins = fewest_bins(goal, k, base, kept);
    if (!bins) continue;
    const Reduction reduction{*bins, kept};
    const double price = cost(reduction);
    if (!best || price < least) best = reduction, least = price;
  }
  return best;
}

std::optional<Reduction> choose_reduction(const ReductionGoal& goal, std::int64_t k,
                                          const ReducedBase& base) {
  return choose_reduction(goal, k, base, [&](const Reduction& reduction) {
    return 3.0 * static_cast<double>(base.rows) * reduction.kept +
           32.0 * static_cast<double>(reduction.candidates());
  });
}

}  // namespace knear
