// knear/index/shards/index_in_shards.hpp -- an index in shards, between whose replicas queries are
// divided, as what an Index is made of.
//
// Shards lie behind one pointer: a change makes others of those that it touches, and then a new
// list of all, so that a search sees one state of them.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/process_mutex.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/shards/shards.hpp"
#include "knear/knn/device/replica_speeds.hpp"

namespace knear::detail {

class IndexInShards final : public IndexBody {
 public:
  // Shards like an index, of which they share what it was trained to; one shard also has its rows.
  // Throws InvalidArgument for numbers out of range, and for rows where there are more shards than
  // one.
  IndexInShards(const IndexImpl& like, const ShardingOptions& options);
  // Those of a manifest.
  IndexInShards(const std::string& path, const LoadOptions& options);
  // A copy that shares all rows and may be changed, if the other is not changed again.
  IndexInShards(const IndexInShards& other);
  IndexInShards& operator=(const IndexInShards&) = delete;

  IndexCounts counts() const override;
  bool contains(Id id) const override { return state()->find(id) != nullptr; }
  std::vector<Id> ids() const override;
  // What shards share counts once.
  std::int64_t memory_bytes() const override;
  Matrix<float> centroids() const override { return state()->any().index->centroids(); }
  std::vector<std::int64_t> list_sizes() const override;
  std::vector<std::int64_t> lists_of(std::span<const Id> ids) const override;
  AnyMatrix reconstruct(std::span<const Id> ids) const override;
  std::vector<ShardCounts> shards() const override;
  std::int64_t replicas() const override { return speeds_->replicas(); }

  void train(AnyMatrixView vectors, const TrainOptions& options) override;
  void check_not_too_far(AnyMatrixView vectors) const override;
  void add(AnyMatrixView vectors, const ChangeOptions& options) override;
  void add_with_any_ids(AnyMatrixView vectors, std::span<const Id> ids,
                        const ChangeOptions& options) override;
  void reserve(std::int64_t rows) override;
  void remove(std::span<const Id> ids, const ChangeOptions& options) override;
  void replace(std::span<const Id> ids, AnyMatrixView vectors,
               const ChangeOptions& options) override;
  void merge(const IndexBody& other, MergeIds ids) override;
  void compact(const ChangeOptions& options) override;
  std::int64_t optimize(const ChangeOptions& options) override;
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries,
                                   const ChangeOptions& options) override;
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries, AnyMatrixView base,
                                   std::span<const Id> ids, const ChangeOptions& options) override;
  void set_audit(double share) override;
  double audit() const override;
  std::vector<AuditReport> audits() const override;
  void save(const std::string& path, const SaveOptions& options) const override;

  std::unique_ptr<IndexBody> next() const override;
  std::unique_ptr<IndexImpl> as_one() const override;
  std::vector<std::shared_ptr<const IndexImpl>> parts() const override;
  const IndexImpl& one() const override;
  IndexImpl& one() override;

  ExactNeighbors nearest(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                         KnnReport* report) const override;
  RangeNeighbors within(AnyMatrixView queries, double radius, const SearchOptions& options,
                        KnnReport* report) const override;

 private:
  explicit IndexInShards(Shards from);

  std::shared_ptr<const Shards> state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }
  // Calls f(next) with a copy of the present state, of which it may replace shards, and publishes
  // that. Nothing has changed where it throws.
  template <class F>
  auto change(F f);
  void publish(Shards next);

  mutable ChangeLock writer_;
  const std::shared_ptr<ReplicaSpeeds> speeds_;
  mutable ProcessMutex state_mutex_;  // held for the time of copying a pointer
  std::shared_ptr<const Shards> state_;
};

}  // namespace knear::detail
