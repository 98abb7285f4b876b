// knear/scan/packing/coded_queries.hpp -- queries coded once, to be packed in many sets.
//
//   const CodedQueries coded = code_all(packed, queries, range, threads);
//   const ScanJob job{..., .coded = &coded};         // packs its queries by copying their codes
//
// A query that probes sixteen inverted lists is in sixteen sets, of other queries each time. The
// queries of a group have one scale, that of the largest; here all have, so that their codes are
// the same in every group. A group with a query that is larger than most, or much smaller, is coded
// anew, by a scale of its own.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/value_range.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

struct CodedQueries {
  double scale = 1;                  // the value of a code unit
  std::int64_t stride = 0;           // bytes of a query
  AlignedArray<std::uint8_t> codes;  // [queries][stride], step after step
  std::vector<QueryCode> heads;      // [queries]
  std::vector<char> fits;            // [queries]: whether that scale suits it
  std::vector<double> own_scales;    // [queries]: that would be its own; of zeros the common one
  // All queries, ascending by their own scales; as they come, where the common one suits all.
  std::vector<std::int64_t> order;

  std::int64_t bytes() const;
  // Whether all of these queries have codes.
  bool have(const std::int64_t* which, std::int64_t count) const;
  // Whether two queries should not be in a group: the bounds of the shorter one would be too wide.
  bool differ(std::int64_t shorter, std::int64_t longer) const;
};

// Codes all queries [queries x dim] for a base, as code_queries() does those of a group. The scale,
// and so every bit, depends on the queries and on the base's coding, not on the groups or threads.
CodedQueries code_all(const Coding& base, AnyMatrixView queries, const ValueRange& found,
                      int threads);

}  // namespace knear::detail
