#include "knear/cuda/device_pool.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/cuda/check.hpp"
#include "knear/cuda/device.hpp"
#include "knear/cuda/queue.hpp"

namespace knear::cuda::detail {
namespace {

std::atomic<bool> forked = false;

// Never destroyed: a queue may be a static object, and go when the process does.
struct Registry {
  std::mutex mutex;
  std::map<int, std::weak_ptr<DevicePool>> pools;
  std::map<int, std::shared_ptr<PoolUser>> calls;

  Registry() {
    (void)pthread_atfork(nullptr, nullptr, [] { forked = true; });
  }
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

void refuse_forked(int device) {
  if (was_forked())
    throw DeviceUnavailable(
        "device is cuda:{}, but this process was made by fork() after a GPU was used, and CUDA "
        "does not work in it; begin it anew (Python: multiprocessing's start method 'spawn')",
        device);
}

// To wait for such a stream would end the capture. The legacy stream counts as one while another
// that it would wait for is.
bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) == cudaSuccess)
    return status != cudaStreamCaptureStatusNone;
  (void)cudaGetLastError();
  return true;
}

}  // namespace

bool was_forked() { return forked; }

std::shared_ptr<DevicePool> DevicePool::of(int device) {
  refuse_forked(device);
  check_device(device);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  std::weak_ptr<DevicePool>& known = all.pools[device];
  std::shared_ptr<DevicePool> out = known.lock();
  if (!out) known = out = std::shared_ptr<DevicePool>(new DevicePool(device));
  return out;
}

std::shared_ptr<DevicePool> DevicePool::if_present(int device) {
  if (was_forked()) return nullptr;
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto known = all.pools.find(device);
  return known == all.pools.end() ? nullptr : known->second.lock();
}

DevicePool::DevicePool(int device) : device_(device) {
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    KNEAR_CHECK(cudaDeviceGetAttribute(&value, which, device));
    return value;
  };
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount);
  shared_memory_ = static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor));
  launches_together_ = attribute(cudaDevAttrCooperativeLaunch) != 0;
#ifdef KNEAR_CUDA_SM_90A
  has_warpgroups_ = attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
                    attribute(cudaDevAttrComputeCapabilityMinor) == 0;
#endif
  int pools = 0;
  KNEAR_CHECK(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
  if (pools == 0) return;
  const CurrentDevice current(device);
  std::size_t free = 0, all = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free, &all));
  // Enough for the lists of some ten thousand queries, and little beside what others have. To get
  // more of it from the system takes little time beside the search that fills it. It is a guess.
  spare_ = all / 32;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  KNEAR_CHECK(cudaMemPoolCreate(&pool_, &properties));
}

// What was freed in the order of a stream that is not there yet goes back when it is.
DevicePool::~DevicePool() {
  if (pool_ && !was_forked()) (void)cudaMemPoolDestroy(pool_);
}

void* DevicePool::allocate(std::size_t bytes, cudaStream_t stream) {
  const CurrentDevice current(device_);
  void* out = nullptr;
  const auto ask = [&] {
    return pool_ ? cudaMallocFromPoolAsync(&out, bytes, pool_, stream) : cudaMalloc(&out, bytes);
  };
  cudaError_t status = ask();
  // What is kept may be in pieces that are too small, or not be free before other work is done.
  for (const bool wait_for_others : {false, true}) {
    if (status != cudaErrorMemoryAllocation || !pool_ || is_captured(stream)) break;
    (void)cudaGetLastError();
    if (wait_for_others) wait_for_all();
    KNEAR_CHECK(cudaStreamSynchronize(stream));
    KNEAR_CHECK(cudaMemPoolTrimTo(pool_, 0));
    status = ask();
  }
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(status, pool_ ? "cudaMallocFromPoolAsync" : "cudaMalloc");
  return out;
}

// Nothing may be thrown here: what fails is seen by the next call.
void DevicePool::free(void* data, cudaStream_t stream) noexcept {
  int before = -1;
  if (cudaGetDevice(&before) == cudaSuccess && before != device_) (void)cudaSetDevice(device_);
  if (pool_)
    (void)cudaFreeAsync(data, stream);
  else
    (void)cudaFree(data);  // waits for the device
  if (before >= 0 && before != device_) (void)cudaSetDevice(before);
}

void DevicePool::give_back() {
  if (!pool_) return;
  const CurrentDevice current(device_);
  wait_for_all();
  KNEAR_CHECK(cudaMemPoolTrimTo(pool_, 0));
}

std::size_t DevicePool::free_bytes() const {
  const CurrentDevice current(device_);
  std::size_t free = 0, all = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free, &all));
  if (pool_) {
    std::uint64_t reserved = 0, used = 0;
    KNEAR_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
    KNEAR_CHECK(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrUsedMemCurrent, &used));
    // Others may take or give back between the two questions.
    free += reserved > used ? reserved - used : 0;
  }
  return free;
}

void DevicePool::allow_shared_memory(const void* kernel, std::size_t bytes) {
  std::lock_guard lock(shared_mutex_);
  std::size_t& allowed = shared_bytes_[kernel];
  if (bytes <= allowed) return;
  const CurrentDevice current(device_);
  KNEAR_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(bytes)));
  allowed = bytes;
}

void DevicePool::add_stream(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  streams_.push_back(stream);
}

void DevicePool::remove_stream(cudaStream_t stream) noexcept {
  std::lock_guard lock(mutex_);
  const auto at = std::find(streams_.begin(), streams_.end(), stream);
  if (at != streams_.end()) streams_.erase(at);
}

// Until the work that the queues of the device were given is done. Their streams may be gone as
// soon as the lock is, so the waiting is for events. What fails is seen by the queue's next call.
void DevicePool::wait_for_all() noexcept {
  std::vector<cudaEvent_t> events;
  {
    std::lock_guard lock(mutex_);
    try {
      events.reserve(streams_.size());
    } catch (...) {  // no memory here either
      return;
    }
    for (const cudaStream_t stream : streams_) {
      cudaEvent_t event = nullptr;
      if (is_captured(stream)) continue;
      if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) break;
      events.push_back(event);
      (void)cudaEventRecord(event, stream);
    }
  }
  for (const cudaEvent_t event : events) {
    (void)cudaEventSynchronize(event);
    (void)cudaEventDestroy(event);
  }
  (void)cudaGetLastError();
}

// Tells the pool how much to hold at most, if that has changed. Where a capture is under way on the
// stream that is the cause, the next change does. Requires mutex_.
void DevicePool::keep(cudaStream_t stream) noexcept {
  std::uint64_t most = std::min(most_in_use_, in_use_ + spare_);
  if (!pool_ || most == kept_ || is_captured(stream)) return;
  if (cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrReleaseThreshold, &most) == cudaSuccess)
    kept_ = most;
}

PoolUser::PoolUser(std::shared_ptr<DevicePool> pool, std::size_t budget)
    : pool_(std::move(pool)),
      budget_(budget != 0 ? budget : std::numeric_limits<std::size_t>::max()) {}

// The arrays are gone. What is too much without this user goes back at once, as far as it is free.
PoolUser::~PoolUser() {
  if (was_forked()) return;
  std::lock_guard lock(pool_->mutex_);
  pool_->in_use_ -= in_use_;
  pool_->most_in_use_ -= most_in_use_;
  if (!pool_->pool_) return;
  std::uint64_t most = std::min(pool_->most_in_use_, pool_->in_use_ + pool_->spare_);
  (void)cudaMemPoolSetAttribute(pool_->pool_, cudaMemPoolAttrReleaseThreshold, &most);
  (void)cudaMemPoolTrimTo(pool_->pool_, most);
  pool_->kept_ = most;
}

std::shared_ptr<PoolUser> PoolUser::of_calls(int device) {
  refuse_forked(device);
  Registry& all = registry();
  {
    std::lock_guard lock(all.mutex);
    const auto known = all.calls.find(device);
    if (known != all.calls.end()) return known->second;
  }
  auto user = std::make_shared<PoolUser>(DevicePool::of(device), 0);
  std::lock_guard lock(all.mutex);
  return all.calls.emplace(device, std::move(user)).first->second;  // that of the first thread
}

void PoolUser::take(std::size_t bytes) {
  std::lock_guard lock(pool_->mutex_);
  if (bytes > budget_ - in_use_)
    throw MemoryBudgetError(
        "memory is {} bytes on device {}, of which {} are in use, but {} more are needed", budget_,
        pool_->device(), in_use_, bytes);
  in_use_ += bytes, pool_->in_use_ += bytes;
}

void PoolUser::give_back(std::size_t bytes, cudaStream_t stream) noexcept {
  std::lock_guard lock(pool_->mutex_);
  in_use_ -= bytes, pool_->in_use_ -= bytes;
  pool_->keep(stream);
}

void* PoolUser::allocate(std::size_t bytes, cudaStream_t stream) {
  take(bytes);
  void* out = nullptr;
  try {
    out = pool_->allocate(bytes, stream);
  } catch (...) {
    give_back(bytes, stream);
    throw;
  }
  if (!out) {
    give_back(bytes, stream);
    throw MemoryBudgetError("device {} has no {} bytes left; {} are in use by this search or index",
                            pool_->device(), bytes, bytes_in_use());
  }
  std::lock_guard lock(pool_->mutex_);
  if (in_use_ > most_in_use_) {
    pool_->most_in_use_ += in_use_ - most_in_use_;
    most_in_use_ = in_use_;
  }
  pool_->keep(stream);
  return out;
}

void PoolUser::free(void* data, std::size_t bytes, cudaStream_t stream) noexcept {
  if (was_forked()) return;
  pool_->free(data, stream);
  give_back(bytes, stream);
}

std::size_t PoolUser::free_bytes() const {
  return std::min(pool_->free_bytes(), budget_ - bytes_in_use());
}
std::size_t PoolUser::bytes_in_use() const {
  std::lock_guard lock(pool_->mutex_);
  return in_use_;
}
std::size_t PoolUser::most_bytes_in_use() const {
  std::lock_guard lock(pool_->mutex_);
  return most_in_use_;
}

}  // namespace knear::cuda::detail
