// knear/index/replica_speeds.hpp -- how the queries of a batch are divided between replicas: by the
// speed that each of them had before, so that all are done at the same time.
//
//   const std::vector<std::int64_t> begin = speeds.split(queries, replicas);   // [replicas + 1]
//   speeds.note(replica, begin[replica + 1] - begin[replica], seconds);
//
// A core that others use, or of another kind, gets fewer queries from the next call on. A new
// measurement counts a quarter, so that one slow call is soon forgotten. Any number of threads.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <vector>

namespace knear::detail {

class ReplicaSpeeds {
 public:
  explicit ReplicaSpeeds(std::int64_t replicas) : rates_(static_cast<std::size_t>(replicas), 0) {}

  std::int64_t replicas() const { return std::ssize(rates_); }

  // Where the queries of the first `replicas` begin, and where the last ends. Each has at least
  // one where there are as many.
  std::vector<std::int64_t> split(std::int64_t queries, std::int64_t replicas) const {
    std::vector<double> rates(static_cast<std::size_t>(replicas), 1);
    {
      std::lock_guard lock(mutex_);
      const auto end = rates_.begin() + replicas;
      // Rates of all, or of none: a share cannot be told otherwise.
      if (std::find(rates_.begin(), end, 0.0) == end) std::copy(rates_.begin(), end, rates.begin());
    }
    double sum = 0, before = 0;
    for (const double rate : rates) sum += rate;
    std::vector<std::int64_t> begin{0};
    for (std::int64_t r = 1; r <= replicas; ++r) {
      before += rates[static_cast<std::size_t>(r - 1)];
      const auto place =
          static_cast<std::int64_t>(std::llround(static_cast<double>(queries) * before / sum));
      const std::int64_t least = std::min(queries, begin.back() + 1);
      begin.push_back(std::clamp(place, least, std::max(least, queries - (replicas - r))));
    }
    begin.back() = queries;
    return begin;
  }

  // That a replica took so long for so many queries.
  void note(std::int64_t replica, std::int64_t queries, double seconds) {
    if (queries == 0 || !(seconds > 0)) return;
    const double seen = static_cast<double>(queries) / seconds;
    std::lock_guard lock(mutex_);
    double& rate = rates_[static_cast<std::size_t>(replica)];
    rate = rate == 0 ? seen : 0.75 * rate + 0.25 * seen;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<double> rates_;  // queries a second, 0: not known
};

}  // namespace knear::detail
