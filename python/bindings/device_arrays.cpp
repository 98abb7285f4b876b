#include "python/bindings/device_arrays.hpp"

#include "knear/core/error.hpp"

#ifdef KNEAR_CUDA

#include <algorithm>
#include <vector>

#include "knear/cuda/check.hpp"
#include "knear/cuda/device.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/select/select_k.hpp"
#include "knear/select/select_k_cuda.hpp"

namespace knear::python {
namespace {

// Not from a pool: the array that it becomes belongs to Python, and any thread may free it.
// cudaFree waits for the device, so work on other streams that reads the array is done by then.
DeviceMemory allocate(int device, std::int64_t count, std::int64_t size) {
  const cuda::CurrentDevice current(device);
  std::size_t bytes = 0;
  void* out = nullptr;
  cudaError_t status = cudaErrorMemoryAllocation;
  if (!__builtin_mul_overflow(count, size, &bytes)) {
    bytes = std::max<std::size_t>(bytes, 1);
    status = cudaMalloc(&out, bytes);
    // Searches may keep what is missing.
    if (status == cudaErrorMemoryAllocation && cuda::give_back_memory(device)) {
      (void)cudaGetLastError();
      status = cudaMalloc(&out, bytes);
    }
  }
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw MemoryBudgetError("device {} has no memory left for an answer of {} values of {} bytes",
                            device, count, size);
  }
  cuda::check(status, "cudaMalloc");
  return DeviceMemory(out, [](void* data) { (void)cudaFree(data); });
}

void check_memory(const void* data, int device) {
  if (const int found = device_at(data); found != device)
    throw InvalidArgument("an array says that it is in the memory of cuda:{}, but {} is {}", device,
                          data, found < 0 ? "not" : "in that of another GPU");
}

// Memory for distances and ids [rows x k]. None where cuda::knn will refuse the shape.
DeviceNeighbors room_for(std::int64_t rows, std::int64_t k, int device) {
  DeviceNeighbors out;
  if (k < 1 || k >= std::int64_t{1} << 31 || rows > std::int64_t{1} << 30) return out;
  out.distances = allocate(device, rows * k, sizeof(float));
  out.ids = allocate(device, rows * k, sizeof(Id));
  return out;
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
  const cuda::CurrentDevice current(device);  // each device has its own default streams
  KNEAR_CHECK(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(stream)));
}

void copy_from_device(int device, const void* from, std::int64_t rows, std::int64_t width,
                      std::int64_t pitch, void* to) {
  (void)cuda::device_info(device);  // throws if there is no such device
  if (rows == 0 || width == 0) return;
  check_memory(from, device);
  const cuda::CurrentDevice current(device);
  const std::size_t bytes = width;
  if (rows == 1)
    KNEAR_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, nullptr));
  else
    KNEAR_CHECK(
        cudaMemcpy2DAsync(to, bytes, from, pitch, bytes, rows, cudaMemcpyDeviceToHost, nullptr));
  KNEAR_CHECK(cudaStreamSynchronize(nullptr));
}

DeviceMemory copy_to_device(int device, const void* from, std::int64_t count, std::int64_t size) {
  (void)cuda::device_info(device);
  DeviceMemory out = allocate(device, count, size);
  const cuda::CurrentDevice current(device);
  if (count > 0)
    KNEAR_CHECK(cudaMemcpyAsync(out.get(), from, count * size, cudaMemcpyHostToDevice, nullptr));
  KNEAR_CHECK(cudaStreamSynchronize(nullptr));
  return out;
}

DeviceNeighbors knn_on_device(const cuda::MatrixView& queries, const cuda::MatrixView& base,
                              std::int64_t k, int device, const KnnOptions& options,
                              KnnReport* report) {
  (void)cuda::device_info(device);
  const cuda::CurrentDevice current(device);  // cuda::knn uses it where the base has no rows
  DeviceNeighbors out = room_for(queries.rows, k, device);
  cuda::knn(queries, base, k, static_cast<Id*>(out.ids.get()),
            static_cast<float*>(out.distances.get()), nullptr, options, report);
  return out;
}

DeviceNeighbors search_on_device(const Index& index, const cuda::MatrixView& queries,
                                 std::int64_t k, int device, const SearchOptions& options,
                                 KnnReport* report) {
  (void)cuda::device_info(device);
  const cuda::CurrentDevice current(device);  // cuda::search uses it where there are no queries
  DeviceNeighbors out = room_for(queries.rows, k, device);
  cuda::search(index, queries, k, static_cast<Id*>(out.ids.get()),
               static_cast<float*>(out.distances.get()), nullptr, options, report);
  return out;
}

DeviceNeighbors self_join_on_device(const cuda::MatrixView& base, std::int64_t k, int device,
                                    const KnnOptions& options, KnnReport* report) {
  (void)cuda::device_info(device);
  const cuda::CurrentDevice current(device);
  DeviceNeighbors out = room_for(base.rows, k, device);
  cuda::self_join(base, k, static_cast<Id*>(out.ids.get()),
                  static_cast<float*>(out.distances.get()), nullptr, options, report);
  return out;
}

RangeNeighbors range_search_on_device(const cuda::MatrixView& queries, const cuda::MatrixView& base,
                                      double radius, int device, const KnnOptions& options,
                                      KnnReport* report) {
  (void)cuda::device_info(device);
  const cuda::CurrentDevice current(device);
  return cuda::range_search(queries, base, radius, nullptr, options, report);
}

DeviceSelection select_on_device(DeviceRows rows, std::span<const std::int64_t> lengths,
                                 std::int64_t k, const DeviceSelectOptions& options, int device) {
  (void)cuda::device_info(device);
  knear::detail::check_lengths(lengths, rows.rows, rows.cols);
  if (rows.rows > 0 && rows.cols > 0) check_memory(rows.values, device);
  DeviceSelection out;
  // Arguments that cuda::select_k refuses get no memory first.
  const bool refused = knear::detail::bad_argument(rows, k).name != nullptr;
  if (!refused) {
    out.values = allocate(device, rows.rows * k, sizeof(float));
    out.places = allocate(device, rows.rows * k, sizeof(Id));
  }
  const std::vector<int> narrow(lengths.begin(), refused ? lengths.begin() : lengths.end());
  cuda::Queue queue = cuda::Queue::for_call(device, nullptr);
  const knear::detail::StreamSyncGuard waits_at_exit{queue};
  auto there = queue.allocate<int>(narrow.size());
  queue.upload(there.data(), narrow.data(), narrow.size());
  rows.lengths = narrow.empty() ? nullptr : there.data();
  cuda::select_k(queue, rows, k, options, static_cast<float*>(out.values.get()),
                 static_cast<Id*>(out.places.get()));
  queue.wait();
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
void copy_from_device(int, const void*, std::int64_t, std::int64_t, std::int64_t, void*) {
  refuse();
}
DeviceMemory copy_to_device(int, const void*, std::int64_t, std::int64_t) { refuse(); }
DeviceNeighbors knn_on_device(const cuda::MatrixView&, const cuda::MatrixView&, std::int64_t, int,
                              const KnnOptions&, KnnReport*) {
  refuse();
}
DeviceNeighbors search_on_device(const Index&, const cuda::MatrixView&, std::int64_t, int,
                                 const SearchOptions&, KnnReport*) {
  refuse();
}
DeviceNeighbors self_join_on_device(const cuda::MatrixView&, std::int64_t, int, const KnnOptions&,
                                    KnnReport*) {
  refuse();
}
RangeNeighbors range_search_on_device(const cuda::MatrixView&, const cuda::MatrixView&, double, int,
                                      const KnnOptions&, KnnReport*) {
  refuse();
}
DeviceSelection select_on_device(DeviceRows, std::span<const std::int64_t>, std::int64_t,
                                 const DeviceSelectOptions&, int) {
  refuse();
}

}  // namespace knear::python

#endif
