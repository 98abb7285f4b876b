// knear/scan/device/compress_instances.inl -- the functions of compress.hpp for one kind of queue,
// KNEAR_QUEUE. KNEAR_INSTANCE is `template` in the source that compiles them and `extern template`
// for those that call them: nvcc compiles them for cuda::Queue, the tests for their emulator. Ends
// the two macros.
KNEAR_INSTANCE void launch_compress(KNEAR_QUEUE&, const DeviceBaseView&, const DeviceQueryView&,
                                    const DeviceLists&, const DevicePairs&, std::int64_t);
KNEAR_INSTANCE void launch_compress_more(KNEAR_QUEUE&, const DeviceBaseView&,
                                         const DeviceQueryView&, const DeviceLists&,
                                         const DevicePairs&, std::int64_t, std::int64_t);
KNEAR_INSTANCE void launch_measure_pairs(KNEAR_QUEUE&, const DeviceBaseView&, const DevicePairs&,
                                         std::int64_t, const double*, const double*, const void*,
                                         ElementType, std::int64_t);
#undef KNEAR_INSTANCE
#undef KNEAR_QUEUE
