// knear/select/warp/widen_places.hpp -- a kernel that makes places of 64 bits from places of 32.
//
// Kernels that select keep places of 32 bits, which is half the memory to sort; knear::select_k
// answers with ids.
#pragma once
#include <cstdint>

#include "knear/simt/thread.hpp"

namespace knear::detail {

// to [count]: the same numbers, -1 for empty places.
template <class Thread>
struct WidenPlaces {
  static constexpr int threads = 256, resident_blocks = 8;
  std::int64_t count;
  const int* from;
  std::int64_t* to;

  KNEAR_KERNEL void operator()(Thread t) const {
    for (std::int64_t i = t.block() * threads + t.index(); i < count; i += t.blocks() * threads)
      to[i] = from[i];
  }
};

}  // namespace knear::detail
