// knear/scan/device/code_scan_launches_instances.inl -- the functions of code_scan_launches.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_scan_codes(KNEAR_QUEUE&, const DeviceCodeJob&, int, float*,
                                      std::int64_t*);
KNEAR_INSTANCE void launch_merge_code_lists(KNEAR_QUEUE&, std::int64_t, int, int, int, const float*,
                                            const std::int64_t*, float*, std::int64_t*);
KNEAR_INSTANCE void launch_locate_rows(KNEAR_QUEUE&, const DeviceCodeJob&, int, const std::int64_t*,
                                       std::int32_t*, std::int64_t*);
KNEAR_INSTANCE void launch_make_code_tables(KNEAR_QUEUE&, const DeviceCodeJob&, float*);
KNEAR_INSTANCE void launch_write_code_keys(KNEAR_QUEUE&, const DeviceCodeJob&, const float*, float*,
                                           std::int64_t);
KNEAR_INSTANCE void launch_resolve_ties(KNEAR_QUEUE&, const DeviceCodeJob&, int, const float*,
                                        std::int64_t, const float*, int*);
KNEAR_INSTANCE void launch_decode_rows(KNEAR_QUEUE&, const DecodedView&, const int*, std::int64_t,
                                       std::int64_t, float*, int*);
KNEAR_INSTANCE void launch_make_table_queries(KNEAR_QUEUE&, const double*, double, std::int64_t,
                                              double*);
KNEAR_INSTANCE void launch_measure_codes(KNEAR_QUEUE&, MeasureCodes<KNEAR_QUEUE::Thread>,
                                         std::int64_t);
