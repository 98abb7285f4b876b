// knear/simt/cuda_warpgroup_thread.cuh -- the thread of a GPU of compute capability 9.0: each
// member an instruction or two, of sm_90a alone. Code for others has none of them, and kernels
// leave at once there (`here`); who launches asks whether the device has them.
#pragma once
#include "knear/simt/cuda_thread.cuh"
#include "knear/simt/warpgroup_thread.hpp"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KNEAR_SM_90A 1
#endif

// The product of a warpgroup: `access` says whether sums are only written or added to, which `adds`
// tells the instruction.
#define KNEAR_WARPGROUP_PRODUCT(access, adds)                                                     \
  asm volatile(                                                                                   \
      "wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.s8 "                                        \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                   \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "          \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "          \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "         \
      "{%64, %65, %66, %67}, %68, " adds ";"                                                      \
      : access(c[0]), access(c[1]), access(c[2]), access(c[3]), access(c[4]), access(c[5]),       \
        access(c[6]), access(c[7]), access(c[8]), access(c[9]), access(c[10]), access(c[11]),     \
        access(c[12]), access(c[13]), access(c[14]), access(c[15]), access(c[16]), access(c[17]), \
        access(c[18]), access(c[19]), access(c[20]), access(c[21]), access(c[22]), access(c[23]), \
        access(c[24]), access(c[25]), access(c[26]), access(c[27]), access(c[28]), access(c[29]), \
        access(c[30]), access(c[31]), access(c[32]), access(c[33]), access(c[34]), access(c[35]), \
        access(c[36]), access(c[37]), access(c[38]), access(c[39]), access(c[40]), access(c[41]), \
        access(c[42]), access(c[43]), access(c[44]), access(c[45]), access(c[46]), access(c[47]), \
        access(c[48]), access(c[49]), access(c[50]), access(c[51]), access(c[52]), access(c[53]), \
        access(c[54]), access(c[55]), access(c[56]), access(c[57]), access(c[58]), access(c[59]), \
        access(c[60]), access(c[61]), access(c[62]), access(c[63])                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.descriptor))

namespace knear {

struct CudaWarpgroupThread : CudaThread {
#ifdef KNEAR_SM_90A
  static constexpr bool here = true;
#else
  static constexpr bool here = false;
#endif

  KNEAR_DEVICE void show_barriers() const {
#ifdef KNEAR_SM_90A
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  KNEAR_DEVICE void arrive_expecting(unsigned long long* word, unsigned bytes) const {
#ifdef KNEAR_SM_90A
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(word)),
        "r"(bytes)
        : "memory");
#endif
  }
  // To the shared memory of a cluster, of which a block that was launched without one is all.
  KNEAR_DEVICE void copy_bulk(void* to, const void* from, unsigned bytes,
                              unsigned long long* word) const {
#ifdef KNEAR_SM_90A
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(word))
        : "memory");
#endif
  }
  KNEAR_DEVICE void sync_some(int number, int count) const {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
  }

  KNEAR_DEVICE void store_operand(unsigned* to, unsigned value) const { *to = value; }
  KNEAR_DEVICE void show_operands() const {
#ifdef KNEAR_SM_90A
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }
  // The matrix descriptor without swizzling, of an operand whose 32 bytes of a column are of k
  // ("K-major"): from bit 0 on the address, from bit 16 on the distance of the core matrices, [8
  // columns x 16 bytes], that are beside one another in k, from bit 32 on of those in n; all of
  // them in 16 bytes.
  struct Operand {
    std::uint64_t descriptor;
  };
  static KNEAR_DEVICE Operand operand(const void* at, unsigned columns, unsigned halves) {
    const std::uint64_t address = shared_address(at) & 0x3ffff;
    return {address >> 4 | std::uint64_t{halves >> 4} << 16 | std::uint64_t{columns >> 4} << 32};
  }
  static KNEAR_DEVICE Operand further(Operand from, unsigned bytes) {
    return {from.descriptor + (bytes >> 4)};
  }
  KNEAR_DEVICE void begin_products() const {
#ifdef KNEAR_SM_90A
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
  }
  KNEAR_DEVICE void begin_product(int (&c)[64], const unsigned (&a)[4], Operand b) const {
#ifdef KNEAR_SM_90A
    KNEAR_WARPGROUP_PRODUCT("=r", "0");
#endif
  }
  KNEAR_DEVICE void add_product(int (&c)[64], const unsigned (&a)[4], Operand b) const {
#ifdef KNEAR_SM_90A
    KNEAR_WARPGROUP_PRODUCT("+r", "1");
#endif
  }
  KNEAR_DEVICE void close_products() const {
#ifdef KNEAR_SM_90A
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
  }
  template <int left>
  KNEAR_DEVICE void wait_for_products(int (&sums)[64]) const {
#ifdef KNEAR_SM_90A
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
    // So that the compiler reads none of them earlier.
    KNEAR_UNROLL
    for (int i = 0; i < 64; ++i) asm volatile("" : "+r"(sums[i])::"memory");
#endif
  }

  template <int registers>
  KNEAR_DEVICE void keep_registers() const {
#ifdef KNEAR_SM_90A
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
  }
  template <int registers>
  KNEAR_DEVICE void take_registers() const {
#ifdef KNEAR_SM_90A
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
  }

  static KNEAR_DEVICE int larger_sum(int a, int b, int c) { return __viaddmax_s32(a, b, c); }
};

static_assert(WarpgroupThread<CudaWarpgroupThread>);

}  // namespace knear

#undef KNEAR_WARPGROUP_PRODUCT
