// knear/select/family.hpp -- the selection methods that select_k is not built on, for one row each:
// for comparison, and to check one by another.
#pragma once
#include <cstdint>
#include <memory>

#include "knear/select/select_k.hpp"

namespace knear::detail {

// One method with its memory, for one thread.
class FamilyMember {
 public:
  virtual ~FamilyMember() = default;
  // The k smallest of row[0 .. count), ascending by (value, place), into values and places [k];
  // returns how many there are. Requires count < 2^31 - 1, k >= 1.
  virtual std::int64_t select(const float* row, std::int64_t count, std::int64_t k, float* values,
                              std::int32_t* places) = 0;
};

// nullptr for automatic, threshold and partition, which select_k.cpp implements.
std::unique_ptr<FamilyMember> family_member(SelectMethod method);

}  // namespace knear::detail
