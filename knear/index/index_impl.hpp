// knear/index/index_impl.hpp -- what an index holds: its present state, and what makes the next
// one.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/process_mutex.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/index.hpp"
#include "knear/index/index_state.hpp"
#include "knear/index/segment_store.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear {

namespace detail {
// Throws InvalidArgument unless 1 <= dim <= 65536.
void check_index_dim(std::int64_t dim);
// Throws InvalidArgument unless 1 <= lists <= most_lists.
void check_lists(std::int64_t lists);

// Throws ShapeMismatch unless there are as many ids as vectors.
void check_one_a_row(std::span<const Id> ids, AnyMatrixView vectors);
// Throws InvalidArgument for an id below 0, with its place, or one that is given twice.
void check_own_ids(std::span<const Id> ids);
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
}  // namespace detail

class Index::Impl {
 public:
  explicit Impl(const detail::IndexShape& of, detail::State from = {});
  // Another index with a state of this one, or one that was made of it: rows, lists and the graph
  // are shared, and so is the buffer to which rows are added. The older of the two is not to be
  // changed again.
  Impl(const Impl& older, detail::State from);

  const detail::IndexShape shape;
  detail::ChangeLock writer;
  detail::SegmentStore store;  // the writer's

  std::shared_ptr<const detail::State> state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }
  // added: ids of rows that are new, or have other vectors than before.
  void publish(detail::State next, std::span<const Id> added = {});
  void check_columns(std::string_view argument, AnyMatrixView vectors) const;
  bool is_trained(const detail::State& state) const {
    return (shape.lists == 0 || state.coarse) && (!shape.codes || state.coder) &&
           (shape.transforms.empty() || state.transform);
  }
  // Throws InvalidArgument unless the index is trained, which `what` needs.
  void check_trained(const detail::State& state, std::string_view what) const;

  // As Index::add(), of rows that have ids of their own, or none: the first of which has number
  // `first` in messages.
  void append(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options,
              std::int64_t first = 0);
  // As Index::search() and Index::range_search(), before anything is rounded: the k nearest
  // [q x k at most], of method.aggregate = false the candidates; and all within a radius, in no
  // order.
  ExactNeighbors nearest(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                         KnnReport* report) const {
    const auto now = state();
    return nearest(*now, queries, k, options, report);
  }
  // Of a state that this index had.
  ExactNeighbors nearest(const detail::State& now, AnyMatrixView queries, std::int64_t k,
                         const SearchOptions& options, KnnReport* report) const;
  detail::RangeLists within(AnyMatrixView queries, double radius, const SearchOptions& options,
                            KnnReport* report) const;

  // An index of a file, of a kind that is asked for, or of any.
  static std::unique_ptr<Impl> load(const std::string& path, std::string_view kind = {});

 private:
  mutable std::mutex state_mutex_;  // held for the time of copying a pointer
  std::shared_ptr<const detail::State> state_;
};

// An index of any shape, without rows and untrained; the shape is taken as it is.
class IndexOfShape : public Index {
 public:
  explicit IndexOfShape(const detail::IndexShape& shape, detail::State state = {})
      : Index(std::make_unique<Impl>(shape, std::move(state))) {}
  IndexOfShape(const Impl& older, detail::State state)
      : Index(std::make_unique<Impl>(older, std::move(state))) {}
};
const Index::Impl& impl_of(const Index& index);
Index::Impl& impl_of(Index& index);

}  // namespace knear
