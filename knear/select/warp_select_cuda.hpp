// knear/select/warp_select_cuda.hpp -- the k smallest of each row of a matrix in device memory.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace knear::cuda {

// values: [rows x cols] of a row stride in elements, in device memory. lengths: [rows] in device
// memory, each between 0 and cols, how many values of a row count; or nullptr: all of them.
//
// Writes values and places of the k smallest of each row, [rows x k] each, ascending, equal values
// by ascending place; NaN never, padded with +infinity and -1. Asynchronous on the stream.
//
// One reading of the matrix: 4 * rows * cols bytes. Rows run in parallel, a row does not: it takes
// some thousand rows to fill a large GPU.
//
// Throws InvalidArgument unless 1 <= k <= 1024, 0 <= cols <= min(stride, 2^31 - 2) and
// 0 <= rows <= 2^32; DeviceError if the launch fails.
void select_smallest(const float* values, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     const int* lengths, int k, float* smallest, int* ids, cudaStream_t stream);

}  // namespace knear::cuda
