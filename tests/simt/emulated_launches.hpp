// tests/simt/emulated_launches.hpp -- the launches of all kernels for the emulator. They are
// compiled once, and not in each test that searches on an emulated GPU.
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
#include "knear/simt/instances.hpp"
#include "tests/simt/emulator.hpp"

namespace knear {
KNEAR_DEVICE_SELECT(extern template, HostQueue)
}

namespace knear::detail {
KNEAR_ANSWER_LAUNCHES(KNEAR_DECLARE_INSTANCE, HostQueue)
KNEAR_CODE_SCAN_LAUNCHES(KNEAR_DECLARE_INSTANCE, HostQueue)
KNEAR_COMPRESS(KNEAR_DECLARE_INSTANCE, HostQueue)
KNEAR_K_MEANS_LAUNCHES(KNEAR_DECLARE_INSTANCE, HostQueue)
KNEAR_PACKING_LAUNCHES(KNEAR_DECLARE_INSTANCE, HostQueue)
KNEAR_QUERY_LAUNCHES(KNEAR_DECLARE_INSTANCE, HostQueue)
KNEAR_SCAN_LAUNCHES(KNEAR_DECLARE_INSTANCE, HostQueue)
KNEAR_SELF_JOIN_LAUNCHES(KNEAR_DECLARE_INSTANCE, HostQueue)
}  // namespace knear::detail
