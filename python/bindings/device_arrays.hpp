// python/bindings/device_arrays.hpp -- arrays in the memory of a GPU, for the bindings: searches of
// them there, memory for the answers, and copies from and to the processor. Without CUDA all
// functions throw DeviceUnavailable.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "knear/index/index_cuda.hpp"
#include "knear/knn/knn_cuda.hpp"
#include "knear/select/warp/device_rows.hpp"

namespace knear::python {

// Returns true if this knear was built with CUDA.
bool has_cuda();

// The number of the device that the memory belongs to, -1 for the processor's memory.
int device_at(const void* address);

// Waits for the work enqueued on a stream of a device: 1 is the legacy default stream, 2 the
// default stream of the thread, anything else a cudaStream_t.
void wait_for_stream(int device, std::uintptr_t stream);

// Copies rows of `width` bytes, each `pitch` bytes after the last, from the memory of a device to
// the processor's, where they are contiguous. Runs after the work of the legacy default stream;
// complete when it returns. Throws InvalidArgument for memory that is not the device's.
void copy_from_device(int device, const void* from, std::int64_t rows, std::int64_t width,
                      std::int64_t pitch, void* to);

// Memory of a GPU, freed when nothing refers to it any more.
using DeviceMemory = std::shared_ptr<void>;

// A copy of `count` values of `size` bytes in new memory of the device. Throws MemoryBudgetError
// where it has no room.
DeviceMemory copy_to_device(int device, const void* from, std::int64_t count, std::int64_t size);

// The k nearest, in memory of the device: distances [q x k] f32, ids [q x k] i64.
struct DeviceNeighbors {
  DeviceMemory distances, ids;
};

// cuda::knn on the device of that number, after the work of the legacy default stream; complete
// when it returns. Throws MemoryBudgetError where the device has no room for the answers.
DeviceNeighbors knn_on_device(const cuda::MatrixView& queries, const cuda::MatrixView& base,
                              std::int64_t k, int device, const KnnOptions& options,
                              KnnReport* report);

// cuda::search of an index likewise.
DeviceNeighbors search_on_device(const Index& index, const cuda::MatrixView& queries,
                                 std::int64_t k, int device, const SearchOptions& options,
                                 KnnReport* report);

// cuda::self_join likewise: distances and ids [n x k].
DeviceNeighbors self_join_on_device(const cuda::MatrixView& base, std::int64_t k, int device,
                                    const KnnOptions& options, KnnReport* report);

// cuda::range_search likewise; its results are in the processor's memory.
RangeNeighbors range_search_on_device(const cuda::MatrixView& queries, const cuda::MatrixView& base,
                                      double radius, int device, const KnnOptions& options,
                                      KnnReport* report);

// The selection of each row, in memory of the device: values [n x k] f32, places [n x k] i64.
struct DeviceSelection {
  DeviceMemory values, places;
};

// cuda::select_k on the device of that number, likewise. It ignores rows.lengths: `lengths` [n], or
// none, are in the processor's memory, are checked as select_k does, and are copied to the device.
DeviceSelection select_on_device(DeviceRows rows, std::span<const std::int64_t> lengths,
                                 std::int64_t k, const DeviceSelectOptions& options, int device);

}  // namespace knear::python
