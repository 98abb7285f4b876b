// knear/index/impl/index_body.hpp -- what an Index (index/index.hpp) is made of: one index
// (index_impl.hpp), or one in shards (index/shards/index_in_shards.hpp).
//
// Members are those of Index, which says what they do, and are called by it within public_call().
// All in which an index in shards differs from one without is decided behind them.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/index_shape.hpp"
#include "knear/index/options.hpp"
#include "knear/knn/report.hpp"

namespace knear::detail {

class FewRowsSearch;  // knn/search/few_rows_search.hpp
class IndexImpl;

// Counts of one state of an index.
struct IndexCounts {
  std::int64_t size = 0;
  Id next_id = 0;
  std::int64_t version = 0;
  ElementType type = ElementType::f32;
  bool is_trained = true;
};

// A shard as users see it.
struct ShardCounts {
  std::string name;       // its file, or "1 of 3"
  std::int64_t rows = 0;  // that it has, or had
  bool missing = false;
};

struct SaveOptions {
  Progress progress = {};
  // Called with the checksum of what will be at the path (of shards: the manifest), when all else
  // is written and before it has its name; what it throws ends the save.
  std::function<void(std::uint64_t checksum)> before_replacing = {};
  // The file whose permissions others get, where there is none at the path yet; empty: as usual.
  std::string permissions_of = {};
};

class IndexBody {
 public:
  explicit IndexBody(const IndexShape& of) : shape(of) {}
  virtual ~IndexBody() = default;
  IndexBody(const IndexBody&) = delete;
  IndexBody& operator=(const IndexBody&) = delete;

  const IndexShape shape;  // of every shard

  virtual IndexCounts counts() const = 0;
  virtual bool contains(Id id) const = 0;
  virtual std::vector<Id> ids() const = 0;
  virtual std::int64_t memory_bytes() const = 0;
  virtual Matrix<float> centroids() const = 0;
  virtual std::vector<std::int64_t> list_sizes() const = 0;
  virtual std::vector<std::int64_t> lists_of(std::span<const Id> ids) const = 0;
  virtual AnyMatrix reconstruct(std::span<const Id> ids) const = 0;
  virtual std::vector<ShardCounts> shards() const = 0;
  virtual std::int64_t replicas() const = 0;

  virtual void train(AnyMatrixView vectors, const TrainOptions& options) = 0;
  // Throws InvalidArgument for f64 rows whose codes or transformed vectors, which are float32,
  // would be the same (core/far_rows.hpp). The changes below take such rows, as a log may hold
  // some.
  virtual void check_not_too_far(AnyMatrixView vectors) const = 0;
  virtual void add(AnyMatrixView vectors, const ChangeOptions& options) = 0;
  // Ids may also be above last_given_id: those of a log may have been given out to rows without
  // ids.
  virtual void add_with_any_ids(AnyMatrixView vectors, std::span<const Id> ids,
                                const ChangeOptions& options) = 0;
  virtual void reserve(std::int64_t rows) = 0;
  virtual void remove(std::span<const Id> ids, const ChangeOptions& options) = 0;
  virtual void replace(std::span<const Id> ids, AnyMatrixView vectors,
                       const ChangeOptions& options) = 0;
  virtual void merge(const IndexBody& other, MergeIds ids) = 0;
  virtual void compact(const ChangeOptions& options) = 0;
  virtual std::int64_t optimize(const ChangeOptions& options) = 0;
  virtual std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries,
                                           const ChangeOptions& options) = 0;
  virtual std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries,
                                           AnyMatrixView base, std::span<const Id> ids,
                                           const ChangeOptions& options) = 0;
  virtual void set_audit(double share) = 0;
  virtual double audit() const = 0;
  virtual std::vector<AuditReport> audits() const = 0;
  virtual void save(const std::string& path, const SaveOptions& options) const = 0;

  // Another body with all rows of this one, which may be changed if this one is not changed again.
  virtual std::unique_ptr<IndexBody> next() const = 0;
  // One index with all rows, which shares their memory; both may be changed.
  virtual std::unique_ptr<IndexImpl> as_one() const = 0;
  // Its shards, which are not changed any more, or the one index. Throws InvalidArgument where one
  // is missing.
  virtual std::vector<std::shared_ptr<const IndexImpl>> parts() const = 0;
  // What this is. Throws InvalidArgument for an index in shards.
  virtual const IndexImpl& one() const = 0;
  virtual IndexImpl& one() = 0;

  // What search() finds before anything is rounded; the report lacks the time alone.
  virtual ExactNeighbors nearest(AnyMatrixView queries, std::int64_t k,
                                 const SearchOptions& options, KnnReport* report) const = 0;
  // As range_search(); the report lacks the time.
  virtual RangeNeighbors within(AnyMatrixView queries, double radius, const SearchOptions& options,
                                KnnReport* report) const = 0;

  // Finds the k nearest to one query at once, where that takes less time than a plan. Returns false
  // where search() has to be called, which has the same answer and checks the arguments.
  virtual bool nearest_at_once(AnyMatrixView /*queries*/, std::int64_t /*k*/, const SearchOptions&,
                               FewRowsSearch& /*search*/) const {
    return false;
  }

  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                   KnnReport* report) const;
  RangeNeighbors range_search(AnyMatrixView queries, double radius, const SearchOptions& options,
                              KnnReport* report) const;

  void check_columns(std::string_view argument, AnyMatrixView vectors) const;
  // Throws InvalidArgument for a share that set_audit() does not take.
  void check_audit(double share) const;

 private:
  // Answers by nearest_at_once() and returns true, or returns false.
  bool search_at_once(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                      KnnReport* report, Neighbors& out) const;
};

}  // namespace knear::detail
