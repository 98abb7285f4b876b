// knear/cluster/device/k_means_launches_cuda.hpp -- the launches of k_means_launches.hpp that nvcc
// compiled.
#pragma once
#include "knear/cluster/device/k_means_launches.hpp"
#include "knear/cuda/queue.hpp"

namespace knear::detail {

extern template void launch_measure_lengths(cuda::Queue&, const void*, ElementType, std::int64_t,
                                            std::int64_t, double*);
extern template void launch_start_from_last(cuda::Queue&, const DeviceBaseView&,
                                            const DeviceQueryView&, const DeviceClusterRows&,
                                            ElementType);
extern template void launch_choose_nearest(cuda::Queue&, const DeviceBaseView&,
                                           const DeviceQueryView&, const DeviceLists&,
                                           const DeviceClusterRows&, ElementType);
extern template void launch_move_rows(cuda::Queue&, const DeviceClusterRows&,
                                      const DeviceClusterSums&, ElementType);

}  // namespace knear::detail
