// knear/scan/device/self_join_launches_instances.inl -- the functions of self_join_launches.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_place_rows(KNEAR_QUEUE&, const DeviceBaseView&, std::int64_t,
                                      std::int32_t*);
KNEAR_INSTANCE void launch_find_tops(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                     const SelfJoinPairs&);
KNEAR_INSTANCE void launch_find_reach(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                      const SelfJoinPairs&);
KNEAR_INSTANCE void launch_scan_pairs(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                      const DeviceLists&, const SelfJoinPairs&, std::int64_t,
                                      std::int64_t);
KNEAR_INSTANCE void launch_score_pairs(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                       const DeviceLists&);
