// knear/cuda/device_pool.hpp -- what all queues of a device share: a pool of its memory, and what
// kernels were allowed there. What holds for those who use queues is said in queue.hpp.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace knear::cuda::detail {

// Whether this process was made by fork() after a device was used: CUDA then works in its parent
// alone, and a lock may be held by a thread that is not here.
bool was_forked();

class PoolUser;

// Any number of threads may use it.
class DevicePool {
 public:
  // That of a device, made for the first who asks and destroyed when the last lets go of it. Throws
  // DeviceUnavailable.
  static std::shared_ptr<DevicePool> of(int device);
  // nullptr where nobody has one.
  static std::shared_ptr<DevicePool> if_present(int device);
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  int device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }
  std::size_t shared_memory() const { return shared_memory_; }
  // Whether the device is of compute capability 9.0 and this library has code of sm_90a.
  bool has_warpgroups() const { return has_warpgroups_; }
  // Whether all blocks of a launch can be made to run at the same time.
  bool launches_together() const { return launches_together_; }

  // Gives what is kept back to the system, when the work of all queues is done.
  void give_back();
  // Those of the device, and those that the pool keeps.
  std::size_t free_bytes() const;
  void allow_shared_memory(const void* kernel, std::size_t bytes);

  // Streams whose work is waited for where memory is missing.
  void add_stream(cudaStream_t stream);
  void remove_stream(cudaStream_t stream) noexcept;

 private:
  friend class PoolUser;
  explicit DevicePool(int device);
  // nullptr where the device has not so much left, after all was tried. Throws what the work before
  // it failed by.
  void* allocate(std::size_t bytes, cudaStream_t stream);
  void free(void* data, cudaStream_t stream) noexcept;
  void keep(cudaStream_t stream) noexcept;
  void wait_for_all() noexcept;

  int device_ = 0, multiprocessors_ = 0;
  std::size_t shared_memory_ = 0;
  bool has_warpgroups_ = false, launches_together_ = false;
  cudaMemPool_t pool_ = nullptr;              // or none, where the device has no such pools
  std::size_t spare_ = 0;                     // the most that is kept beyond what is in use
  std::mutex mutex_;                          // for all members below, and those of users
  std::size_t in_use_ = 0, most_in_use_ = 0;  // sums over all users
  std::uint64_t kept_ = 0;                    // what the pool was told to hold at most
  std::vector<cudaStream_t> streams_;
  std::mutex shared_mutex_;  // its own: to ask CUDA may take as long as a copy that is under way
  std::map<const void*, std::size_t> shared_bytes_;  // of each kernel, beyond what all may have
};

// One user of a pool, with a budget: any number of threads.
class PoolUser {
 public:
  // `budget` bytes at most; 0: as many as the device has.
  PoolUser(std::shared_ptr<DevicePool> pool, std::size_t budget);
  ~PoolUser();
  PoolUser(const PoolUser&) = delete;
  PoolUser& operator=(const PoolUser&) = delete;
  // The one that stands for all calls without a queue of their own. It stays.
  static std::shared_ptr<PoolUser> of_calls(int device);

  DevicePool& pool() const { return *pool_; }
  // Throws MemoryBudgetError, and what DevicePool::allocate() throws.
  void* allocate(std::size_t bytes, cudaStream_t stream);
  void free(void* data, std::size_t bytes, cudaStream_t stream) noexcept;
  std::size_t free_bytes() const;
  std::size_t bytes_in_use() const;
  std::size_t most_bytes_in_use() const;

 private:
  void take(std::size_t bytes);
  void give_back(std::size_t bytes, cudaStream_t stream) noexcept;

  std::shared_ptr<DevicePool> pool_;
  std::size_t budget_;
  std::size_t in_use_ = 0, most_in_use_ = 0;
};

}  // namespace knear::cuda::detail
