// knear/simt/thread_warp.hpp -- the warp of a thread: the concept Warp by the operations of Thread.
//
//   WarpSelect<ThreadWarp<Thread>, int, 4, 3> select(ThreadWarp<Thread>(t), 100);
//
// A value is one register, that of the thread; all 32 threads of a warp call each member together.
#pragma once
#include <cmath>

#include "knear/simt/thread.hpp"
#include "knear/simt/warp.hpp"

namespace knear {

template <class Thread>
class ThreadWarp {
 public:
  template <class T>
  using Lanes = T;
  using Mask = bool;

  KNEAR_DEVICE explicit ThreadWarp(Thread t) : t_(t) {}

  KNEAR_DEVICE bool any(bool m) const { return t_.any(m); }
  template <class T>
  KNEAR_DEVICE T select(bool m, T a, T b) const {
    return m ? a : b;
  }
  KNEAR_DEVICE float minimum(float a, float b) const { return fminf(a, b); }
  template <class T>
  KNEAR_DEVICE T shuffle_xor(T x, int distance) const {
    return t_.shuffle_xor(x, distance);
  }
  template <class T>
  KNEAR_DEVICE T broadcast(T x, int source) const {
    return t_.shuffle(x, source);
  }
  template <class T>
  KNEAR_DEVICE T fill(T x) const {
    return x;
  }
  template <class T>
  KNEAR_DEVICE T lane() const {
    return T(t_.index() % warp_size);
  }
  KNEAR_DEVICE bool lanes_with(int bit) const { return (t_.index() & bit) != 0; }
  template <class T>
  KNEAR_DEVICE T load(const T* from) const {
    return from[lane<int>()];
  }
  template <class T>
  KNEAR_DEVICE T load(const T* from, int count, T otherwise) const {
    return lane<int>() < count ? from[lane<int>()] : otherwise;
  }
  template <class T>
  KNEAR_DEVICE void store(T* to, int count, T x) const {
    if (lane<int>() < count) to[lane<int>()] = x;
  }

 private:
  Thread t_;
};

}  // namespace knear
