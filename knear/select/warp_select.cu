// WarpSelect over the rows of a resident matrix: one warp per row (contract in
// warp_select_cuda.hpp, algorithm in warp_select.hpp).
#include <limits>

#include "knear/cuda/check.hpp"
#include "knear/select/warp_select.hpp"
#include "knear/select/warp_select_cuda.hpp"
#include "knear/select/warp_select_layout.hpp"
#include "knear/simt/cuda_warp.cuh"

namespace knear::cuda {
namespace {

constexpr int threads_per_block = detail::select_warps_per_block * warp_size;

// Blocks that must fit a multiprocessor at once, from which the compiler takes its register limit
// (2^16 / (128 * blocks)): 64 and 170. The four shapes take 33, 46, 56 and 168 registers on sm_90a
// and 32, 40, 52 and 168 on sm_80, without spills (-Xptxas -v of nvcc 13.0). Not tuned on a GPU
// yet.
constexpr int resident_blocks(int R) { return R <= 8 ? 8 : 3; }

// values [rows x cols] of stride `stride`; smallest, ids [rows x k]. One warp per row.
template <int R, int T>
__global__ void __launch_bounds__(threads_per_block, resident_blocks(R))
    select_rows(const float* __restrict__ values, std::int64_t rows, int cols, std::int64_t stride,
                const int* __restrict__ lengths, int k, float* __restrict__ smallest,
                int* __restrict__ ids) {
  const std::int64_t row = detail::select_row(blockIdx.x, threadIdx.x);
  if (row >= rows) return;  // a whole warp at a time
  WarpSelect<CudaWarp, int, R, T> select(CudaWarp(), k);
  select.add_row(values + row * stride, lengths ? lengths[row] : cols);
  select.store(smallest + row * k, ids + row * k);
}

}  // namespace

void select_smallest(const float* values, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     const int* lengths, int k, float* smallest, int* ids, cudaStream_t stream) {
  if (k < 1 || k > warp_select_max_k) throw_invalid("k", "between 1 and 1024", k);
  if (cols < 0 || cols >= std::numeric_limits<int>::max())
    throw_invalid("cols", "between 0 and 2^31 - 2", cols);
  if (stride < cols) throw_invalid("stride", "at least cols", stride);
  if (rows < 0 || rows > std::int64_t{1} << 32) throw_invalid("rows", "between 0 and 2^32", rows);
  if (rows == 0) return;
  with_warp_select_shape(k, [&](auto shape) {
    select_rows<shape.R, shape.T>
        <<<unsigned(detail::select_blocks(rows)), threads_per_block, 0, stream>>>(
            values, rows, int(cols), stride, lengths, k, smallest, ids);
  });
  KNEAR_CHECK(cudaGetLastError());
}

}  // namespace knear::cuda
