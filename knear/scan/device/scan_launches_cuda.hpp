// knear/scan/device/scan_launches_cuda.hpp -- the launches of scan_launches.hpp that nvcc compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/scan_launches.hpp"

namespace knear::detail {

extern template void launch_scan(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                 const DeviceLists&, std::int64_t, std::int64_t);
extern template void launch_scan_of_all(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                        const DeviceLists&, std::int64_t);
extern template bool searches_in_one_launch(const cuda::Queue&, int, std::int64_t);
extern template void launch_few_search(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                       const DeviceLists&, const FewSearch&);
extern template void launch_scan_tasks(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                       const DeviceLists&, const DeviceTaskTable&);
extern template std::int64_t resident_scan_tasks(const cuda::Queue&, const DeviceBaseView&,
                                                 std::int64_t);
extern template void launch_gather_queries(cuda::Queue&, const QueryGathering&);
extern template void launch_update(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                   const DeviceLists&, int);
extern template void launch_integer_keys(cuda::Queue&, const DeviceBaseView&,
                                         const DeviceQueryView&, const DeviceLists&);
extern template void launch_measure(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                    const DeviceLists&, const double*, const double*, const void*,
                                    ElementType, std::int64_t);
extern template void launch_rank(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                 const DeviceLists&, const SpareLists&, double*, std::int64_t*,
                                 int);

}  // namespace knear::detail
