// knear/knn/knn.hpp -- the k nearest rows of a matrix, exactly: the front door of the scan.
//
//   Neighbors near = knn(queries, base, 10);                                // one shot, l2
//   KnnReport report;
//   Neighbors near = knn(queries, base, 10, {.metric = Metric::cosine}, &report);
//
//   ExactSearcher searcher(base, {.metric = Metric::ip});                   // packs the base once
//   Neighbors near = searcher.search(queries, 10);                          // many times
//
// The answer is that of reference_knn (distance/reference.hpp), to the bit, whatever the number of
// threads, the instruction set, the split into batches and the first pass.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
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

// Throws InvalidArgument unless `device` is "cpu", "cuda", "cuda:N" or of several GPUs
// "cuda:N,N,...", each named once; DeviceUnavailable for a GPU that is not there, or where knear
// was built without CUDA.
void check_device(std::string_view device);
// The same for what runs in one place: several GPUs are none of the words.
void check_one_device(std::string_view device);
// The GPU of one of several processes on a machine, which are numbered from 0 on: of "cuda" each
// process gets the next one, all over again where there are more processes; another device is the
// same for all. Throws as check_one_device().
std::string device_of_process(std::string_view device, int process);

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
};

// "group=12,parts=2,columns=64,clusters=500,tile=512,guess=off,refine=on", any of these. Throws
// InvalidArgument for other words and values.
TuningOverrides parse_tuning(std::string_view text);

// How much is to be found, and by which method.
struct MethodOptions {
  Method kind = Method::automatic;
  // The least mean share of the k nearest that is found, in (0, 1]. 1, and on a base without
  // inverted lists none: all of them. Less is for partial_reduce, and for automatic to choose by.
  std::optional<double> recall = {};
  // threshold_heap: rows of the sample, k at least, 0 for 8 k; and queries whose compressed rows
  // are sorted together, 0 for 48.
  std::int64_t samples = 0, query_batch = 0;
  // partial_reduce: with logical_rows above 0 the base is a shard of so many rows that was drawn at
  // random, and what is promised is for the answer merged from all shards (the meaning of XLA's
  // reduction_input_size_override). With 0 it holds for the merged answer of any shards. Without
  // `aggregate` the answer is what was kept of every bin (report.kept_per_bin from place
  // kept_per_bin * bin on, each bin nearest first, padded where it has fewer), so more columns
  // than k. The bins are the same on every machine; with a memory limit they are those of the
  // chunks that the base is searched in.
  std::int64_t logical_rows = 0;
  bool aggregate = true;
  // Inverted lists (index/ivf_flat.hpp): how many of the lists nearest to a query are searched; 0:
  // not said. With `widen` a query that finds fewer than k rows in them goes on to more lists, as
  // those for a recall do.
  std::int64_t probes = 0;
  bool widen = false;
  // Codes with their vectors (",RFlat"): how many codes are measured by the vectors for each
  // neighbour that is wanted; 0: 4.
  std::int64_t refine_factor = 0;
  // Whether to prove, query by query, that no list left out holds anything nearer (report).
  bool certify = false;
  // A graph over the rows (index/graph_flat.hpp): how many of the nearest rows that it has seen a
  // search keeps, k at least; 0: not said.
  std::int64_t ef = 0;
};

// How to search: KnnOptions below, or SearchOptions of an index (index/flat.hpp).
template <class MetricChoice, class Filter>
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
  MethodOptions method = {};
  // Where the base is scanned: "cpu", "cuda" (the first GPU), "cuda:N", or several GPUs as
  // "cuda:0,1,2,3", of which each has all rows and the queries are divided between them by their
  // speed; of an index in shards (index/sharded.hpp) each has some. The answer is the same.
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

  // These options with another metric and filter.
  template <class OtherMetric, class OtherFilter>
  BasicKnnOptions<OtherMetric, OtherFilter> with(OtherMetric other, OtherFilter rows) const {
    return {other, threads, memory, first_pass, std::move(rows), progress, tuning, method, device};
  }
};
using KnnOptions = BasicKnnOptions<Metric, RowFilter>;

// What was planned and what happened. Seconds are wall-clock; sums over threads say so.
struct KnnReport {
  std::int64_t rows = 0, dim = 0, queries = 0, k = 0;
  // By the filter; without one, rows. -1: they were not counted, as few queries of codes look up
  // the rows that they probe alone.
  std::int64_t allowed_rows = 0;
  Metric metric = Metric::l2;
  std::string isa;         // level of the kernels
  std::string first_pass;  // the one that did most of the work: "integer", "int8", ...
  bool centred = false;    // the mean was subtracted before coding
  int threads = 0;
  double prepare_seconds = 0;  // packing the base; calibrating recall, where that came first
  double seconds = 0;          // the search itself, packing of queries included
  double scan_seconds = 0, rescore_seconds = 0;  // sums over threads
  // Parts of scan_seconds, sums over threads: queries packed; rows that are looked at first, where
  // there is a prefix; all others scored by the kernel; those that it let through sorted out.
  double query_seconds = 0, seed_seconds = 0, score_seconds = 0, select_seconds = 0;
  double hits_per_query = 0;       // rows that passed the threshold test
  double refined_per_query = 0;    // rows scored again before that, as TuningOverrides::refine
  double survivors_per_query = 0;  // rows measured in float64
  // What was expected of these before: as earlier searches by the same pass for about as many
  // neighbours had it, and for a prefix the rows that it does not rule out. 0: nothing was known.
  double expected_hits = 0, expected_refined = 0, expected_survivors = 0;
  // Queries whose first pass was changed while running; with a GPU, that the processor answered.
  std::int64_t fallback_queries = 0;
  // Scanned again: a threshold was guessed too well (scan/threshold_estimates.hpp), or the list of
  // a GPU was full.
  std::int64_t repeated_queries = 0;
  std::int64_t certified_queries = 0;  // queries whose answer is proven exact
  std::int64_t memory_bytes = 0;       // packed base, buffers and answer
  std::int64_t chunks = 0;             // of the base, packed one after the other
  double multiply_adds = 0;            // of the first pass
  std::int64_t prefix_columns = 0;     // coordinates of a prefix, if one was used
  std::int64_t clusters = 0;           // of its rows
  int group = 0, parts = 0;            // as TuningOverrides: of the last scan
  std::int64_t tile_rows = 0;          // of the largest tile; 0: every row was measured
  bool guessed = false;                // whether a threshold was
  bool joined = false;                 // a self-join scored each pair of rows once, for both
  double bytes_read = 0;               // of the packed base, once per pass over it
  std::string method = "exact";        // or "threshold-heap", "partial-reduce"
  // What the recall of the answer is, on average over queries: promised (recall_argument: "exact",
  // "analytic", by how rows fall into bins, or "calibrated", by queries whose answer was known;
  // with "none" nothing is promised, and both are 0) and, with no margin, expected.
  double promised_recall = 1, expected_recall = 1;
  std::string recall_argument = "exact";
  // partial-reduce: bins of rows, of which so many were kept; queries that had no certificate and
  // were searched again, exactly, for recall = 1.
  std::int64_t bins = 0, kept_per_bin = 0, repaired_queries = 0;
  // The queries that are not certified, ascending; none where a search of inverted lists or codes
  // was not asked to certify.
  std::vector<std::int64_t> uncertified;
  // threshold-heap: rows sampled, seconds of that, seconds of sorting (a sum over threads), rows
  // over the longest compressed row of a batch (Eq. 4 of the paper, mean over batches), and the
  // k-th distance over the threshold (Eq. 3; 0 for ip).
  std::int64_t samples = 0;
  double sampling_seconds = 0, sorting_seconds = 0, compression_ratio = 0, threshold_ratio = 0;
  // Inverted lists: how many there are; those that a query probed, and the rows in them, on
  // average; queries that found fewer than k rows. certified_queries are then those of which the
  // radii of the lists prove that no other list holds anything nearer, if that was asked for.
  std::int64_t lists = 0, short_queries = 0;
  double probes = 0, probed_rows = 0;
  double coarse_seconds = 0;  // putting the lists of all queries in order
  // A graph: how many nodes a search kept; probed_rows are the nodes that it scored.
  std::int64_t ef = 0;
  // Rows that are codes: how many sub-quantisers a code has, and the bits of each.
  std::int64_t code_parts = 0;
  int code_bits = 0;
  bool refined_by_codes = false;  // what measures them again is codes too
  std::string note;               // what the caller should know of the promise; empty: nothing
  std::string device = "cpu";     // where the base was scanned
  std::int64_t device_bytes = 0;  // memory of that device that was in use at most
  std::int64_t version = 0;       // of an index: the number of the state that was searched
  // Of an index in shards (index/sharded.hpp), 0 of others: how many of them were searched, between
  // how many replicas the queries were divided (of several GPUs too), and seconds of putting
  // together what these found.
  std::int64_t shards = 0, replicas = 0;
  double merge_seconds = 0;
  // Its shards that are missing, if it was opened with allow_partial, and the rows that these had.
  std::int64_t unsearched_rows = 0;
  std::vector<std::string> unsearched_shards;
};

// The k nearest rows of base [n x d] for each of queries [q x d], any element types.
//
// Nearest first: squared distances for l2, descending products for ip, 1 - cos for cosine; equal
// distances by ascending id; padded with no_id beyond n or the rows allowed. Throws ShapeMismatch
// if the columns differ or the filter is for another number of rows; InvalidArgument for k outside
// [1, 2^31), dim outside [1, 65536] or a NaN or infinity, naming its row; MemoryBudgetError;
// Cancelled. q = 0 and n = 0 are fine. With a filter the answer is that of the allowed rows alone,
// under their own ids; what it costs falls with their number.
Neighbors knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
              const KnnOptions& options = {}, KnnReport* report = nullptr);

// All rows of base [n x d] within a radius of each of queries [q x d]: at a distance of at most
// `radius` for l2 (squared) and cosine, with a product of at least `radius` for ip, compared in
// float64 as the reference computes it. Nearest first; ties by ascending id. Options and errors as
// for knn; InvalidArgument for a radius of NaN; MemoryBudgetError once more rows are found
// than fit options.memory or the machine, at 64 bytes each. report.k is 0.
RangeNeighbors range_search(AnyMatrixView queries, AnyMatrixView base, double radius,
                            const KnnOptions& options = {}, KnnReport* report = nullptr);

// The k nearest other rows of each row of base [n x d], any element type: a k-NN graph. Row i of
// the answer is that of knn() for row i without i itself; copies of row i are rows like any other.
//
// Each pair of rows is scored once, for both, where that is forecast to be faster than a search for
// every row (report.joined says so); with a filter, a memory limit or more rows than three quarters
// of the machine's memory hold every row is searched for. Errors as for knn; k = n - 1 and more is
// fine. Memory: beside what knn takes, at most 2 KB and 100 k bytes a row while it runs.
Neighbors self_join(AnyMatrixView base, std::int64_t k, const KnnOptions& options = {},
                    KnnReport* report = nullptr);

// A base prepared once for many searches. Keeps a reference to `base`, which must stay unchanged
// while this lives. Memory: about a quarter of an f32 base and 16 bytes a row.
//
// Searches of many queries come to go by a prefix of K = 8 to 128 principal
// coordinates (docs/bounds.md, 8) where that is forecast to be faster: once the queries served so
// far would have saved the time that making it takes. It adds dim + K + 26 bytes a row; for a
// search with a memory limit none is made unless first_pass asks for it. Where 8-bit passes leave
// many more rows than are wanted, codes of rows by themselves are made in the same way
// (TuningOverrides::refine): dim + 16 bytes a row.
//
// Threads: any number of search() at once; a progress callback must not call it.
class ExactSearcher {
 public:
  ExactSearcher(AnyMatrixView base, const KnnOptions& options);
  ~ExactSearcher();
  ExactSearcher(ExactSearcher&&) noexcept;
  ExactSearcher& operator=(ExactSearcher&&) noexcept;

  // As knn() above; InvalidArgument unless options.metric is the one given at construction. The
  // first call packs the base, later ones find it packed.
  Neighbors search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                   KnnReport* report = nullptr) const;
  // As knear::self_join(); the same for options.metric.
  Neighbors self_join(std::int64_t k, const KnnOptions& options, KnnReport* report = nullptr) const;
  // As range_search(); the same for options.metric.
  RangeNeighbors range_search(AnyMatrixView queries, double radius, const KnnOptions& options,
                              KnnReport* report = nullptr) const;

  class Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace knear
