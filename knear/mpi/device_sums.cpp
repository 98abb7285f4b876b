#include "knear/mpi/device_sums.hpp"

#ifdef KNEAR_NCCL
#include "knear/mpi/nccl_sums.hpp"
#include "knear/scan/device_choice.hpp"
#endif

namespace knear {

FoundDeviceSums find_device_sums([[maybe_unused]] Peers& peers,
                                 [[maybe_unused]] std::string_view device) {
#ifdef KNEAR_NCCL
  int index = 0;
  together(peers, [&] { index = detail::present_device_of(device).index; });
  return find_nccl_sums(peers, index);
#else
  return {nullptr, "knear was built without NCCL"};
#endif
}

}  // namespace knear
