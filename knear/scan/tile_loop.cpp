#include "knear/scan/tile_loop.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace knear::detail {

std::int64_t queries_in_block(std::int64_t k) {
  return std::clamp<std::int64_t>((24 << 20) / ((2 * k + 24) * 24), 24, 1008);
}

std::int64_t worst_integer_key(const PackedBase& packed, const ScanJob& job) {
  const std::int64_t low = std::min(packed.range.low, job.query_range.low);
  const std::int64_t high = std::max(packed.range.high, job.query_range.high);
  const std::int64_t reach = std::max(std::abs(low), std::abs(high));
  return packed.dim * (job.metric == Metric::l2 ? (high - low) * (high - low) : reach * reach);
}

Division divide(const PackedBase& packed, std::int64_t queries, const ScanJob& job,
                ScanStats& stats) {
  const std::int64_t k = job.k;
  const int threads = job.threads;
  GroupSize group = queries == 1 ? group_1 : queries <= 4 ? group_4 : group_12;
  for (int size = 0; size < group_size_count; ++size)
    if (job.group == group_sizes[size]) group = static_cast<GroupSize>(size);
  const int group_size = group_sizes[group];
  // Blocks number a multiple of the threads, so that all end together.
  const std::int64_t most = queries_in_block(k);
  std::int64_t blocks = (queries + most - 1) / most;
  std::int64_t parts = 1;
  if (queries >= std::int64_t{48} * threads) {
    // A few blocks a thread even out what other work on the machine takes.
    blocks = std::max(blocks, std::min<std::int64_t>(4 * threads, queries / 96));
    blocks = (blocks + threads - 1) / threads * threads;
  } else {
    parts = std::min<std::int64_t>(packed.tiles, (threads + blocks - 1) / blocks);
  }
  if (job.splits > 0) parts = std::min<std::int64_t>(packed.tiles, job.splits);
  stats.group = group_size, stats.splits = static_cast<int>(parts);
  std::int64_t size = (queries + blocks - 1) / blocks;
  size = (size + group_size - 1) / group_size * group_size;
  std::vector<Task> tasks;
  for (std::int64_t q = 0; q < queries; q += size)
    for (std::int64_t p = 0; p < parts; ++p)
      tasks.push_back({q, std::min(queries, q + size), packed.tiles * p / parts,
                       packed.tiles * (p + 1) / parts});
  return {group, parts, std::move(tasks)};
}

}  // namespace knear::detail
