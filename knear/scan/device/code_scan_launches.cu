// Instantiates the kernels that search codes for cuda::Queue: see code_scan_launches.hpp.
#include "knear/scan/device/code_scan_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

template void launch_scan_codes(cuda::Queue&, const DeviceCodeJob&, int, float*, std::int64_t*);
template void launch_merge_code_lists(cuda::Queue&, std::int64_t, int, int, int, const float*,
                                      const std::int64_t*, float*, std::int64_t*);
template void launch_locate_rows(cuda::Queue&, const DeviceCodeJob&, int, const std::int64_t*,
                                 std::int32_t*, std::int64_t*);
template void launch_make_code_tables(cuda::Queue&, const DeviceCodeJob&, float*);
template void launch_write_code_keys(cuda::Queue&, const DeviceCodeJob&, const float*, float*,
                                     std::int64_t);
template void launch_resolve_ties(cuda::Queue&, const DeviceCodeJob&, int, const float*,
                                  std::int64_t, const float*, int*);

template void launch_decode_rows(cuda::Queue&, const DecodedView&, const int*, std::int64_t,
                                 std::int64_t, float*, int*);
template void launch_make_table_queries(cuda::Queue&, const double*, double, std::int64_t, double*);
template void launch_measure_codes(cuda::Queue&, MeasureCodes<cuda::Queue::Thread>, std::int64_t);

}  // namespace knear::detail
