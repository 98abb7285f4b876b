// knear/scan/device/self_join_launches_cuda.hpp -- the launches of self_join_launches.hpp that nvcc
// compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/self_join_launches.hpp"

namespace knear::detail {

extern template void launch_place_rows(cuda::Queue&, const DeviceBaseView&, std::int64_t,
                                       std::int32_t*);
extern template void launch_find_tops(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                      const SelfJoinPairs&);
extern template void launch_find_reach(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                       const SelfJoinPairs&);
extern template void launch_scan_pairs(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                       const DeviceLists&, const SelfJoinPairs&, std::int64_t,
                                       std::int64_t);
extern template void launch_score_pairs(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                        const DeviceLists&);

}  // namespace knear::detail
