// knear/scan/probed_lists.hpp -- the inverted lists that each query probes, as a set of bits.
//
//   const ProbedLists probed(probes.view(), 1024);
//   probed.contains(3, 17)                           // whether query 3 probes list 17
//
// A row that is in two lists (ListedRows::second()) is met twice by a query that probes both. The
// scan takes it from its first list then, and leaves it out of its second one.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::detail {

class ProbedLists {
 public:
  // probes [queries x lists at most]: numbers of lists below `lists`; no_id for none, behind the
  // others.
  ProbedLists(MatrixView<Id> probes, std::int64_t lists)
      : words_((static_cast<std::size_t>(lists) + 63) / 64),
        bits_(static_cast<std::size_t>(probes.rows()) * words_) {
    for (std::int64_t q = 0; q < probes.rows(); ++q)
      for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
        const auto list = static_cast<std::size_t>(probes.row(q)[p]);
        bits_[word_of(q, list)] |= std::uint64_t{1} << (list % 64);
      }
  }

  bool contains(std::int64_t query, std::uint32_t list) const {
    return bits_[word_of(query, list)] >> (list % 64) & 1;
  }

 private:
  std::size_t word_of(std::int64_t query, std::size_t list) const {
    return static_cast<std::size_t>(query) * words_ + list / 64;
  }

  std::size_t words_;  // per query
  std::vector<std::uint64_t> bits_;
};

}  // namespace knear::detail
