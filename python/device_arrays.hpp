// python/device_arrays.hpp -- arrays in the memory of a GPU, for the bindings: the search of two,
// and memory for its answers. Built without CUDA all of it throws DeviceUnavailable.
#pragma once
#include <cstdint>
#include <memory>

#include "knear/knn/knn_cuda.hpp"

namespace knear::python {

// Whether this knear was built with CUDA.
bool has_cuda();

// The number of the device whose memory it is, -1 where it is the processor's.
int device_at(const void* address);

// Waits for the work that a stream of a device was given: 1 is the legacy default stream, 2 the
// default stream of the thread, anything else a cudaStream_t.
void wait_for_stream(int device, std::uintptr_t stream);

// Memory of a GPU, given back when nobody has it any more.
using DeviceMemory = std::shared_ptr<void>;

// The k nearest in memory of the device: distances [q x k] f32, ids [q x k] i64.
struct DeviceNeighbors {
  DeviceMemory distances, ids;
};

// cuda::knn on the device of that number, after the work of the legacy default stream; done when it
// returns. Throws MemoryBudgetError where the device has no room for the answers.
DeviceNeighbors knn_on_device(const cuda::MatrixView& queries, const cuda::MatrixView& base,
                              std::int64_t k, int device, const KnnOptions& options,
                              KnnReport* report);

}  // namespace knear::python
