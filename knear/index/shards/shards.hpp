// knear/index/shards/shards.hpp -- the shards of an index in one of its states, searched together,
// and as they lie in files.
//
//   ExactNeighbors near = nearest(shards, queries, k, options, speeds, report);
//   save_shards(shards, "base.knear", {.progress = progress});
//
// Each shard is an index that is never changed: a change makes others (index_in_shards.cpp). All
// have the same shape and what was learned, and the next id and element type of the whole, so that
// filters and types mean the same in each of them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/process_mutex.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/knn/device/replica_speeds.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

inline constexpr std::int64_t most_shards = 4096;

struct Shard {
  std::shared_ptr<IndexImpl> index = {};  // nullptr: it is missing
  std::string name = {};                  // its file, or "1 of 3"
  std::int64_t rows = 0;                  // that it has, or had
  std::string why_missing = {};           // an error message

  std::shared_ptr<const State> state() const { return index->state(); }
};

// All shards as the segments of one index, whose memory it shares. Any number of threads.
class ShardsAsOne {
 public:
  ShardsAsOne(const IndexShape& shape, std::vector<std::shared_ptr<const State>> parts)
      : shape_(shape), parts_(std::move(parts)) {}

  // Made by the first who asks. It knows of recall what all shards know.
  const IndexImpl& get(int threads) const;
  // Has every shard know what the whole has learned of recall since, so that files keep it.
  void share_recall() const;

 private:
  const IndexShape shape_;
  const std::vector<std::shared_ptr<const State>> parts_;
  mutable ProcessMutex making_;
  mutable std::unique_ptr<const IndexImpl> index_;
  // Of each part, what it knew of recall when the index was made.
  mutable std::vector<std::vector<std::shared_ptr<const RecallCurve>>> known_;
};

// What a search sees. Never changed once it is published.
struct Shards {
  std::vector<Shard> all = {};
  bool allow_partial = false;
  std::int64_t replicas = 1;
  Id next_id = 0;
  std::int64_t version = 0, size = 0;  // rows of the shards that are there
  // Nullptr where there are not several, one is missing, nothing was learned yet, or each has a
  // graph of its own.
  std::shared_ptr<const ShardsAsOne> one = {};

  // One that is there: what all have in common is read from it.
  const Shard& any() const;
  // The shard that holds an id; nullptr: none does.
  const Shard* find(Id id) const;
};

// Makes shards.one anew.
void put_together(Shards& shards);

// As IndexImpl::nearest() of all rows, and range_search(). The caller completes the report by
// set_seconds().
ExactNeighbors nearest(const Shards& shards, AnyMatrixView queries, std::int64_t k,
                       const SearchOptions& options, ReplicaSpeeds& speeds, KnnReport* report);
RangeNeighbors within(const Shards& shards, AnyMatrixView queries, double radius,
                      const SearchOptions& options, ReplicaSpeeds& speeds, KnnReport* report);

// Throws IoError, Cancelled.
void save_shards(const Shards& shards, const std::string& path, const SaveOptions& options);

// Removes a manifest and then the shards that it names, but for those that another manifest of the
// folder names. Of any other file that alone.
void remove_saved(const std::string& path);

// Removes what saves of this manifest that were killed left beside it, as the next save would. Of a
// file that is no manifest nothing.
void remove_left_by_kills(const std::string& path);

// A save where shards are in different processes: one of them makes a ShardSave and tells the
// others its number, each saves its own shards, and the first commits.
//
// What a manifest says of a shard beside its name.
struct SavedShard {
  std::int64_t rows = 0, file_bytes = 0;
  std::uint64_t checksum = 0;
};
// What a manifest says of all.
struct SavedShards {
  std::int64_t shards = 0, next_id = 0, rows = 0, version = 0, replicas = 1;
};
class ShardSave {
 public:
  // Of so many shards. Keeps other saves to the folder waiting as long as it lives.
  ShardSave(const std::string& path, std::int64_t shards);
  // Without commit(), removes the files that were made.
  ~ShardSave();
  ShardSave(const ShardSave&) = delete;
  ShardSave& operator=(const ShardSave&) = delete;

  std::uint64_t number() const;
  // Writes the manifest, when all shards are saved, and removes those of the one before. Throws
  // IoError, Cancelled.
  void commit(const SavedShards& all, std::span<const SavedShard> each, const SaveOptions& options);

 private:
  struct State;
  std::unique_ptr<State> state_;
};
// The file of a shard of the save of that number. The one that follows the last shard is nobody's,
// and removed with the save.
std::string file_of_shard(const std::string& path, std::uint64_t save, std::int64_t shard);
// Throws IoError, Cancelled.
SavedShard save_shard(const IndexImpl& shard, const std::string& path, std::uint64_t save,
                      std::int64_t number, const SaveOptions& options);

// A shard like this index, which has no rows, with the rows under the ids first, first + 1, ... of
// an index whose next id is next_id: what Index::add() makes of the shard. type: of what it keeps,
// if others know it. Throws as Index::add().
std::shared_ptr<IndexImpl> shard_of(const IndexImpl& like, AnyMatrixView rows, Id first, Id next_id,
                                    std::optional<ElementType> type, const ChangeOptions& options);
// How many of n rows each of so many shards has that were empty [shards].
std::vector<std::int64_t> even_parts(std::int64_t n, std::int64_t shards);
// Throws IoError; CorruptFile, naming the shard. Of those that are wanted, all if nothing is said,
// that of lowest number at least is opened to see that the others go with it. all: how many there
// are, wanted or not; nullptr: not asked.
Shards load_shards(const std::string& path, bool allow_partial, const Progress& progress,
                   const std::function<bool(std::size_t)>& wanted = {},
                   std::int64_t* all = nullptr);

// An index with a state that was made of that of an older one, which is not changed again.
inline std::shared_ptr<IndexImpl> with_state(const IndexImpl& older, State state) {
  return std::make_shared<IndexImpl>(older, std::move(state));
}

}  // namespace knear::detail
