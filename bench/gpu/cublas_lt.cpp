#include "bench/gpu/cublas_lt.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace knear::bench {
namespace {

CublasLt load() {
  CublasLt out;
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = nullptr;
  for (const std::string& path : {name, std::string(KNEAR_CUBLASLT_FOLDER "/") + name})
    if (library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); library) break;
  if (!library) {
    out.why_not = fmt::format("no {} was found here", name);
    return out;
  }
  const auto take = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
    if (!function && out.why_not.empty()) out.why_not = fmt::format("{} has no {}", name, symbol);
  };
  take(out.create, "cublasLtCreate");
  take(out.destroy, "cublasLtDestroy");
  take(out.status_string, "cublasLtGetStatusString");
  take(out.layout_create, "cublasLtMatrixLayoutCreate");
  take(out.layout_destroy, "cublasLtMatrixLayoutDestroy");
  take(out.product_create, "cublasLtMatmulDescCreate");
  take(out.product_destroy, "cublasLtMatmulDescDestroy");
  take(out.product_set, "cublasLtMatmulDescSetAttribute");
  take(out.preference_create, "cublasLtMatmulPreferenceCreate");
  take(out.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  take(out.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  take(out.algorithms, "cublasLtMatmulAlgoGetHeuristic");
  take(out.multiply, "cublasLtMatmul");
  return out;
}

}  // namespace

const CublasLt& CublasLt::get() {
  static const CublasLt one = load();
  return one;
}

}  // namespace knear::bench
