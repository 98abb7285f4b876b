// knear/index/index_of_shape.hpp -- indexes by their insides: one made of any shape and state, and
// what one holds.
#pragma once
#include <memory>
#include <utility>

#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"

namespace knear {

// An index of any shape, without rows and untrained; the shape is taken as it is.
class IndexOfShape : public Index {
 public:
  explicit IndexOfShape(const detail::IndexShape& shape, detail::State state = {})
      : Index(std::make_unique<Impl>(shape, std::move(state))) {}
  IndexOfShape(const Impl& older, detail::State state)
      : Index(std::make_unique<Impl>(older, std::move(state))) {}
  explicit IndexOfShape(std::unique_ptr<Impl> impl) : Index(std::move(impl)) {}
};
const Index::Impl& impl_of(const Index& index);
Index::Impl& impl_of(Index& index);

}  // namespace knear
