// Instantiates the kernels of k-means for cuda::Queue: see k_means_launches.hpp.
#include "knear/cluster/device/k_means_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

template void launch_measure_lengths(cuda::Queue&, const void*, ElementType, std::int64_t,
                                     std::int64_t, double*);
template void launch_start_from_last(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                     const DeviceClusterRows&, ElementType);
template void launch_choose_nearest(cuda::Queue&, const DeviceBaseView&, const DeviceQueryView&,
                                    const DeviceLists&, const DeviceClusterRows&, ElementType);
template void launch_move_rows(cuda::Queue&, const DeviceClusterRows&, const DeviceClusterSums&,
                               ElementType);

}  // namespace knear::detail
