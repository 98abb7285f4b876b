// knear/core/unit_length.hpp -- lengths of vectors whose squares may overflow or vanish: those of
// the coordinates over the largest one do not.
#pragma once
#include <cstdint>

namespace knear::detail {

// |x| is largest * root. root is that of the squares of x / largest, added up in order; both are 0
// for a vector of zeros.
struct SafeLength {
  double largest = 0, root = 0;
  double value() const { return largest * root; }
};
SafeLength safe_length(const double* x, std::int64_t dim);

// Makes x a vector of length 1. Returns false, and leaves it, if it is zero or not finite.
bool give_unit_length(double* x, std::int64_t dim);

}  // namespace knear::detail
