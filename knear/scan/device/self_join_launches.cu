// Instantiates the kernels of a self-join for cuda::Queue: see self_join_launches.hpp.
#include "knear/cuda/launch.cuh"
#include "knear/scan/device/self_join_launches.hpp"
#include "knear/simt/cuda_thread.cuh"
#include "knear/simt/cuda_warpgroup_thread.cuh"

namespace knear::detail {

template void launch_place_rows(cuda::Queue&, const DeviceBaseView&, std::int64_t, std::int32_t*);
template void launch_find_tops(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                               const SelfJoinPairs&);
template void launch_find_reach(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                const SelfJoinPairs&);
template void launch_scan_pairs(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                const DeviceLists&, const SelfJoinPairs&, std::int64_t,
                                std::int64_t);
template void launch_score_pairs(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                 const DeviceLists&);

}  // namespace knear::detail
