// knear/simt/block.hpp -- what the threads of a block compute together.
#pragma once
#include "knear/simt/thread.hpp"

namespace knear {

// A mask of the lanes before this one, in the bits of ballot().
KNEAR_DEVICE unsigned lanes_before(int lane) { return (1u << lane) - 1; }

// The sum of x over all threads before this one; `total` becomes that over all threads. All threads
// of the block call it. `sums` [threads / 32] is shared memory, which may be used again after the
// next sync().
template <int threads, class Thread>
KNEAR_DEVICE int block_prefix(Thread t, int x, int* sums, int& total) {
  const int lane = t.index() % warp_size, warp = t.index() / warp_size;
  int sum = x;
  KNEAR_UNROLL
  for (int distance = 1; distance < warp_size; distance *= 2) {
    const int other = t.shuffle(sum, lane >= distance ? lane - distance : lane);
    if (lane >= distance) sum += other;
  }
  if (lane == warp_size - 1) sums[warp] = sum;
  t.sync();
  int before = 0;
  total = 0;
  KNEAR_UNROLL
  for (int i = 0; i < threads / warp_size; ++i) {
    if (i < warp) before += sums[i];
    total += sums[i];
  }
  return before + sum - x;
}

}  // namespace knear
