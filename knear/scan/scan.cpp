// The scan for the k nearest, which repeats queries whose estimated thresholds proved wrong, and
// brute force.
#include "knear/scan/scan.hpp"

#include <algorithm>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/scan/nearest_state.hpp"
#include "knear/scan/scan_driver.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

// Brute force: every pair in float64.
class MeasuredNearest {
 public:
  MeasuredNearest(std::vector<TopK>& best, std::int64_t k, const MeasuredTask& task)
      : all_(best), begin_(task.begin), best_(task.count, TopK(k)) {}

  void take(std::int64_t q, double key, std::uint32_t row) {
    TopK& list = best_[q];
    if (list.admits(key, row)) list.push(key, row);
  }
  double limit(std::int64_t q) const { return best_[q].bound(); }
  void block_done() {}
  std::int64_t finish(ScanStats&) {
    std::int64_t bytes = 0;
    for (const TopK& list : best_)
      bytes += static_cast<std::int64_t>(list.items().capacity() * sizeof(TopK::Item));
    return bytes;
  }
  void hand_over() {
    for (std::size_t q = 0; q < best_.size(); ++q) {
      TopK& all = all_[static_cast<std::size_t>(begin_) + q];
      if (all.items().empty())
        all = std::move(best_[q]);
      else
        for (const TopK::Item& item : best_[q].items()) all.push(item.first, item.second);
    }
  }

 private:
  std::vector<TopK>& all_;
  std::int64_t begin_;
  std::vector<TopK> best_;
};

}  // namespace

std::vector<std::int64_t> scan(const PackedBase& packed, const ScanJob& job,
                               const std::vector<std::int64_t>& which, ExactNeighbors& out,
                               ScanStats& stats, const Progress& progress) {
  if (which.empty()) return {};
  const auto scan_for = [&](const ScanJob& part, const std::vector<std::int64_t>& queries) {
    const WorkTable table = divide(packed, queries, part, stats);
    return scan_and_finish(packed, part, table, out, stats, progress);
  };
  LeftByScan left = scan_for(job, which);
  if (!left.mispredicted.empty()) {
    ScanJob without_estimates = job;
    without_estimates.may_estimate = false;
    stats.repeated += std::ssize(left.mispredicted);
    const std::vector<std::int64_t> more = scan_for(without_estimates, left.mispredicted).given_up;
    left.given_up.insert(left.given_up.end(), more.begin(), more.end());
    std::sort(left.given_up.begin(), left.given_up.end());
  }
  return std::move(left.given_up);
}

void scan_directly(const ScanJob& job, std::span<const std::uint32_t> subset,
                   const std::vector<std::int64_t>& which, ExactNeighbors& out, ScanStats& stats,
                   const Progress& progress) {
  std::vector<TopK> best(which.size(), TopK(job.k));
  measure_pairs(job, subset, which, queries_measured_together(job, std::ssize(which)), true, stats,
                progress,
                [&](const MeasuredTask& task) { return MeasuredNearest(best, job.k, task); });
  constexpr std::int64_t together = 64;
  const std::int64_t count = std::ssize(which);
  parallel_for(job.threads, (count + together - 1) / together, [&](std::int64_t task) {
    for (std::int64_t i = task * together; i < std::min(count, (task + 1) * together); ++i) {
      TopK& list = best[i];
      const std::int64_t query = which[i];
      list.finish();
      write_list(list, job.k, out.keys.row(query), out.ids.row(query));
    }
  });
}

}  // namespace knear::detail
