// knear/knn/segment_search.hpp -- exact search of a base that lies in segments.
//
// A segment is a stretch of rows that is packed by itself. One search goes over the segments in
// turn, and what it has found so far is the threshold from which the next one starts. knn() and
// ExactSearcher have one segment, an index may have many. The answer does not depend on the
// division. Where memory is limited, the rows of a segment are taken a chunk at a time; where there
// are few queries, tasks divide the base into splits.
#pragma once
#include <span>

#include "knear/knn/prepared_rows.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

// Whether what a search makes on its way, packed rows above all, is of use to searches to come.
enum class Reuse : std::uint8_t { none, expected };

struct SearchSegment {
  PreparedRows* rows = nullptr;
  RowIds ids = {};  // ascending with the rows
  // The rows that may be found: those that the filter allows, row 0 of the segment being its row
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

// As knn(), for segments of equal metric and columns that have no id in common. options.filter is
// not looked at.
Neighbors search_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                          std::int64_t k, const KnnOptions& options, Reuse reuse,
                          KnnReport* report);

// The same by other methods; options.method is not looked at.
Neighbors threshold_heap_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                  std::int64_t k, const KnnOptions& options, Reuse reuse,
                                  KnnReport* report);
Neighbors partial_reduce_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                  std::int64_t k, const KnnOptions& options, Reuse reuse,
                                  KnnReport* report);

// The k nearest other rows of each row of a segment whose ids are row numbers; rows: its own, as
// one matrix.
Neighbors self_join_segment(const SearchSegment& segment, AnyMatrixView rows, std::int64_t k,
                            const KnnOptions& options, Reuse reuse, KnnReport* report);

// As search_segments(), for segments that come one after another: adds what these have to `found`,
// the k best of those before.
void search_more(std::span<const SearchSegment> segments, AnyMatrixView queries, std::int64_t k,
                 const KnnOptions& options, ExactNeighbors& found, KnnReport* report);

// As range_search().
RangeNeighbors range_search_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                     double radius, const KnnOptions& options, Reuse reuse,
                                     KnnReport* report);

// Makes the form by which searches for few neighbours are expected to go; the rows adopt it.
// Returns none for rows so few, or so hard to bound, that they are measured as they are.
std::optional<FirstPass> prepare(PreparedRows& rows, int threads, const Progress& progress);

// Fewer rows than this are not packed: measuring them costs less.
inline constexpr std::int64_t least_packed_rows = 256;

// KiB of the largest tile that may be chosen.
inline constexpr std::int64_t most_tile = 65536;

}  // namespace knear::detail
