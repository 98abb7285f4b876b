// knear/simt/thread.hpp -- what a kernel may do: the concept Thread, one thread of a block.
//
//   template <class Thread>
//   struct Doubled {
//     static constexpr int threads = 256, resident_blocks = 4;
//     float* data;
//     std::int64_t count;
//     KNEAR_KERNEL void operator()(Thread t) const {
//       const std::int64_t i = t.block() * threads + t.index();
//       if (i < count) data[i] *= 2;
//     }
//   };
//   launch(queue, Grid{blocks, shared_bytes}, Doubled<Queue::Thread>{data, count});
//
// A kernel is a struct: its arguments, and a call operator that one thread runs. It is written
// once. On a GPU Thread is CudaThread (registers and instructions) and the queue a stream; in the
// tests it is HostThread, where a block runs as fibers in a random order, and the queue runs blocks
// at once. tests/simt/emulator.hpp says what the tests cannot show.
//
// A block is one-dimensional and a multiple of 32 threads. Operations of a warp are called by all
// of its 32 threads, those of a block by all of its threads, those of a grid by all threads.
#pragma once
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "knear/simt/warp.hpp"

// Marks the call operator of a kernel, and functions that only kernels call.
#if defined(__CUDACC__)
#define KNEAR_KERNEL __device__
#define KNEAR_DEVICE __device__ __forceinline__
#else
#define KNEAR_KERNEL
#define KNEAR_DEVICE inline
#endif

namespace knear {

KNEAR_DEVICE int count_bits(unsigned bits) {
#if defined(__CUDACC__)
  return __popc(bits);
#else
  return __builtin_popcount(bits);
#endif
}
// The number of the lowest bit that is set, of at least one.
KNEAR_DEVICE int lowest_bit(unsigned bits) {
#if defined(__CUDACC__)
  return __ffs(static_cast<int>(bits)) - 1;
#else
  return __builtin_ctz(bits);
#endif
}
// The number of the highest bit that is set, from 1 on; 0 without one.
KNEAR_DEVICE int bit_width(unsigned bits) {
#if defined(__CUDACC__)
  return 32 - __clz(static_cast<int>(bits));
#else
  return bits == 0 ? 0 : 32 - __builtin_clz(bits);
#endif
}
// c and the products of the four bytes of a, which have no sign, with those of b, which have one.
KNEAR_DEVICE int add_products_u8_s8(unsigned a, unsigned b, int c) {
#if defined(__CUDACC__)
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(c) : "r"(a), "r"(b));
#else
  for (unsigned i = 0; i < 32; i += 8)
    c += static_cast<int>(a >> i & 255) * static_cast<signed char>(b >> i & 255);
#endif
  return c;
}
// A product and a sum that are rounded separately, whatever the compiler may contract elsewhere.
KNEAR_DEVICE double rounded_product(double a, double b) {
#if defined(__CUDACC__)
  return __dmul_rn(a, b);
#else
  return a * b;  // compiled without contraction (cmake/knear.cmake)
#endif
}
KNEAR_DEVICE double rounded_sum(double a, double b) {
#if defined(__CUDACC__)
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}

// The number of blocks and their shared memory; the threads of a block are the kernel's. together:
// all blocks run at the same time, so that they may wait for one another (sync_grid()); there must
// be no more of them than the device holds at once, a multiprocessor resident_blocks of the kernel.
struct Grid {
  std::int64_t blocks = 1;
  std::size_t shared_bytes = 0;
  bool together = false;
};

// A grid of blocks that do `each` of `count` at a time: no more than four times as many blocks as
// are resident at once, so that each goes on to others.
template <class Kernel, class Queue>
Grid grid_for(const Queue& queue, std::int64_t count, std::int64_t each) {
  return {std::min((count + each - 1) / each,
                   std::int64_t{queue.multiprocessors()} * Kernel::resident_blocks * 4),
          0};
}

template <class T>
concept Thread = requires(T t, float x, int i, unsigned bits, bool yes, unsigned char* bytes,
                          int (&ints)[4], float (&floats)[4], const unsigned (&a)[4],
                          const unsigned (&b)[2], unsigned (&four)[4], int* counter,
                          unsigned long long* largest) {
  // The thread's number in its block, the block's in the grid, and the number of blocks.
  { t.index() } -> std::same_as<int>;
  { t.block() } -> std::same_as<std::int64_t>;
  { t.blocks() } -> std::same_as<std::int64_t>;
  // The block's shared memory, as many bytes as the launch asked for, aligned to 128.
  { t.shared() } -> std::same_as<unsigned char*>;

  // Block: waits for all of its threads; what they wrote before is then visible.
  t.sync();
  // The same in two halves, in a word of shared memory that one thread prepares for so many
  // arrivals before a sync(): what a thread wrote before it arrives is visible to who waits for all
  // of them. Rounds of arrivals follow one another, the first is not odd; nobody arrives in a round
  // before it has waited for the last one.
  t.begin_arrivals(largest, i);
  t.arrive(largest);
  t.wait_for_arrivals(largest, yes);
  // Grid, launched with Grid::together: waits for all threads of all of its blocks; what they wrote
  // before is then visible.
  t.sync_grid();
  // Warp: as sync().
  t.sync_warp();
  // Warp: the bit of each lane that says yes. Neither this nor what follows is a barrier: what the
  // lanes wrote to memory before need not be seen.
  { t.ballot(yes) } -> std::same_as<unsigned>;
  { t.any(yes) } -> std::same_as<bool>;
  { t.all(yes) } -> std::same_as<bool>;
  // Warp: the value of lane i, or of the lane whose number differs by the bits of i.
  { t.shuffle(x, i) } -> std::same_as<float>;
  { t.shuffle_xor(x, i) } -> std::same_as<float>;

  // The same number of four bytes, unknown to the compiler: what follows from it is computed here,
  // where it is rarely wanted, and not ahead of a loop, where it would take registers all the time;
  // or ahead of a loop, though the assembler may compute it again in every round all the same.
  { t.computed_anew(i) } -> std::same_as<int>;

  // Adds atomically; returns the value before. Orders no other access.
  { t.atomic_add(counter, i) } -> std::same_as<int>;
  // Stores the larger of the two, atomically.
  t.atomic_max(largest, *largest);
  // The value while other threads add to it or raise it.
  { t.atomic_read(counter) } -> std::same_as<int>;
  // Makes what this thread wrote visible to all threads that see what it writes later.
  t.fence();

  // Brings the 128 bytes around an address of device memory nearer, into the cache that all
  // multiprocessors share, and waits for nothing.
  t.prefetch(static_cast<const unsigned char*>(bytes));

  // *from and *to = x, of shared memory. In an inner loop, so that tests count what a warp's
  // accesses take of it (tests/simt/emulator.hpp); elsewhere the plain expression does.
  { t.read_shared(static_cast<const float*>(&x)) } -> std::same_as<float>;
  t.write_shared(&x, x);

  // Copies 16 bytes to shared memory, both addresses multiples of 16; without `valid` writes zeros
  // and reads nothing. The copies between two calls of close_copies() are a group;
  // wait_for_copies<n>() waits for all but the last n groups of this thread. Other threads see the
  // bytes after another sync().
  t.copy_16(bytes, static_cast<const unsigned char*>(bytes), yes);
  t.close_copies();
  t.template wait_for_copies<1>();

  // Warp, tensor cores: c += a b for a [16 x k] and b [k x 8], each lane holding the parts that
  // mma.sync gives it (PTX ISA, "Matrix Fragments for mma.m16n8k32" and "m16n8k16"):
  // with g = lane / 4 and q = lane % 4, a[0] row g, a[1] row g + 8, a[2] and a[3] the same rows
  // half of k further on; b[0] column g, b[1] half of k further; of k the q-th 4 bytes of the half;
  // and c[0], c[1] row g, columns 2 q and 2 q + 1, c[2] and c[3] row g + 8. 8-bit integers, k = 32,
  // a without and b with a sign, sums in 32 bits; with a fourth argument c = that + a b:
  t.multiply_u8_s8(ints, a, b);
  t.multiply_u8_s8(ints, a, b, ints);
  // bfloat16, k = 16, sums in fp32 in an order of the hardware's own:
  t.multiply_bf16(floats, a, b);
};

}  // namespace knear
