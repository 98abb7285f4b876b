// knear/core/host_device.hpp -- the marks of plain functions of numbers that the processor and
// kernels of a GPU both call.
#pragma once

#if defined(__CUDACC__)
#define KNEAR_HD __host__ __device__
#else
#define KNEAR_HD
#endif

// For formulas that every instruction set's kernels use too: these are compiled with flags of their
// own, so each has its own copy and the linker keeps none for all.
#if defined(__CUDACC__)
#define KNEAR_FORMULA [[maybe_unused]] static KNEAR_HD __forceinline__
#else
#define KNEAR_FORMULA [[maybe_unused]] static inline __attribute__((always_inline))
#endif
