// knear/select/select_k_cuda.hpp -- the k smallest or largest of each row of a matrix on a GPU.
//
//   cuda::select_k({values, rows, cols, cols}, 100, {.extreme = Extreme::largest}, best, places,
//                  stream);                                  // best, places [rows x 100]
//
// The device twin of select_k.hpp: everything is in device memory, and nothing is copied.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "knear/cuda/queue.hpp"
#include "knear/select/warp/device_rows.hpp"

namespace knear::cuda {

// Writes values and places [rows x k] of the k smallest or largest of each row, any k, best first
// or by ascending place, in the order (value, place): of equal values the one further to the left
// comes first, -0 equals +0 (values come back with the bits that they have), and NaN is never kept.
// Empty places hold +infinity, or -infinity where the largest were wanted, and -1. The same bits as
// knear::select_k, on any device; it has places of 64 bits. Answers may not overlap the rows.
//
// Asynchronous on the stream of the queue, or on `stream` of the current device: the rows must stay
// until the work is done. Memory of the device for the time of the work: 8 k bytes for each part
// where rows are cut into parts, 24 KiB for each row in parts for k > 1024, and 8 k for each block
// that sorts, two for each multiprocessor at most. Different queues and streams may be used at
// once.
//
// With a stream nothing of CUDA is made, destroyed or waited for, and the work may be captured in a
// CUDA graph, to which its memory then belongs. The first call of a process for a device makes a
// pool of memory, and CUDA loads a kernel when it is first used, so make the same call once before
// the capture. The pool stays, and keeps what calls took for the next as knear/cuda/queue.hpp says.
//
// Throws InvalidArgument unless 1 <= k < 2^31, 0 <= cols <= min(stride, 2^31 - 2) and
// 0 <= rows <= 2^32; MemoryBudgetError; DeviceError if a launch fails.
void select_k(Queue& queue, const DeviceRows& rows, std::int64_t k,
              const DeviceSelectOptions& options, float* values, int* places);
void select_k(Queue& queue, const DeviceRows& rows, std::int64_t k,
              const DeviceSelectOptions& options, float* values, std::int64_t* places);
void select_k(const DeviceRows& rows, std::int64_t k, const DeviceSelectOptions& options,
              float* values, int* places, cudaStream_t stream);

}  // namespace knear::cuda
