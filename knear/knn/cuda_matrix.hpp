// knear/knn/cuda_matrix.hpp -- vectors in the memory of a GPU, as a caller hands them over.
#pragma once
#include <cstdint>

#include "knear/core/element_type.hpp"

namespace knear::cuda {

// A matrix in device memory, row after row without gaps. It borrows the data.
struct MatrixView {
  const void* data = nullptr;
  ElementType type = ElementType::f32;
  std::int64_t rows = 0, cols = 0;
};

}  // namespace knear::cuda
