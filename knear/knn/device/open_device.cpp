#include "knear/knn/device/open_device.hpp"

#include "knear/knn/device/device_grid.hpp"
#include "knear/knn/device/present_devices.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {

std::unique_ptr<DeviceEngine> open_device(const KnnOptions& options) {
  const Device device = device_that_is_here(options.device);
  return device.cuda ? device_maker()->engine(device.index, options.memory) : nullptr;
}

std::unique_ptr<ProbedSearch> open_list_search(const SearchRequest& request,
                                               std::int64_t more_bytes) {
  const Devices devices = devices_that_are_here(request.options.device);
  if (devices.several()) return std::make_unique<DividedListSearch>(request, devices, more_bytes);
  if (devices.cuda()) return device_maker()->list_search(devices.gpus.front(), request, more_bytes);
  return std::make_unique<ListSearch>(request, more_bytes);
}

std::unique_ptr<CodeDevice> open_code_device(const KnnOptions& options) {
  const Devices devices = devices_that_are_here(options.device);
  if (devices.several()) return std::make_unique<DividedCodeDevice>(devices);
  return devices.cuda() ? device_maker()->code_device(devices.gpus.front()) : nullptr;
}

}  // namespace knear::detail
