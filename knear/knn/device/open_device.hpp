// knear/knn/device/open_device.hpp -- what searches where KnnOptions::device says: the processor,
// one GPU, or several (device_grid.hpp).
#pragma once
#include <cstdint>
#include <memory>

#include "knear/knn/device/device_code_search.hpp"
#include "knear/knn/lists/probed_search.hpp"
#include "knear/knn/options.hpp"
#include "knear/knn/search/device_engine.hpp"

namespace knear::detail {

// The engine of options.device, nullptr for the processor. Throws DeviceUnavailable where that is a
// GPU that is not there, or knear was built without CUDA; InvalidArgument for several GPUs, of
// which each has one (device_grid.hpp).
std::unique_ptr<DeviceEngine> open_device(const KnnOptions& options);

// The search of lists where options.device says. Throws as ListSearch; DeviceUnavailable where that
// is a GPU that is not there, or knear was built without CUDA.
std::unique_ptr<ProbedSearch> open_list_search(const SearchRequest& request,
                                               std::int64_t more_bytes = 0);

// The search of codes where options.device says, by several GPUs as by one; nullptr for the
// processor. Throws DeviceUnavailable where one is a GPU that is not there, or knear was built
// without CUDA; InvalidArgument for any other word.
std::unique_ptr<DeviceCodeSearch> open_code_search(const KnnOptions& options);

}  // namespace knear::detail
