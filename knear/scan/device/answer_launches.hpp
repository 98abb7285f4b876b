// knear/scan/device/answer_launches.hpp -- the launches of answer_kernels.hpp, compiled
// once for each queue (knear/simt/instances.hpp).
#pragma once
#include <cstdint>

#include "knear/scan/device/answer_kernels.hpp"

namespace knear::detail {

template <class Queue>
void launch_find_zero_rows(Queue& queue, const void* rows, ElementType type, std::int64_t count,
                           std::int64_t dim, unsigned char* flags, int* zeros) {
  with_element(type, [&](auto element) {
    using Row = decltype(element);
    using Kernel = FindZeroRows<typename Queue::Thread, Row>;
    launch(queue, grid_for<Kernel>(queue, count, Kernel::warps),
           Kernel{static_cast<const Row*>(rows), count, dim, flags, zeros});
  });
}

template <class Queue>
void launch_merge_answers(Queue& queue, const AnswerMerge& merge) {
  using Kernel = MergeAnswers<typename Queue::Thread>;
  launch(queue, grid_for<Kernel>(queue, merge.count, Kernel::warps), Kernel{merge});
}

// Requires queries and k of at least 1.
template <class Queue>
void launch_round_answers(Queue& queue, const double* keys, const std::int64_t* ids,
                          std::int64_t columns, std::int64_t queries, std::int64_t k, bool negated,
                          std::int64_t* out_ids, float* out_distances) {
  using Kernel = RoundAnswers<typename Queue::Thread>;
  launch(queue, grid_for<Kernel>(queue, queries * k, Kernel::threads),
         Kernel{keys, ids, columns, queries, k, negated, out_ids, out_distances});
}

// The same of a self-join, whose queries are the rows.
template <class Queue>
void launch_round_others(Queue& queue, const double* keys, const std::int64_t* ids,
                         std::int64_t columns, std::int64_t queries, std::int64_t k, bool negated,
                         std::int64_t* out_ids, float* out_distances) {
  using Kernel = RoundOthers<typename Queue::Thread>;
  launch(queue, grid_for<Kernel>(queue, queries, Kernel::warps),
         Kernel{keys, ids, columns, queries, k, negated, out_ids, out_distances});
}

// The launches above that are compiled once for each queue (knear/simt/instances.hpp).
#define KNEAR_ANSWER_LAUNCHES(INSTANCE, Queue) \
  INSTANCE(launch_find_zero_rows, Queue)       \
  INSTANCE(launch_merge_answers, Queue)        \
  INSTANCE(launch_round_answers, Queue)        \
  INSTANCE(launch_round_others, Queue)

}  // namespace knear::detail
