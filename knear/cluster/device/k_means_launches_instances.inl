// knear/cluster/device/k_means_launches_instances.inl -- the functions of k_means_launches.hpp for
// one kind of queue, KNEAR_QUEUE. KNEAR_INSTANCE is `template` in the source that compiles them and
// `extern template` for those that call them: nvcc compiles them for cuda::Queue, the tests for
// their emulator. Ends the two macros.
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
#undef KNEAR_INSTANCE
#undef KNEAR_QUEUE
