#include "knear/cluster/device/device_assignment.hpp"

#include "knear/scan/device_choice.hpp"

#ifdef KNEAR_CUDA
#include "knear/cluster/device/assignment_on_device.hpp"
#include "knear/cluster/device/k_means_launches.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/launches_cuda.hpp"
#endif

namespace knear::detail {
#ifdef KNEAR_CUDA
KNEAR_K_MEANS_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue)
#endif

OpenAssignment open_assignment(std::string_view device) {
  if (!present_device_of(device).cuda) return {};
#ifdef KNEAR_CUDA
  return assignment_on<cuda::Queue>(
      [index = parse_device(device).index] { return cuda::Queue(index); });
#else
  return {};
#endif
}

}  // namespace knear::detail
