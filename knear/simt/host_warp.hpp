// knear/simt/host_warp.hpp -- a warp emulated by arrays of 32: tests without a GPU.
//
// Every operation is one loop over the lanes. It also checks: a load or store touches exactly the
// addresses that the lanes would (so the address sanitizer sees a stray one), and a lane number or
// shuffle distance outside [0, 32) throws std::out_of_range where the GPU would return nonsense.
#pragma once
#include <cmath>
#include <stdexcept>

#include "knear/simt/warp.hpp"

namespace knear {

// One truth value per lane. It does not convert to bool, on purpose: control flow must be uniform.
struct HostMask {
  bool lane[warp_size];

  [[gnu::noinline]] friend HostMask operator&(const HostMask& a, const HostMask& b) {
    return each([&](int i) { return a.lane[i] && b.lane[i]; });
  }
  [[gnu::noinline]] friend HostMask operator|(const HostMask& a, const HostMask& b) {
    return each([&](int i) { return a.lane[i] || b.lane[i]; });
  }
  [[gnu::noinline]] friend HostMask operator^(const HostMask& a, const HostMask& b) {
    return each([&](int i) { return a.lane[i] != b.lane[i]; });
  }
  [[gnu::noinline]] friend HostMask operator!(const HostMask& a) {
    return each([&](int i) { return !a.lane[i]; });
  }
  template <class F>
  static HostMask each(F&& f) {
    HostMask out;
    for (int i = 0; i < warp_size; ++i) out.lane[i] = f(i);
    return out;
  }
};

template <class T>
struct HostLanes {
  T lane[warp_size];

  [[gnu::noinline]] friend HostLanes operator+(const HostLanes& a, const HostLanes& b) {
    return each([&](int i) { return T(a.lane[i] + b.lane[i]); });
  }
  [[gnu::noinline]] friend HostLanes operator-(const HostLanes& a, const HostLanes& b) {
    return each([&](int i) { return T(a.lane[i] - b.lane[i]); });
  }
  [[gnu::noinline]] friend HostLanes operator&(const HostLanes& a, const HostLanes& b) {
    return each([&](int i) { return T(a.lane[i] & b.lane[i]); });
  }
  [[gnu::noinline]] friend HostMask operator<(const HostLanes& a, const HostLanes& b) {
    return HostMask::each([&](int i) { return a.lane[i] < b.lane[i]; });
  }
  [[gnu::noinline]] friend HostMask operator<=(const HostLanes& a, const HostLanes& b) {
    return HostMask::each([&](int i) { return a.lane[i] <= b.lane[i]; });
  }
  [[gnu::noinline]] friend HostMask operator==(const HostLanes& a, const HostLanes& b) {
    return HostMask::each([&](int i) { return a.lane[i] == b.lane[i]; });
  }
  template <class F>
  static HostLanes each(F&& f) {
    HostLanes out;
    for (int i = 0; i < warp_size; ++i) out.lane[i] = f(i);
    return out;
  }
};

struct HostWarp {
  template <class T>
  using Lanes = HostLanes<T>;
  using Mask = HostMask;

  [[gnu::noinline]] bool any(const Mask& m) const {
    for (bool b : m.lane)
      if (b) return true;
    return false;
  }
  template <class T>
  [[gnu::noinline]] Lanes<T> select(const Mask& m, const Lanes<T>& a, const Lanes<T>& b) const {
    return Lanes<T>::each([&](int i) { return m.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  [[gnu::noinline]] Lanes<float> minimum(const Lanes<float>& a, const Lanes<float>& b) const {
    return Lanes<float>::each([&](int i) { return std::fmin(a.lane[i], b.lane[i]); });
  }
  template <class T>
  [[gnu::noinline]] Lanes<T> shuffle_xor(const Lanes<T>& x, int distance) const {
    check(distance);
    return Lanes<T>::each([&](int i) { return x.lane[i ^ distance]; });
  }
  template <class T>
  [[gnu::noinline]] Lanes<T> broadcast(const Lanes<T>& x, int source) const {
    check(source);
    return fill(x.lane[source]);
  }
  template <class T>
  [[gnu::noinline]] Lanes<T> fill(T x) const {
    return Lanes<T>::each([&](int) { return x; });
  }
  template <class T>
  [[gnu::noinline]] Lanes<T> lane() const {
    return Lanes<T>::each([](int i) { return T(i); });
  }
  [[gnu::noinline]] Mask lanes_with(int bit) const {
    check(bit);
    return Mask::each([&](int i) { return (i & bit) != 0; });
  }
  template <class T>
  [[gnu::noinline]] Lanes<T> load(const T* from) const {
    return Lanes<T>::each([&](int i) { return from[i]; });
  }
  template <class T>
  [[gnu::noinline]] Lanes<T> load(const T* from, int count, T otherwise) const {
    return Lanes<T>::each([&](int i) { return i < count ? from[i] : otherwise; });
  }
  template <class T>
  void store(T* to, int count, const Lanes<T>& x) const {
    for (int i = 0; i < warp_size && i < count; ++i) to[i] = x.lane[i];
  }

 private:
  static void check(int lane) {
    if (lane < 0 || lane >= warp_size) throw std::out_of_range("no such lane of a warp");
  }
};

static_assert(Warp<HostWarp>);
static_assert(!std::convertible_to<HostMask, bool>);

}  // namespace knear
