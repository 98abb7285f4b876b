// knear/graph/disjoint_sets.hpp -- sets of rows that are joined two at a time (union-find).
#pragma once
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace knear::detail {

class DisjointSets {
 public:
  explicit DisjointSets(std::int64_t rows) : parent_(rows), size_(rows, 1) {
    std::iota(parent_.begin(), parent_.end(), std::int64_t{0});
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(parent_.size()); }
  // The row that stands for the set of this one.
  std::int64_t find(std::int64_t row) {
    while (at(row) != row) row = at(row) = at(at(row));
    return row;
  }
  // Makes one set of the two; false if they were one.
  bool join(std::int64_t a, std::int64_t b) {
    a = find(a), b = find(b);
    if (a == b) return false;
    if (size_[a] < size_[b]) std::swap(a, b);
    at(b) = a;
    size_[a] += size_[b];
    return true;
  }

 private:
  std::int64_t& at(std::int64_t row) { return parent_[row]; }

  std::vector<std::int64_t> parent_, size_;
};

}  // namespace knear::detail
