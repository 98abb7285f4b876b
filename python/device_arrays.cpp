#include "python/device_arrays.hpp"

#include "knear/core/error.hpp"

#ifdef KNEAR_CUDA

#include <algorithm>

#include "knear/cuda/check.hpp"
#include "knear/cuda/device.hpp"
#include "knear/cuda/queue.hpp"

namespace knear::python {
namespace {

// Not of a pool: the array that it becomes belongs to Python, and is freed from any thread.
// cudaFree waits for the device, so work on other streams that reads the array is done by then.
DeviceMemory allocate(int device, std::int64_t rows, std::int64_t k, std::size_t size) {
  const cuda::CurrentDevice current(device);
  // Both fit: 2^30 rows and k below 2^31 (cuda::knn refuses more), elements of 8 bytes.
  const std::size_t bytes = static_cast<std::size_t>(rows) * static_cast<std::size_t>(k) * size;
  void* out = nullptr;
  const cudaError_t status = cudaMalloc(&out, std::max<std::size_t>(bytes, 1));
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw MemoryBudgetError("device {} has no {} bytes left for the answers of {} queries, k = {}",
                            device, bytes, rows, k);
  }
  cuda::check(status, "cudaMalloc");
  return DeviceMemory(out, [](void* data) { (void)cudaFree(data); });
}

}  // namespace

bool has_cuda() { return true; }

int device_at(const void* address) {
  if (cuda::device_count() == 0)
    throw DeviceUnavailable("no GPU is usable: {}", cuda::why_no_device());
  cudaPointerAttributes found = {};
  KNEAR_CHECK(cudaPointerGetAttributes(&found, address));
  const bool there = found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged;
  return there ? found.device : -1;
}

void wait_for_stream(int device, std::uintptr_t stream) {
  const cuda::CurrentDevice current(device);  // each device has default streams of its own
  KNEAR_CHECK(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream)));
}

DeviceNeighbors knn_on_device(const cuda::MatrixView& queries, const cuda::MatrixView& base,
                              std::int64_t k, int device, const KnnOptions& options,
                              KnnReport* report) {
  (void)cuda::device_info(device);            // throws where it is not there
  const cuda::CurrentDevice current(device);  // cuda::knn goes by it where the base has no rows
  DeviceNeighbors out;
  // What cuda::knn refuses gets no memory first.
  if (k >= 1 && k < std::int64_t{1} << 31 && queries.rows <= std::int64_t{1} << 30) {
    out.distances = allocate(device, queries.rows, k, sizeof(float));
    out.ids = allocate(device, queries.rows, k, sizeof(Id));
  }
  cuda::knn(queries, base, k, static_cast<Id*>(out.ids.get()),
            static_cast<float*>(out.distances.get()), nullptr, options, report);
  return out;
}

}  // namespace knear::python

#else

namespace knear::python {
namespace {

[[noreturn]] void refuse() { throw DeviceUnavailable("this knear was built without CUDA"); }

}  // namespace

bool has_cuda() { return false; }
int device_at(const void*) { refuse(); }
void wait_for_stream(int, std::uintptr_t) { refuse(); }
DeviceNeighbors knn_on_device(const cuda::MatrixView&, const cuda::MatrixView&, std::int64_t, int,
                              const KnnOptions&, KnnReport*) {
  refuse();
}

}  // namespace knear::python

#endif
