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

Layout column_major(cudaDataType_t type, std::int64_t rows, std::int64_t cols) {
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

// C [m x n] = A' B of A [depth x m] and B [depth x n], column after column; B and with it C in
// `parts` of n, one after the other into the same C.
struct Shape {
  std::int64_t m, n, depth, parts = 1;
};

// A few places of C of the last part against sums in double. fp32 sums of products of at most 1:
// each of the additions errs by at most 2^-24 of a partial sum. Exact for int8.
void check_product(const Kind& kind, const Shape& shape, const std::byte* a, const std::byte* b,
                   const float* c, const cuda::Stream& stream, Report& report) {
  const std::size_t column = std::size_t(shape.depth) * kind.input_bytes;
  std::vector<std::byte> x(column), y(column);
  for (int sample = 0; sample < 8; ++sample) {
    const std::size_t row = std::size_t(shape.m - 1) * sample / 7,
                      col = std::size_t(shape.n / 2 + 13 * sample);
    float got_bits;
    KNEAR_CHECK(
        cudaMemcpyAsync(x.data(), a + row * column, column, cudaMemcpyDeviceToHost, stream.get()));
    KNEAR_CHECK(
        cudaMemcpyAsync(y.data(), b + col * column, column, cudaMemcpyDeviceToHost, stream.get()));
    KNEAR_CHECK(cudaMemcpyAsync(&got_bits, c + col * shape.m + row, 4, cudaMemcpyDeviceToHost,
                                stream.get()));
    stream.synchronize();
    double wanted = 0, magnitude = 0;
    for (std::int64_t i = 0; i < shape.depth; ++i) {
      const double product = element(kind, &x[std::size_t(i) * kind.input_bytes]) *
                             element(kind, &y[std::size_t(i) * kind.input_bytes]);
      wanted += product;
      magnitude += std::fabs(product);
    }
    double got = got_bits, tolerance = magnitude * double(shape.depth) * 0x1p-24;
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

void bench_product(const Kind& kind, const Shape& shape, cublasLtHandle_t handle,
                   const cuda::Stream& stream, double budget, Report& report) {
  const std::int64_t a_count = shape.m * shape.depth, b_count = shape.n * shape.depth;
  cuda::Buffer<std::byte> a(std::size_t(a_count) * kind.input_bytes),
      b(std::size_t(b_count * shape.parts) * kind.input_bytes), workspace(std::size_t{64} << 20);
  cuda::Buffer<float> c(std::size_t(shape.m * shape.n));  // or int32: four bytes either way
  fill_random(a.data(), a_count, kind.random, 11, stream.get());
  fill_random(b.data(), b_count * shape.parts, kind.random, 12, stream.get());
  c.fill_bytes(0xff, stream);

  cublasLtMatmulDesc_t raw = nullptr;
  CHECK_BLAS(cublasLtMatmulDescCreate(&raw, kind.compute, kind.scale));
  Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product(raw);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  CHECK_BLAS(cublasLtMatmulDescSetAttribute(raw, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                            sizeof transpose));
  const Layout in_a = column_major(kind.input, shape.depth, shape.m),
               in_b = column_major(kind.input, shape.depth, shape.n),
               out = column_major(kind.output, shape.m, shape.n);
  cublasLtMatmulPreference_t raw_preference = nullptr;
  CHECK_BLAS(cublasLtMatmulPreferenceCreate(&raw_preference));
  Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference(raw_preference);
  const std::uint64_t limit = workspace.size();
  CHECK_BLAS(cublasLtMatmulPreferenceSetAttribute(
      raw_preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &limit, sizeof limit));
  cublasLtMatmulHeuristicResult_t found{};
  int count_found = 0;
  const cublasStatus_t searched =
      cublasLtMatmulAlgoGetHeuristic(handle, raw, in_a.get(), in_b.get(), out.get(), out.get(),
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
  const auto b_part = [&](std::int64_t part) {
    return b.data() + part * b_count * kind.input_bytes;
  };
  const Timing timing = time_runs(stream, budget, [&](int) {
    for (std::int64_t part = 0; part < shape.parts; ++part)
      CHECK_BLAS(cublasLtMatmul(handle, raw, alpha, a.data(), in_a.get(), b_part(part), in_b.get(),
                                beta, c.data(), out.get(), c.data(), out.get(), &found.algo,
                                workspace.data(), workspace.size(), stream.get()));
  });
  check_product(kind, shape, a.data(), b_part(shape.parts - 1), c.data(), stream, report);
  const double n = double(shape.n) * double(shape.parts);
  report.entries.push_back(
      {kind.name,
       fmt::format("cuBLASLt, {} x {} x {}", shape.m, shape.n * shape.parts, shape.depth),
       2.0 * double(shape.m) * n * double(shape.depth) / timing.seconds / 1e12,
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
    bench_product(kind, {8192, 8192, 8192}, raw, stream, std::min(3.0, deadline.left() / 4),
                  report);
  }
}

void bench_fp32_product(std::int64_t queries, std::int64_t rows, std::int64_t dim,
                        const cuda::Stream& stream, double budget, Report& report) {
  cublasLtHandle_t raw = nullptr;
  CHECK_BLAS(cublasLtCreate(&raw));
  Handle<cublasLtHandle_t, cublasLtDestroy> handle(raw);
  constexpr std::int64_t parts = 10;
  std::size_t free_bytes = 0, all_bytes = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  if (double(queries) * double(rows / parts) * 4 > double(free_bytes) / 2) {
    report.skipped.push_back(fmt::format("fp32 product of {} x {} x {}: {:.1f} GB are free",
                                         queries, rows, dim, double(free_bytes) / 1e9));
    return;
  }
  bench_product(kinds[0], {queries, rows / parts, dim, parts}, raw, stream, budget, report);
}

}  // namespace knear::bench
