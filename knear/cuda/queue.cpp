#include "knear/cuda/queue.hpp"

#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/cuda/device_pool.hpp"

namespace knear::cuda {
namespace detail {

struct QueueState {
  std::shared_ptr<PoolUser> user;
  cudaStream_t stream = nullptr;
  bool own_stream = false;
  bool warpgroups = false, one_launch = false;

  // Once no array is left.
  ~QueueState() {
    if (was_forked()) return;
    user->pool().remove_stream(stream);
    if (own_stream) (void)cudaStreamDestroy(stream);
  }
};

void* allocate(QueueState& state, std::size_t bytes) {
  return state.user->allocate(bytes, state.stream);
}
void free(QueueState& state, void* data, std::size_t bytes) noexcept {
  state.user->free(data, bytes, state.stream);
}

namespace {

// Blocks of pinned memory that nobody uses just now. They stay until the process ends, which gives
// them back: by then the driver may be gone.
struct SpareMemory {
  static constexpr std::size_t most = 4, largest = 8 << 20;
  std::mutex mutex;
  std::vector<std::pair<void*, std::size_t>> blocks;

  // To the system. Whether there was any.
  bool give_back() {
    std::lock_guard lock(mutex);
    const bool any = !blocks.empty();
    for (const auto& block : blocks) (void)cudaFreeHost(block.first);
    blocks.clear();
    return any;
  }
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
  const auto ask = [&] { return cudaHostAlloc(&out, bytes, cudaHostAllocPortable); };
  cudaError_t status = ask();
  if (status == cudaErrorMemoryAllocation && spare.give_back()) {
    (void)cudaGetLastError();
    status = ask();
  }
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw MemoryBudgetError("the system has no {} bytes left for copies to device {}", bytes,
                            device);
  }
  check(status, "cudaHostAlloc");
  return out;
}

void free_host(void* data, std::size_t bytes) noexcept {
  if (was_forked()) return;
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

// What a variable of the environment says, 0 or 1.
bool asked_for(const char* variable) {
  const char* const asked = std::getenv(variable);
  if (!asked || !*asked) return false;
  const std::string_view word = asked;
  if (word != "0" && word != "1")
    throw InvalidArgument("{} must be 0 or 1, but is '{}'", variable, word);
  return word == "1";
}

std::shared_ptr<detail::QueueState> state_of(std::shared_ptr<detail::PoolUser> user,
                                             cudaStream_t stream, bool own_stream) {
  auto state = std::make_shared<detail::QueueState>();
  state->user = std::move(user), state->stream = stream, state->own_stream = own_stream;
  state->warpgroups = asked_for("KNEAR_GPU_WARPGROUPS") && state->user->pool().has_warpgroups();
  state->one_launch = asked_for("KNEAR_GPU_ONE_LAUNCH") && state->user->pool().launches_together();
  state->user->pool().add_stream(stream);
  return state;
}

std::shared_ptr<detail::QueueState> with_own_stream(std::shared_ptr<detail::PoolUser> user) {
  const CurrentDevice current(user->pool().device());
  cudaStream_t stream = nullptr;
  KNEAR_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return state_of(std::move(user), stream, true);
}

std::shared_ptr<detail::PoolUser> new_user(int device, std::size_t budget) {
  return std::make_shared<detail::PoolUser>(detail::DevicePool::of(device), budget);
}

}  // namespace

Queue::Queue(int device, std::size_t budget) : state_(with_own_stream(new_user(device, budget))) {}
Queue::Queue(int device, std::size_t budget, cudaStream_t stream)
    : state_(state_of(new_user(device, budget), stream, false)) {}
Queue Queue::for_call(int device, cudaStream_t stream) {
  return Queue(state_of(detail::PoolUser::of_calls(device), stream, false));
}
Queue Queue::beside() const {
  Queue out(with_own_stream(state_->user));
  out.state_->warpgroups = state_->warpgroups, out.state_->one_launch = state_->one_launch;
  return out;
}

int Queue::device() const { return state_->user->pool().device(); }
cudaStream_t Queue::stream() const { return state_->stream; }
int Queue::multiprocessors() const { return state_->user->pool().multiprocessors(); }
std::size_t Queue::shared_memory() const { return state_->user->pool().shared_memory(); }
bool Queue::warpgroups() const { return state_->warpgroups; }
void Queue::use_warpgroups(bool yes) {
  state_->warpgroups = yes && state_->user->pool().has_warpgroups();
}
bool Queue::one_launch() const { return state_->one_launch; }
void Queue::use_one_launch(bool yes) {
  state_->one_launch = yes && state_->user->pool().launches_together();
}
std::size_t Queue::free_bytes() const { return state_->user->free_bytes(); }
std::size_t Queue::bytes_in_use() const { return state_->user->bytes_in_use(); }
std::size_t Queue::most_bytes_in_use() const { return state_->user->most_bytes_in_use(); }
void Queue::allow_shared_memory(const void* kernel, std::size_t bytes) {
  state_->user->pool().allow_shared_memory(kernel, bytes);
}

bool give_back_memory(int device) {
  const auto pool = detail::DevicePool::if_present(device);
  if (pool) pool->give_back();
  return pool != nullptr;
}

}  // namespace knear::cuda
