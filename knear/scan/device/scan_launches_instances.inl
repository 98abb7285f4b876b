// knear/scan/device/scan_launches_instances.inl -- the functions of scan_launches.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_scan(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                const DeviceLists&, std::int64_t, std::int64_t);
KNEAR_INSTANCE void launch_scan_of_all(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                       const DeviceLists&, std::int64_t);
KNEAR_INSTANCE bool searches_in_one_launch(const KNEAR_QUEUE&, int, std::int64_t);
KNEAR_INSTANCE void launch_few_search(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                      const DeviceLists&, const FewSearch&);
KNEAR_INSTANCE void launch_scan_tasks(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                      const DeviceLists&, const DeviceTaskTable&);
KNEAR_INSTANCE std::int64_t resident_scan_tasks(const KNEAR_QUEUE&, const DeviceBaseView&,
                                                std::int64_t);
KNEAR_INSTANCE void launch_gather_queries(KNEAR_QUEUE&, const QueryGathering&);
KNEAR_INSTANCE void launch_update(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                  const DeviceLists&, int);
KNEAR_INSTANCE void launch_integer_keys(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                        const DeviceLists&);
KNEAR_INSTANCE void launch_measure(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                   const DeviceLists&, const double*, const double*, const void*,
                                   ElementType, std::int64_t);
KNEAR_INSTANCE void launch_rank(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                const DeviceLists&, const SpareLists&, double*, std::int64_t*, int);
