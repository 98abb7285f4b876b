// knear/knn/segment_search.hpp -- exact search of a base that lies in segments.
//
//   const SearchRequest request(SearchKind::nearest, segments, queries, k, options, Reuse::none);
//   Neighbors near = search_segments(request, report);
//
// One search goes over the segments in turn, and what it has found so far is the threshold from
// which the next one starts. The answer does not depend on the division.
#pragma once
#include "knear/knn/report.hpp"
#include "knear/knn/search/search_request.hpp"
#include "knear/scan/methods/range_scan.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

// The answer of knn() before it is rounded, by the method that was asked for: [queries x the least
// of k and the rows allowed], of a self-join with the rows themselves. With
// method.partial_reduce.aggregate off the candidates in their places.
ExactNeighbors nearest_in_segments(const SearchRequest& request, KnnReport* report);

// The answer of range_search() before it is sorted and rounded.
RangeLists within_segments(const SearchRequest& request, double radius, KnnReport* report);

// As knn(), by the method that was asked for; of a self-join as self_join().
Neighbors search_segments(const SearchRequest& request, KnnReport* report);

// As knear::self_join(); `expecting` is told once how many seconds the search is expected to take
// from then on.
Neighbors self_join(AnyMatrixView base, std::int64_t k, const KnnOptions& options,
                    const std::function<void(double seconds)>& expecting, KnnReport* report);

// As range_search().
RangeNeighbors range_search_segments(const SearchRequest& request, double radius,
                                     KnnReport* report);

// As knn(), for a base that comes in blocks: adds what this one has to `found`, the k best of those
// before.
void search_more(SearchRequest request, ExactNeighbors& found, KnnReport* report);

// Packs rows as searches for few neighbours are expected to want them; the rows adopt that. Returns
// none for rows so few, or so hard to bound, that they are measured as they are.
std::optional<FirstPass> prepare(PreparedRows& rows, int threads, const Progress& progress);

// Makes the prefix by which many searches would come to go; the rows adopt it. Returns whether they
// have one: not where too few rows or columns, too large ones, or the forecast speak against it.
bool optimize(PreparedRows& rows, int threads, const Progress& progress);

}  // namespace knear::detail
