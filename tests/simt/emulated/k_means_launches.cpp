// The launches of knear/cluster/device/k_means_launches.hpp for the emulator.
#include "knear/cluster/device/k_means_launches.hpp"

#include "tests/simt/emulator.hpp"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE HostQueue
#include "knear/cluster/device/k_means_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
