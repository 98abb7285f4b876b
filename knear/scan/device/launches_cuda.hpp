// knear/scan/device/launches_cuda.hpp -- the launches of the scan, of codes and of answers that
// nvcc compiled, and the selection that goes with them (knear::select_cuda).
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/answer_launches.hpp"
#include "knear/scan/device/code_scan_launches.hpp"
#include "knear/scan/device/compress.hpp"
#include "knear/scan/device/packing_launches.hpp"
#include "knear/scan/device/query_launches.hpp"
#include "knear/scan/device/scan_launches.hpp"
#include "knear/scan/device/self_join_launches.hpp"
#include "knear/select/warp/device_select.hpp"
#include "knear/simt/instances.hpp"

namespace knear {
KNEAR_DEVICE_SELECT(extern template, cuda::Queue)
}

namespace knear::detail {
KNEAR_ANSWER_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue)
KNEAR_CODE_SCAN_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue)
KNEAR_COMPRESS(KNEAR_DECLARE_INSTANCE, cuda::Queue)
KNEAR_PACKING_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue)
KNEAR_QUERY_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue)
KNEAR_SCAN_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue)
KNEAR_SELF_JOIN_LAUNCHES(KNEAR_DECLARE_INSTANCE, cuda::Queue)
}  // namespace knear::detail
