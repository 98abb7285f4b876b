// knear/simt/warp.hpp -- what a warp-level algorithm may do: the concept Warp.
//
//   template <Warp W>
//   KNEAR_WARP bool any_negative(W w, Lanes<W, float> x) { return w.any(x < w.fill(0.0f)); }
//
// An algorithm is written once, from the point of view of the whole warp. A value of type
// Lanes<W, T> is 32 values of T, one per lane: one register of a thread (ThreadWarp), an array on
// the host (HostWarp), where tests run it without a GPU. Control flow is uniform: `if` takes what
// any() returns, and a choice that differs between lanes is select(mask, a, b). A mask of HostWarp
// does not convert to bool, so a divergent `if` does not compile in the tests.
//
// This emulation cannot show a missing __syncwarp or a race. Kernels that run thread by thread
// (thread.hpp) show both under the thread sanitiser, and compute-sanitizer does on a GPU.
//
// Lanes of equal type combine by + - & < <= == element by element, masks by & | ^ !. Nothing else
// is needed so far; a new operation goes into both warps and here.
#pragma once
#include <concepts>

#include "knear/core/host_device.hpp"

// Before a function that is warp code: device code under nvcc, where ThreadWarp is the only warp;
// ordinary code elsewhere, where HostWarp is. (Not both at once: the members of CudaThread exist on
// the device only, and nvcc warns of each call from a function that could also run on the host.)
#if defined(__CUDACC__)
#define KNEAR_WARP __device__ __forceinline__
#define KNEAR_UNROLL _Pragma("unroll")
#define KNEAR_NO_UNROLL _Pragma("unroll 1")
#else
// Not inlined: a network is thousands of operations, and building the tests would take minutes.
#define KNEAR_WARP [[gnu::noinline]] inline
#define KNEAR_UNROLL
#define KNEAR_NO_UNROLL
#endif

namespace knear {

inline constexpr int warp_size = 32;

template <class W, class T>
using Lanes = typename W::template Lanes<T>;

template <class W>
concept Warp = requires(W w, Lanes<W, float> x, Lanes<W, int> n, typename W::Mask m, int i,
                        const float* from, float* to) {
  // Whether the mask holds in any lane: the same answer in every lane.
  { w.any(m) } -> std::same_as<bool>;
  // Per lane: m ? first : second.
  { w.select(m, x, x) } -> std::same_as<Lanes<W, float>>;
  // The smaller; a NaN loses against a number.
  { w.minimum(x, x) } -> std::same_as<Lanes<W, float>>;
  // Lane l gets the value of lane l ^ i.
  { w.shuffle_xor(x, i) } -> std::same_as<Lanes<W, float>>;
  // Every lane gets the value of lane i.
  { w.broadcast(x, i) } -> std::same_as<Lanes<W, float>>;
  // The same value in every lane; the numbers 0, 1, ... 31 of the lanes.
  { w.fill(1.0f) } -> std::same_as<Lanes<W, float>>;
  { w.template lane<int>() } -> std::same_as<Lanes<W, int>>;
  // The lanes whose number has the bit i (a power of two below 32).
  { w.lanes_with(i) } -> std::same_as<typename W::Mask>;
  // Loads from[0..31], lane l taking from[l]. With a count, only the first `count` lanes read (none
  // if it is negative, all if it is above 31) and the others hold the last argument.
  { w.load(from) } -> std::same_as<Lanes<W, float>>;
  { w.load(from, i, 1.0f) } -> std::same_as<Lanes<W, float>>;
  // Stores: lane l writes to[l], the first `count` lanes only.
  w.store(to, i, x);
  { x < x } -> std::same_as<typename W::Mask>;
  { x <= x } -> std::same_as<typename W::Mask>;
  { n == n } -> std::same_as<typename W::Mask>;
  { n + n } -> std::same_as<Lanes<W, int>>;
};

}  // namespace knear
