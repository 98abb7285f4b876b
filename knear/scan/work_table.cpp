#include "knear/scan/work_table.hpp"

#include <algorithm>
#include <numeric>

namespace knear::detail {

void WorkTable::add(std::int64_t count, const std::vector<PanelRange>& panels) {
  add(count, panels, std::ssize(panels));
}

void WorkTable::add(std::int64_t count, const std::vector<PanelRange>& panels,
                    std::int64_t number_of_tasks) {
  const std::int64_t begin = sets.empty() ? 0 : sets.back().end, ranges = std::ssize(panels);
  const std::int64_t set = std::ssize(sets), first = std::ssize(tasks);
  sets.push_back({begin, begin + count, first, first + number_of_tasks});
  for (std::int64_t t = 0; t < number_of_tasks; ++t) {
    const std::int64_t from = ranges * t / number_of_tasks, to = ranges * (t + 1) / number_of_tasks;
    ScanTask& task = tasks.emplace_back(ScanTask{set, panels[from]});
    task.more_begin = std::ssize(more);
    more.insert(more.end(), panels.begin() + from + 1, panels.begin() + to);
    task.more_end = std::ssize(more);
  }
}

std::int64_t WorkTable::tiles(std::int64_t panels_per_tile) const {
  std::int64_t sum = 0;
  const auto count = [&](const PanelRange& range) {
    const std::int64_t each =
        parts.empty() ? panels_per_tile : parts[range.part].packed->panels_per_tile;
    sum += (range.end - range.begin + each - 1) / each;
  };
  for (const ScanTask& task : tasks) count(task.panels);
  for (const PanelRange& range : more) count(range);
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

  std::vector<PanelRange> panels;
  for (std::int64_t s = 0; s < splits; ++s)
    panels.push_back({packed.tiles * s / splits * packed.panels_per_tile,
                      packed.tiles * (s + 1) / splits * packed.panels_per_tile});
  const std::int64_t even = (count + blocks - 1) / std::max<std::int64_t>(1, blocks);
  const std::int64_t size = (even + group_size - 1) / group_size * group_size;
  for (std::int64_t q = 0; q < count; q += size) table.add(std::min(count - q, size), panels);
  return table;
}

std::vector<std::int64_t> by_first_list(MatrixView<Id> probes) {
  std::vector<std::int64_t> order(probes.rows());
  std::iota(order.begin(), order.end(), 0);
  if (probes.cols() == 0 || probes.rows() == 0) return order;
  // Counted, then put in place; no_id, for none, before all lists.
  const auto place_of = [&](std::int64_t q) -> std::size_t { return probes.row(q)[0] - no_id; };
  std::size_t most = 0;
  for (const std::int64_t q : order) most = std::max(most, place_of(q));
  std::vector<std::int64_t> next(most + 2);
  for (const std::int64_t q : order) ++next[place_of(q) + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (std::int64_t q = 0; q < probes.rows(); ++q) order[next[place_of(q)]++] = q;
  return order;
}

}  // namespace knear::detail
