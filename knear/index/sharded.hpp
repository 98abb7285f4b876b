// knear/index/sharded.hpp -- one base in S parts, each an index of its own, that are searched at
// the same time; and R replicas, between which the queries of a batch are divided.
//
//   ShardedIndex index(make_index("IVF1024,Flat", 96), {.shards = 2});
//   index.train(vectors), index.add(vectors);      // trained once, for all shards
//   Neighbors near = index.search(queries, 10, {.method = {.probes = 16}});
//   index.save("base.knear");                      // a manifest and a file for each shard
//
// Johnson, Douze and Jégou (2017), section 5.4: replicas for speed, shards for size, both together.
// Shards hold different rows under ids of the whole and share what was learned: centroids, codes,
// transforms. What they find is merged on float64 keys, ties to the smaller id, so that the answer
// of a flat index in any number of shards is that of one index to the bit, and with the same
// `probes` that of inverted lists and of codes that are not refined. A graph is one for each shard:
// together they find at least other rows, often more.
//
// Recall below 1 of inverted lists and codes is calibrated and promised for all shards as one
// index, and the answer is that of one. Of other indexes the least of what shards promise is:
// PartialReduce keeps of each shard what it would if all k nearest were there, so that its promise
// holds for the merged answer; with partial_reduce.logical_rows the base is the random shard of
// so many rows.
//
// Memory: as of one index, and q * k * 16 bytes for each shard while it is merged. Threads: any
// call at any time, as of an Index: a search sees one state of all shards, and a change of several
// shards is one change, whole or not at all. Where there are several groups of processors
// (core/cpu_groups.hpp), the threads of a search are shared out to the parts that are at work at
// the same time, which stay on a group each: `widen` then goes on in each shard until that has k
// rows, and every shard refines as many codes as one index would. In one group replicas share all
// queries, and shards, but for those that have graphs, are searched as the segments of one index.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/index.hpp"

namespace knear {

namespace detail {
struct ShardsOf;  // index/shards/shards.hpp
}

struct ShardingOptions {
  int shards = 1;    // into which rows are divided, 1 to 4096
  int replicas = 1;  // between which queries are divided, 1 to 4096
};

struct ShardedLoadOptions {
  int replicas = 0;  // 0: as many as it was saved with
  // Whether shards that are missing or altered are left out, now or when a search comes to them:
  // report.shards.unsearched_rows and report.shards.unsearched_shards say what was not searched,
  // and such an index takes no changes. Otherwise they are an error.
  bool allow_partial = false;
  Progress progress = {};
};

class ShardedIndex {
 public:
  // Shards like this index, of which they share what it was trained to; one shard also takes over
  // its rows. Throws InvalidArgument for numbers out of range, and for rows where there are more
  // shards than one: these are added.
  explicit ShardedIndex(const Index& like, const ShardingOptions& options = {});
  ShardedIndex(ShardedIndex&&) noexcept;
  ShardedIndex& operator=(ShardedIndex&&) noexcept;
  ~ShardedIndex();

  std::int64_t shards() const;
  std::int64_t replicas() const;
  // Rows of each shard [shards]; of one that is missing, those that it had.
  std::vector<std::int64_t> shard_sizes() const;
  // Of each shard, that of its file, or its number where it was not opened from one [shards].
  std::vector<std::string> shard_names() const;
  // Those of shards that are missing, with allow_partial.
  std::vector<std::string> missing_shards() const;

  // As of an Index, about all shards together. Rows, ids and bytes are those of shards that are
  // there.
  std::string description() const;  // of each shard
  std::int64_t dim() const;
  Metric metric() const;
  std::int64_t size() const;
  ElementType element_type() const;
  Id next_id() const;
  std::int64_t version() const;
  bool contains(Id id) const;
  bool keeps_vectors() const;
  bool has_codes() const;
  bool has_graph() const;
  std::vector<Id> ids() const;        // ascending
  std::int64_t memory_bytes() const;  // what shards share counts once
  bool is_trained() const;
  std::int64_t lists() const;
  Matrix<float> centroids() const;
  std::vector<std::int64_t> list_sizes() const;
  std::vector<std::int64_t> lists_of(std::span<const Id> ids) const;

  // Learns once, for all shards. Errors as those of Index::train().
  void train(AnyMatrixView vectors, const TrainOptions& options = {});

  // As Index::add(). New rows go to the shards that have fewest, so that all have as many, give or
  // take one, once there were enough: the first of them to the first shard that has room, in the
  // order of shards.
  void add(AnyMatrixView vectors, const ChangeOptions& options = {});
  void add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options = {});
  // As Index::reserve(), of rows of all shards.
  void reserve(std::int64_t rows);
  // As Index::remove() and Index::replace(); a row that is replaced stays in its shard.
  void remove(std::span<const Id> ids, const ChangeOptions& options = {});
  void replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options = {});
  // As Index::merge(): what one shard of the other has goes to the shard that has fewest rows then,
  // and shares its memory.
  void merge(const ShardedIndex& other, MergeIds ids = MergeIds::keep);
  void merge(const Index& other, MergeIds ids = MergeIds::keep);
  // As of an Index, of every shard in turn.
  void compact(const ChangeOptions& options = {});
  std::int64_t optimize(const ChangeOptions& options = {});
  // Calibrates each shard. Returns for each recall that all of them can promise what it costs: the
  // lists that a query probes on average in a shard, and the rows in all of them.
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries = {},
                                   const ChangeOptions& options = {});
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries, AnyMatrixView base,
                                   std::span<const Id> ids, const ChangeOptions& options = {});

  // Writes each shard to a file of its own beside `path`, under a name that no file had, then the
  // manifest to `path`, then removes the shards of the manifest before: a process killed meanwhile
  // leaves the old whole or the new one. Files that a killed process left are removed by the next
  // call; those that another manifest of the folder names, one that was renamed or copied, stay.
  // Saves to one folder follow one another. docs/knear-files.md describes the manifest. Throws
  // IoError, Cancelled; InvalidArgument where a shard is missing.
  void save(const std::string& path, const Progress& progress = {}) const;
  // Opens what save() wrote, at once, as Index::load() does. Throws IoError and CorruptFile, naming
  // the shard that is missing, is not the one that was saved with the manifest, or does not go
  // together with the others; with allow_partial only if that is true of all.
  static ShardedIndex load(const std::string& path, const ShardedLoadOptions& options = {});

  // All rows in one index, which shares their memory. What codes know of their recall is not kept,
  // as after Index::merge(). Throws InvalidArgument where a shard is missing.
  Index as_one() const;

  // As Index::reconstruct().
  AnyMatrix reconstruct(std::span<const Id> ids) const;

  // As Index::search() and Index::range_search(); partial_reduce.aggregate = false is for one
  // shard. In the report counts and sums are those of all shards, promises the least, seconds the
  // time that went by. Errors of a file name the shard. Where a recall below 1 or partial-reduce is
  // asked for, which look at a batch as a whole, one replica answers all of it.
  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options = {},
                   KnnReport* report = nullptr) const;
  RangeNeighbors range_search(AnyMatrixView queries, double radius,
                              const SearchOptions& options = {}, KnnReport* report = nullptr) const;

  class Impl;

 private:
  friend struct detail::ShardsOf;
  explicit ShardedIndex(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Whether a file is the manifest of an index in shards; false for one that cannot be read.
bool is_sharded_file(const std::string& path);

}  // namespace knear
