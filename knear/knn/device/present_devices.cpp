#include "knear/knn/device/present_devices.hpp"

#include <atomic>

#ifdef KNEAR_CUDA
#include "knear/cuda/device.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/knn/device/queue_devices.hpp"
#include "knear/scan/device/launches_cuda.hpp"
#endif

namespace knear::detail {
namespace {

#ifdef KNEAR_CUDA
class DevicesOfCuda final : public QueueDevices<cuda::Queue> {
 public:
  int count() const override { return cuda::device_count(); }
  void check(int index) const override { cuda::check_device(index); }
  DeviceTraits traits(int index) const override { return traits_of_cuda(index); }

 protected:
  cuda::Queue open(int gpu, std::size_t memory) const override { return cuda::Queue(gpu, memory); }
};
#endif

std::atomic<const DeviceMaker*> other_devices = nullptr;

}  // namespace

const DeviceMaker* device_maker() {
  if (const DeviceMaker* const others = other_devices) return others;
#ifdef KNEAR_CUDA
  static const DevicesOfCuda here;
  return &here;
#else
  return nullptr;
#endif
}

void use_devices(const DeviceMaker* others) {
  other_devices = others;
  use_gpus(others);
}

}  // namespace knear::detail
