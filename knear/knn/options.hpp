// knear/knn/options.hpp -- how to search: what every search of the k nearest and every range search
// takes beside its vectors.
//
//   knn(queries, base, 10, {.metric = Metric::cosine, .threads = 8});
//   index.search(queries, 10, {.method = {.recall = 0.95}});
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "knear/core/metric.hpp"
#include "knear/core/progress.hpp"
#include "knear/core/row_filter.hpp"

namespace knear {

// How candidates are scored before the few that may be among the k are measured in float64.
enum class FirstPass : std::uint8_t {
  automatic,  // chosen on a sample of the data
  integer,    // exact integer arithmetic: both sides hold whole numbers of 8 bits
  int8,       // 8-bit codes with a certified bound
  int16,      // 16-bit codes with a certified bound
  fp32,       // float32 with a certified bound
  direct,     // none: every pair in float64
  prefix      // a few principal coordinates in 8 bits, then all of them
};

// How the k nearest are found (docs/selection.md compares them).
enum class Method : std::uint8_t {
  automatic,       // exact, or partial_reduce where less recall is asked for and that is faster
  exact,           // the scan with its own thresholds
  threshold_heap,  // thresholds from a sample, pruned and compressed distances, min-max heaps
  partial_reduce   // the best few of each of many bins of rows: as much recall as asked for
};

// "auto", "exact", "threshold-heap", "partial-reduce".
std::string_view name_of(Method method);
// The inverse; throws InvalidArgument for any other word.
Method parse_method(std::string_view name);

std::string_view name_of(FirstPass pass);
// The inverse ("auto", "integer", ..., "prefix"); throws InvalidArgument for any other word.
FirstPass parse_first_pass(std::string_view name);

// What a search otherwise chooses by itself, beside its first pass. It changes the time, never the
// answer; 0 leaves the choice to the search.
struct TuningOverrides {
  int group = 0;              // queries that the kernel scores side by side: 1, 4 or 12
  int parts = 0;              // into which the base is split for the same queries
  std::int64_t columns = 0;   // of a prefix: a multiple of 8 up to 128
  std::int64_t clusters = 0;  // of its rows
  std::int64_t tile = 0;      // KiB of codes that all queries of a task go over before the next
  bool guess = true;          // thresholds for more than 32 neighbours, from the tiles seen so far
  // Whether rows that an 8-bit pass leaves are scored again before they are measured, with a scale
  // for each row and a query of 16 bits; empty: where it pays.
  std::optional<bool> refine = {};

  bool operator==(const TuningOverrides&) const = default;
};

namespace detail {
// KiB of the largest tile that may be chosen.
inline constexpr std::int64_t most_tile = 65536;
}  // namespace detail

// "group=12,parts=2,columns=64,clusters=500,tile=512,guess=off,refine=on", any of these. Throws
// InvalidArgument for other words and values.
TuningOverrides parse_tuning(std::string_view text);

// Options of Method::threshold_heap.
struct ThresholdHeapOptions {
  std::int64_t samples = 0;      // rows of the sample, k at least; 0: 8 k
  std::int64_t query_batch = 0;  // queries whose compressed rows are sorted together; 0: 48

  bool operator==(const ThresholdHeapOptions&) const = default;
};

// Options of Method::partial_reduce.
struct PartialReduceOptions {
  // Above 0 the base is a shard, drawn at random, of a base of this many rows, and the promise is
  // for the answer merged from all shards (the meaning of XLA's reduction_input_size_override).
  // With 0 it holds for the merged answer of any shards.
  std::int64_t logical_rows = 0;
  // False: the answer is what was kept of every bin (report.partial_reduce.kept_per_bin from place
  // kept_per_bin * bin on, each bin nearest first, padded where it has fewer), so more columns
  // than k. The bins are the same on every machine; with a memory limit they are those of the
  // chunks that the base is searched in.
  bool aggregate = true;

  bool operator==(const PartialReduceOptions&) const = default;
};

// How much of a base is found, and by which method. An index takes SearchMethod
// (index/options.hpp).
struct MethodOptions {
  Method kind = Method::automatic;
  // The least mean share of the k nearest that is found, in (0, 1]; 1, as without one: all of them.
  // Less is for partial_reduce, and for automatic to choose by.
  std::optional<double> recall = {};
  ThresholdHeapOptions threshold_heap = {};
  PartialReduceOptions partial_reduce = {};

  bool operator==(const MethodOptions&) const = default;
};

// How to search: KnnOptions below, or SearchOptions of an index (index/options.hpp).
template <class MetricChoice, class Filter, class MethodChoice>
struct BasicKnnOptions {
  MetricChoice metric{};
  int threads = 0;          // 0: all that the process may use
  std::int64_t memory = 0;  // bytes that the search may take beside its arguments; 0: no limit
  FirstPass first_pass = FirstPass::automatic;
  Filter filter = {};  // the rows that may be found; by default every one
  Progress progress = {};
  // columns and clusters are for first_pass prefix alone; a range search takes neither these nor
  // guess nor refine. refine = true is for 8-bit codes of vectors that are not whole numbers of 8
  // bits, without a memory limit. A self-join with a group other than 12, or parts, searches row by
  // row.
  TuningOverrides tuning = {};
  // For knn() and search() alone: self-joins, range searches and bases read block by block are
  // exact.
  MethodChoice method = {};
  // Where the base is scanned: "cpu", "cuda" (the first GPU), "cuda:N", or several GPUs as
  // "cuda:0,1,2,3", of which each has all rows and the queries are divided between them by their
  // speed; of an index in shards (index/index.hpp) each has some. The answer is the same.
  // "auto", of knn(), self_join(), range_search() and ExactSearcher: the first GPU where an exact
  // search is predicted to be faster there (faster_place() of cost/device_plan.hpp), the processor
  // for all else; report.device says which.
  // For searches of the k nearest by any method, self-joins and range searches; partial_reduce
  // takes neither a memory limit nor aggregate = false there, nor several GPUs. With a GPU
  // first_pass is automatic, integer or int8, and no choices are made. Queries for whose lists the
  // device has no memory are answered by the processor (report.fallback_queries). With
  // threshold_heap a GPU prunes and compresses, the processor searches the sample and sorts; of a
  // range search it keeps and sorts what was found.
  std::string device = "cpu";

  // These options with another metric, filter and method.
  template <class OtherMetric, class OtherFilter, class OtherMethod>
  BasicKnnOptions<OtherMetric, OtherFilter, OtherMethod> with(OtherMetric other, OtherFilter rows,
                                                              OtherMethod how) const {
    return {other,    threads, memory,         first_pass, std::move(rows),
            progress, tuning,  std::move(how), device};
  }
};
using KnnOptions = BasicKnnOptions<Metric, RowFilter, MethodOptions>;

}  // namespace knear
