// knear/simt/cuda_thread.cuh -- the thread of the GPU: each member an instruction or two.
#pragma once
#include <cooperative_groups.h>

#include "knear/simt/thread.hpp"

namespace knear {

struct CudaThread {
  static constexpr unsigned everyone = 0xffffffffu;
  static KNEAR_DEVICE unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
  }

  KNEAR_DEVICE int index() const { return static_cast<int>(threadIdx.x); }
  KNEAR_DEVICE std::int64_t block() const { return blockIdx.x; }
  KNEAR_DEVICE std::int64_t blocks() const { return gridDim.x; }
  KNEAR_DEVICE unsigned char* shared() const {
    extern __shared__ __align__(128) unsigned char knear_shared_memory[];
    return knear_shared_memory;
  }

  KNEAR_DEVICE void sync() const { __syncthreads(); }
  KNEAR_DEVICE void begin_arrivals(unsigned long long* word, int count) const {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(word)), "r"(count)
                 : "memory");
  }
  KNEAR_DEVICE void arrive(unsigned long long* word) const {
    asm volatile(
        "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(word))
        : "memory");
  }
  KNEAR_DEVICE void wait_for_arrivals(unsigned long long* word, bool odd) const {
    unsigned arrived = 0;
    do {
      asm volatile(
          "{ .reg .pred all;"
#if __CUDA_ARCH__ >= 900
          " mbarrier.try_wait.parity.shared.b64 all, [%1], %2;"
#else
          " mbarrier.test_wait.parity.shared.b64 all, [%1], %2;"
#endif
          " selp.u32 %0, 1, 0, all; }"
          : "=r"(arrived)
          : "r"(shared_address(word)), "r"(static_cast<unsigned>(odd))
          : "memory");
    } while (arrived == 0);
  }
  KNEAR_DEVICE void sync_grid() const { cooperative_groups::this_grid().sync(); }
  KNEAR_DEVICE void sync_warp() const { __syncwarp(); }
  KNEAR_DEVICE unsigned ballot(bool yes) const { return __ballot_sync(everyone, yes); }
  KNEAR_DEVICE bool any(bool yes) const { return __any_sync(everyone, yes); }
  KNEAR_DEVICE bool all(bool yes) const { return __all_sync(everyone, yes); }
  template <class T>
  KNEAR_DEVICE T shuffle(T x, int lane) const {
    return __shfl_sync(everyone, x, lane);
  }
  template <class T>
  KNEAR_DEVICE T shuffle_xor(T x, int bits) const {
    return __shfl_xor_sync(everyone, x, bits);
  }

  template <class T>
  KNEAR_DEVICE T computed_anew(T x) const {
    static_assert(sizeof(T) == 4);
    asm volatile("" : "+r"(x));
    return x;
  }

  template <class T>
  KNEAR_DEVICE T atomic_add(T* to, T x) const {
    return atomicAdd(to, x);
  }
  template <class T>
  KNEAR_DEVICE void atomic_max(T* to, T x) const {
    atomicMax(to, x);
  }
  template <class T>
  KNEAR_DEVICE T atomic_read(const T* from) const {
    return *static_cast<const volatile T*>(from);
  }
  KNEAR_DEVICE void fence() const { __threadfence(); }
  KNEAR_DEVICE void prefetch(const void* at) const {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }

  template <class T>
  KNEAR_DEVICE T read_shared(const T* from) const {
    return *from;
  }
  template <class T>
  KNEAR_DEVICE void write_shared(T* to, T x) const {
    *to = x;
  }

  KNEAR_DEVICE void copy_16(void* to, const void* from, bool valid) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
  }
  KNEAR_DEVICE void close_copies() const { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int left>
  KNEAR_DEVICE void wait_for_copies() const {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
  }

  KNEAR_DEVICE void multiply_u8_s8(int (&c)[4], const unsigned (&a)[4],
                                   const unsigned (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  KNEAR_DEVICE void multiply_u8_s8(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                                   const int (&start)[4]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(start[0]),
          "r"(start[1]), "r"(start[2]), "r"(start[3]));
  }
  KNEAR_DEVICE void multiply_bf16(float (&c)[4], const unsigned (&a)[4],
                                  const unsigned (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
};

static_assert(Thread<CudaThread>);

}  // namespace knear
