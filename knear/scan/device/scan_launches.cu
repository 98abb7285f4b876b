// Instantiates the kernels of the scan for cuda::Queue: see scan_launches.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/scan_launches.hpp"
#include "knear/simt/cuda_thread.cuh"
#include "knear/simt/cuda_warpgroup_thread.cuh"

namespace knear::detail {

template void launch_scan(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                          const DeviceLists&, std::int64_t, std::int64_t);
template void launch_scan_of_all(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                 const DeviceLists&, std::int64_t);
template bool searches_in_one_launch(const cuda::Queue&, int, std::int64_t);
template void launch_few_search(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                const DeviceLists&, const FewSearch&);
template void launch_scan_tasks(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                const DeviceLists&, const DeviceTaskTable&);
template std::int64_t resident_scan_tasks(const cuda::Queue&, const DeviceBaseView&, std::int64_t);
template void launch_gather_queries(cuda::Queue&, const QueryGathering&);
template void launch_update(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                            const DeviceLists&, int);
template void launch_integer_keys(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                  const DeviceLists&);
template void launch_measure(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                             const DeviceLists&, const double*, const double*, const void*,
                             ElementType, std::int64_t);
template void launch_rank(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                          const DeviceLists&, const SpareLists&, double*, std::int64_t*, int);

}  // namespace knear::detail
