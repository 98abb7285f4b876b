#include "knear/scan/device/list_work.hpp"

#include <algorithm>
#include <numeric>

namespace knear::detail {
namespace {

// Calls f(place, list) for the ranks [first, last) of the lists of all queries, query by query,
// but for lists without rows, as those beyond the last one are.
template <class F>
void each_probe(std::span<const std::int64_t> first_panel, std::span<const Id* const> probes,
                std::int64_t first, std::int64_t last, F f) {
  for (std::size_t place = 0; place < probes.size(); ++place)
    for (std::int64_t rank = first; rank < last && probes[place][rank] != no_id; ++rank) {
      const std::size_t list = probes[place][rank];
      if (list + 1 < first_panel.size() && first_panel[list] < first_panel[list + 1])
        f(place, list);
    }
}

void add_range(ListWork& work, std::span<const std::int64_t> first_panel, std::size_t list) {
  const std::int64_t from = first_panel[list], to = first_panel[list + 1];
  work.ranges.push_back(
      {static_cast<int>(work.blocks()) - 1, static_cast<int>(from), static_cast<int>(to)});
  work.longest = std::max(work.longest, to - from);
}

}  // namespace

void ListLayout::end_list() {
  row_at.resize((row_at.size() + panel_rows - 1) / panel_rows * panel_rows, -1);
  first_panel.push_back(std::ssize(row_at) / panel_rows);
}

ListLayout ListLayout::part(std::int64_t from, std::int64_t to,
                            std::vector<std::uint32_t>& numbers) const {
  ListLayout out;
  out.row_at.assign(row_at.begin() + from * panel_rows, row_at.begin() + to * panel_rows);
  out.first_panel.clear();
  for (const std::int64_t panel : first_panel)
    out.first_panel.push_back(std::clamp(panel, from, to) - from);
  numbers.clear();
  for (const int row : out.row_at)
    if (row >= 0) numbers.push_back(static_cast<std::uint32_t>(row));
  std::sort(numbers.begin(), numbers.end());
  for (int& row : out.row_at)
    if (row >= 0)
      row = static_cast<int>(
          std::lower_bound(numbers.begin(), numbers.end(), static_cast<std::uint32_t>(row)) -
          numbers.begin());
  out.rows = std::ssize(numbers);
  return out;
}

ListWork work_by_list(std::span<const std::int64_t> first_panel, std::span<const Id* const> probes,
                      std::int64_t first, std::int64_t last) {
  // Counted, then put in place.
  std::vector<std::int64_t> begin(first_panel.size());
  each_probe(first_panel, probes, first, last,
             [&](std::size_t, std::size_t list) { ++begin[list + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::int64_t> next = begin;
  std::vector<std::int32_t> queries(begin.back());
  each_probe(first_panel, probes, first, last, [&](std::size_t place, std::size_t list) {
    queries[next[list]++] = static_cast<std::int32_t>(place);
  });
  ListWork out;
  for (std::size_t list = 0; list + 1 < begin.size(); ++list)
    for (std::int64_t at = begin[list]; at < begin[list + 1]; at += block_queries) {
      const std::int64_t end = std::min(begin[list + 1], at + block_queries);
      out.places.insert(out.places.end(), queries.begin() + at, queries.begin() + end);
      out.places.resize(out.places.size() + static_cast<std::size_t>(block_queries - (end - at)),
                        -1);
      out.most_queries = std::max(out.most_queries, static_cast<int>(end - at));
      add_range(out, first_panel, list);
    }
  return out;
}

ListWork work_by_query(std::span<const std::int64_t> first_panel, std::span<const Id* const> probes,
                       std::int64_t first, std::int64_t last) {
  ListWork out;
  each_probe(first_panel, probes, first, last, [&](std::size_t place, std::size_t list) {
    const auto query = static_cast<std::int32_t>(place);
    if (out.places.empty() || out.places[out.places.size() - block_queries] != query) {
      out.places.push_back(query);
      out.places.resize(out.places.size() + block_queries - 1, -1);
    }
    add_range(out, first_panel, list);
  });
  out.most_queries = out.places.empty() ? 0 : 1;
  return out;
}

bool goes_by_list(std::span<const std::int64_t> first_panel, std::span<const Id* const> probes,
                  std::int64_t columns) {
  // A guess: codes are put together for each list, and for each query once.
  constexpr std::int64_t least_queries = 2;
  std::vector<char> seen(first_panel.size());
  std::int64_t lists = 0, pairs = 0;
  each_probe(first_panel, probes, 0, columns, [&](std::size_t, std::size_t list) {
    ++pairs;
    if (!seen[list]) ++lists, seen[list] = 1;
  });
  return pairs >= least_queries * lists;
}

std::vector<DeviceTask> tasks_of(const ListWork& work, std::int64_t from, std::int64_t to,
                                 std::int64_t most) {
  std::vector<DeviceTask> out;
  for (const DeviceTask& range : work.ranges) {
    const std::int64_t panels = range.end - range.begin, end = std::min(panels, to);
    for (std::int64_t at = from; at < end; at += most)
      out.push_back({range.query_block, static_cast<int>(range.begin + at),
                     static_cast<int>(range.begin + std::min(end, at + most))});
  }
  return out;
}

std::int64_t panels_of_task(const ListWork& work, std::int64_t from, std::int64_t to,
                            std::int64_t resident) {
  // Guesses: of two tiles at least a block begins as it should; so many rounds of the blocks that
  // are resident at once end at about the same time.
  constexpr std::int64_t least = 8, most = 1024, rounds = 8, tile = 4;
  std::int64_t panels = 0;
  for (const DeviceTask& range : work.ranges)
    panels += std::max<std::int64_t>(0, std::min<std::int64_t>(to, range.end - range.begin) - from);
  const std::int64_t wanted = std::clamp(panels / (resident * rounds), least, most);
  return (wanted + tile - 1) / tile * tile;
}

}  // namespace knear::detail
