// knear/knn/device/queue_devices.hpp -- the maker of devices that have queues of one type:
// cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "knear/knn/device/device_list_search.hpp"
#include "knear/knn/device/device_maker.hpp"
#include "knear/knn/device/device_search.hpp"
#include "knear/knn/device/queue_code_search.hpp"

namespace knear::detail {

template <class Queue>
class QueueDevices : public DeviceMaker {
 public:
  std::unique_ptr<DeviceEngine> engine(int gpu, std::int64_t memory) const override {
    return std::make_unique<DeviceSearch<Queue>>(opener(gpu, memory));
  }
  std::unique_ptr<ProbedSearch> list_search(int gpu, const SearchRequest& request,
                                            std::int64_t more_bytes) const override {
    return std::make_unique<DeviceListSearch<Queue>>(request, opener(gpu, request.options.memory),
                                                     more_bytes);
  }
  std::unique_ptr<DeviceCodeSearch> device_code_search(int gpu) const override {
    return std::make_unique<QueueCodeSearch<Queue>>("cuda:" + std::to_string(gpu), opener(gpu, 0));
  }

 protected:
  // Within so many bytes of the GPU; 0: nothing bounds them.
  virtual Queue open(int gpu, std::size_t memory) const = 0;

 private:
  std::function<Queue()> opener(int gpu, std::int64_t memory) const {
    return [this, gpu, bytes = static_cast<std::size_t>(std::max<std::int64_t>(0, memory))] {
      return open(gpu, bytes);
    };
  }
};

}  // namespace knear::detail
