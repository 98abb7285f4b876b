// knear/knn/search/search_position.hpp -- where a search stands: the rows at hand, what is known of
// its answer, and the memory that is left for it.
//
//   at.for_each_chunk([&] { ... });   // at.rows, at.begin, at.count: of this chunk
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "knear/knn/search/device_engine.hpp"
#include "knear/knn/search/search_request.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

class SearchPosition {
 public:
  using Segment = SearchRequest::Segment;

  // device: where rows are scanned before the processor does; nullptr: nowhere.
  SearchPosition(const SearchRequest& request, DeviceEngine* device);
  SearchPosition(const SearchPosition&) = delete;
  SearchPosition& operator=(const SearchPosition&) = delete;

  // Calls f() for each segment, or chunks of it where memory holds no more, which is then at hand;
  // rows none of which is allowed are passed over.
  template <class F>
  void for_each_chunk(F f) {
    if (request.queries.rows() == 0) return;
    check_memory();
    for (const Segment& one : request.segments) {
      segment = &one;
      const std::int64_t n = base().rows(), step = chunk_rows();
      for (std::int64_t first = 0; first < n; first += step) {
        enter(one, first, std::min(n, first + step));
        ++chunks;
        if (count > 0) f();
      }
    }
  }
  // Takes rows first, ..., end - 1 of a segment in hand.
  void enter(const Segment& one, std::int64_t first, std::int64_t end);

  PreparedRows& prepared() const { return *segment->given.rows; }
  const BaseRows& base() const { return prepared().base; }
  // The ids of the rows at hand.
  RowIds ids() const { return segment->given.ids.from(begin); }
  // Which of the rows at hand may be found.
  AllowedRows allowed() const;
  // Makes subset, which takes time in a large base, unless every row is allowed or it is there.
  void list_allowed();

  std::vector<std::int64_t> all_queries() const;
  // A scan of these queries among the rows at hand, with nothing chosen yet.
  ScanJob job(AnyMatrixView queries, std::int64_t k) const;
  // A zero query is as near to every row: its answer is the first rows, by definition of the
  // distances. Takes these out of `todo`.
  void answer_zero_queries(std::vector<std::int64_t>& todo, const AllowedRows& allowed,
                           ExactNeighbors& out) const;

  // The first passes that may be tried on the segment at hand, in this order, on all coordinates;
  // and what is tried before all others.
  std::vector<FirstPass> cascade() const;
  FirstPass first_pass() const {
    return request.options.first_pass == FirstPass::prefix ? FirstPass::prefix : cascade().front();
  }
  // The pass of a device.
  FirstPass device_pass() const;

  // Bytes of so many packed rows, with what finding equal rows takes meanwhile; and those of them
  // that the search has to pay for: none where an index keeps the packed rows, or a device.
  std::int64_t packed_bytes(std::int64_t rows, FirstPass pass) const;
  std::int64_t packing_bytes(std::int64_t rows, FirstPass pass) const;
  // Bytes of everything else: lists of all queries, buffers and scratch of each thread.
  std::int64_t other_bytes() const;
  // Throws MemoryBudgetError, which says how much is enough for every segment, where the memory is
  // too little for one of them.
  void check_memory();
  // How many rows of the segment at hand to take at a time: all, or as many as the memory allows.
  std::int64_t chunk_rows() const;
  // Lets go of packed rows that are kept where memory has no room for these beside them.
  void make_room(FirstPass pass);
  // Candidates of a query that may wait to be measured.
  std::int64_t most_pending() const {
    return request.limited() ? least_pending(request.k) : usual_pending(request.k);
  }

  const SearchRequest& request;
  DeviceEngine* const device;

  // Tells request.expecting, once, what all rows are expected to take if those at hand take so many
  // seconds from now on.
  void expect(double seconds);

  // What a method says of itself.
  std::int64_t tile_bytes;  // of codes; 0: as many as usual
  // Whether the answer depends on what is packed, so that no choice may depend on the time that it
  // takes: rows are never measured instead, but for a very small base.
  bool packs_always = false;
  std::int64_t more_bytes = 0;  // that it takes beside lists and scratch

  // The rows at hand.
  const Segment* segment = nullptr;
  BaseRows rows;
  std::int64_t begin = 0;             // the first of them in the segment
  bool whole = true;                  // whether they are all of it
  std::int64_t count = 0;             // how many are allowed
  std::vector<std::uint32_t> subset;  // these, where that takes a list; empty: see job.allowed

  std::int64_t chunks = 0;           // so far
  std::vector<double> upper_bounds;  // the k-th key of each query so far; empty: not k yet

 private:
  // These are about the segment at hand: the rows of a chunk where memory is not limited, and the
  // bytes below which a search of it is refused.
  std::int64_t most_chunk_rows() const;
  std::int64_t least_bytes() const;
  [[noreturn]] void refuse_memory(std::int64_t least) const;

  bool expected_ = false;  // expect() was called
};

bool is_zero(AnyMatrixView vectors, std::int64_t row);
// Copies of some rows.
AnyMatrix copies_of(AnyMatrixView vectors, std::span<const std::int64_t> which);

}  // namespace knear::detail
