#include "knear/scan/methods/filtered_lists.hpp"

#include <algorithm>
#include <bit>

#include "knear/core/threads.hpp"

namespace knear::detail {

FilteredLists::FilteredLists(const PackedLists& lists, const AllowedRows& allowed,
                             MatrixView<Id> probes, int threads)
    : lists_(lists), left_(lists.lists(), -1), scanned_(probes.rows(), probes.cols()) {
  // Memory of lists that are not probed is never touched.
  const std::int64_t panels = lists.first_panel.back();
  slots_ = std::make_unique_for_overwrite<std::uint32_t[]>(panels);
  rows_ = std::make_unique_for_overwrite<std::uint32_t[]>(most_followed(panels));
  std::vector<Id> probed;
  std::int64_t slots = 0;
  for (std::int64_t q = 0; q < probes.rows(); ++q)
    for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
      const Id list = probes.row(q)[p];
      std::int32_t& left = left_[list];
      if (left >= 0) continue;
      left = 0;
      const auto [from, to] = lists.panels(list);
      slots += (to - from) * panel_rows;
      probed.push_back(list);
    }
  constexpr std::int64_t slots_of_a_thread = 1 << 15;
  parallel_for(slots > slots_of_a_thread ? threads : 1, std::ssize(probed),
               [&](std::int64_t i) { lay_out(allowed, probed[i]); });
  for (std::int64_t q = 0; q < probes.rows(); ++q) {
    Id* to = scanned_.row(q);
    for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
      const Id list = probes.row(q)[p];
      if (left_[list] == 0) continue;
      if (followed(list).empty())
        *to++ = list;
      else
        any_followed_ = true;
    }
    std::fill(to, scanned_.row(q) + probes.cols(), no_id);
  }
}

double FilteredLists::share_left(const PackedLists& lists, const AllowedRows& allowed,
                                 MatrixView<Id> probes) {
  constexpr std::int64_t queries = 16, wanted = 128;
  const std::int64_t of_list = std::max<std::int64_t>(
      1, wanted / std::max<std::int64_t>(1, std::min(queries, probes.rows()) * probes.cols()));
  std::int64_t looked_at = 0, left = 0;
  for (std::int64_t q = 0; q < std::min(queries, probes.rows()); ++q)
    for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
      const auto [from, to] = lists.panels(probes.row(q)[p]);
      const std::int64_t slots = (to - from) * panel_rows;
      for (std::int64_t i = 0; i < std::min(of_list, slots); ++i) {
        const std::int64_t slot = from * panel_rows + (2 * i + 1) * slots / (2 * of_list);
        const std::uint32_t row = lists.packed.ids[slot];
        if (row == PackedBase::no_row) continue;
        ++looked_at, left += allowed(row);
      }
    }
  return looked_at > 0 ? static_cast<double>(left) / static_cast<double>(looked_at) : 0;
}

void FilteredLists::lay_out(const AllowedRows& allowed, Id list) {
  const auto [from, to] = lists_.panels(list);
  const std::uint32_t* const ids = lists_.packed.ids.data();
  std::int32_t left = 0;
  for (std::int64_t panel = from; panel < to; ++panel) {
    const std::uint32_t* const rows = ids + panel * panel_rows;
    int count = panel_rows;  // the last panel of a list may not be full
    while (rows[count - 1] == PackedBase::no_row) --count;
    // No branch depends on a single row: nothing could foretell it.
    std::uint32_t bits = 0;
    if (allowed.filter && !allowed.live)
      for (int r = 0; r < count; ++r)
        bits |= std::uint32_t{allowed.filter->allows(rows[r] + allowed.offset)} << r;
    else
      for (int r = 0; r < count; ++r) bits |= std::uint32_t{allowed(rows[r])} << r;
    slots_[panel] = bits;
    left += std::popcount(bits);
  }
  left_[list] = left;
  if (left > most_followed(to - from)) return;
  std::uint32_t* out = rows_.get() + most_followed(from);
  for (std::int64_t panel = from; panel < to; ++panel)
    for (std::uint32_t bits = slots_[panel]; bits != 0; bits &= bits - 1)
      *out++ = ids[panel * panel_rows + std::countr_zero(bits)];
}

}  // namespace knear::detail
