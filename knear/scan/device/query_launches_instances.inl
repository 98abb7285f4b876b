// knear/scan/device/query_launches_instances.inl -- the functions of query_launches.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_measure_queries(KNEAR_QUEUE&, const DeviceQueryCoding&, ElementType);
KNEAR_INSTANCE void launch_order_queries(KNEAR_QUEUE&, const DeviceQueryCoding&);
KNEAR_INSTANCE void launch_encode_queries(KNEAR_QUEUE&, const DeviceQueryCoding&, ElementType);
