// knear/scan/device/answer_launches_instances.inl -- the functions of answer_launches.hpp for one
// kind of queue, KNEAR_QUEUE. KNEAR_INSTANCE is `template` in the source that compiles them and
// `extern template` for those that call them: nvcc compiles them for cuda::Queue, the tests for
// their emulator. Ends the two macros.
KNEAR_INSTANCE void launch_find_zero_rows(KNEAR_QUEUE&, const void*, ElementType, std::int64_t,
                                          std::int64_t, unsigned char*, int*);
KNEAR_INSTANCE void launch_merge_answers(KNEAR_QUEUE&, const AnswerMerge&);
KNEAR_INSTANCE void launch_round_answers(KNEAR_QUEUE&, const double*, const std::int64_t*,
                                         std::int64_t, std::int64_t, std::int64_t, bool,
                                         std::int64_t*, float*);
KNEAR_INSTANCE void launch_round_others(KNEAR_QUEUE&, const double*, const std::int64_t*,
                                        std::int64_t, std::int64_t, std::int64_t, bool,
                                        std::int64_t*, float*);
#undef KNEAR_INSTANCE
#undef KNEAR_QUEUE
