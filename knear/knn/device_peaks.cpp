#include "knear/knn/device_peaks.hpp"

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/knn/device/device_engine.hpp"

#ifdef KNEAR_CUDA
#include "knear/cuda/device.hpp"
#endif

namespace knear {

DevicePeaks peaks_of_device(std::string_view device) {
  return detail::public_call([&] {
    const detail::Device parsed = detail::parse_device(device);
    if (!parsed.cuda)
      throw InvalidArgument("device must be cuda or cuda:N to have a plan of a GPU, but is '{}'",
                            device);
    check_one_device(device);
#ifdef KNEAR_CUDA
    const cuda::DeviceInfo info = cuda::device_info(parsed.index);
    return peaks_of({.name = info.name,
                     .major = info.major,
                     .minor = info.minor,
                     .multiprocessors = info.multiprocessors,
                     .cycles_per_second = info.cycles_per_second,
                     .memory_bytes_per_second = info.memory_bytes_per_second,
                     .memory_bytes = double(info.memory_bytes)});
#else
    return DevicePeaks{};  // check_one_device() has thrown
#endif
  });
}

}  // namespace knear
