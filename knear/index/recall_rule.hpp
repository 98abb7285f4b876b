// knear/index/recall_rule.hpp -- when a query of inverted lists has probed enough for the recall
// that was asked: a rule for each query, and how it is calibrated.
//
// Lists are probed in coarse order, by rounds that end after 1, 4, 16, ... times `first` lists.
// After a round the k-th key so far says how far neighbours are: the query goes on to those lists
// whose centroids' keys exceed that of the nearest centroid by no more than `reach` times that
// distance, and stops where none is left. So easy queries probe few lists and hard ones many, and
// the answer depends on query and index alone. No query stops with fewer than k rows while there
// are more: a rule without `reach` doubles its lists until then.
//
// Calibration probes with some queries whose exact neighbours are known, rows of the index that are
// left out of their own answers, and notes what each rule of a grid would have found. A rule
// promises the lower end of an interval of its mean recall (one side, 99 %).
#pragma once
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
#include "knear/core/progress.hpp"

namespace knear::detail {

struct RecallRule {
  std::int64_t first = 1;  // lists of the first round
  double reach = -1;       // negative: there is no second one, if k rows were found
  // Codes that are refined: how many are measured by their vectors for each neighbour.
  std::int64_t refine_factor = 0;

  // The end of the round after the one that ended with `probed` lists.
  static std::int64_t next_end(std::int64_t probed, std::int64_t lists) {
    return probed > lists / 4 ? lists : 4 * probed;
  }
};

// |q| of a query [1 x dim].
double length_of(AnyMatrixView query);
// How many of the lists, whose centroids have these keys (ascending), a query goes on to: those up
// to the first key plus reach times unit; one more than there are keys: all of these, and perhaps
// others.
std::int64_t lists_within(std::span<const float> keys, double reach, double unit);

// What a rule was seen to do.
struct RecallPoint {
  RecallRule rule;
  double promised = 0, expected = 0;  // mean recall: the lower end of its interval, and itself
  double lists = 0, rows = 0;         // that a query probes, on average
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
};

// What calibration has to know of its queries.
struct CalibrationSample {
  std::int64_t k = 0, lists = 0, dim = 0;
  Matrix<float> keys;         // [queries x lists looked at], of lists, ascending
  Matrix<std::int32_t> rows;  // [queries x lists looked at]: rows in the first 1, 2, ... lists
  // [queries x k]: places in that order of the lists of the neighbours; beyond the last: not among
  // these. -1: there is no such neighbour.
  Matrix<std::int32_t> ranks;
  // [queries]: lists in which k rows are found, or all that there are if these are fewer; one more
  // than are looked at if those are too few.
  std::vector<std::int32_t> enough;
  std::vector<std::int64_t> ends;  // 1, 2, 4, ...
  Matrix<double> units;            // [queries x ends]: distance of the k-th row after so many lists
};
// What a search by a rule was seen to do for some queries.
struct RuleSeen {
  RecallRule rule;
  std::vector<double> recalls;  // of each query
  double lists = 0, rows = 0;   // that a query probes, on average
  double cost = 0;              // in any unit
};
// The points of rules that were tried; nearest_keys: of each query, in any order.
RecallCurve curve_of(std::int64_t k, std::vector<RuleSeen> seen, std::vector<float> nearest_keys);

// Simulates the rules of a grid; the same curve for any number of threads and on every machine.
RecallCurve calibrated(const CalibrationSample& sample, int threads);

// Whether two ascending lists of numbers come from one distribution: false if that is very
// unlikely.
bool alike(std::span<const float> a, std::span<const float> b);

// The curves of a state, made on first use. Any number of threads.
class RecallCurves {
 public:
  explicit RecallCurves(std::int64_t rows) : rows_(rows) {}

  // That for k neighbours; made by one caller while others wait.
  std::shared_ptr<const RecallCurve> get(std::int64_t k, const std::function<RecallCurve()>& make);
  void set(RecallCurve curve);
  std::vector<std::shared_ptr<const RecallCurve>> all() const;
  // Whether curves of an index that had so many rows still say something of one that has `rows`,
  // after so many were added or taken out.
  bool hold_for(std::int64_t rows, std::int64_t changed) const {
    return 5 * rows >= 4 * rows_ && 4 * changed <= rows_;
  }
  std::int64_t rows() const { return rows_; }

 private:
  const std::int64_t rows_;
  std::mutex making_;
  mutable std::mutex mutex_;  // of curves_
  std::map<std::int64_t, std::shared_ptr<const RecallCurve>> curves_;
};

}  // namespace knear::detail
