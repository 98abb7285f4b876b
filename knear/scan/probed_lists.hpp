// knear/scan/probed_lists.hpp -- the inverted lists that each query probes, as a set.
//
//   const ProbedLists probed(probes.view(), 1024);
//   probed.contains(3, 17)                           // whether query 3 probes list 17
//
// A row that is in two lists (ListedRows::second()) is met twice by a query that probes both. The
// scan takes it from its first list then, and leaves it out of its second one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::detail {

class ProbedLists {
 public:
  // probes [queries x lists at most]: numbers of lists below `lists`; no_id for none, behind the
  // others. Memory: up to 16 bytes a probe.
  ProbedLists(MatrixView<Id> probes, std::int64_t lists)
      : words_per_query_((static_cast<std::size_t>(lists) + 63) / 64), probes_(probes.cols()) {
    const std::size_t queries = probes.rows();
    if (8 * words_per_query_ > 16 * probes_) {
      sorted_.assign(queries * probes_, none);
    } else {
      bits_.assign(queries * words_per_query_, 0);
    }
    for (std::size_t q = 0; q < queries; ++q) {
      const Id* const row = probes.row(static_cast<std::int64_t>(q));
      for (std::size_t p = 0; p < probes_ && row[p] != no_id; ++p) {
        const auto list = static_cast<std::uint32_t>(row[p]);
        if (bits_.empty())
          sorted_[q * probes_ + p] = list;
        else
          bits_[q * words_per_query_ + list / 64] |= std::uint64_t{1} << (list % 64);
      }
      if (bits_.empty())
        std::sort(sorted_.begin() + static_cast<std::ptrdiff_t>(q * probes_),
                  sorted_.begin() + static_cast<std::ptrdiff_t>((q + 1) * probes_));
    }
  }

  bool contains(std::int64_t query, std::uint32_t list) const {
    const std::size_t q = query;
    if (!bits_.empty()) return bits_[q * words_per_query_ + list / 64] >> (list % 64) & 1;
    const std::uint32_t* const begin = sorted_.data() + q * probes_;
    return std::binary_search(begin, begin + probes_, list);
  }

 private:
  static constexpr std::uint32_t none = 0xffffffffu;  // behind all lists

  const std::size_t words_per_query_, probes_;
  // One of these is empty.
  std::vector<std::uint64_t> bits_;  // [queries x words_per_query_]
  std::vector<std::uint32_t>
      sorted_;  // [queries x probes_], ascending: of few probes of many lists
};

}  // namespace knear::detail
