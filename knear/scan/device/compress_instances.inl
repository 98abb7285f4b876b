// knear/scan/device/compress_instances.inl -- the functions of compress.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_compress(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                    const DeviceLists&, const DevicePairs&, std::int64_t);
KNEAR_INSTANCE void launch_compress_more(KNEAR_QUEUE&, const DeviceBaseView&,
                                         const DeviceQueryView&, const DeviceLists&,
                                         const DevicePairs&, std::int64_t, std::int64_t);
KNEAR_INSTANCE void launch_measure_pairs(KNEAR_QUEUE&, const DeviceBaseView&, const DevicePairs&,
                                         std::int64_t, const double*, const double*, const void*,
                                         ElementType, std::int64_t);
