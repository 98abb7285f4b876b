// knear/scan/device/answer_launches_cuda.hpp -- the launches of answer_launches.hpp that nvcc
// compiled.
#pragma once
#include "knear/cuda/queue.hpp"
#include "knear/scan/device/answer_launches.hpp"

namespace knear::detail {

extern template void launch_find_zero_rows(cuda::Queue&, const void*, ElementType, std::int64_t,
                                           std::int64_t, unsigned char*, int*);
extern template void launch_merge_answers(cuda::Queue&, const AnswerMerge&);
extern template void launch_round_answers(cuda::Queue&, const double*, const std::int64_t*,
                                          std::int64_t, std::int64_t, std::int64_t, bool,
                                          std::int64_t*, float*);
extern template void launch_round_others(cuda::Queue&, const double*, const std::int64_t*,
                                         std::int64_t, std::int64_t, std::int64_t, bool,
                                         std::int64_t*, float*);

}  // namespace knear::detail
