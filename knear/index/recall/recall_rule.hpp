// knear/index/recall/recall_rule.hpp -- when a query of inverted lists has probed enough for the
// recall that was asked: a rule for each query, and how it is calibrated.
//
// Of so many lists, the nearest, a query probes those whose centroids are not much farther away
// than the first one: the list in place j while (d_j - d_1) times the fourth root of j is at most
// `spread`, where d are distances. So a query near one centroid probes few lists and one between
// many centroids many, all of them known before anything is scanned, and the answer depends on
// query and index alone. No query stops with fewer than k rows while there are more: it doubles its
// lists until then.
//
// Calibration takes some queries whose exact neighbours are known, rows of the index that are left
// out of their own answers, and notes what each of some rules would have found: spreads from small
// to large, each with the lists that are enough for most queries. A rule promises what the mean
// recall of 1,000 queries falls below once in 1,000 batches (docs/recall.md).
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/process_mutex.hpp"
#include "knear/core/progress.hpp"

namespace knear::detail {

struct RecallRule {
  std::int64_t lists = 1;  // that a query probes at most, if it finds k rows in these
  double spread = -1;      // negative: it probes all of these
  // Codes that are refined: how many are measured by their vectors for each neighbour.
  std::int64_t refine_factor = 0;
  // Of a graph, instead of lists: how far a search goes (index/graph/row_graph.hpp).
  std::int64_t ef = 0, starts = 0;

  bool operator==(const RecallRule&) const = default;
};

// |q| of a query [1 x dim].
double length_of(AnyMatrixView query);
// How far the list in place `at` (from 0 on) is beyond the nearest one, as a rule compares it with
// its spread; of keys that are squares of distances. Never smaller for a later place.
double spread_of(float key, float nearest_key, std::int64_t at);
// How many of the lists, whose centroids have these keys (ascending), a query probes: 1 at least.
std::int64_t lists_within(std::span<const float> keys, const RecallRule& rule);
// The number of lists of a rule by whose spread alone queries [at least one] want so many: what is
// enough for nine in ten. More for the others find less than they cost.
std::int64_t lists_enough(std::vector<std::int64_t> wanted);

// How near to a query the rows are that it found: the key of the nearest, and that of the last of
// the first third of the k neighbours, which is found even where many are missed, in parts of the
// key of the farthest list that the query chose from. Of products both in parts of its length.
inline constexpr std::size_t nearness_measures = 2;
using Nearness = std::array<float, nearness_measures>;
constexpr std::int64_t last_of_a_third(std::int64_t k) { return (k + 2) / 3; }
float nearness_of(double key, double scale);

// Keys in ascending order; those beyond float32 as its largest or least number, since files hold
// finite ones.
std::vector<float> keys_in_order(std::vector<float> keys);

// What recall queries have by one measure of nearness: of groups of these, from the nearest on,
// those up to each bound and those beyond the last. Of the farthest there are smaller and smaller
// groups.
struct RecallByNearness {
  std::vector<float> bounds;           // ascending
  std::vector<float> recalls, shares;  // of each group, one more: mean recall; share of the queries
  std::int64_t queries = 0;
  float least = 0, most = 0;  // the range of nearness

  std::size_t group_of(float nearness) const {
    return std::lower_bound(bounds.begin(), bounds.end(), nearness) - bounds.begin();
  }

  bool operator==(const RecallByNearness&) const = default;
};

// How much the recalls of single queries differ, as calibration saw it.
struct RecallSpread {
  double variance = 0;       // of the recall of a query
  double part = 1;           // its share of the largest variance that values of its mean can have
  double shortfall = 0;      // of the worst query, below the mean
  std::int64_t queries = 0;  // in the sample; 0: unknown, so that nothing can be promised

  bool operator==(const RecallSpread&) const = default;
};

// Number of queries whose mean recall a rule is chosen by: a recall that is asked for is promised
// to batches of this size and larger ones.
inline constexpr std::int64_t promised_batch = 1000;

// Returns the number that the mean recall of a batch of queries falls below once in 1,000 batches,
// where the mean of a sample is `mean`; 0 for a single query. The margin covers the chance of the
// batch and that of the sample: the normal quantile of a mean, with the third-order term of Cornish
// and Fisher at its largest for values that are at most `shortfall` below their mean; and no more
// than counts of Poisson with the same losses allow.
double promised_recall(double mean, const RecallSpread& spread, std::int64_t batch);

// What a rule was seen to do.
struct RecallPoint {
  RecallRule rule;
  // Mean recall: what is promised to batches of promised_batch queries, and what is expected.
  double promised = 0, expected = 0;
  double lists = 0, rows = 0;  // that a query probes, on average
  // By each measure; no groups where that was not noted.
  std::array<RecallByNearness, nearness_measures> by_nearness = {};
  RecallSpread spread = {};

  // Returns what is promised to a batch of this many queries that asked for a recall, which is
  // never more than that.
  double promised_to(std::int64_t batch, double asked) const {
    return std::min(asked, promised_recall(expected, spread, batch));
  }

  bool operator==(const RecallPoint&) const = default;
};

// The rules worth using for k neighbours, from the cheapest on; each promises more than the one
// before.
struct RecallCurve {
  std::int64_t k = 0;
  std::vector<RecallPoint> points;
  // The key of the nearest centroid of each query, ascending: queries from elsewhere have others.
  std::vector<float> nearest_keys;

  // The cheapest point that promises a recall; nullptr if none does.
  const RecallPoint* find(double recall) const;

  bool operator==(const RecallCurve&) const = default;
};

// What calibration has to know of its queries.
struct CalibrationSample {
  std::int64_t k = 0, lists = 0, dim = 0;
  // Whether keys are squares of distances, so that rules may have a spread.
  bool distances = true;
  Matrix<float> keys;         // [queries x lists looked at], of lists, ascending
  Matrix<std::int32_t> rows;  // [queries x lists looked at]: rows in the first 1, 2, ... lists
  // [queries x k]: places in that order of the lists of the neighbours; beyond the last: not among
  // these. -1: there is no such neighbour.
  Matrix<std::int32_t> ranks;
  // [queries]: lists in which k rows are found, or all that there are if these are fewer; one more
  // than are looked at if those are too few.
  std::vector<std::int32_t> enough;
};
// What a search by a rule was seen to do for some queries.
struct RuleSeen {
  RecallRule rule;
  std::vector<double> recalls;       // of each query
  std::vector<std::int64_t> probed;  // lists of each query, of those looked at; or empty
  std::vector<Nearness> nearness;    // of each query, or empty
  double lists = 0, rows = 0;        // that a query probes, on average
  double cost = 0;                   // in any unit
};
// The points of rules that were tried; nearest_keys: of each query, in any order.
RecallCurve curve_of(std::int64_t k, std::vector<RuleSeen> seen, std::vector<float> nearest_keys);

// The lower end of Wilson's interval (one side, 99.5 %) for the mean of so many shares of k, which
// have this mean and variance: near 1, where a few misses more or less decide, the usual one is too
// narrow. As many independent yes-or-no answers as have the variance of the mean stand for the
// shares.
double promised_mean(double mean, double variance, double count, std::int64_t k);

// Simulates the rules of a grid; the same curve for any number of threads and on every machine.
// nearness: says how near the rows are that queries find by a rule in so many lists of those that
// were looked at, for one rule after another, each of which takes no fewer lists than that before.
using NearnessOf = std::function<std::vector<Nearness>(const RecallRule& rule,
                                                       std::span<const std::int64_t> probed)>;
RecallCurve calibrated(const CalibrationSample& sample, int threads,
                       const NearnessOf& nearness = {});

// Whether two ascending lists of numbers come from one distribution: false if that is very
// unlikely.
bool alike(std::span<const float> a, std::span<const float> b);

// The curves of a state, made on first use. Any number of threads.
class RecallCurves {
 public:
  explicit RecallCurves(std::int64_t rows) : rows_(rows) {}

  // The curve for k neighbours; made by one caller while others wait. Throws NotPrepared where the
  // caller may not make it (core/stop_check.hpp).
  std::shared_ptr<const RecallCurve> get(std::int64_t k, const std::function<RecallCurve()>& make);
  // Also forgets the kinds for the same number of neighbours.
  void set(RecallCurve curve);
  // That for k neighbours, if there is one.
  std::shared_ptr<const RecallCurve> find(std::int64_t k) const;
  std::vector<std::shared_ptr<const RecallCurve>> all() const;

  // Number of kinds of queries that are kept for each number of neighbours.
  static constexpr std::size_t most_kinds = 8;
  using Kinds = std::vector<std::shared_ptr<const RecallCurve>>;
  // Returns the curves for k neighbours of kinds of queries that get() does not fit, each learned
  // from a batch of them; the latest first.
  Kinds kinds(std::int64_t k) const;
  // Adds a kind; beyond most_kinds the oldest is forgotten.
  void learn(RecallCurve curve);
  // Takes over what another one has learned of kinds of queries, for all numbers of neighbours.
  void take_learned(const RecallCurves& other);
  // The curve of queries that look like those of get() for k neighbours, but were seen to find less
  // than it promises; nullptr if there are none.
  std::shared_ptr<const RecallCurve> harder(std::int64_t k) const;
  void learn_harder(RecallCurve curve);

  // Returns the number of the check if a batch is to be checked by exact answers: the first one,
  // and then each for which a tenth of the cost of batches has been saved up. Both costs are in the
  // same unit.
  std::optional<std::int64_t> next_check(std::int64_t k, double cost_of_batch,
                                         double cost_of_check);
  // Adds the recalls of queries that were checked and had been promised `promised` on average.
  // Returns true once all that were added look like less than that by more than chance does once in
  // 20 times. Then the count begins anew.
  bool finds_less(std::int64_t k, std::span<const double> recalls, double promised);
  // Whether curves of an index that had so many rows still say something of one that has `rows`,
  // after so many were added or taken out.
  bool hold_for(std::int64_t rows, std::int64_t changed) const {
    return 5 * rows >= 4 * rows_ && 4 * changed <= rows_;
  }
  std::int64_t rows() const { return rows_; }

 private:
  const std::int64_t rows_;
  ProcessMutex making_;
  using Curves = std::map<std::int64_t, std::shared_ptr<const RecallCurve>>;  // by k

  std::shared_ptr<const Curves> curves() const {
    std::lock_guard lock(mutex_);
    return curves_;
  }
  void keep(std::int64_t k, std::shared_ptr<const RecallCurve> curve);
  // What is known for a number of neighbours beside its curve.
  struct Learned {
    Kinds kinds;
    std::shared_ptr<const RecallCurve> harder;
    std::int64_t checks = 0;
    double saved = 0, evidence = 0;  // for a check; logarithm of a bet against the promise
  };
  using LearnedOf = std::map<std::int64_t, Learned>;  // by k
  template <class Change>
  auto change(std::int64_t k, Change change);

  mutable ProcessMutex mutex_;  // of curves_ and learned_, never held for long
  std::shared_ptr<const Curves> curves_ = std::make_shared<const Curves>();
  std::shared_ptr<const LearnedOf> learned_ = std::make_shared<const LearnedOf>();
};

}  // namespace knear::detail
