// knear/scan/device/packing_instances.inl -- the functions of packing_launches.hpp for one kind of
// queue, KNEAR_QUEUE. KNEAR_INSTANCE is `template` in the source that compiles them and `extern
// template` for those that call them: nvcc compiles them for cuda::Queue, the tests for their
// emulator. Ends the two macros.
KNEAR_INSTANCE void launch_interleave_slots(KNEAR_QUEUE&, const DevicePacking&);
KNEAR_INSTANCE void launch_interleave_rows(KNEAR_QUEUE&, const DevicePacking&, ElementType);
KNEAR_INSTANCE void launch_encode_panels(KNEAR_QUEUE&, const DevicePacking&, ElementType);
KNEAR_INSTANCE void launch_encode_whole_rows(KNEAR_QUEUE&, const DevicePacking&, ElementType);
KNEAR_INSTANCE void launch_find_value_range(KNEAR_QUEUE&, const void*, ElementType, std::int64_t,
                                            RowsFound*);
KNEAR_INSTANCE void launch_sample(KNEAR_QUEUE&, const void*, std::int64_t, std::int64_t,
                                  std::int64_t, std::int64_t, std::int64_t, unsigned char*);
KNEAR_INSTANCE void sort_rows(KNEAR_QUEUE&, std::int64_t, int, RowOrder, unsigned, float*, int*);
#undef KNEAR_INSTANCE
#undef KNEAR_QUEUE
