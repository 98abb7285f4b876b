// knear/index/impl/index_impl.hpp -- an index below its public calls: its present state, what makes
// the next one, and searches of one.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/process_mutex.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/form/form.hpp"
#include "knear/index/impl/index_body.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/life/segment_store.hpp"
#include "knear/index/options.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

// Throws InvalidArgument unless 1 <= dim <= 65536.
void check_index_dim(std::int64_t dim);
// Throws InvalidArgument unless 1 <= lists <= most_lists.
void check_lists(std::int64_t lists);

// Returns 0, 1, ..., n - 1.
std::vector<Id> first_ids(std::int64_t n);
// Throws ShapeMismatch unless there are as many ids as vectors.
void check_one_a_row(std::span<const Id> ids, AnyMatrixView vectors);
// Throws InvalidArgument for an id below 0, with its place, or one that is given twice.
void check_own_ids(std::span<const Id> ids);
// Throws InvalidArgument for an id above last_given_id, with its place.
void check_given_ids(std::span<const Id> ids);
// Throws ShapeMismatch for bits of more ids than were ever given.
void check_bits(const IdFilter& filter, Id next_id);
// A list of many ids as bits, where the index holds every id below the next one: then no id has to
// be looked up, which takes longer than all else.
IdFilter quick_filter(std::int64_t size, Id next_id, const IdFilter& filter);
// The segments of a state as a search takes them, which keep what the filter refers to. by_ids:
// bits are left as they are (SearchSegment::allowed_ids). Throws InvalidArgument for an id that is
// not there.
std::vector<SearchSegment> search_segments_of(const State& state, const IdFilter& filter,
                                              bool by_ids = false);

// Held by a change of an index from its begin to its end. A child process finds it free, since a
// change is published at its end (core/process_mutex.hpp). A progress callback of a change that
// changes the same index would wait for itself: InvalidArgument, if it runs in the thread of the
// change.
class ChangeLock {
 public:
  void lock() {
    if (mutex_.is_held_by_this_thread())
      throw InvalidArgument("an index cannot be changed by a progress callback of its own change");
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  ProcessMutex mutex_;
};

// One index.
class IndexImpl final : public IndexBody {
 public:
  explicit IndexImpl(const IndexShape& of, State from = {});
  // Another index with a state of this one, or one that was made of it: rows, lists and the graph
  // are shared, and so is the buffer to which rows are added. The older of the two is not to be
  // changed again.
  IndexImpl(const IndexImpl& older, State from);

  const std::unique_ptr<const Form> form;
  ChangeLock writer;
  const std::unique_ptr<SegmentStore> store;  // the writer's

  std::shared_ptr<const State> state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }
  // added: ids of rows that are new, or have other vectors than before.
  void publish(State next, std::span<const Id> added = {});

  IndexCounts counts() const override;
  bool contains(Id id) const override { return state()->find(id).row >= 0; }
  std::vector<Id> ids() const override;
  std::int64_t memory_bytes() const override;
  Matrix<float> centroids() const override;
  std::vector<std::int64_t> list_sizes() const override;
  std::vector<std::int64_t> lists_of(std::span<const Id> ids) const override;
  AnyMatrix reconstruct(std::span<const Id> ids) const override;
  std::vector<ShardCounts> shards() const override { return {{"1 of 1", state()->size}}; }
  std::int64_t replicas() const override { return 1; }

  void train(AnyMatrixView vectors, const TrainOptions& options) override;
  // index: makes one over the centroids of lists, where the shape has one; nullptr otherwise.
  void train(AnyMatrixView vectors, const TrainOptions& options, TrainCentroidIndex index);
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
  // Has searches use this log of audits from now on.
  void keep_audits(std::shared_ptr<AuditLog> audits);
  // The same, for who holds the lock of changes.
  void publish_audits(std::shared_ptr<AuditLog> audits);
  void save(const std::string& path, const SaveOptions& options) const override;

  std::unique_ptr<IndexBody> next() const override;
  std::unique_ptr<IndexImpl> as_one() const override;
  std::vector<std::shared_ptr<const IndexImpl>> parts() const override;
  const IndexImpl& one() const override { return *this; }
  IndexImpl& one() override { return *this; }

  bool nearest_at_once(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                       FewRowsSearch& search) const override;
  ExactNeighbors nearest(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                         KnnReport* report) const override;
  RangeNeighbors within(AnyMatrixView queries, double radius, const SearchOptions& options,
                        KnnReport* report) const override;

  ElementType element_type() const { return state()->type.value_or(ElementType::f32); }
  bool is_trained(const State& state) const {
    return (shape.transforms.empty() || state.transform) && form->is_trained(state);
  }
  // Throws InvalidArgument unless the index is trained, which `what` needs.
  void check_trained(const State& state, std::string_view what) const;
  // The index of merge(), where it is one index.
  void take_over(const IndexImpl& other, MergeIds ids);

  // As Index::add(), of rows that have ids of their own, or none: the first of which has number
  // `first` in messages.
  void append(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options,
              std::int64_t first = 0);
  // The k nearest [q x k at most] of a state that this index had, of
  // method.partial_reduce.aggregate = false the candidates; and all within a radius, in no order. k
  // was checked. The caller completes the report by set_call_of().
  ExactNeighbors nearest(const State& now, AnyMatrixView queries, std::int64_t k,
                         const SearchOptions& options, KnnReport* report) const;
  RangeLists within(const State& now, AnyMatrixView queries, double radius,
                    const SearchOptions& options, KnnReport* report) const;
  // Writes what the call knows that searched a state.
  void set_call_of(KnnReport& report, const State& now, const Stopwatch& time) const;
  // The same but for the time.
  void set_state_of(KnnReport& report, const State& now) const;

 private:
  // Counts bytes of vectors that a change went through. Once they are many, memory that changes
  // have freed goes back to the system, which allocators keep otherwise. For the writer.
  // Does not throw: changes have been published.
  void note_work(std::int64_t bytes);
  // Bytes of the vectors of all rows, whatever they are kept as. Does not throw.
  std::int64_t bytes_of_rows() const;

  std::int64_t work_ = 0;             // bytes since then
  mutable ProcessMutex state_mutex_;  // held for the time of copying a pointer
  std::shared_ptr<const State> state_;
};

// An index with the rows of a state, which can be changed and tuned by itself. Memory of rows and
// of what was learned is shared.
std::unique_ptr<IndexImpl> independent_copy(const IndexShape& shape, State state);

}  // namespace knear::detail
