// knear/scan/device/answer_launches_instances.inl -- the functions of answer_launches.hpp
// for one kind of queue. Whoever includes this file defines KNEAR_QUEUE, and KNEAR_INSTANCE as
// `template` to compile them or `extern template` to call them: nvcc compiles them for cuda::Queue,
// the tests for HostQueue of their emulator.
KNEAR_INSTANCE void launch_find_zero_rows(KNEAR_QUEUE&, const void*, ElementType, std::int64_t,
                                          std::int64_t, unsigned char*, int*);
KNEAR_INSTANCE void launch_merge_answers(KNEAR_QUEUE&, const AnswerMerge&);
KNEAR_INSTANCE void launch_round_answers(KNEAR_QUEUE&, const double*, const std::int64_t*,
                                         std::int64_t, std::int64_t, std::int64_t, bool,
                                         std::int64_t*, float*);
KNEAR_INSTANCE void launch_round_others(KNEAR_QUEUE&, const double*, const std::int64_t*,
                                        std::int64_t, std::int64_t, std::int64_t, bool,
                                        std::int64_t*, float*);
