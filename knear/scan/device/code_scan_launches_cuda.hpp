// knear/scan/device/code_scan_launches_cuda.hpp -- the launches of code_scan_launches.hpp that nvcc
// compiled, and the selection that goes with them (knear::select_cuda).
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/code_scan_launches.hpp"
#include "knear/select/warp/device_select.hpp"

namespace knear {
extern template void select_rows(cuda::Queue&, const DeviceRows&, std::int64_t,
                                 const DeviceSelectOptions&, float*, int*);
}

namespace knear::detail {

extern template void launch_scan_codes(cuda::Queue&, const DeviceCodeJob&, int, float*,
                                       std::int64_t*);
extern template void launch_merge_code_lists(cuda::Queue&, std::int64_t, int, int, int,
                                             const float*, const std::int64_t*, float*,
                                             std::int64_t*);
extern template void launch_locate_rows(cuda::Queue&, const DeviceCodeJob&, int,
                                        const std::int64_t*, std::int32_t*, std::int64_t*);
extern template void launch_make_code_tables(cuda::Queue&, const DeviceCodeJob&, float*);
extern template void launch_write_code_keys(cuda::Queue&, const DeviceCodeJob&, const float*,
                                            float*, std::int64_t);
extern template void launch_resolve_ties(cuda::Queue&, const DeviceCodeJob&, int, const float*,
                                         std::int64_t, const float*, int*);

extern template void launch_decode_rows(cuda::Queue&, const DecodedView&, const int*, std::int64_t,
                                        std::int64_t, float*, int*);
extern template void launch_make_table_queries(cuda::Queue&, const double*, double, std::int64_t,
                                               double*);
extern template void launch_measure_codes(cuda::Queue&, MeasureCodes<cuda::Queue::Thread>,
                                          std::int64_t);

}  // namespace knear::detail
