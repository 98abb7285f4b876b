// knear/knn/rows/list_centres.hpp -- whether rows of lists are coded around the centres of these.
#pragma once
#include <cstdint>
#include <span>

#include "knear/scan/packing/base_rows.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// Returns the centres if rows that are coded around those of their lists, rather than in `space`,
// spare a search more than it takes to code its queries for each list; else none. It looks at a
// sample of the rows. list_of [rows].
ListCentres centres_that_pay(const BaseRows& rows, std::span<const std::uint32_t> list_of,
                             const CodingSpace& space, ListCentres centres);

}  // namespace knear::detail
