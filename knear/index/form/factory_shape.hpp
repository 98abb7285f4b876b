// knear/index/form/factory_shape.hpp -- the grammar of factory strings: transforms and inverted
// lists come first, and each form takes its own words.
//
//   const IndexShape shape = shape_of_factory("IVF1024,PQ16", 96, Metric::l2);
#pragma once
#include <cstdint>
#include <string_view>

#include "knear/index/index_shape.hpp"

namespace knear::detail {

// The shape that a factory string names, of vectors of `dim` columns; 0: they are not known. Throws
// InvalidArgument, naming the word and its place.
IndexShape shape_of_factory(std::string_view factory, std::int64_t dim, Metric metric);

}  // namespace knear::detail
