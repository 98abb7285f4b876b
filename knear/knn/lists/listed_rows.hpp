// knear/knn/lists/listed_rows.hpp -- the rows of a segment by inverted list, in the forms that
// searches want: the numbers of few rows, which are measured as they are, or packed codes of many.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "knear/knn/rows/list_centres.hpp"
#include "knear/knn/rows/prepared_rows.hpp"
#include "knear/scan/packing/packed_lists.hpp"

namespace knear::detail {

// Whether so many rows in so many lists are packed: fewer leave most places of the panels empty.
bool packs_lists(std::int64_t rows, std::int64_t lists);

class ListedRows {
 public:
  // Few rows.
  explicit ListedRows(RowLists rows) : numbers_(std::move(rows)) {}
  // Rows that are packed as whole numbers, or as codes of the first pass int8.
  explicit ListedRows(std::shared_ptr<const PackedLists> packed) {
    (packed->packed.is_integer ? integer_ : int8_) = std::move(packed);
  }

  std::int64_t lists() const;
  // nullptr: the rows are packed.
  const RowLists* numbers() const { return numbers_ ? &*numbers_ : nullptr; }
  // The codes for queries that whole numbers hold, or for others. Rows that came as whole numbers
  // are coded for others by the first search that asks, and keep that.
  std::shared_ptr<const PackedLists> packed(bool integer, PreparedRows& rows, int threads,
                                            const Progress& progress, double& prepare_seconds);
  // The form that the rows came in.
  std::shared_ptr<const PackedLists> first_form() const { return integer_ ? integer_ : int8(); }
  // The list of each row [rows], the first one.
  std::vector<std::uint32_t> list_of() const;
  // Puts each row into a second list too, before other threads see this. second: lists of the same
  // rows in the same form, as many.
  void set_second(std::shared_ptr<ListedRows> second);
  // The second lists of the rows; nullptr: each row is in one list.
  ListedRows* second() const { return second_.get(); }
  // [rows], where there are second lists: the first list of each row.
  std::span<const std::uint32_t> first_lists() const { return first_lists_; }
  // The rows of each list that searches measure: numbers(), or those of both lists of each row.
  const RowLists& measured() const { return both_ ? *both_ : *numbers_; }
  // Bytes, without codes that `rows` have adopted.
  std::int64_t bytes(PreparedRows& rows) const;

  // What devices keep of them, as those of PreparedRows are what a search of all rows wants.
  DeviceCopies device_copies;

 private:
  std::shared_ptr<const PackedLists> int8() const {
    std::lock_guard lock(mutex_);
    return int8_;
  }

  std::optional<RowLists> numbers_;
  std::shared_ptr<ListedRows> second_;
  std::vector<std::uint32_t> first_lists_;  // [rows], or none
  std::optional<RowLists> both_;            // of few rows in two lists each
  std::shared_ptr<const PackedLists> integer_;
  ProcessMutex making_;         // held while int8_ is made
  mutable ProcessMutex mutex_;  // of these
  std::shared_ptr<const PackedLists> int8_;
};

}  // namespace knear::detail
