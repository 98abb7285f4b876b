// The launches of knear/scan/device/code_scan_launches.hpp for the emulator, and the selection that
// goes with them.
#include "knear/scan/device/code_scan_launches.hpp"

#include "knear/select/warp/device_select.hpp"
#include "tests/simt/emulator.hpp"

template void knear::select_rows(knear::HostQueue&, const knear::DeviceRows&, std::int64_t,
                                 const knear::DeviceSelectOptions&, float*, int*);

namespace knear::detail {

#define KNEAR_INSTANCE template
#define KNEAR_QUEUE HostQueue
#include "knear/scan/device/code_scan_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
