// knear/scan/threshold_estimates.hpp -- thresholds for many neighbours from the tiles seen so far.
//
// The k-th best of what was seen is a poor threshold for long. But tiles are samples of the base:
// of the first t of T tiles the best k t / T and a few hold all of the k nearest that lie there,
// and the worst of these is a threshold. In the end the k-th key shows whether that was right; a
// query for which it was not is scanned again without estimates (docs/bounds.md, 4).
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// For all tasks of a scan.
class ThresholdEstimates {
 public:
  ThresholdEstimates(const PackedBase& packed, const ScanJob& job)
      : k_(static_cast<double>(job.k)),
        tiles_(static_cast<double>(packed.tiles)),
        on_(job.may_estimate && job.k > 32 && packed.tiles >= 16 && 4 * job.k <= packed.rows) {}

  // Whether the next task is to estimate: where many estimates proved wrong, later tasks do
  // without.
  bool on() const { return on_ && (wrong_ < 4 || 50 * wrong_ < made_); }
  void note(std::int64_t made, std::int64_t wrong) { made_ += made, wrong_ += wrong; }

  // How many of the k best may lie in the first `seen` of the tiles, but for one query in many
  // thousands: their number is k seen / tiles on average, and hardly varies more than this.
  std::int64_t rank(std::int64_t seen) const {
    const double share = static_cast<double>(seen) / tiles_, mean = k_ * share;
    return static_cast<std::int64_t>(
        std::min(k_, std::ceil(mean + 4 * std::sqrt(mean * (1 - share)) + 2)));
  }
  // Whether so many tiles, one more than last time, are enough for another look.
  static bool due(std::int64_t seen) {
    return seen <= 4 || std::floor(2 * std::log2(static_cast<double>(seen))) !=
                            std::floor(2 * std::log2(static_cast<double>(seen - 1)));
  }

 private:
  double k_, tiles_;
  bool on_;
  std::atomic<std::int64_t> made_ = 0, wrong_ = 0;
};

}  // namespace knear::detail
