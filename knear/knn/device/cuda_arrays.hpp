// knear/knn/device/cuda_arrays.hpp -- what searches of arrays in the memory of a GPU check
// before anything else (knn_cuda.cpp, index/index_cuda.cpp).
#pragma once
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "knear/core/error.hpp"
#include "knear/cuda/check.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/knn/cuda_matrix.hpp"
#include "knear/knn/search/search_request.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/scan/device_choice.hpp"

namespace knear::detail {

// The device whose memory it is. Throws InvalidArgument for a pointer to anything else.
inline int device_of(const void* data, std::string_view argument) {
  cudaPointerAttributes found = {};
  KNEAR_CHECK(cudaPointerGetAttributes(&found, data));
  if (found.type != cudaMemoryTypeDevice && found.type != cudaMemoryTypeManaged)
    throw InvalidArgument("{} must be in the memory of a GPU, but {} is not", argument, data);
  return found.device;
}

// That it is on a device, where `other` says of another argument that it is.
inline void check_pointer(const void* data, int device, std::string_view argument,
                          std::string_view other) {
  if (const int found = device_of(data, argument); found != device)
    throw InvalidArgument("{} must be on device {}, where {}, but is on device {}", argument,
                          device, other, found);
}

inline void check_shape(const cuda::MatrixView& matrix, std::string_view argument) {
  constexpr std::int64_t most_rows = std::int64_t{1} << 30;
  check_dim(argument, matrix.cols);
  if (matrix.rows < 0 || matrix.rows > most_rows)
    throw InvalidArgument("{} must have between 0 and {} rows, but has {}", argument, most_rows,
                          matrix.rows);
  if (matrix.rows > 0 &&
      reinterpret_cast<std::uintptr_t>(matrix.data) % static_cast<unsigned>(size_of(matrix.type)) !=
          0)
    throw InvalidArgument("{} must begin at a multiple of {} bytes, but begins at {}", argument,
                          size_of(matrix.type), matrix.data);
}

inline DeviceRowData<cuda::Queue> rows_of(const cuda::MatrixView& matrix) {
  DeviceRowData<cuda::Queue> out;
  out.borrowed = matrix.data, out.type = matrix.type;
  out.count = matrix.rows, out.dim = matrix.cols;
  return out;
}

// The name of a device for a search of arrays that are on it, where `which` says what they are.
// Throws InvalidArgument where another one was asked for.
inline std::string device_of_arrays(std::string_view asked, int device, std::string_view which) {
  const Device parsed = parse_device(asked);
  if (parsed.cuda && parsed.index != device && asked != "cuda")
    throw InvalidArgument("device is {}, but {} on cuda:{}", asked, which, device);
  return fmt::format("cuda:{}", device);
}

}  // namespace knear::detail
