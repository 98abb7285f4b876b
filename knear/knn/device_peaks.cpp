#include "knear/knn/device_peaks.hpp"

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/knn/check_device.hpp"
#include "knear/knn/search/device_engine.hpp"
#include "knear/scan/device_choice.hpp"

namespace knear {

DevicePeaks peaks_of_device(std::string_view device) {
  return detail::public_call([&] {
    const detail::Device parsed = detail::parse_device(device);
    if (!parsed.cuda)
      throw InvalidArgument("device must be cuda or cuda:N to have a plan of a GPU, but is '{}'",
                            device);
    check_one_device(device);
    return peaks_of(detail::present_gpus()->traits(parsed.index));
  });
}

}  // namespace knear
