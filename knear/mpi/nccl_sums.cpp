#include "knear/mpi/nccl_sums.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <span>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/cuda/device_error.hpp"
#include "knear/cuda/queue.hpp"

namespace knear {
namespace {

// How long a communicator that is closed in order may take: others that are gone do not answer.
constexpr std::chrono::seconds patience(10);

// Which GPU that is, on all machines: as NCCL tells them apart.
std::string name_of_gpu(int device) {
  std::string machine;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> machine;
  char bus[32] = {};
  KNEAR_CHECK(cudaDeviceGetPCIBusId(bus, sizeof bus, device));
  return machine + " " + bus;
}

void pause() { usleep(20); }

}  // namespace

FoundDeviceSums find_nccl_sums(Peers& peers, int device) {
  if (peers.size() == 1) return {nullptr, "there is one process"};
  std::string own;
  together(peers, [&] { own = name_of_gpu(device); });
  const auto all = peers.gather(std::as_bytes(std::span(own)));
  for (std::size_t second = 1; second < all.size(); ++second) {
    const auto first = std::find(all.begin(), all.end(), all[second]) - all.begin();
    if (static_cast<std::size_t>(first) < second)
      return {nullptr, fmt::format("processes {} and {} have the same GPU", first, second)};
  }
  return {std::make_unique<NcclSums>(peers, device), ""};
}

NcclSums::NcclSums(Peers& peers, int device)
    : rank_(peers.rank()), ranks_(peers.size()), device_(device) {
  ncclUniqueId id = {};
  together(peers, [&] {
    if (rank_ != 0) return;
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess) fail(result, "ncclGetUniqueId");
  });
  peers.broadcast(0, std::as_writable_bytes(std::span(&id, 1)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const cuda::CurrentDevice current(device_);
  try {
    settle(ncclCommInitRankConfig(&comm_, ranks_, id, rank_, &config), "ncclCommInitRankConfig");
  } catch (...) {
    give_up();  // a constructor that throws has no destructor
    throw;
  }
}

NcclSums::~NcclSums() {
  if (!comm_) return;
  // Something else went wrong here: the others may be waiting in a sum, and never close it.
  if (std::uncaught_exceptions() > exceptions_) {
    give_up();
    return;
  }
  // The last sum is there, but others may still be fetching this process's part of it.
  ncclResult_t result = ncclCommFinalize(comm_);
  const auto end = std::chrono::steady_clock::now() + patience;
  while (result == ncclInProgress && std::chrono::steady_clock::now() < end) {
    pause();
    if (ncclCommGetAsyncError(comm_, &result) != ncclSuccess) break;
  }
  if (result == ncclSuccess)
    (void)ncclCommDestroy(comm_);
  else
    give_up();
}

void NcclSums::sum(const unsigned long long* from, unsigned long long* to, std::size_t count,
                   void* stream) {
  if (!comm_) throw cuda::DeviceError("NCCL failed before");
  settle(
      ncclAllReduce(from, to, count, ncclUint64, ncclSum, comm_, static_cast<cudaStream_t>(stream)),
      "ncclAllReduce");
}

void NcclSums::wait(const std::function<bool()>& done) {
  if (!comm_) throw cuda::DeviceError("NCCL failed before");
  try {
    while (!done()) {
      ncclResult_t result = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
      if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError");
      if (result != ncclSuccess && result != ncclInProgress) fail(result, "ncclAllReduce");
      stop_if_asked();
    }
  } catch (...) {
    give_up();
    throw;
  }
}

void NcclSums::settle(ncclResult_t result, const char* call) {
  try {
    while (result == ncclInProgress) {
      pause();
      stop_if_asked();
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
      if (asked != ncclSuccess) fail(asked, "ncclCommGetAsyncError");
    }
    if (result != ncclSuccess) fail(result, call);
  } catch (...) {
    give_up();
    throw;
  }
}

void NcclSums::fail(ncclResult_t result, const char* call) {
  // The last error has no communicator where none was made. It may have lines of its own.
  const char* const last = ncclGetLastError(comm_);
  std::string more = last ? last : "";
  while (!more.empty() && (more.back() == '\n' || more.back() == ' ')) more.pop_back();
  std::replace(more.begin(), more.end(), '\n', ' ');
  throw cuda::DeviceError(fmt::format("NCCL in process {} of {}, GPU {}: {}: {}{}{}", rank_, ranks_,
                                      device_, call, ncclGetErrorString(result),
                                      more.empty() ? "" : "; ", more));
}

void NcclSums::give_up() noexcept {
  if (comm_) (void)ncclCommAbort(comm_);
  comm_ = nullptr;
}

}  // namespace knear
