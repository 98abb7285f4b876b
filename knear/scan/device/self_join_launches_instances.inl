// knear/scan/device/self_join_launches_instances.inl -- the functions of self_join_launches.hpp for
// one kind of queue, KNEAR_QUEUE. KNEAR_INSTANCE is `template` in the source that compiles them and
// `extern template` for those that call them: nvcc compiles them for cuda::Queue, the tests for
// their emulator. Ends the two macros.
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
#undef KNEAR_INSTANCE
#undef KNEAR_QUEUE
