// knear/factory/factory.hpp -- an index from the string by which the field names it.
//
//   Index index = make_index("IVF1024,Flat", 96, Metric::l2);
//
//   Flat          every vector, searched exactly (index/flat.hpp)
//   IVFn,Flat     n inverted lists, 1 to 2^24, of the vectors themselves (index/ivf_flat.hpp)
//
// Anything else is refused by its name and place. The index has to be trained before vectors are
// added, unless it is flat.
#pragma once
#include <cstdint>
#include <string_view>

#include "knear/core/metric.hpp"
#include "knear/index/index.hpp"

namespace knear {

// Throws InvalidArgument for a string that names no index, saying which part of it is wrong and
// where, and unless 1 <= dim <= 65536.
Index make_index(std::string_view factory, std::int64_t dim, Metric metric = Metric::l2);

}  // namespace knear
