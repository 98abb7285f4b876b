// knear/knn/search/search_request.hpp -- what a search was asked for: which queries among which
// rows, and how. It is checked here, once, and trusted from then on.
//
// A segment is a stretch of rows that is packed by itself. knn() and ExactSearcher have one, an
// index may have many. Where memory is limited, the rows of a segment are taken a chunk at a time;
// where there are few queries, tasks divide the base into splits.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/row_set.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/knn/rows/prepared_rows.hpp"

namespace knear::detail {

// Fewer rows than this are not packed: measuring them costs less.
inline constexpr std::int64_t least_packed_rows = 256;

// What plans take for k where there is none.
inline constexpr std::int64_t usual_k = 10;

// Columns up to which a GPU scores whole numbers (scan/device/device_scan.hpp).
inline constexpr std::int64_t most_device_integer_dim = 16384;

class ListedRows;  // knn/lists/listed_rows.hpp

struct SearchSegment {
  PreparedRows* rows = nullptr;  // nullptr: they are codes (index/lists/code_search.hpp)
  RowIds ids = {};               // ascending with the rows, unless they are codes
  // The rows that may be found: those that the filter allows, row 0 of the segment being its row
  // `filter_offset`; or those of the set. Not both.
  RowFilter filter = {};
  std::int64_t filter_offset = 0;
  const RowSet* live = nullptr;
  ListedRows* lists = nullptr;  // of an index of inverted lists
  // Where shards of an index are searched as one: the number of that which has the rows, and of
  // how many. Several GPUs have whole shards each (knn/device/device_grid.hpp).
  std::int64_t shard = 0, shards = 1;
  // Of a search for the nearest codes, a filter of ids instead of one of rows
  // (scan/methods/code_scan.hpp). It is not counted: at least k rows are known to be allowed.
  const RowFilter* allowed_ids = nullptr;

  // How many of rows begin, ..., end - 1 may be found.
  std::int64_t allowed_between(std::int64_t begin, std::int64_t end) const;
  // Which of them may be found, ascending, numbered from the first of them on.
  std::vector<std::uint32_t> allowed_rows(std::int64_t begin, std::int64_t end) const;
};

// Whether what a search makes on its way, packed rows above all, is of use to searches to come.
enum class Reuse : std::uint8_t { none, expected };

enum class SearchKind : std::uint8_t {
  nearest,
  self_join,  // the queries are the rows of the one segment, whose ids are row numbers
  blocks,     // of a base that comes in blocks, one request each
  range
};

// What came before a search: the report tells it.
struct Preparation {
  double seconds = 0;
  std::string note = {};
};

struct SearchRequest {
  // A segment that has a row allowed.
  struct Segment {
    SearchSegment given;
    std::int64_t allowed;  // rows
    bool integer;          // whether exact integers hold both sides
  };

  // Segments of equal metric and columns that have no id in common; options.filter is not looked
  // at. k is at least 1; of a range search it is usual_k. What queries and segments refer to has to
  // stay. Throws InvalidArgument unless all of it goes together.
  SearchRequest(SearchKind kind, std::span<const SearchSegment> segments, AnyMatrixView queries,
                std::int64_t k, const KnnOptions& options, Reuse reuse);
  // The same for queries of a known range, whose elements are not looked at: they may be in the
  // memory of a device.
  SearchRequest(SearchKind kind, std::span<const SearchSegment> segments, AnyMatrixView queries,
                const ValueRange& query_range, std::int64_t k, const KnnOptions& options,
                Reuse reuse);

  // A search on the way to the answer, by the same options: of some of the queries, for the k
  // nearest among some of the rows. Nothing is checked again.
  SearchRequest among(std::span<const SearchSegment> segments, AnyMatrixView queries,
                      std::int64_t k) const;
  // The answer is merged with one that has so many columns.
  void merge_with(std::int64_t columns);

  SearchKind kind;
  AnyMatrixView queries;
  KnnOptions options;
  Reuse reuse;
  int threads;
  Isa isa;
  MachinePeaks peaks;
  ValueRange query_range;
  std::vector<Segment> segments;  // from the one with the most rows allowed on
  std::int64_t rows = 0, allowed_rows = 0;
  std::int64_t k_asked;      // of a self-join one more, for the row itself
  std::int64_t already = 0;  // columns of the answer that this one is merged with
  std::int64_t k = 0;        // how many can be found
  bool counts_rows = true;   // false: allowed_rows counts rows that the filter does not allow too
  Preparation preparation = {};
  // The description of an index that keeps other vectors than those that were added to it; empty:
  // they are the same.
  std::string altered_by = {};
  // Told once, as soon as it is known by what the first rows are scored: the seconds that all are
  // expected to take from then on.
  std::function<void(double seconds)> expecting = {};
  // Of a self-join that is to score each pair once or leave it: told from one thread, now and then,
  // which rows of the answer are found, each once. The others are not searched for.
  std::function<void(std::span<const Id> rows, const ExactNeighbors& answer)> joined = {};

  bool reuses() const { return reuse == Reuse::expected; }
  bool limited() const { return options.memory > 0; }

 private:
  struct Checked {};
  // The options were checked.
  SearchRequest(Checked, SearchKind kind, std::span<const SearchSegment> segments,
                AnyMatrixView queries, const ValueRange& query_range, std::int64_t k,
                const KnnOptions& options, Reuse reuse);
  void take(std::span<const SearchSegment> segments);
};

// Whether exact integer arithmetic holds both sides: 8 bits each, and every difference that the
// kernel's int32 test forms (scan/kernels/tile_kernels.hpp) within 31 bits.
bool integer_fits(Metric metric, const ValueRange& base, const ValueRange& queries,
                  std::int64_t dim);

// What can be checked before a base is looked at. InvalidArgument unless 1 <= k < 2^31; unless the
// radius is finite; unless base or queries may have so many columns; unless a base was prepared for
// the metric; unless a `search` that has only the exact method is asked for it. ShapeMismatch
// unless the columns are equal; unless the filter is for so many rows.
void check_k(std::int64_t k);
// check_k(), and MemoryBudgetError for an answer [queries x k] that takes more than half of the
// machine's memory: places beyond the base are padded, so that it is as large as was asked for.
void check_answer(std::int64_t queries, std::int64_t k);
// Throws MemoryBudgetError if more than 1 GiB of an answer [queries x k] from so many rows would be
// padding, unless there is a limit of memory, within which the search counts its answer.
void check_padding(std::int64_t queries, std::int64_t k, std::int64_t rows, std::int64_t memory);
// The radius of a range search, finite: an infinite one is beyond all distances, or before them.
double checked_radius(double radius);
void check_dim(std::string_view argument, std::int64_t dim);
void check_columns(std::int64_t queries, std::int64_t base);
void check_metric(Metric asked, Metric prepared);
void check_filter(const RowFilter& filter, std::int64_t rows);
void check_exact(const MethodOptions& method, std::string_view search);
// InvalidArgument unless the device is the processor, for a `search` that runs nowhere else.
void check_processor(std::string_view device, std::string_view search);

}  // namespace knear::detail
