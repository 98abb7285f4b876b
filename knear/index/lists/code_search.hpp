// knear/index/lists/code_search.hpp -- search among rows that are kept as codes: those of a few
// inverted lists of each query, or all of them.
//
//   CodeSearch search(state, request, segments, 4);
//   search.nearest(probes.view(), found);
//
// As knear/knn/lists/list_search.hpp, with distances to what codes stand for. Where the vectors are
// kept too, the nearest codes, some times as many as are wanted, are measured by these.
#pragma once
#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "knear/index/life/index_state.hpp"
#include "knear/index/options.hpp"
#include "knear/knn/device/device_code_search.hpp"
#include "knear/knn/lists/list_search.hpp"
#include "knear/scan/methods/code_scan.hpp"

namespace knear::detail {

// A request to search codes: segments have no rows of their own, so that it counts them itself.
SearchRequest request_of_codes(SearchKind kind, const State& state,
                               std::span<const SearchSegment> segments, AnyMatrixView queries,
                               std::int64_t k, const KnnOptions& options);

class CodeSearch final : public ProbedSearch {
 public:
  // segments: those of the state, in its order. vectors: the queries as users have them, before any
  // transform. refine_factor: codes measured by their vectors for each neighbour wanted, where
  // there are vectors. more_bytes: what the caller takes of a limited memory. Throws
  // MemoryBudgetError.
  CodeSearch(const State& state, const SearchRequest& request,
             std::span<const SearchSegment> segments, AnyMatrixView vectors,
             std::int64_t refine_factor, std::int64_t more_bytes);

  // So many codes are measured by their vectors instead, before the first call of nearest().
  void measure(std::int64_t codes) { measured_codes_ = codes; }
  // This device scans codes instead of that of the request, before the first call of nearest().
  void scan_on(std::unique_ptr<DeviceCodeSearch> device) { device_ = std::move(device); }

  void nearest(MatrixView<Id> probes, ExactNeighbors& found,
               std::span<const std::int64_t> which = {}) override;
  void within(MatrixView<Id> probes, double limit, RangeLists& found) override;
  KnnReport report() override;

 private:
  bool refined() const { return refine_factor_ > 0; }
  // How many rows are kept of what codes find for a query: to be measured, no more than there are.
  std::int64_t found_by_codes() const {
    return refined() ? std::min(request_.allowed_rows, measured_codes_) : request_.k;
  }
  // The codes nearest to some queries: by the device, or where it has no memory for them by the
  // processor.
  void scan(const CodeScanJob& job, const CodeProbes& probes, CodedNeighbors& out);
  // The job for some queries.
  CodeScanJob job_of(AnyMatrixView queries, std::int64_t k) const;
  // Measures rows by what refines codes. One thread's.
  class Refiner;
  // The answer of a query: the rows found by their codes, or the nearest of those that were
  // measured.
  void answer_by_codes(std::int64_t q, ExactNeighbors& found);
  void answer(std::int64_t q, std::span<std::pair<double, Id>> rows, ExactNeighbors& found);
  std::int64_t rows_probed(MatrixView<Id> probes) const;
  // Notes what a range search has found.
  void note_answer(const RangeLists& found) {
    for (const auto& list : found) report_.note_answer(64 * std::ssize(list));
  }

  const State& state_;
  const SearchRequest& request_;
  const AnyMatrixView vectors_;
  const std::int64_t refine_factor_;
  std::int64_t measured_codes_;  // of each query
  std::int64_t kept_bytes_ = 0;  // of a limited memory, beside what is scanned with
  std::vector<CodeSegment> segments_;
  std::unique_ptr<DeviceCodeSearch> device_;                // nullptr: the processor
  std::vector<DeviceCodeSearch::Segment> device_segments_;  // the same
  std::vector<std::uint32_t> numbers_;                      // of these among all segments
  CodedNeighbors rough_;                                    // by codes
  SearchPosition at_;
  ReportBuilder report_;
};

}  // namespace knear::detail
