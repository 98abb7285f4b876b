// The launches of knear/scan/device/packing_launches.hpp for the emulator.
#include "knear/scan/device/packing_launches.hpp"

#include "tests/simt/emulator.hpp"

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE HostQueue
#include "knear/scan/device/packing_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
