// knear/knn/device/replica_speeds.hpp -- how the queries of a batch are divided between replicas:
// by the speed that each of them had before, so that all are done at the same time.
//
//   const std::vector<std::int64_t> begin = speeds.split(queries, replicas);   // [replicas + 1]
//   speeds.note(begin, seconds);   // of each replica [replicas]
//
// A core that others use, or of another kind, gets fewer queries from the next call on. A new
// measurement counts a quarter, so that one slow call is soon forgotten. However slow, a replica
// keeps a ninth of an even share, by which it can be seen to be fast again: of a few queries time
// is what a call takes at all, and one query alone would look slow for ever. Any number of threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <vector>

namespace knear::detail {

class ReplicaSpeeds {
 public:
  explicit ReplicaSpeeds(std::int64_t replicas) : rates_(replicas, 0) {}

  std::int64_t replicas() const { return std::ssize(rates_); }

  // Where the queries of the first `replicas` begin, and where the last ends. Each has at least a
  // ninth of an even share, give or take one, and one where there are as many.
  std::vector<std::int64_t> split(std::int64_t queries, std::int64_t replicas) const {
    std::vector<double> rates(replicas, 1);
    {
      std::lock_guard lock(mutex_);
      const auto end = rates_.begin() + replicas;
      // Rates of all, or of none: a share cannot be told otherwise.
      if (std::find(rates_.begin(), end, 0.0) == end) std::copy(rates_.begin(), end, rates.begin());
    }
    double sum = 0, before = 0;
    for (double& rate : rates) {
      rate = std::max(rate, least_rate);
      sum += rate;
    }
    std::vector<std::int64_t> begin{0};
    for (std::int64_t r = 1; r <= replicas; ++r) {
      before += rates[r - 1];
      const auto place =
          static_cast<std::int64_t>(std::llround(static_cast<double>(queries) * before / sum));
      const std::int64_t least = std::min(queries, begin.back() + 1);
      begin.push_back(std::clamp(place, least, std::max(least, queries - (replicas - r))));
    }
    begin.back() = queries;
    return begin;
  }

  // That all replicas took so long in one call, each for the queries that split() gave it. What
  // counts is how fast each is beside the others: calls differ in all else.
  void note(const std::vector<std::int64_t>& begin, const std::vector<double>& seconds) {
    std::vector<double> seen;
    double sum = 0;
    for (std::size_t r = 0; r < seconds.size(); ++r) {
      const auto queries = static_cast<double>(begin[r + 1] - begin[r]);
      if (!(queries > 0) || !(seconds[r] > 0)) return;
      seen.push_back(queries / seconds[r]), sum += seen.back();
    }
    std::lock_guard lock(mutex_);
    for (std::size_t r = 0; r < seen.size(); ++r) {
      const double share = seen[r] / sum * static_cast<double>(seen.size());
      rates_[r] = rates_[r] == 0 ? share : 0.75 * rates_[r] + 0.25 * share;
    }
  }

 private:
  static constexpr double least_rate = 1. / 8;

  mutable std::mutex mutex_;
  std::vector<double> rates_;  // beside the others, 1 on average; 0: not known
};

}  // namespace knear::detail
