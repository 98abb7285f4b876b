// knear/index/id_filter.hpp -- the ids of an index to which a search is limited.
//
//   index.search(queries, 10, {.filter = IdFilter::of_ids(ids)});     // any ids, any order
//   index.search(queries, 10, {.filter = IdFilter::of_bits(bits, n)}) // a bit for each of 0 ...
//   n-1
//
// A list names ids, so one that the index does not hold is an error of the search. Bits say which
// ids are welcome: those of rows that have been removed mean nothing, and ids from n on, such as
// those of rows added since the bits were made, are not. Copies share what they hold.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "knear/core/row_filter.hpp"

namespace knear {

class IdFilter {
 public:
  // Every id.
  IdFilter() = default;
  // Throws InvalidArgument for a negative id, with its place in the list; copies are fine.
  static IdFilter of_ids(std::span<const Id> ids);
  // Id i if bit i % 8 of byte i / 8 is set, for ids 0, ..., n - 1; n at most 2^31. Throws
  // ShapeMismatch unless there are ceil(n / 8) bytes.
  static IdFilter of_bits(std::span<const std::uint8_t> bits, std::int64_t n);

  // A list of ids as bits for 0, ..., n - 1, n at most 2^31; what is none stays as it is. Throws
  // InvalidArgument for an id that is not below n.
  IdFilter as_bits(std::int64_t n) const;

  bool everything() const { return !list_ && bits_.everything(); }
  // Ascending, each once; nullptr if this is not a list.
  const std::vector<Id>* list() const { return list_.get(); }
  const RowFilter& bits() const { return bits_; }

 private:
  std::shared_ptr<const std::vector<Id>> list_;
  RowFilter bits_;
};

}  // namespace knear
