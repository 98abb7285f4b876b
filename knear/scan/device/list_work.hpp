// knear/scan/device/list_work.hpp -- the work of a search of inverted lists on a device: blocks of
// queries, and the panels that each is scored against. The processor lays it out; of tables like
// these a launch is made (DeviceTaskTable).
//
//   const ListWork work = work_by_list(first_panel, probes, 0, 1);      // the nearest list of each
//   const std::vector<DeviceTask> tasks = tasks_of(work, 0, 16, 40);    // 16 panels of each list
//
// Many queries go by list: a block of those that probe the same list, 128 at most, reads its panels
// once for all of them. Few go by query: a block of one, for all of its lists.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/neighbors.hpp"
#include "knear/scan/device/scan_kernels.hpp"
#include "knear/scan/packing/packed_lists.hpp"

namespace knear::detail {

// The rows of lists in the order in which a device packs them, each list filled up to whole panels.
struct ListLayout {
  std::vector<int> row_at;                      // [panels x 32] rows; -1: none
  std::vector<std::int64_t> first_panel = {0};  // [lists + 1]
  std::int64_t rows = 0;

  std::int64_t panels() const { return first_panel.back(); }
  std::int64_t lists() const { return std::ssize(first_panel) - 1; }

  // The rows for which keep(list, row) is true, those of a list in the order in which the processor
  // packed them (by size, so that one scale suits a panel), or ascending where it did not.
  template <class Keep>
  static ListLayout of(const PackedLists& lists, Keep keep) {
    ListLayout out;
    for (std::int64_t list = 0; list < lists.lists(); ++list) {
      const auto [from, to] = lists.panels(list);
      for (std::int64_t slot = from * panel_rows; slot < to * panel_rows; ++slot)
        if (const std::uint32_t row = lists.packed.ids[slot];
            row != PackedBase::no_row && keep(list, row))
          out.add(row);
      out.end_list();
    }
    return out;
  }
  template <class Keep>
  static ListLayout of(const RowLists& lists, Keep keep) {
    ListLayout out;
    for (std::int64_t list = 0; list < lists.lists(); ++list) {
      for (const std::uint32_t row : lists.rows_of(list))
        if (keep(list, row)) out.add(row);
      out.end_list();
    }
    return out;
  }

  // Rows that lie list by list, those of list l from begin[l] on: number(i) is that of the i-th.
  template <class Number>
  static ListLayout of(std::span<const std::int64_t> begin, Number number) {
    ListLayout out;
    for (std::size_t list = 0; list + 1 < begin.size(); ++list) {
      for (std::int64_t i = begin[list]; i < begin[list + 1]; ++i) out.add(number(i));
      out.end_list();
    }
    return out;
  }

  // The panels [from, to) by themselves, whose rows are numbered anew in their order: row i is then
  // numbers[i] of this layout.
  ListLayout part(std::int64_t from, std::int64_t to, std::vector<std::uint32_t>& numbers) const;

 private:
  void add(std::uint32_t row) { row_at.push_back(static_cast<int>(row)), ++rows; }
  void end_list();
};

struct ListWork {
  std::vector<std::int32_t> places;  // [blocks x 128], as DeviceTaskTable has them
  std::vector<DeviceTask> ranges;    // block after block: the panels of a list, of which some is
  std::int64_t longest = 0;          // the panels of the longest of them
  int most_queries = 0;              // of a block

  std::int64_t blocks() const { return std::ssize(places) / block_queries; }
};

// The ranks [first, last) of the lists of each query. probes[place]: the lists of the query at a
// place, by rank; no_id for none, behind the others.
ListWork work_by_list(std::span<const std::int64_t> first_panel, std::span<const Id* const> probes,
                      std::int64_t first, std::int64_t last);
ListWork work_by_query(std::span<const std::int64_t> first_panel, std::span<const Id* const> probes,
                       std::int64_t first, std::int64_t last);

// Whether so many queries come to a list that its panels are better read once for all of them.
bool goes_by_list(std::span<const std::int64_t> first_panel, std::span<const Id* const> probes,
                  std::int64_t columns);

// Of each range the panels [from, to), in tasks of `most` panels at most, block after block.
std::vector<DeviceTask> tasks_of(const ListWork& work, std::int64_t from, std::int64_t to,
                                 std::int64_t most);
// The `most` that keeps so many blocks of a grid busy until the end.
std::int64_t panels_of_task(const ListWork& work, std::int64_t from, std::int64_t to,
                            std::int64_t resident);

}  // namespace knear::detail
