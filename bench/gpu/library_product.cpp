#include "bench/gpu/library_product.hpp"

#include <fmt/format.h>

#include "knear/cuda/device_error.hpp"

namespace knear::bench {

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw cuda::DeviceError(fmt::format("{}: {}", call, CublasLt::get().status_string(status)));
}

LibraryProduct::Layout LibraryProduct::column_major(cudaDataType_t type, std::int64_t rows,
                                                    std::int64_t cols, std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  KNEAR_CHECK_BLAS(CublasLt::get().layout_create(&layout, type, std::uint64_t(rows),
                                                 std::uint64_t(cols), stride));
  return Layout(layout);
}

LibraryProduct::LibraryProduct(const ProductLibrary& library, ProductType type, std::int64_t m,
                               std::int64_t n, std::int64_t depth, std::int64_t stride,
                               std::size_t workspace_bytes)
    : library_(library.get()),
      integer_(type == ProductType::i8),
      workspace_bytes_(workspace_bytes) {
  const cudaDataType_t input = type == ProductType::f32    ? CUDA_R_32F
                               : type == ProductType::bf16 ? CUDA_R_16BF
                                                           : CUDA_R_8I;
  const cudaDataType_t output = integer_ ? CUDA_R_32I : CUDA_R_32F;
  cublasLtMatmulDesc_t product = nullptr;
  KNEAR_CHECK_BLAS(CublasLt::get().product_create(
      &product, integer_ ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F, output));
  product_.reset(product);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  KNEAR_CHECK_BLAS(CublasLt::get().product_set(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                               sizeof transpose));
  a_ = column_major(input, depth, m, depth);
  b_ = column_major(input, depth, n, depth);
  c_ = column_major(output, m, n, stride);

  cublasLtMatmulPreference_t raw = nullptr;
  KNEAR_CHECK_BLAS(CublasLt::get().preference_create(&raw));
  const BlasHandle<cublasLtMatmulPreference_t, &CublasLt::preference_destroy> preference(raw);
  const std::uint64_t limit = workspace_bytes;
  KNEAR_CHECK_BLAS(CublasLt::get().preference_set(raw, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &limit, sizeof limit));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t searched = CublasLt::get().algorithms(
      library_, product, a_.get(), b_.get(), c_.get(), c_.get(), raw, 1, &found, &count);
  if (searched != CUBLAS_STATUS_SUCCESS || count == 0)
    why_not_ = fmt::format("cuBLASLt has no algorithm for it here ({})",
                           CublasLt::get().status_string(searched));
  else
    algorithm_ = found.algo;
}

void LibraryProduct::run(const void* a, const void* b, void* c, void* workspace,
                         cudaStream_t stream) const {
  const float one = 1, zero = 0;
  const std::int32_t int_one = 1, int_zero = 0;
  const void* alpha = integer_ ? static_cast<const void*>(&int_one) : &one;
  const void* beta = integer_ ? static_cast<const void*>(&int_zero) : &zero;
  KNEAR_CHECK_BLAS(CublasLt::get().multiply(library_, product_.get(), alpha, a, a_.get(), b,
                                            b_.get(), beta, c, c_.get(), c, c_.get(), &algorithm_,
                                            workspace, workspace_bytes_, stream));
}

}  // namespace knear::bench
