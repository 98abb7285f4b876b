// tests/cuda/fake_runtime.hpp -- a CUDA runtime without a GPU, for what knear/cuda does with
// memory.
//
//   FakeRuntime& cuda = FakeRuntime::start({.device_bytes = 1000});   // and link fake_runtime.cpp
//   cuda::Queue queue(0);                                             // the library as it is
//   EXPECT_EQ(cuda.reserved(0), 0u);
//
// It stands for the library cudart and does what the reference of CUDA promises of memory pools,
// and no more than that: a block that was freed in the order of a stream is used again on the same
// stream, or elsewhere once its work was seen to be done by a synchronisation; it never is used for
// another size (as if memory were in pieces); a pool lets go of blocks where it was told to hold
// less, at a synchronisation, when it is trimmed and when it is destroyed. Work on a stream is
// never done before somebody waits for it. Nothing is copied, and no kernel runs.
//
// While a stream is captured, memory for it belongs to the graph, and calls that CUDA forbids
// meanwhile fail and are counted. All calls are counted by name.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace knear::test {

struct FakeMachine {
  std::size_t device_bytes = 1000, pinned_bytes = 100 << 20;
  int devices = 1;
  bool has_pools = true;
  std::map<cudaDeviceAttr, int> rates = {};  // negative: the driver does not know it
};

class FakeRuntime {
 public:
  // The one of the process, as new: nothing is allocated, no call was made.
  static FakeRuntime& start(const FakeMachine& machine);
  static FakeRuntime& now();

  // What the pools of a device hold, and of that what is allocated; pools that were not destroyed.
  std::size_t reserved(int device);
  std::size_t used(int device);
  int pools(int device);
  // What somebody else takes of a device.
  void take(int device, std::size_t bytes);
  std::size_t pinned();
  std::size_t graph_bytes();  // of allocations that were captured

  int calls(const std::string& name);
  void forget_calls();
  int forbidden();  // calls that would have broken a capture

  void begin_capture(cudaStream_t stream);
  void end_capture(cudaStream_t stream);

  // What a kernel may have of shared memory, and the least that it was ever set to after more.
  int shared_limit(const void* kernel);
  bool shared_limit_was_lowered();

  // As when the process ends: every call fails from now on.
  void unload();

 private:
  friend struct FakeCalls;
  struct Block {
    std::size_t size = 0;
    void* address = nullptr;
    bool used = false;
    cudaStream_t freed_on = nullptr;
    bool pending = false;  // freed, but nobody has waited for it
  };
  struct Pool {
    int device = 0;
    std::size_t threshold = 0;
    bool destroyed = false;
    std::vector<Block> blocks;
  };
  std::size_t held(int device) const;
  void finish(cudaStream_t stream);
  void release(Pool& pool, std::size_t keep);

  mutable std::recursive_mutex mutex_;
  FakeMachine machine_;
  std::vector<std::size_t> taken_;
  std::vector<std::unique_ptr<Pool>> pools_;
  std::map<void*, std::size_t> plain_, pinned_, graph_;
  std::map<void*, int> plain_device_;
  std::set<cudaStream_t> captured_;
  std::map<cudaEvent_t, cudaStream_t> events_;
  std::set<cudaEvent_t> waiting_;  // events whose work nobody has waited for
  std::map<std::string, int> calls_;
  std::map<const void*, int> shared_limits_;
  int forbidden_ = 0;
  bool lowered_ = false, unloaded_ = false;
};

}  // namespace knear::test
