#include "knear/index/index_of_shape.hpp"

namespace knear {
namespace {

struct Opened : Index {
  using Index::impl;
};

}  // namespace

const Index::Impl& impl_of(const Index& index) { return (index.*(&Opened::impl))(); }
Index::Impl& impl_of(Index& index) { return (index.*(&Opened::impl))(); }

}  // namespace knear
