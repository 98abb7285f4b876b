// The order of rows in lists, and in the panels of each.
#include "knear/scan/packing/packed_lists.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "knear/core/threads.hpp"
#include "knear/scan/packing/duplicates.hpp"

namespace knear::detail {
namespace {

// Rows list by list, each list filled up with no_row to whole panels. sort(rows): brings those of a
// list, which ascend, into the order in which panels suit them; it is told which list.
template <class Sort>
std::vector<std::uint32_t> order_of(std::span<const std::uint32_t> list_of, std::int64_t lists,
                                    int threads, std::vector<std::int64_t>& first_panel,
                                    Sort sort) {
  std::vector<std::int64_t> sizes(lists);
  for (const std::uint32_t list : list_of)
    if (list != PackedLists::no_list) ++sizes[list];
  first_panel.assign(1, 0);
  for (const std::int64_t size : sizes)
    first_panel.push_back(first_panel.back() + (size + panel_rows - 1) / panel_rows);
  std::vector<std::uint32_t> order(first_panel.back() * panel_rows, PackedBase::no_row);
  std::vector<std::int64_t> next;
  for (std::int64_t l = 0; l < lists; ++l) next.push_back(first_panel[l] * panel_rows);
  for (std::size_t row = 0; row < list_of.size(); ++row)
    if (list_of[row] != PackedLists::no_list)
      order[next[list_of[row]]++] = static_cast<std::uint32_t>(row);
  parallel_for(threads, lists, [&](std::int64_t l) {
    const std::size_t at = l;
    sort(std::span(order).subspan(first_panel[at] * panel_rows, sizes[at]), l);
  });
  return order;
}

}  // namespace

const std::vector<CopyRuns::Run>& CopyRuns::of(const PackedBase& packed,
                                               std::span<const std::int64_t> first_panel,
                                               const BaseRows& base, std::int64_t first_row) {
  const std::lock_guard lock(making_);
  if (made_) return runs_;
  runs_.clear();  // what a search left that did not come to the end
  const auto same = [](const PanelHead& a, const PanelHead& b) {
    return a.scale == b.scale && a.bias_max == b.bias_max && a.error == b.error &&
           a.norm == b.norm && a.slack == b.slack;
  };
  std::vector<std::byte> first;
  ComparableRows rows(base);
  // Whether all rows of a panel equal `first`, and ascend beyond `last`.
  const auto is_copies = [&](std::int64_t panel, std::int64_t& last) {
    for (std::int64_t slot = panel * panel_rows; slot < (panel + 1) * panel_rows; ++slot) {
      const std::uint32_t row = packed.ids[slot];
      if (row == PackedBase::no_row || std::int64_t{row} <= last ||
          std::memcmp(rows.row(first_row + row), first.data(), first.size()) != 0)
        return false;
      last = row;
    }
    return true;
  };
  for (std::size_t list = 0; list + 1 < first_panel.size(); ++list) {
    std::int64_t panel = first_panel[list];
    const std::int64_t end = first_panel[list + 1];
    while (panel + 1 < end) {
      const std::int64_t begin = panel++;
      const std::uint32_t row = packed.ids[begin * panel_rows];
      if (row == PackedBase::no_row || !same(packed.heads[begin], packed.heads[panel])) continue;
      const auto* const bytes = static_cast<const std::byte*>(rows.row(first_row + row));
      first.assign(bytes, bytes + rows.bytes());
      std::int64_t last = -1;
      if (!is_copies(begin, last)) continue;
      while (panel < end && is_copies(panel, last)) ++panel;
      if (panel > begin + 1) runs_.push_back({begin, panel});
    }
  }
  made_ = true;
  return runs_;
}

RowLists::RowLists(std::span<const std::uint32_t> list_of, std::int64_t lists)
    : begin(static_cast<std::size_t>(lists) + 1), rows(list_of.size()) {
  for (const std::uint32_t list : list_of) ++begin[list + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::int64_t> next = begin;
  for (std::size_t row = 0; row < list_of.size(); ++row)
    rows[next[list_of[row]]++] = static_cast<std::uint32_t>(row);
}

RowLists RowLists::twice(const RowLists& a, const RowLists& b) {
  RowLists out;
  out.are_twice = true;
  out.rows.reserve(a.rows.size() + b.rows.size());
  for (std::int64_t l = 0; l < a.lists(); ++l) {
    for (const RowLists* lists : {&a, &b}) {
      const std::span<const std::uint32_t> some = lists->rows_of(l);
      out.rows.insert(out.rows.end(), some.begin(), some.end());
    }
    out.begin.push_back(std::ssize(out.rows));
  }
  return out;
}

std::vector<std::uint32_t> PackedLists::list_of() const {
  std::vector<std::uint32_t> out(packed.rows);
  for (std::int64_t l = 0; l < lists(); ++l) {
    const auto [from, to] = panels(l);
    for (std::int64_t slot = from * panel_rows; slot < to * panel_rows; ++slot)
      if (const std::uint32_t row = packed.ids[slot]; row != PackedBase::no_row)
        out[row] = static_cast<std::uint32_t>(l);
  }
  return out;
}

PackedLists PackedLists::certified(const BaseRows& base, std::span<const std::uint32_t> list_of,
                                   std::int64_t lists, Format format, CodingSpace space,
                                   int threads, const Progress& progress, ListCentres centres) {
  PackedLists out;
  // By the largest coordinate, so that one scale suits the rows of a panel.
  const auto sort = [&](std::span<std::uint32_t> rows, std::int64_t list) {
    const CodingSpace of_list =
        centres.any() ? space.around(centres.values.row(list), base.cols()) : CodingSpace{};
    const CodingSpace& own = centres.any() ? of_list : space;
    std::vector<double> v(base.cols());
    std::vector<std::byte> scratch(base.scratch_bytes());
    std::vector<std::pair<float, std::uint32_t>> sizes;
    for (const std::uint32_t row : rows) {
      own.load(base.row_view(row, scratch.data()), 0, v.data());
      sizes.emplace_back(static_cast<float>(own.kernels->measure(v.data(), base.cols()).largest),
                         row);
    }
    std::sort(sizes.begin(), sizes.end());
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = sizes[i].second;
  };
  const std::vector<std::uint32_t> order = order_of(list_of, lists, threads, out.first_panel, sort);
  out.packed = centres.any() ? PackedBase::certified_around(base, order, out.first_panel, format,
                                                            std::move(space), std::move(centres),
                                                            threads, progress)
                             : PackedBase::certified_in_order(base, order, format, std::move(space),
                                                              {}, threads, progress);
  out.packed.rows = base.rows();  // not places
  return out;
}

PackedLists PackedLists::integer(const BaseRows& base, std::span<const std::uint32_t> list_of,
                                 std::int64_t lists, Metric metric, Isa isa,
                                 const ValueRange& found, int threads, const Progress& progress) {
  PackedLists out;
  const std::vector<std::uint32_t> order = order_of(
      list_of, lists, threads, out.first_panel, [&](std::span<std::uint32_t> rows, std::int64_t) {
        PackedBase::sort_for_panels(base, metric, rows);
      });
  out.packed = PackedBase::integer_in_order(base, order, metric, isa, found, threads, progress);
  out.packed.rows = base.rows();
  return out;
}

}  // namespace knear::detail
