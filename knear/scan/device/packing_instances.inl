// knear/scan/device/packing_instances.inl -- the functions of packing_launches.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_interleave_slots(KNEAR_QUEUE&, const DevicePacking&);
KNEAR_INSTANCE void launch_interleave_rows(KNEAR_QUEUE&, const DevicePacking&, ElementType);
KNEAR_INSTANCE void launch_encode_panels(KNEAR_QUEUE&, const DevicePacking&, ElementType);
KNEAR_INSTANCE void launch_encode_whole_rows(KNEAR_QUEUE&, const DevicePacking&, ElementType);
KNEAR_INSTANCE void launch_find_value_range(KNEAR_QUEUE&, const void*, ElementType, std::int64_t,
                                            RowsFound*);
KNEAR_INSTANCE void launch_sample(KNEAR_QUEUE&, const void*, std::int64_t, std::int64_t,
                                  std::int64_t, std::int64_t, std::int64_t, unsigned char*);
KNEAR_INSTANCE void sort_rows(KNEAR_QUEUE&, std::int64_t, int, RowOrder, unsigned, float*, int*);
