#include "knear/knn/device/open_device.hpp"

#include "knear/knn/device/device_grid.hpp"
#include "knear/knn/device/present_devices.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {

std::unique_ptr<DeviceEngine> open_device(const KnnOptions& options) {
  const Device device = present_device_of(options.device);
  return device.cuda ? device_maker()->engine(device.index, options.memory) : nullptr;
}

std::unique_ptr<ProbedSearch> open_list_search(const SearchRequest& request,
                                               std::int64_t more_bytes) {
  const Devices devices = present_devices_of(request.options.device);
  if (devices.several()) return std::make_unique<DividedListSearch>(request, devices, more_bytes);
  if (devices.cuda()) return device_maker()->list_search(devices.gpus.front(), request, more_bytes);
  return std::make_unique<ListSearch>(request, more_bytes);
}

std::unique_ptr<DeviceCodeSearch> open_code_search(const KnnOptions& options) {
  const Devices devices = present_devices_of(options.device);
  if (devices.several()) return std::make_unique<DividedCodeSearch>(devices);
  return devices.cuda() ? device_maker()->device_code_search(devices.gpus.front()) : nullptr;
}

}  // namespace knear::detail
