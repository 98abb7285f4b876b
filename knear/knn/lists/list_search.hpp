// knear/knn/lists/list_search.hpp -- search among the rows of a few inverted lists of each query,
// in all segments of a base.
//
//   ListSearch search(request);
//   search.nearest(probes.view(), found);    // once, or again for more lists
//   search.report()
//
// Which lists are probed is said by the caller, an index. Given these, the answer is exact: as by
// float64, ties to the smaller id. What is known of a query from the lists that it probed before
// is the threshold from which it goes on.
//
// Segments that are coded alike, as those of one index are, are scanned as one: what a pair of a
// query and a list takes whatever the list's length is then taken once, not once a segment. Those
// by themselves have few rows, or rows that may not be found, or whole numbers that are coded for
// other queries, each segment in its own space, or come from files of an earlier version.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "knear/knn/lists/probed_search.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search_position.hpp"
#include "knear/scan/methods/list_scan.hpp"

namespace knear::detail {

// InvalidArgument for options that a search of `lists` has not: a method, a first pass, choices.
// Whoever is asked for such a search checks them; ListSearch trusts its request.
void check_list_options(const MethodOptions& method, FirstPass first_pass,
                        const TuningOverrides& tuning, std::string_view lists);

// An answer [queries x k] before anything is found.
ExactNeighbors nothing_found(std::int64_t queries, std::int64_t k);
// Rows, or places for rows, of the lists that queries probe.
std::int64_t rows_probed(const ListedRows& rows, MatrixView<Id> probes);

// A limit of memory that a search is not refused by, which was refused as it needs `least` bytes
// with more_bytes for probing: of these a larger memory lets it take more, up to a quarter.
std::int64_t enough_memory(std::int64_t least, std::int64_t more_bytes);

class ListSearch final : public ProbedSearch {
 public:
  // Requires segments that have lists (SearchSegment::lists). more_bytes: what the caller takes of
  // a limited memory. By the processor, whatever the device. Throws MemoryBudgetError.
  explicit ListSearch(const SearchRequest& request, std::int64_t more_bytes = 0);

  void nearest(MatrixView<Id> probes, ExactNeighbors& found,
               std::span<const std::int64_t> which = {}) override;
  void within(MatrixView<Id> probes, double limit, RangeLists& found) override;
  KnnReport report() override;
  const ReportBuilder& done() const { return report_; }
  // What a limited memory must hold.
  std::int64_t least_bytes() const;

 private:
  using Segment = SearchRequest::Segment;
  // A segment by itself, or several that are joined.
  struct Group {
    bool joined() const { return segments.size() > 1; }

    std::vector<const Segment*> segments = {};
    // Of one that others may be joined to:
    std::vector<std::shared_ptr<const PackedLists>> packed = {};
    std::vector<std::shared_ptr<const PackedLists>> second = {};  // of each, or nullptr
    ValueRange range = {};                                        // of whole numbers
    JoinedRows rows = {};
    std::vector<AllowedRows> allowed = {};  // of each segment
    std::int64_t allowed_count = 0;         // in all of them
  };

  void check_memory() const;
  // Whether nearly all rows of a segment may be found. What a filter leaves of others is laid out
  // by lists before they are scanned, which is for one segment at a time.
  static bool joins(const Segment& segment);
  // Whether a segment can be joined to a group.
  bool fits(const Group& group, PreparedRows& rows, const PackedLists& lists) const;
  // Makes groups_, where there are none yet.
  void join_segments();
  // How many queries are searched together, where the candidates of so many scans wait.
  std::int64_t block_size(std::int64_t waiting) const;
  // Calls f(begin, end) for blocks of queries.
  template <class F>
  void each_block(std::int64_t queries, std::int64_t waiting, F f);
  // The second lists of the rows of a segment, in the form of its first ones; nullptr: there are
  // none.
  std::shared_ptr<const PackedLists> second_lists(const Segment& segment);
  // Takes a segment in hand, all of it; returns a scan of it.
  ScanJob enter(const Segment& segment, AnyMatrixView queries);
  // Calls few(numbers) or many(packed), which returns how many places were scored, for the lists of
  // the segment at hand.
  template <class Few, class Many>
  void scan_segment(ListedRows& rows, MatrixView<Id> probes, Few few, Many many);
  // Calls scan(job, lists), which returns how many places were scored, for all of a joined group.
  template <class Scan>
  void scan_joined(const Group& group, AnyMatrixView queries, MatrixView<Id> probes, Scan scan);
  // Of queries begin, ..., end - 1 in that of all.
  Progress progress_of(std::int64_t begin, std::int64_t end) const;

  const SearchRequest& request_;
  const std::int64_t more_bytes_;
  SearchPosition at_;
  ReportBuilder report_;
  std::vector<Group> groups_;
  const bool repeats_rows_;  // whether rows are in two lists
};

}  // namespace knear::detail
