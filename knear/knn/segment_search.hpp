// knear/knn/segment_search.hpp -- exact search of a base that lies in parts.
//
// One search goes over the parts in turn, each by the form prepared for it, and what it has found
// so far is the threshold from which the next part starts. knn() and ExactSearcher have one part,
// an index as many as it has segments. The answer does not depend on the division.
#pragma once
#include <span>

#include "knear/knn/prepared_rows.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

struct SearchPart {
  PreparedRows* rows = nullptr;
  RowIds ids = {};  // ascending with the rows
  // The rows that may be found: those that the filter allows, row 0 of the part being its row
  // `filter_offset`; or those of the set. Not both.
  RowFilter filter = {};
  std::int64_t filter_offset = 0;
  const RowSet* live = nullptr;
};

// InvalidArgument unless 1 <= k < 2^31; unless the radius is finite; unless method, recall and what
// belongs to a method go together; unless the method is exact, for a `search` that has no other.
void check_k(std::int64_t k);
void check_radius(double radius);
void check_method(const KnnOptions& options);
void check_exact(const KnnOptions& options, std::string_view search);
// InvalidArgument unless the device is the processor, for a `search` that runs nowhere else.
void check_processor(const KnnOptions& options, std::string_view search);

// As knn(), for parts of equal metric and columns that have no id in common. options.filter is not
// looked at. `once`: the forms made are of no use later.
Neighbors search_parts(std::span<const SearchPart> parts, AnyMatrixView queries, std::int64_t k,
                       const KnnOptions& options, bool once, KnnReport* report);

// The same by other methods; options.method is not looked at.
Neighbors threshold_heap_parts(std::span<const SearchPart> parts, AnyMatrixView queries,
                               std::int64_t k, const KnnOptions& options, bool once,
                               KnnReport* report);
Neighbors partial_reduce_parts(std::span<const SearchPart> parts, AnyMatrixView queries,
                               std::int64_t k, const KnnOptions& options, bool once,
                               KnnReport* report);

// The k nearest other rows of each row of a part whose ids are row numbers; rows: the part's own,
// as one matrix.
Neighbors self_join_segment(const SearchPart& part, AnyMatrixView rows, std::int64_t k,
                            const KnnOptions& options, bool once, KnnReport* report);

// The same for parts that come one after another: adds what these have to `found`, the k best of
// those before.
void search_more(std::span<const SearchPart> parts, AnyMatrixView queries, std::int64_t k,
                 const KnnOptions& options, ExactNeighbors& found, KnnReport* report);

// As range_search().
RangeNeighbors range_search_parts(std::span<const SearchPart> parts, AnyMatrixView queries,
                                  double radius, const KnnOptions& options, bool once,
                                  KnnReport* report);

// Makes the form by which searches for few neighbours are expected to go; the rows adopt it.
// Returns none for rows so few, or so hard to bound, that they are measured as they are.
std::optional<FirstPass> prepare(PreparedRows& rows, int threads, const Progress& progress);

// Fewer rows than this are not packed: measuring them costs less.
inline constexpr std::int64_t least_packed_rows = 256;

// KiB of the largest tile that may be chosen.
inline constexpr std::int64_t most_tile = 65536;

}  // namespace knear::detail
