// Instantiates the kernels for answers in device memory for cuda::Queue: see answer_launches.hpp.
#include "knear/scan/device/answer_launches.hpp"

#include "knear/cuda/launch.cuh"
#include "knear/simt/cuda_thread.cuh"

namespace knear::detail {

template void launch_find_zero_rows(cuda::Queue&, const void*, ElementType, std::int64_t,
                                    std::int64_t, unsigned char*, int*);
template void launch_merge_answers(cuda::Queue&, const AnswerMerge&);
template void launch_round_answers(cuda::Queue&, const double*, const std::int64_t*, std::int64_t,
                                   std::int64_t, std::int64_t, bool, std::int64_t*, float*);
template void launch_round_others(cuda::Queue&, const double*, const std::int64_t*, std::int64_t,
                                  std::int64_t, std::int64_t, bool, std::int64_t*, float*);

}  // namespace knear::detail
