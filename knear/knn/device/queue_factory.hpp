// knear/knn/device/queue_factory.hpp -- the queue of a search on a GPU, made where it is needed: a
// search of rows that stayed on the device goes by theirs. Built with KNEAR_CUDA only.
#pragma once
#include <algorithm>

#include "knear/cuda/queue.hpp"
#include "knear/knn/device/device_search.hpp"

namespace knear::detail {

// options.memory bounds what the queue takes of the device; 0: nothing does.
inline auto queue_factory(const Device& device, const KnnOptions& options) {
  return [index = device.index, memory = options.memory] {
    return cuda::Queue(index, static_cast<std::size_t>(std::max<std::int64_t>(0, memory)));
  };
}

}  // namespace knear::detail
