// knear/cost/machine_rates.hpp -- rates that the models of costs share: what takes cycles however
// wide vectors are, reading memory again and again, and measuring rows wherever they are.
#pragma once
#include <algorithm>

#include "knear/cost/peaks.hpp"
#include "knear/cost/scan_cost_model.hpp"

namespace knear {

// Coefficient-wise operations in the time of a cycle, by which costs in cycles and in operations
// are added.
inline double operations_of_a_cycle(const MachinePeaks& peaks) {
  return peaks.cop_per_second / (peaks.cycles_per_second > 0
                                     ? peaks.cycles_per_second
                                     : assumed_cycles_per_second * peaks.threads);
}

// Operations to measure a row in float64, wherever the vectors are, which are taken to be floats.
inline double rescoring_operations(double rows, double dim, const MachinePeaks& peaks) {
  constexpr ScanCostModel model;
  double cache = 32 << 20;
  for (const CachePeak& level : peaks.caches)
    if (level.bytes > 0) cache = 2 * double(level.bytes);  // measured by half
  return model.rescore_operations + model.rescore_column_operations * dim +
         (rows * dim * 4 > cache ? model.far_operations : 0);
}

// Bytes per second of reading `bytes` repeatedly: those of the first cache that holds them. Caches
// were measured with half of their size; what is larger than that stays there in part.
inline double reading_rate(double bytes, double share, const MachinePeaks& peaks) {
  const double memory = peaks.memory_bytes_per_second * share;
  for (const CachePeak& cache : peaks.caches)
    if (bytes < 2 * double(cache.bytes)) {
      const double stays = std::min(1.0, 2 - bytes / double(cache.bytes));
      return 1 / (stays / std::max(memory, cache.bytes_per_second * share) + (1 - stays) / memory);
    }
  return memory;
}

}  // namespace knear
