// knear/scan/packing/packed_lists.hpp -- inverted lists: a packed base of which each list is a run
// of whole panels; and of few rows, which are not packed, their numbers list by list.
//
//   const auto lists = PackedLists::certified(base, list_of, 1024, format_int8, space, threads);
//   lists.first_panel[7], lists.first_panel[8]           // the panels of list 7
//   RowLists(list_of, 1024).rows_of(7)                   // the rows of list 7
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/process_mutex.hpp"
#include "knear/core/progress.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// The rows of each list, ascending; of lists that have each row twice in two ascending runs.
struct RowLists {
  RowLists() = default;
  // list_of [rows]: the list of each row, below `lists`.
  RowLists(std::span<const std::uint32_t> list_of, std::int64_t lists);
  // The rows of each list of either, for rows that are in one list of each: first those of `a`.
  static RowLists twice(const RowLists& a, const RowLists& b);

  std::int64_t lists() const { return std::ssize(begin) - 1; }
  std::span<const std::uint32_t> rows_of(std::int64_t list) const {
    const std::size_t at = list;
    return std::span(rows).subspan(begin[at], begin[at + 1] - begin[at]);
  }

  std::vector<std::int64_t> begin = {0};  // [lists + 1]: places in rows
  std::vector<std::uint32_t> rows;        // list after list
  bool are_twice = false;                 // whether each row is in two of the lists
};

// Runs of panels of a list whose rows are all equal. Copies of a row have the same key and are put
// in order by their numbers, so that a search for k rows needs the first k of them only.
class CopyRuns {
 public:
  // Panels [begin, end) of one list hold copies of one row, in ascending order.
  struct Run {
    std::int64_t begin, end;
  };

  // Returns all runs, ascending. The first call finds them: it compares rows of neighbouring panels
  // with equal heads. base: the rows that were packed, with row 0 at row `first_row`. Any number of
  // threads may call it.
  const std::vector<Run>& of(const PackedBase& packed, std::span<const std::int64_t> first_panel,
                             const BaseRows& base, std::int64_t first_row);

 private:
  ProcessMutex making_;
  bool made_ = false;
  std::vector<Run> runs_;
};

struct PackedLists {
  PackedBase packed;
  std::vector<std::int64_t> first_panel = {0};  // [lists + 1]

  std::int64_t lists() const { return std::ssize(first_panel) - 1; }
  std::pair<std::int64_t, std::int64_t> panels(std::int64_t list) const {
    const std::size_t at = list;
    return {first_panel[at], first_panel[at + 1]};
  }

  // Found when a search first asks for them, so that a mapped file is not read for them.
  std::shared_ptr<CopyRuns> copy_runs = std::make_shared<CopyRuns>();

  // Whether each list is coded around a centre of its own.
  bool has_centres() const { return packed.centres.any(); }
  // The list of each row [rows].
  std::vector<std::uint32_t> list_of() const;
  std::int64_t bytes() const {
    return packed.bytes() +
           static_cast<std::int64_t>(first_panel.capacity() * sizeof first_panel[0]);
  }

  // The list of a row that is in none.
  static constexpr std::uint32_t no_list = 0xffffffffu;

  // list_of [rows of base]: the list of each row, below `lists`, or no_list. Codes as
  // PackedBase::certified and PackedBase::integer have them; equal rows are packed each by itself.
  // Requires a row, and rows and padding below 2^31. With centres [lists x dim] each list is coded
  // around its own.
  static PackedLists certified(const BaseRows& base, std::span<const std::uint32_t> list_of,
                               std::int64_t lists, Format format, CodingSpace space, int threads,
                               const Progress& progress = {}, ListCentres centres = {});
  static PackedLists integer(const BaseRows& base, std::span<const std::uint32_t> list_of,
                             std::int64_t lists, Metric metric, Isa isa, const ValueRange& found,
                             int threads, const Progress& progress = {});
};

}  // namespace knear::detail
