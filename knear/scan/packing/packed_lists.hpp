// knear/scan/packing/packed_lists.hpp -- inverted lists: a packed base of which each list is a run
// of whole panels.
//
//   const auto lists = PackedLists::certified(base, list_of_row, 1024, format_int8, space,
//   threads); lists.first_panel[7], lists.first_panel[8]           // the panels of list 7
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/progress.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

struct PackedLists {
  PackedBase packed;
  std::vector<std::int64_t> first_panel = {0};  // [lists + 1]

  std::int64_t lists() const { return std::ssize(first_panel) - 1; }
  std::pair<std::int64_t, std::int64_t> panels(std::int64_t list) const {
    const auto at = static_cast<std::size_t>(list);
    return {first_panel[at], first_panel[at + 1]};
  }

  // list_of [rows of base]: the list of each row, below `lists`. Codes as PackedBase::certified and
  // PackedBase::integer have them; equal rows are packed each by itself. Requires a row, and rows
  // and padding below 2^31.
  static PackedLists certified(const BaseRows& base, std::span<const std::uint32_t> list_of,
                               std::int64_t lists, Format format, CodingSpace space, int threads,
                               const Progress& progress = {});
  static PackedLists integer(const BaseRows& base, std::span<const std::uint32_t> list_of,
                             std::int64_t lists, Metric metric, Isa isa, const ValueRange& found,
                             int threads, const Progress& progress = {});
};

}  // namespace knear::detail
