#include "knear/cuda/queue.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/cuda/device.hpp"

namespace knear::cuda {
namespace detail {

// Memory within a budget, of a queue and those beside it, which other threads may use.
struct QueueMemory {
  const std::size_t budget;
  std::mutex mutex;
  std::size_t in_use = 0, most_in_use = 0;

  explicit QueueMemory(std::size_t bytes) : budget(bytes) {}
  void take(std::size_t bytes, int device) {
    std::lock_guard lock(mutex);
    if (bytes > budget - in_use)
      throw MemoryBudgetError(
          "memory is {} bytes on device {}, of which {} are in use, but {} more are needed", budget,
          device, in_use, bytes);
    in_use += bytes;
    most_in_use = std::max(most_in_use, in_use);
  }
  void give_back(std::size_t bytes) noexcept {
    std::lock_guard lock(mutex);
    in_use -= bytes;
  }
  std::size_t now() {
    std::lock_guard lock(mutex);
    return in_use;
  }
  std::size_t most() {
    std::lock_guard lock(mutex);
    return most_in_use;
  }
};

struct QueueState {
  int device = 0, multiprocessors = 0;
  std::shared_ptr<QueueMemory> memory;
  bool own_stream = false;
  cudaMemPool_t pool = nullptr;  // ours alone: an application's own is left as it is
  cudaStream_t stream = nullptr;

  // Once no array is left.
  ~QueueState() {
    if (own_stream && stream) (void)cudaStreamDestroy(stream);
    if (pool) (void)cudaMemPoolDestroy(pool);  // when what was freed in the stream's order is
  }
};

void* allocate(QueueState& state, std::size_t bytes) {
  const CurrentDevice current(state.device);
  state.memory->take(bytes, state.device);
  void* out = nullptr;
  const auto ask = [&] {
    return state.pool ? cudaMallocFromPoolAsync(&out, bytes, state.pool, state.stream)
                      : cudaMalloc(&out, bytes);
  };
  cudaError_t status = ask();
  if (status == cudaErrorMemoryAllocation && state.pool) {
    // What the pool holds may be in pieces that are too small; without them there may be room.
    (void)cudaGetLastError();
    status = cudaStreamSynchronize(state.stream);
    if (status == cudaSuccess) status = cudaMemPoolTrimTo(state.pool, 0);
    if (status == cudaSuccess) status = ask();
  }
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    state.memory->give_back(bytes);
    throw MemoryBudgetError("device {} has no {} bytes left; {} are in use by this search or index",
                            state.device, bytes, state.memory->now());
  }
  if (status != cudaSuccess) state.memory->give_back(bytes);
  check(status, "cudaMallocFromPoolAsync");
  return out;
}

// Nothing may be thrown here: what fails is seen by the next call.
void free(QueueState& state, void* data, std::size_t bytes) noexcept {
  state.memory->give_back(bytes);
  int before = -1;
  if (cudaGetDevice(&before) == cudaSuccess && before != state.device)
    (void)cudaSetDevice(state.device);
  if (state.pool)
    (void)cudaFreeAsync(data, state.stream);
  else
    (void)cudaFree(data);  // waits for the device
  if (before >= 0 && before != state.device) (void)cudaSetDevice(before);
}

namespace {

// Blocks of pinned memory that nobody uses just now. They stay until the process ends, which gives
// them back: by then the driver may be gone.
struct SpareMemory {
  static constexpr std::size_t most = 4, largest = 8 << 20;
  std::mutex mutex;
  std::vector<std::pair<void*, std::size_t>> blocks;
};
SpareMemory& spare_memory() {
  static auto* const spare = new SpareMemory;
  return *spare;
}

}  // namespace

void* allocate_host(int device, std::size_t bytes) {
  SpareMemory& spare = spare_memory();
  {
    std::lock_guard lock(spare.mutex);
    for (auto& block : spare.blocks)
      if (block.second == bytes) {
        void* const out = block.first;
        spare.blocks.erase(spare.blocks.begin() + (&block - spare.blocks.data()));
        return out;
      }
  }
  const CurrentDevice current(device);
  void* out = nullptr;
  const cudaError_t status = cudaHostAlloc(&out, bytes, cudaHostAllocPortable);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw MemoryBudgetError("the system has no {} bytes left for copies to device {}", bytes,
                            device);
  }
  check(status, "cudaHostAlloc");
  return out;
}

void free_host(void* data, std::size_t bytes) noexcept {
  SpareMemory& spare = spare_memory();
  {
    std::lock_guard lock(spare.mutex);
    try {
      if (bytes <= SpareMemory::largest) {
        spare.blocks.emplace_back(data, bytes);
        data = nullptr;
        if (spare.blocks.size() > SpareMemory::most) {  // the oldest goes
          data = spare.blocks.front().first;
          spare.blocks.erase(spare.blocks.begin());
        }
      }
    } catch (...) {  // no memory to note it
    }
  }
  if (data) (void)cudaFreeHost(data);
}

}  // namespace detail

namespace {

std::shared_ptr<detail::QueueMemory> new_memory(std::size_t budget) {
  return std::make_shared<detail::QueueMemory>(
      budget != 0 ? budget : std::numeric_limits<std::size_t>::max());
}

std::shared_ptr<detail::QueueState> open(int device, std::shared_ptr<detail::QueueMemory> memory) {
  auto state = std::make_shared<detail::QueueState>();
  check_device(device);
  state->device = device;
  state->memory = std::move(memory);
  KNEAR_CHECK(
      cudaDeviceGetAttribute(&state->multiprocessors, cudaDevAttrMultiProcessorCount, device));
  int pools = 0;
  KNEAR_CHECK(cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device));
  if (pools != 0) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    KNEAR_CHECK(cudaMemPoolCreate(&state->pool, &properties));
    // What was given back stays with the queue: otherwise each wait() returns it to the system.
    std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
    KNEAR_CHECK(cudaMemPoolSetAttribute(state->pool, cudaMemPoolAttrReleaseThreshold, &keep));
  }
  return state;
}

}  // namespace

Queue::Queue(int device, std::size_t budget) : Queue(device, new_memory(budget)) {}
Queue::Queue(int device, std::shared_ptr<detail::QueueMemory> memory)
    : state_(open(device, std::move(memory))) {
  const CurrentDevice current(device);
  KNEAR_CHECK(cudaStreamCreateWithFlags(&state_->stream, cudaStreamNonBlocking));
  state_->own_stream = true;
}
Queue::Queue(int device, std::size_t budget, cudaStream_t stream)
    : state_(open(device, new_memory(budget))) {
  state_->stream = stream;
}

Queue Queue::beside() const { return Queue(state_->device, state_->memory); }

int Queue::device() const { return state_->device; }
cudaStream_t Queue::stream() const { return state_->stream; }
int Queue::multiprocessors() const { return state_->multiprocessors; }
std::size_t Queue::free_bytes() const {
  const CurrentDevice current(state_->device);
  std::size_t free = 0, all = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free, &all));
  if (state_->pool) {  // what the pool holds for us counts as taken there
    std::uint64_t reserved = 0, used = 0;
    KNEAR_CHECK(
        cudaMemPoolGetAttribute(state_->pool, cudaMemPoolAttrReservedMemCurrent, &reserved));
    KNEAR_CHECK(cudaMemPoolGetAttribute(state_->pool, cudaMemPoolAttrUsedMemCurrent, &used));
    free += static_cast<std::size_t>(reserved - used);
  }
  return std::min(free, state_->memory->budget - state_->memory->now());
}
std::size_t Queue::bytes_in_use() const { return state_->memory->now(); }
std::size_t Queue::most_bytes_in_use() const { return state_->memory->most(); }

}  // namespace knear::cuda
