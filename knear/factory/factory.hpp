// knear/factory/factory.hpp -- an index from the string by which the field names it.
//
//   Index index = make_index("IVF1024,Flat", 96, Metric::l2);
//
//   Flat              every vector, searched exactly (index/flat.hpp)
//   PQm, PQmx8        codes of m bytes (index/ivf_pq.hpp)
//   PQmx4, PQmx4fs    codes of m half bytes
//   SQ8, SQ4          a byte or half a byte a column
//   IVFn,...          n inverted lists, 1 to 2^24, of any of these; codes are of residuals
//   ...,RFlat         codes and the vectors, by which the nearest codes are measured
//   IDMap, IDMap2     before or behind: nothing, since every index takes ids of the caller's
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
// Whether such an index has to be trained. Throws as make_index(), but for what depends on dim.
bool learns(std::string_view factory);

}  // namespace knear
