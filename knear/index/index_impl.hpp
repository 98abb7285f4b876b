// knear/index/index_impl.hpp -- what an index holds: its present state, and what makes the next
// one.
#pragma once
#include <memory>
#include <mutex>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/index.hpp"
#include "knear/index/index_state.hpp"
#include "knear/index/segment_store.hpp"

namespace knear {

namespace detail {
// Throws InvalidArgument unless 1 <= dim <= 65536.
void check_index_dim(std::int64_t dim);
// Throws InvalidArgument unless 1 <= lists <= most_lists.
void check_lists(std::int64_t lists);
}  // namespace detail

class Index::Impl {
 public:
  explicit Impl(const detail::IndexShape& of, detail::State from = {});

  const detail::IndexShape shape;
  std::mutex writer;           // held by a change from begin to end
  detail::SegmentStore store;  // the writer's

  std::shared_ptr<const detail::State> state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }
  void publish(detail::State next);
  void check_columns(std::string_view argument, AnyMatrixView vectors) const;
  bool is_trained(const detail::State& state) const {
    return (shape.lists == 0 || state.coarse) && (!shape.codes || state.coder) &&
           (shape.transforms.empty() || state.transform);
  }
  // Throws InvalidArgument unless the index is trained, which `what` needs.
  void check_trained(const detail::State& state, std::string_view what) const;

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
};
const Index::Impl& impl_of(const Index& index);

}  // namespace knear
