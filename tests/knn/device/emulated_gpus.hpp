// tests/knn/device/emulated_gpus.hpp -- a machine with several emulated GPUs, on which all searches
// run that name one.
//
//   EmulatedGpus gpus(4);                                      // cuda:0 ... cuda:3, while it lives
//   knn(queries, base, 10, {.device = "cuda:0,2"});
//   gpus[2].launches()                                         // of kernels there
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/knn/device/present_devices.hpp"
#include "knear/knn/device/queue_devices.hpp"
#include "tests/simt/emulated_launches.hpp"

namespace knear::test {

class EmulatedGpus final : public detail::QueueDevices<HostQueue> {
 public:
  explicit EmulatedGpus(int count, std::size_t bytes_each = std::size_t{1} << 40) {
    for (int i = 0; i < count; ++i) gpus_.push_back(std::make_shared<HostDevice>(i, bytes_each));
    detail::use_devices(this);
  }
  ~EmulatedGpus() override { detail::use_devices(nullptr); }

  const HostDevice& operator[](int gpu) const { return *gpus_[static_cast<std::size_t>(gpu)]; }
  std::vector<std::int64_t> launches() const {
    std::vector<std::int64_t> out;
    for (const auto& gpu : gpus_) out.push_back(gpu->launches());
    return out;
  }

  HostQueue queue(int gpu) const { return open(gpu, 0); }
  // What they say that they are: an H100 each.
  DeviceTraits described{"emulated", 9, 0, 132, 1.98e9, 3.35e12, 80e9};
  DeviceTraits traits(int) const override { return described; }

  int count() const override { return static_cast<int>(gpus_.size()); }
  void check(int index) const override {
    if (index < 0 || index >= count())
      throw DeviceUnavailable("device must be between cuda:0 and cuda:{}, but is cuda:{}",
                              count() - 1, index);
  }

 protected:
  HostQueue open(int gpu, std::size_t memory) const override {
    return HostQueue(++seed_, memory > 0 ? memory : std::size_t{1} << 40,
                     gpus_[static_cast<std::size_t>(gpu)]);
  }

 private:
  std::vector<std::shared_ptr<HostDevice>> gpus_;
  mutable std::atomic<std::uint64_t> seed_ = 0;
};

}  // namespace knear::test
