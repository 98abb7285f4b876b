// bench/gpu/memory_checks.hpp -- that queues share the memory of a device, and give it back.
#pragma once
#include "bench/gpu/report.hpp"

namespace knear::bench {

// What knear/cuda/queue.hpp promises, on the current device: what a queue gave back serves another
// and, but for little, cudaMalloc; when the last is gone, all is free again. Nothing else may use
// the device meanwhile.
void check_memory(Report& report);

}  // namespace knear::bench
