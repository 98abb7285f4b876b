// knear/cluster/device/k_means_launches_instances.inl -- the functions of k_means_launches.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_measure_lengths(KNEAR_QUEUE&, const void*, ElementType, std::int64_t,
                                           std::int64_t, double*);
KNEAR_INSTANCE void launch_start_from_last(KNEAR_QUEUE&, const DeviceBaseView&,
                                           const DeviceQueryView&, const DeviceClusterRows&,
                                           ElementType);
KNEAR_INSTANCE void launch_choose_nearest(KNEAR_QUEUE&, const DeviceBaseView&,
                                          const DeviceQueryView&, const DeviceLists&,
                                          const DeviceClusterRows&, ElementType);
KNEAR_INSTANCE void launch_move_rows(KNEAR_QUEUE&, const DeviceClusterRows&,
                                     const DeviceClusterSums&, ElementType);
