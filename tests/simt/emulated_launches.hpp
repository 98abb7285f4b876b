// tests/simt/emulated_launches.hpp -- the launches of all kernels for the emulator. They are
// compiled once, in tests/simt/emulated/, and not in each test that searches on an emulated GPU.
#pragma once
#include "knear/cluster/device/k_means_launches.hpp"
#include "knear/scan/device/answer_launches.hpp"
#include "knear/scan/device/code_scan_launches.hpp"
#include "knear/scan/device/compress.hpp"
#include "knear/scan/device/packing_launches.hpp"
#include "knear/scan/device/query_launches.hpp"
#include "knear/scan/device/scan_launches.hpp"
#include "knear/scan/device/self_join_launches.hpp"
#include "knear/select/warp/device_select.hpp"
#include "tests/simt/emulator.hpp"

namespace knear {
extern template void select_rows(HostQueue&, const DeviceRows&, std::int64_t,
                                 const DeviceSelectOptions&, float*, int*);
}

namespace knear::detail {

#define KNEAR_INSTANCE extern template
#define KNEAR_QUEUE HostQueue
#include "knear/cluster/device/k_means_launches_instances.inl"
#include "knear/scan/device/answer_launches_instances.inl"
#include "knear/scan/device/code_scan_launches_instances.inl"
#include "knear/scan/device/compress_instances.inl"
#include "knear/scan/device/packing_instances.inl"
#include "knear/scan/device/query_launches_instances.inl"
#include "knear/scan/device/scan_launches_instances.inl"
#include "knear/scan/device/self_join_launches_instances.inl"
#undef KNEAR_QUEUE
#undef KNEAR_INSTANCE

}  // namespace knear::detail
