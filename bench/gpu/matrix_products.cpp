#include "bench/gpu/matrix_products.hpp"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "bench/gpu/kernels.hpp"
#include "knear/cuda/buffer.hpp"
#include "knear/cuda/device_error.hpp"

namespace knear::bench {
namespace {

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw cuda::DeviceError(fmt::format("{}: {}", call, cublasLtGetStatusString(status)));
}
#define CHECK_BLAS(call) check_blas((call), #call)

template <class T, cublasStatus_t (*destroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T handle) const { destroy(handle); }
};
template <class T, cublasStatus_t (*destroy)(T)>
using Handle = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, destroy>>;

using Layout = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

Layout column_major(cudaDataType_t type, int rows, int cols) {
  cublasLtMatrixLayout_t layout = nullptr;
  CHECK_BLAS(
      cublasLtMatrixLayoutCreate(&layout, type, std::uint64_t(rows), std::uint64_t(cols), rows));
  return Layout(layout);
}

struct Kind {
  const char* name;
  const char* unit;
  cudaDataType_t input, output, scale;
  cublasComputeType_t compute;
  Random random;
  int input_bytes;
};

constexpr Kind kinds[] = {{"fp32 product", "Tflop/s", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F,
                           CUBLAS_COMPUTE_32F, Random::signed_f32, 4},
                          {"bf16 product", "Tflop/s", CUDA_R_16BF, CUDA_R_32F, CUDA_R_32F,
                           CUBLAS_COMPUTE_32F, Random::signed_bf16, 2},
                          {"int8 product", "Top/s", CUDA_R_8I, CUDA_R_32I, CUDA_R_32I,
                           CUBLAS_COMPUTE_32I, Random::any_i8, 1}};

double element(const Kind& kind, const std::byte* from) {
  if (kind.random == Random::any_i8) return double(static_cast<signed char>(*from));
  std::uint32_t bits = 0;
  std::memcpy(kind.input_bytes == 2 ? reinterpret_cast<std::byte*>(&bits) + 2
                                    : reinterpret_cast<std::byte*>(&bits),
              from, std::size_t(kind.input_bytes));
  float value;
  std::memcpy(&value, &bits, 4);
  return double(value);
}

// A few places of C [n x n] against sums in double. fp32 sums of n products of at most 1: each of
// the n additions errs by at most 2^-24 of a partial sum of at most n. Exact for int8.
void check_product(const Kind& kind, int n, const std::byte* a, const std::byte* b, const float* c,
                   const cuda::Stream& stream, Report& report) {
  const std::size_t column = std::size_t(n) * kind.input_bytes;
  std::vector<std::byte> x(column), y(column);
  for (int sample = 0; sample < 8; ++sample) {
    const std::size_t row = std::size_t(n - 1) * sample / 7, col = std::size_t(n / 2 + 13 * sample);
    float got_bits;
    KNEAR_CHECK(
        cudaMemcpyAsync(x.data(), a + row * column, column, cudaMemcpyDeviceToHost, stream.get()));
    KNEAR_CHECK(
        cudaMemcpyAsync(y.data(), b + col * column, column, cudaMemcpyDeviceToHost, stream.get()));
    KNEAR_CHECK(
        cudaMemcpyAsync(&got_bits, c + col * n + row, 4, cudaMemcpyDeviceToHost, stream.get()));
    stream.synchronize();
    double wanted = 0, magnitude = 0;
    for (int i = 0; i < n; ++i) {
      const double product = element(kind, &x[std::size_t(i) * kind.input_bytes]) *
                             element(kind, &y[std::size_t(i) * kind.input_bytes]);
      wanted += product;
      magnitude += std::fabs(product);
    }
    double got = got_bits, tolerance = magnitude * n * 0x1p-24;
    if (kind.random == Random::any_i8) {
      std::int32_t integer;
      std::memcpy(&integer, &got_bits, 4);
      got = integer;
      tolerance = 0;
    }
    ++report.tests;
    if (!(std::fabs(got - wanted) <= tolerance))
      report.failures.push_back(fmt::format("{} at ({}, {}): {} instead of {} (tolerance {})",
                                            kind.name, row, col, got, wanted, tolerance));
  }
}

void bench_product(const Kind& kind, int n, cublasLtHandle_t handle, const cuda::Stream& stream,
                   double budget, Report& report) {
  const std::size_t count = std::size_t(n) * std::size_t(n), bytes = count * kind.input_bytes;
  cuda::Buffer<std::byte> a(bytes), b(bytes), workspace(std::size_t{64} << 20);
  cuda::Buffer<float> c(count);  // or int32: four bytes either way
  fill_random(a.data(), std::int64_t(count), kind.random, 11, stream.get());
  fill_random(b.data(), std::int64_t(count), kind.random, 12, stream.get());
  c.fill_bytes(0xff, stream);

  cublasLtMatmulDesc_t raw = nullptr;
  CHECK_BLAS(cublasLtMatmulDescCreate(&raw, kind.compute, kind.scale));
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product(raw);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  CHECK_BLAS(cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                            sizeof transpose));
  const Layout in = column_major(kind.input, n, n), out = column_major(kind.output, n, n);
  cublasLtMatmulPreference_t raw_preference = nullptr;
  CHECK_BLAS(cublasLtMatmulPreferenceCreate(&raw_preference));
  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(raw_preference);
  const std::uint64_t limit = workspace.size();
  CHECK_BLAS(cublasLtMatmulPreferenceSetAttribute(
      raw_preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
  cublasLtMatmulHeuristicResult_t found{};
  int count_found = 0;
  const cublasStatus_t searched =
      cublasLtMatmulAlgoGetHeuristic(handle, raw, in.get(), in.get(), out.get(), out.get(),
                                     raw_preference, 1, &found, &count_found);
  if (searched != CUBLAS_STATUS_SUCCESS || count_found == 0) {
    report.skipped.push_back(fmt::format("{}: cuBLASLt has no algorithm for it here ({})",
                                         kind.name, cublasLtGetStatusString(searched)));
    return;
  }
  const float one = 1, zero = 0;
  const std::int32_t int_one = 1, int_zero = 0;
  const bool integer = kind.scale == CUDA_R_32I;
  const void* alpha = integer ? static_cast<const void*>(&int_one) : &one;
  const void* beta = integer ? static_cast<const void*>(&int_zero) : &zero;
  const Timing timing = time_runs(stream, budget, [&](int) {
    CHECK_BLAS(cublasLtMatmul(handle, raw, alpha, a.data(), in.get(), b.data(), in.get(), beta,
                              c.data(), out.get(), c.data(), out.get(), &found.algo,
                              workspace.data(), workspace.size(), stream.get()));
  });
  check_product(kind, n, a.data(), b.data(), c.data(), stream, report);
  report.entries.push_back({kind.name,
                            fmt::format("cuBLASLt, {} x {} x {}", n, n, n),
                            2.0 * n * n * double(n) / timing.seconds / 1e12,
                            kind.unit,
                            timing.seconds,
                            timing.spread,
                            {},
                            ""});
}

}  // namespace

void bench_matrix_products(const cuda::Stream& stream, const Deadline& deadline, Report& report) {
  cublasLtHandle_t raw = nullptr;
  CHECK_BLAS(cublasLtCreate(&raw));
  Handle<cublasLtHandle_t, cublasLtDestroy> handle(raw);
  for (const Kind& kind : kinds) {
    if (deadline.left() <= 0) {
      report.skipped.push_back(std::string(kind.name) + ": out of time");
      continue;
    }
    bench_product(kind, 8192, raw, stream, std::min(3.0, deadline.left() / 4), report);
  }
}

}  // namespace knear::bench
