// knear/factory/factory.hpp -- an index from the string by which the field names it.
//
//   Index index = make_index("IVF1024,Flat", 96, Metric::l2);
//
//   Flat              every vector, searched exactly (index/flat.hpp)
//   PQm, PQmx8        codes of m bytes (index/ivf_pq.hpp)
//   PQmx4, PQmx4fs    codes of m half bytes
//   SQ8, SQ4          a byte or half a byte a column
//   Graphn            every vector, and a graph of n links a row to find it by, 4 to 256
//                     (index/graph_flat.hpp)
//   SQfp16, SQbf16    vectors that are rounded to halves, searched exactly
//   IVFn,...          n inverted lists, 1 to 2^24, of any of these; codes are of residuals
//   IVFn(index),...   the same, whose centroids are found by an index of their own; for ip none
//                     with transforms or product quantizers
//   ...,RFlat         codes and the vectors, by which the nearest codes are measured
//   ...,Refine(form)  the same by codes or halves of the vectors: SQfp16, SQbf16, SQ8, SQ4, PQm
//   PCAn,...          n principal components first; PCAW: whitened, PCAR: rotated, PCAWR. By l2 the
//                     mean is subtracted. By ip and cosine it stays, and the components are the
//                     directions of the largest sums of squares, of rows of length 1 for cosine:
//                     with all components, products and cosines are those of the vectors
//   OPQm_d,...        rotated to d columns for a quantiser of m parts; OPQm: to as many as before
//   RRn,... RR,...    a random rotation, to n columns or as many; of more columns than there are,
//                     which lengthens rows and changes no distance but for its rounding
//   L2norm,...        vectors are given length 1
//   IDMap, IDMap2     before or behind: nothing, since every index takes ids of the caller's
//
// Anything else is refused by its name and place. The index has to be trained before vectors are
// added, unless it is flat. Distances are those after the transforms, but refined ones those of
// the vectors themselves.
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
