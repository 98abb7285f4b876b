// knear/scan/device/query_launches_instances.inl -- the functions of query_launches.hpp for one
// kind of queue, KNEAR_QUEUE. KNEAR_INSTANCE is `template` in the source that compiles them and
// `extern template` for those that call them: nvcc compiles them for cuda::Queue, the tests for
// their emulator. Ends the two macros.
KNEAR_INSTANCE void launch_measure_queries(KNEAR_QUEUE&, const DeviceQueryCoding&, ElementType);
KNEAR_INSTANCE void launch_order_queries(KNEAR_QUEUE&, const DeviceQueryCoding&);
KNEAR_INSTANCE void launch_encode_queries(KNEAR_QUEUE&, const DeviceQueryCoding&, ElementType);
#undef KNEAR_INSTANCE
#undef KNEAR_QUEUE
