// select_rows() on cuda::Queue: the kernels of device_select.hpp, compiled once, here.
//
// Registers per thread, by -Xptxas -v of nvcc 13.0 for sm_90a (sm_80): SelectByWarp 40, 55, 63, 168
// for its four shapes (40, 48, 62, 168), SelectByThreshold 61 (64), RadixSelect 62 (64), RadixCount
// 37, RadixCountKept 40 (39), RadixGather 63 (64), SortRows 64. Only the largest shape of
// SelectByWarp spills, 8 bytes (12).
#include "knear/select/warp/device_select.hpp"

#include "knear/cuda/check.hpp"
#include "knear/cuda/launch.cuh"
#include "knear/select/select_k_cuda.hpp"
#include "knear/simt/cuda_thread.cuh"

namespace knear::cuda {

namespace {

template <class Place>
void checked_select(Queue& queue, const DeviceRows& rows, std::int64_t k,
                    const DeviceSelectOptions& options, float* values, Place* places) {
  const auto bad = knear::detail::bad_argument(rows, k);
  if (bad.name) throw_invalid(bad.name, bad.must, bad.value);
  select_rows(queue, rows, k, options, values, places);
}

}  // namespace

void select_k(Queue& queue, const DeviceRows& rows, std::int64_t k,
              const DeviceSelectOptions& options, float* values, int* places) {
  checked_select(queue, rows, k, options, values, places);
}

void select_k(Queue& queue, const DeviceRows& rows, std::int64_t k,
              const DeviceSelectOptions& options, float* values, std::int64_t* places) {
  checked_select(queue, rows, k, options, values, places);
}

void select_k(const DeviceRows& rows, std::int64_t k, const DeviceSelectOptions& options,
              float* values, int* places, cudaStream_t stream) {
  int device = 0;
  KNEAR_CHECK(cudaGetDevice(&device));
  Queue queue = Queue::for_call(device, stream);
  select_k(queue, rows, k, options, values, places);
}

}  // namespace knear::cuda

// For those who enqueue a selection among work of their own.
namespace knear {
KNEAR_DEVICE_SELECT(template, cuda::Queue)
}
