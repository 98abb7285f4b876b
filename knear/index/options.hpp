// knear/index/options.hpp -- how an index is trained, changed, merged and searched.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/index/id_filter.hpp"
#include "knear/knn/options.hpp"

namespace knear {

// Options of searches of inverted lists (factory/factory.hpp), beside probes.
struct ListSearchOptions {
  // Whether a query that finds fewer than k rows in its lists goes on to more of them, as searches
  // for a recall do.
  bool widen = false;
  // Whether to prove, query by query, that no list left out holds anything nearer
  // (report.promise).
  bool certify = false;

  bool operator==(const ListSearchOptions&) const = default;
};

// Options of searches of codes.
struct CodeSearchOptions {
  // Codes that something finer refines (",RFlat"): how many are measured by that for each neighbour
  // that is wanted; 0: 4.
  std::int64_t refine_factor = 0;

  bool operator==(const CodeSearchOptions&) const = default;
};

// A name of at most 64 bytes of printable text in UTF-8: options hold it without memory of their
// own.
class TrafficName {
 public:
  static constexpr std::size_t longest = 64;

  constexpr TrafficName() = default;
  // Throws InvalidArgument for a name that is longer or not such text.
  TrafficName(std::string_view name);
  TrafficName(const std::string& name) : TrafficName(std::string_view(name)) {}
  TrafficName(const char* name) : TrafficName(std::string_view(name)) {}

  std::string_view text() const { return {bytes_.data(), size_}; }
  bool empty() const { return size_ == 0; }
  bool operator==(const TrafficName&) const = default;

 private:
  std::array<char, longest> bytes_ = {};
  std::uint8_t size_ = 0;
};

// How much of an index is searched, and by which method. An index refuses what another kind takes.
//
//   {.method = {.recall = 0.95}}        {.method = {.probes = 8, .lists = {.certify = true}}}
//   {.method = {.ef = 64}}              {.method = {.kind = Method::exact}}
struct SearchMethod {
  Method kind = Method::automatic;
  // How much is searched: at most one of the three is said. recall is the least mean share of the
  // k nearest that is found, in (0, 1]; a flat index without one finds all of them. probes is how
  // many of the inverted lists nearest to a query are searched. ef is how many of the nearest rows
  // that it has seen a search of a graph keeps (factory/factory.hpp), k at least. 0: not said.
  std::optional<double> recall = {};
  std::int64_t probes = 0, ef = 0;
  ListSearchOptions lists = {};
  CodeSearchOptions codes = {};
  // These two are for flat indexes.
  ThresholdHeapOptions threshold_heap = {};
  PartialReduceOptions partial_reduce = {};
  // Name of the collection of queries that a search for a recall belongs to, for an index that
  // audits itself (Index::set_audit()): each collection has a curve of recall of its own. Empty:
  // the collection without a name.
  TrafficName traffic = {};

  bool operator==(const SearchMethod&) const = default;
};

// Searches by the metric of the index, which is not theirs to choose.
struct MetricOfIndex {};
// As KnnOptions, with a filter of ids for one of row numbers. `memory` is beside the index too.
using SearchOptions = BasicKnnOptions<MetricOfIndex, IdFilter, SearchMethod>;

namespace detail {

// Returns the options of a scan of all rows. Throws InvalidArgument for what only lists, codes and
// graphs take.
MethodOptions method_of_scan(const SearchMethod& method);
KnnOptions options_of_scan(const SearchOptions& options, Metric metric);
// Returns the options of a scan of some rows, by which index they are found: where it runs and
// within how much memory. The index has checked all others.
KnnOptions options_of_part(const SearchOptions& options, Metric metric);

}  // namespace detail

// For calls that change an index.
struct ChangeOptions {
  int threads = 0;
  Progress progress = {};
};

// For indexes that learn from vectors.
struct TrainOptions {
  // Of k-means for inverted lists: where vectors are 128 for each list or more, on a quarter of
  // these, and half as many before that on 16 for each list, and after that on all.
  int iterations = 10;
  // How many of the vectors are used, drawn at random, if there are more; 0: 256 for each list (128
  // of more than 16,384 lists), 65,536 for quantisers, 131,072 for transforms.
  std::int64_t rows = 0;
  // Whether a tenth of the vectors, 1,000 at most, is kept out of what transforms, lists and
  // quantisers learn from, to know recall by and to tell queries unlike the vectors.
  bool hold_out = true;
  std::uint64_t seed = 1;
  int threads = 0;
  Progress progress = {};
};

struct ShardingOptions {
  int shards = 1;    // into which rows are divided, 1 to 4096
  int replicas = 1;  // between which queries are divided, 1 to 4096
};

struct LoadOptions {
  int replicas = 0;  // 0: as many as it was saved with
  // Whether shards that are missing or altered are left out, now or when a search comes to them:
  // report.shards.unsearched_rows and report.shards.unsearched_shards say what was not searched,
  // and such an index takes no changes. Otherwise they are an error.
  bool allow_partial = false;
  Progress progress = {};
};

// What a search for a recall does, as it was seen on queries whose neighbours were known.
struct OperatingPoint {
  // What batches of 1,000 queries are promised, and what is expected, without a margin for chance.
  double promised_recall = 0, expected_recall = 0;
  double probes = 0, rows = 0;  // lists that a query probes, and rows in them, on average
};

// What audits of the queries of one traffic have found (Index::set_audit()).
struct AuditReport {
  std::string traffic = {};          // SearchMethod::traffic
  std::int64_t k = 0;                // neighbours
  std::int64_t served_queries = 0;   // queries that were searched for
  std::int64_t audited_queries = 0;  // queries with exact answers, behind the curve of recall
  double recall = 1;                 // that the latest search asked for
  // Mean recall of the audited queries by the rule of that recall, and its 95 % interval; 0, and 0
  // to 1, before the first audit.
  double measured_recall = 0, low = 0, high = 1;
};

// The largest id that a caller may give a row. Rows that are added without ids get ids above the
// largest one of the index, so some must remain.
inline constexpr Id last_given_id = Id{1} << 62;

enum class MergeIds : std::uint8_t {
  keep,    // each row keeps its id; one that both indexes hold is an error
  shifted  // next_id() is added to each
};

}  // namespace knear
