// bench/gpu/library_product.hpp -- a product of matrices by cuBLASLt.
//
//   const ProductLibrary library;
//   LibraryProduct product(library, ProductType::f32, m, n, depth, m, workspace.size());
//   if (product.available()) product.run(a, b, c, workspace.data(), stream);
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "bench/gpu/cublas_lt.hpp"

namespace knear::bench {

// Throws DeviceError with the call and the library's name of the error.
void check_blas(cublasStatus_t status, const char* call);
#define KNEAR_CHECK_BLAS(call) ::knear::bench::check_blas((call), #call)

template <class T, auto destroy>
struct DestroyBlas {
  using pointer = T;
  void operator()(T handle) const { (CublasLt::get().*destroy)(handle); }
};
template <class T, auto destroy>
using BlasHandle = std::unique_ptr<std::remove_pointer_t<T>, DestroyBlas<T, destroy>>;

// The library on the current device. Products of different streams may share one. Requires that
// CublasLt::get().why_not is empty.
class ProductLibrary {
 public:
  ProductLibrary() {
    cublasLtHandle_t raw = nullptr;
    KNEAR_CHECK_BLAS(CublasLt::get().create(&raw));
    handle_.reset(raw);
  }
  cublasLtHandle_t get() const { return handle_.get(); }

 private:
  BlasHandle<cublasLtHandle_t, &CublasLt::destroy> handle_;
};

// The types of the factors: fp32 (no tf32) and bf16 with sums in fp32, signed 8-bit integers with
// sums in 32 bits. Elements of the product have four bytes in either case.
enum class ProductType { f32, bf16, i8 };
constexpr const char* name_of(ProductType type) {
  return type == ProductType::f32 ? "fp32" : type == ProductType::bf16 ? "bf16" : "int8";
}
constexpr int bytes_of(ProductType type) {
  return type == ProductType::f32 ? 4 : type == ProductType::bf16 ? 2 : 1;
}

// C [m x n] = A' B of A [depth x m] and B [depth x n], column after column, columns of C `stride`
// elements apart: rows of vectors are such columns, so C holds for each vector of B a row of its
// products with the vectors of A.
class LibraryProduct {
 public:
  LibraryProduct(const ProductLibrary& library, ProductType type, std::int64_t m, std::int64_t n,
                 std::int64_t depth, std::int64_t stride, std::size_t workspace_bytes);

  // Whether the library has an algorithm for the product on this device, and its message if not.
  bool available() const { return why_not_.empty(); }
  const std::string& why_not() const { return why_not_; }

  // Asynchronous, all in device memory; `workspace` has the bytes given to the constructor.
  // Requires available().
  void run(const void* a, const void* b, void* c, void* workspace, cudaStream_t stream) const;

 private:
  using Layout = BlasHandle<cublasLtMatrixLayout_t, &CublasLt::layout_destroy>;
  static Layout column_major(cudaDataType_t type, std::int64_t rows, std::int64_t cols,
                             std::int64_t stride);

  cublasLtHandle_t library_;
  bool integer_;
  std::size_t workspace_bytes_;
  BlasHandle<cublasLtMatmulDesc_t, &CublasLt::product_destroy> product_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_{};
  std::string why_not_;
};

}  // namespace knear::bench
