// bench/gpu/cublas_lt.hpp -- the functions of cuBLASLt that the benches call, looked for when they
// run: the library has half a gigabyte, so programs that are carried to a machine leave it behind,
// and a machine may have none.
#pragma once
#include <cublasLt.h>

#include <string>

namespace knear::bench {

struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) product_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) product_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) product_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algorithms = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;

  // The one of this process: that of the version whose header this was compiled with, by the usual
  // search for libraries (LD_LIBRARY_PATH among it), else where it was when this was built.
  static const CublasLt& get();
  // The reason why the library is missing; empty if it is there, as all other calls require.
  std::string why_not;
};

}  // namespace knear::bench
