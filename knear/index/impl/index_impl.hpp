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

// The calls are those of Index (index/index.hpp), which says what they do. train() is given the
// function that makes an index over the centroids of lists, since that is an index itself.
class IndexImpl {
 public:
  explicit IndexImpl(const IndexShape& of, State from = {});
  // Another index with a state of this one, or one that was made of it: rows, lists and the graph
  // are shared, and so is the buffer to which rows are added. The older of the two is not to be
  // changed again.
  IndexImpl(const IndexImpl& older, State from);

  const IndexShape shape;
  const std::unique_ptr<const Form> form;
  ChangeLock writer;
  const std::unique_ptr<SegmentStore> store;  // the writer's

  std::shared_ptr<const State> state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }
  // added: ids of rows that are new, or have other vectors than before.
  void publish(State next, std::span<const Id> added = {});

  std::vector<Id> ids() const;
  ElementType element_type() const { return state()->type.value_or(ElementType::f32); }
  std::int64_t memory_bytes() const;
  Matrix<float> centroids() const;
  std::vector<std::int64_t> list_sizes() const;
  std::vector<std::int64_t> lists_of(std::span<const Id> ids) const;
  AnyMatrix reconstruct(std::span<const Id> ids) const;

  void train(AnyMatrixView vectors, const TrainOptions& options,
             TrainCentroidIndex index = nullptr);
  void add(AnyMatrixView vectors, const ChangeOptions& options);
  void add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options);
  void reserve(std::int64_t rows);
  void remove(std::span<const Id> ids, const ChangeOptions& options);
  void replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options);
  void merge(const IndexImpl& other, MergeIds ids);
  void compact(const ChangeOptions& options);
  std::int64_t optimize(const ChangeOptions& options);
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries,
                                   const ChangeOptions& options);
  std::vector<OperatingPoint> tune(std::int64_t k, AnyMatrixView queries, AnyMatrixView base,
                                   std::span<const Id> ids, const ChangeOptions& options);

  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                   KnnReport* report) const;
  RangeNeighbors range_search(AnyMatrixView queries, double radius, const SearchOptions& options,
                              KnnReport* report) const;

  void check_columns(std::string_view argument, AnyMatrixView vectors) const;
  bool is_trained(const State& state) const {
    return (shape.transforms.empty() || state.transform) && form->is_trained(state);
  }
  // Throws InvalidArgument for f64 rows whose codes or transformed vectors, which are float32,
  // would be the same (core/far_rows.hpp). Not for rows of a log, which the index took before.
  void check_not_too_far(AnyMatrixView vectors) const;
  // Throws InvalidArgument unless the index is trained, which `what` needs.
  void check_trained(const State& state, std::string_view what) const;

  // As Index::add() of rows with ids, which may also be above last_given_id: those of a log may
  // have been given out to rows without ids.
  void add_with_any_ids(AnyMatrixView vectors, std::span<const Id> ids,
                        const ChangeOptions& options);
  // As Index::add(), of rows that have ids of their own, or none: the first of which has number
  // `first` in messages.
  void append(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options,
              std::int64_t first = 0);
  // As Index::search() and Index::range_search(), before anything is rounded: the k nearest
  // [q x k at most], of method.partial_reduce.aggregate = false the candidates; and all within a
  // radius, in no order. k was checked. The caller completes the report by set_call_of().
  ExactNeighbors nearest(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                         KnnReport* report) const {
    const auto now = state();
    return nearest(*now, queries, k, options, report);
  }
  // Of a state that this index had.
  ExactNeighbors nearest(const State& now, AnyMatrixView queries, std::int64_t k,
                         const SearchOptions& options, KnnReport* report) const;
  RangeLists within(AnyMatrixView queries, double radius, const SearchOptions& options,
                    KnnReport* report) const {
    const auto now = state();
    return within(*now, queries, radius, options, report);
  }
  RangeLists within(const State& now, AnyMatrixView queries, double radius,
                    const SearchOptions& options, KnnReport* report) const;
  // Writes what the call knows that searched a state.
  void set_call_of(KnnReport& report, const State& now, const Stopwatch& time) const;

 private:
  mutable ProcessMutex state_mutex_;  // held for the time of copying a pointer
  std::shared_ptr<const State> state_;
};

}  // namespace knear::detail
