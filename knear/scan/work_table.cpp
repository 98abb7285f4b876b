#include "knear/scan/work_table.hpp"

#include <algorithm>

namespace knear::detail {

void WorkTable::add(std::int64_t count,
                    const std::vector<std::pair<std::int64_t, std::int64_t>>& panels) {
  const std::int64_t begin = sets.empty() ? 0 : sets.back().end;
  const std::int64_t set = static_cast<std::int64_t>(sets.size());
  const std::int64_t task = static_cast<std::int64_t>(tasks.size());
  sets.push_back({begin, begin + count, task, task + static_cast<std::int64_t>(panels.size())});
  for (const auto& [from, to] : panels) tasks.push_back({set, from, to});
}

std::int64_t WorkTable::tiles(std::int64_t panels_per_tile) const {
  std::int64_t sum = 0;
  for (const ScanTask& task : tasks)
    sum += (task.panel_end - task.panel_begin + panels_per_tile - 1) / panels_per_tile;
  return sum;
}

std::int64_t queries_in_block(std::int64_t k) {
  return std::clamp<std::int64_t>((24 << 20) / ((2 * k + 24) * 24), 24, 1008);
}

GroupSize group_for(std::int64_t queries, const ScanJob& job) {
  for (int size = 0; size < group_size_count; ++size)
    if (job.group == group_sizes[size]) return static_cast<GroupSize>(size);
  return queries == 1 ? group_1 : queries <= 4 ? group_4 : group_12;
}

WorkTable divide(const PackedBase& packed, std::vector<std::int64_t> queries, const ScanJob& job,
                 ScanStats& stats) {
  const std::int64_t count = static_cast<std::int64_t>(queries.size()), threads = job.threads;
  WorkTable table;
  table.group = group_for(count, job);
  table.queries = std::move(queries);
  const std::int64_t group_size = group_sizes[table.group];
  const std::int64_t most = queries_in_block(job.k);
  std::int64_t blocks = (count + most - 1) / most, splits = 1;
  if (count >= 48 * threads) {
    // A few blocks a thread even out what other work on the machine takes. They number a multiple
    // of the threads, so that all end together.
    blocks = std::max(blocks, std::min(4 * threads, count / 96));
    blocks = (blocks + threads - 1) / threads * threads;
  } else {
    splits = std::min(packed.tiles, (threads + blocks - 1) / std::max<std::int64_t>(1, blocks));
  }
  if (job.splits > 0) splits = std::min<std::int64_t>(packed.tiles, job.splits);
  stats.group = static_cast<int>(group_size), stats.splits = static_cast<int>(splits);

  std::vector<std::pair<std::int64_t, std::int64_t>> panels;
  for (std::int64_t s = 0; s < splits; ++s)
    panels.emplace_back(packed.tiles * s / splits * packed.panels_per_tile,
                        packed.tiles * (s + 1) / splits * packed.panels_per_tile);
  const std::int64_t even = (count + blocks - 1) / std::max<std::int64_t>(1, blocks);
  const std::int64_t size = (even + group_size - 1) / group_size * group_size;
  for (std::int64_t q = 0; q < count; q += size) table.add(std::min(count - q, size), panels);
  return table;
}

std::vector<std::int64_t> by_first_list(MatrixView<Id> probes) {
  std::vector<std::pair<Id, std::int64_t>> by_list;
  by_list.reserve(static_cast<std::size_t>(probes.rows()));
  for (std::int64_t q = 0; q < probes.rows(); ++q)
    by_list.emplace_back(probes.cols() == 0 ? 0 : probes.row(q)[0], q);
  std::sort(by_list.begin(), by_list.end());
  std::vector<std::int64_t> order;
  order.reserve(by_list.size());
  for (const auto& [list, q] : by_list) order.push_back(q);
  return order;
}

}  // namespace knear::detail
