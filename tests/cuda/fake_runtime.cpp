#include "tests/cuda/fake_runtime.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <utility>

namespace knear::test {
namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

// Addresses that are none of anything else.
void* next_address() {
  static std::uintptr_t last = 0;
  return reinterpret_cast<void*>(last += 256);
}

}  // namespace

FakeRuntime& FakeRuntime::now() {
  static FakeRuntime one;
  return one;
}

FakeRuntime& FakeRuntime::start(const FakeMachine& machine) {
  FakeRuntime& one = now();
  std::lock_guard lock(one.mutex_);
  one.machine_ = machine;
  one.taken_.assign(static_cast<std::size_t>(machine.devices), 0);
  one.pools_.clear(), one.plain_.clear(), one.pinned_.clear(), one.graph_.clear();
  one.plain_device_.clear(), one.captured_.clear(), one.events_.clear(), one.calls_.clear();
  one.waiting_.clear();
  one.shared_limits_.clear();
  one.forbidden_ = 0, one.lowered_ = one.unloaded_ = false;
  current_device = 0;
  return one;
}

std::size_t FakeRuntime::reserved(int device) {
  std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& pool : pools_)
    for (const Block& block : pool->blocks)
      if (pool->device == device) sum += block.size;
  return sum;
}

std::size_t FakeRuntime::used(int device) {
  std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& pool : pools_)
    for (const Block& block : pool->blocks)
      if (pool->device == device && block.used) sum += block.size;
  return sum;
}

int FakeRuntime::pools(int device) {
  std::lock_guard lock(mutex_);
  return static_cast<int>(std::count_if(pools_.begin(), pools_.end(), [&](const auto& pool) {
    return pool->device == device && !pool->destroyed;
  }));
}

std::size_t FakeRuntime::held(int device) const {
  std::size_t sum = taken_[static_cast<std::size_t>(device)];
  for (const auto& pool : pools_)
    for (const Block& block : pool->blocks)
      if (pool->device == device) sum += block.size;
  for (const auto& [address, size] : plain_)
    if (plain_device_.at(address) == device) sum += size;
  return sum;
}

void FakeRuntime::take(int device, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  taken_[static_cast<std::size_t>(device)] += bytes;
}

std::size_t FakeRuntime::pinned() {
  std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& one : pinned_) sum += one.second;
  return sum;
}

std::size_t FakeRuntime::graph_bytes() {
  std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& one : graph_) sum += one.second;
  return sum;
}

int FakeRuntime::calls(const std::string& name) {
  std::lock_guard lock(mutex_);
  return calls_[name];
}
void FakeRuntime::forget_calls() {
  std::lock_guard lock(mutex_);
  calls_.clear();
}
int FakeRuntime::forbidden() {
  std::lock_guard lock(mutex_);
  return forbidden_;
}
void FakeRuntime::begin_capture(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  captured_.insert(stream);
}
void FakeRuntime::end_capture(cudaStream_t stream) {
  std::lock_guard lock(mutex_);
  captured_.erase(stream);
}
int FakeRuntime::shared_limit(const void* kernel) {
  std::lock_guard lock(mutex_);
  return shared_limits_[kernel];
}
bool FakeRuntime::shared_limit_was_lowered() {
  std::lock_guard lock(mutex_);
  return lowered_;
}
void FakeRuntime::unload() {
  std::lock_guard lock(mutex_);
  unloaded_ = true;
}

// The work of a stream is done, and seen to be.
void FakeRuntime::finish(cudaStream_t stream) {
  for (const auto& pool : pools_)
    for (Block& block : pool->blocks)
      if (block.pending && block.freed_on == stream) block.pending = false;
  std::erase_if(waiting_, [&](cudaEvent_t event) { return events_.at(event) == stream; });
  for (const auto& pool : pools_) release(*pool, pool->destroyed ? 0 : pool->threshold);
}

void FakeRuntime::release(Pool& pool, std::size_t keep) {
  std::size_t sum = 0;
  for (const Block& block : pool.blocks) sum += block.size;
  std::erase_if(pool.blocks, [&](const Block& block) {
    if (sum <= keep || block.used || block.pending) return false;
    sum -= block.size;
    return true;
  });
}

// One call of the runtime: counted, refused when it is unloaded and while a stream is captured
// unless it may be made then.
struct FakeCalls {
  FakeRuntime& all = FakeRuntime::now();
  std::lock_guard<std::recursive_mutex> lock{all.mutex_};
  cudaError_t status = cudaSuccess;

  FakeCalls(const char* name, bool while_captured) {
    ++all.calls_[name];
    if (all.unloaded_) {
      status = cudaErrorCudartUnloading;
    } else if (!while_captured && !all.captured_.empty()) {
      ++all.forbidden_;
      status = cudaErrorStreamCaptureUnsupported;
    }
  }
  explicit operator bool() const { return status == cudaSuccess; }

  FakeRuntime::Pool& pool(cudaMemPool_t handle) {
    return *reinterpret_cast<FakeRuntime::Pool*>(handle);
  }
  std::size_t total() const { return all.machine_.device_bytes; }
  std::size_t left(int device) const { return total() - all.held(device); }

  cudaError_t create_pool(cudaMemPool_t* out, int device) {
    all.pools_.push_back(std::make_unique<FakeRuntime::Pool>());
    all.pools_.back()->device = device;
    *out = reinterpret_cast<cudaMemPool_t>(all.pools_.back().get());
    return cudaSuccess;
  }
  cudaError_t allocate(void** out, std::size_t bytes, cudaMemPool_t handle, cudaStream_t stream) {
    if (all.captured_.contains(stream)) {
      if (bytes > total()) return cudaErrorMemoryAllocation;
      *out = next_address();
      all.graph_[*out] = bytes;
      return cudaSuccess;
    }
    FakeRuntime::Pool& from = pool(handle);
    for (FakeRuntime::Block& block : from.blocks)
      if (!block.used && block.size == bytes && (!block.pending || block.freed_on == stream)) {
        block.used = true, block.pending = false;
        *out = block.address;
        return cudaSuccess;
      }
    if (bytes > left(from.device)) return cudaErrorMemoryAllocation;
    from.blocks.push_back({bytes, next_address(), true, nullptr, false});
    *out = from.blocks.back().address;
    return cudaSuccess;
  }
  cudaError_t free(void* data, cudaStream_t stream) {
    if (all.graph_.contains(data)) return cudaSuccess;
    for (const auto& one : all.pools_)
      for (FakeRuntime::Block& block : one->blocks)
        if (block.address == data && block.used) {
          block.used = false, block.pending = true, block.freed_on = stream;
          return cudaSuccess;
        }
    return cudaErrorInvalidValue;
  }
  cudaError_t allocate_plain(void** out, std::size_t bytes) {
    if (bytes > left(current_device)) return cudaErrorMemoryAllocation;
    *out = next_address();
    all.plain_[*out] = bytes, all.plain_device_[*out] = current_device;
    return cudaSuccess;
  }
  cudaError_t free_plain(void* data) {
    return all.plain_.erase(data) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  }
  cudaError_t allocate_pinned(void** out, std::size_t bytes) {
    std::size_t sum = 0;
    for (const auto& one : all.pinned_) sum += one.second;
    if (sum + bytes > all.machine_.pinned_bytes) return cudaErrorMemoryAllocation;
    *out = next_address();
    all.pinned_[*out] = bytes;
    return cudaSuccess;
  }
  cudaError_t free_pinned(void* data) {
    return all.pinned_.erase(data) == 1 ? cudaSuccess : cudaErrorInvalidValue;
  }
  void finish(cudaStream_t stream) { all.finish(stream); }
  void release(FakeRuntime::Pool& one, std::size_t keep) { all.release(one, keep); }
  bool is_captured(cudaStream_t stream) const { return all.captured_.contains(stream); }
  cudaStream_t stream_of(cudaEvent_t event) { return all.events_[event]; }
  void record(cudaEvent_t event, cudaStream_t stream) {
    all.events_[event] = stream;
    all.waiting_.insert(event);
  }
  void forget(cudaEvent_t event) { all.events_.erase(event), all.waiting_.erase(event); }
  bool is_done(cudaEvent_t event) const { return !all.waiting_.contains(event); }
  cudaError_t set_shared(const void* kernel, int bytes) {
    int& limit = all.shared_limits_[kernel];
    if (bytes < limit) all.lowered_ = true;
    limit = bytes;
    return cudaSuccess;
  }
  const FakeMachine& machine() const { return all.machine_; }
};

}  // namespace knear::test

using knear::test::current_device;
using knear::test::FakeCalls;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  FakeCalls call("cudaGetDeviceCount", true);
  *count = call ? call.machine().devices : 0;
  return call.status;
}
cudaError_t cudaGetDevice(int* device) {
  FakeCalls call("cudaGetDevice", true);
  *device = current_device;
  return call.status;
}
cudaError_t cudaSetDevice(int device) {
  FakeCalls call("cudaSetDevice", true);
  if (call) current_device = device;
  return call.status;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  FakeCalls call("cudaDeviceGetAttribute", true);
  const auto rate = call.machine().rates.find(attribute);
  *value = attribute == cudaDevAttrMemoryPoolsSupported ? call.machine().has_pools
           : rate != call.machine().rates.end()         ? rate->second
                                                        : 5;
  return rate != call.machine().rates.end() && rate->second < 0 ? cudaErrorInvalidValue
                                                                : call.status;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  FakeCalls call("cudaGetDeviceProperties", true);
  std::memset(properties, 0, sizeof *properties);
  return call.status;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* all) {
  FakeCalls call("cudaMemGetInfo", false);
  *free = call.left(current_device), *all = call.total();
  return call.status;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  FakeCalls call("cudaMemPoolCreate", false);
  return call ? call.create_pool(pool, properties->location.id) : call.status;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  FakeCalls call("cudaMemPoolDestroy", false);
  if (call) {
    call.pool(pool).destroyed = true;
    call.release(call.pool(pool), 0);
  }
  return call.status;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  FakeCalls call("cudaMemPoolSetAttribute", false);
  if (call && attribute == cudaMemPoolAttrReleaseThreshold)
    call.pool(pool).threshold = static_cast<std::size_t>(*static_cast<std::uint64_t*>(value));
  return call.status;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  FakeCalls call("cudaMemPoolGetAttribute", false);
  std::uint64_t sum = 0;
  if (call)
    for (const auto& block : call.pool(pool).blocks)
      if (attribute == cudaMemPoolAttrReservedMemCurrent || block.used) sum += block.size;
  *static_cast<std::uint64_t*>(value) = sum;
  return call.status;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t keep) {
  FakeCalls call("cudaMemPoolTrimTo", false);
  if (call) call.release(call.pool(pool), keep);
  return call.status;
}
cudaError_t cudaMallocFromPoolAsync(void** out, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  FakeCalls call("cudaMallocFromPoolAsync", true);
  return call ? call.allocate(out, bytes, pool, stream) : call.status;
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  FakeCalls call("cudaFreeAsync", true);
  return call ? call.free(data, stream) : call.status;
}
cudaError_t cudaMalloc(void** out, std::size_t bytes) {
  FakeCalls call("cudaMalloc", false);
  return call ? call.allocate_plain(out, bytes) : call.status;
}
cudaError_t cudaFree(void* data) {
  FakeCalls call("cudaFree", false);
  return call ? call.free_plain(data) : call.status;
}
cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
  FakeCalls call("cudaHostAlloc", false);
  return call ? call.allocate_pinned(out, bytes) : call.status;
}
cudaError_t cudaFreeHost(void* data) {
  FakeCalls call("cudaFreeHost", false);
  return call ? call.free_pinned(data) : call.status;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  FakeCalls call("cudaStreamCreateWithFlags", false);
  *out = static_cast<cudaStream_t>(knear::test::next_address());
  return call.status;
}
// CUDA lets the work of a stream that is destroyed go on to its end.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  FakeCalls call("cudaStreamDestroy", false);
  if (call) call.finish(stream);
  return call.status;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FakeCalls call("cudaStreamSynchronize", false);
  if (call) call.finish(stream);
  return call.status;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  FakeCalls call("cudaStreamIsCapturing", true);
  *status = call.is_captured(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return call.status;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) {
  FakeCalls call("cudaEventCreateWithFlags", true);
  *out = static_cast<cudaEvent_t>(knear::test::next_address());
  return call.status;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  FakeCalls call("cudaEventDestroy", true);
  call.forget(event);
  return call.status;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FakeCalls call("cudaEventRecord", true);
  if (call) call.record(event, stream);
  return call.status;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FakeCalls call("cudaEventSynchronize", false);
  if (call) call.finish(call.stream_of(event));
  return call.status;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  FakeCalls call("cudaEventQuery", false);
  if (!call || call.is_done(event)) return call.status;
  return knear::test::last_error = cudaErrorNotReady;
}
cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  FakeCalls call("cudaDeviceGetPCIBusId", true);
  std::snprintf(name, static_cast<std::size_t>(length), "0000:%02x:00.0", 16 + device);
  return call.status;
}
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return FakeCalls("cudaMemcpyAsync", true).status;
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) {
  return FakeCalls("cudaMemsetAsync", true).status;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  FakeCalls call("cudaFuncSetAttribute", true);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorInvalidValue;
  return call ? call.set_shared(kernel, value) : call.status;
}
cudaError_t cudaGetLastError() { return std::exchange(knear::test::last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorMemoryAllocation           ? "out of memory"
         : status == cudaErrorStreamCaptureUnsupported ? "not while a stream is captured"
                                                       : "an error";
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheFake"; }

}  // extern "C"
