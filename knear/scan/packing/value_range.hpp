// knear/scan/packing/value_range.hpp -- one pass over a caller's vectors: are they finite, and are
// they whole numbers of which range?
#pragma once
#include <string_view>

#include "knear/core/matrix.hpp"

namespace knear {

struct ValueRange {
  bool integer = true;         // every element is a whole number in [-128, 255]
  int low = 255, high = -128;  // the range, if integer and not empty
};

// Throws InvalidArgument naming `argument`, the row (counted from first_row) and the column of the
// first NaN or infinity.
ValueRange find_value_range(AnyMatrixView data, std::string_view argument, int threads,
                            std::int64_t first_row = 0);

}  // namespace knear
