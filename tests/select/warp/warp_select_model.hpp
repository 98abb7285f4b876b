// tests/select/warp/warp_select_model.hpp -- how often WarpSelect inserts and merges on random
// rows.
//
//   using namespace warp_select_model;
//   const double merges = expected_one_lane_counts(8000, 100, 3).merges;   // E[N3] of one lane
//
// The appendix of Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs" (2017), and
// what it leaves open. Throughout: a row is a random permutation of l distinct values, of which the
// k smallest are selected with queues of t; n is the place of a value, from 1; an element is a
// successive minimum if it is among the k smallest of the first n. N2 and N3 are counted as in
// WarpSelectCounts: won ballots, without the merge at the end.
//
// What we found, and the tests hold:
//  - t = 1, one lane: the appendix is exact, E[N3] = pi.
//  - t > 1, one lane: pi is a lower bound, 1 % too low at k = 100 and t = 3, by a third where t is
//    more than k. It assumes that just the successive minima enter the queue, with probability k /
//    n. The algorithm compares with the k-th best as of the last merge; if j of the elements since
//    then have preceded it, it is the (k + j)-th of the n - 1 seen, and the next one enters with
//    probability (k + j) / n. expected_one_lane_counts() follows j and is exact; as j < t, pi for
//    k + t - 1 is an upper bound.
//  - N3 is the same for both update rules, since what a merge leaves in the queues of the first one
//    does not precede the k-th best: in both, a lane starts a merge when it has got t elements that
//    do.
//  - 32 lanes, t = 1: expected_warp_merges_of_single_queues() is exact. Equation 19 holds with
//    slack, though a term of its first line, k / c in group c, is below what it should bound: the
//    last value of a group enters with probability k / (32 c), the others with more. The slack
//    comes from its start, where 32 values that enter at once are one merge, not 32.
//  - 32 lanes, t > 1: each merge takes t entries, so most_warp_merges() bounds E[N3]. The true
//    figure is far lower, as the other 31 queues are seldom empty when one is full.
//  - N2 of the counted queues is near the sum behind equation 15; N2 of the sorted queues of the
//    first version is not. There the remainder is distributed over the lanes in order, so after a
//    merge the head of lane 0 is number 32 R + 32 (t - 1) + 1 of those held, not number k + t, and
//    those of the others follow.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "knear/simt/warp.hpp"

namespace knear {

// What a WarpSelect did, by the names of section 4.3.
struct WarpSelectCounts {
  std::int64_t n1 = 0;  // groups of 32 values read
  std::int64_t n2 = 0;  // of these, groups that went into a queue in some lane
  std::int64_t n3 = 0;  // merges of the queues, without the last one, which store() does

  KNEAR_WARP void on_read(int groups) { n1 += groups; }
  KNEAR_WARP void on_insert() { ++n2; }
  KNEAR_WARP void on_merge() { ++n3; }
};

}  // namespace knear

// A namespace of its own: alpha is a word of the appendix.
namespace knear::warp_select_model {

// Equation 13: the probability that the n-th value, n >= 1, is a successive minimum.
inline double alpha(std::int64_t n, double k) { return double(n) <= k ? 1.0 : k / double(n); }

// Equation 16, gamma(l, m, k) for m = 0 .. l: the probability of m successive minima. l, k >= 0.
// Time grows with l * l, memory with l.
inline std::vector<double> successive_minima_distribution(int l, int k) {
  std::vector<double> gamma(std::size_t(l) + 1, 0.0);
  gamma[0] = 1.0;
  for (int n = 1; n <= l; ++n) {
    const double a = alpha(n, k);
    for (int m = n; m > 0; --m)
      gamma[std::size_t(m)] = gamma[std::size_t(m) - 1] * a + gamma[std::size_t(m)] * (1.0 - a);
    gamma[0] *= 1.0 - a;
  }
  return gamma;
}

// The mean of that, for any l: the sum of alpha(n, k), k + k (H_l - H_k) for l > k.
inline double expected_successive_minima(std::int64_t l, double k) {
  double sum = 0;
  for (std::int64_t n = 1; n <= l; ++n) sum += alpha(n, k);
  return sum;
}

// Equation 17, delta(l, b, k, t): the probability of b won ballots. gamma:
// successive_minima_distribution().
inline double ballots_probability(const std::vector<double>& gamma, int b, int t) {
  const int l = int(gamma.size()) - 1, last = std::min(b * t + std::max(0, t - 1), l);
  double sum = 0;
  for (int m = b * t; m <= last; ++m) sum += gamma[std::size_t(m)];
  return sum;
}

// Equation 18, pi(l, k, t, 1): the expected number of won ballots of one lane, floor(m / t).
inline double pi_of_one_lane(int l, int k, int t) {
  const std::vector<double> gamma = successive_minima_distribution(l, k);
  double sum = 0;
  for (int b = 1; b <= l / t; ++b) sum += b * ballots_probability(gamma, b, t);
  return sum;
}

struct ExpectedCounts {
  double insertions, merges;
};

// One lane, exact: insertions of the counted queue, merges of either rule. A Markov chain over the
// number j of values queued since the last merge; time l * t. (While a merge has seen fewer than k
// values, everything enters: then k + j >= n, so this needs no case of its own.)
inline ExpectedCounts expected_one_lane_counts(std::int64_t l, int k, int t) {
  std::vector<double> queued(std::size_t(t), 0.0);  // probability of each j
  queued[0] = 1.0;
  ExpectedCounts out = {0, 0};
  for (std::int64_t n = 1; n <= l; ++n) {
    std::vector<double> next(std::size_t(t), 0.0);
    for (int j = 0; j < t; ++j) {
      const double enters = queued[std::size_t(j)] * alpha(n, k + j);
      out.insertions += enters;
      if (j + 1 == t) out.merges += enters;
      next[std::size_t((j + 1) % t)] += enters;
      next[std::size_t(j)] += queued[std::size_t(j)] - enters;
    }
    queued = next;
  }
  return out;
}

// The sum over groups of 32 values behind equation 15, without its Taylor expansion: how many
// groups have a value among the `rank` smallest seen so far. rank = k + t is the paper's N2.
inline double estimated_warp_insertions(std::int64_t l, double rank) {
  double sum = 0;
  for (std::int64_t seen = warp_size; seen < l + warp_size; seen += warp_size)
    sum += 1.0 - std::pow(1.0 - alpha(seen, rank), warp_size);
  return sum;
}

// 32 lanes with t = 1, exact: a group has a merge unless the k smallest of all values up to its end
// stand before it. Requires l to be a multiple of 32.
inline double expected_warp_merges_of_single_queues(std::int64_t l, int k) {
  double sum = 0;
  for (std::int64_t seen = warp_size; seen <= l; seen += warp_size) {
    double none = 1.0;
    for (int i = 0; i < warp_size; ++i)
      none *= std::max(0.0, double(seen - k - i) / double(seen - i));
    sum += 1.0 - none;
  }
  return sum;
}

// Equation 19 for t = 1: its first and its second line. Requires k >= 32.
struct Equation19 {
  double first, second;
};
inline Equation19 equation_19(std::int64_t l, int k) {
  const std::int64_t groups = (l + warp_size - 1) / warp_size,
                     filled = (k + warp_size - 1) / warp_size;
  double first = double(filled);
  for (std::int64_t c = filled + 1; c <= groups; ++c) first += double(k) / double(warp_size * c);
  return {warp_size * first, warp_size * expected_successive_minima(groups, k)};
}

// 32 lanes, an upper bound of E[N3] for any t: a value enters a queue with probability (k + j) / n,
// where j counts those that did since the last merge, in all lanes and less than 32 t.
inline double most_warp_merges(std::int64_t l, int k, int t) {
  return expected_successive_minima(l, k + warp_size * t - 1) / t;
}

}  // namespace knear::warp_select_model
