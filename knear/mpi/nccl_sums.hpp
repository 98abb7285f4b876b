// knear/mpi/nccl_sums.hpp -- sums of what the GPUs of many processes have in memory, by NCCL: see
// core/peers.hpp. Built with KNEAR_NCCL only.
//
//   FoundDeviceSums found = find_nccl_sums(peers, 0);     // in every process, with its own GPU
//   found.sums->sum(from, to, count, queue.stream());
//   found.sums->wait([&] { return mark.done(); });
//
// No call of NCCL waits by itself (blocking = 0): this asks again until one is done, and so finds
// out when the others are gone. What goes wrong ends in one line with the process, its GPU, the
// call and what NCCL says of it. Nothing can be summed after that.
#pragma once
#include <nccl.h>

#include <exception>
#include <functional>

#include "knear/mpi/device_sums.hpp"

namespace knear {

class NcclSums final : public DeviceSums {
 public:
  // All processes call it, each with a GPU that no other one has. Throws cuda::DeviceError.
  NcclSums(Peers& peers, int device);
  ~NcclSums() override;
  NcclSums(const NcclSums&) = delete;
  NcclSums& operator=(const NcclSums&) = delete;

  void sum(const unsigned long long* from, unsigned long long* to, std::size_t count,
           void* stream) override;
  void wait(const std::function<bool()>& done) override;

 private:
  // What a call has returned, once it is no longer under way.
  void settle(ncclResult_t result, const char* call);
  [[noreturn]] void fail(ncclResult_t result, const char* call);
  // Ends what is under way on the device, whatever the others do.
  void give_up() noexcept;

  const int rank_, ranks_, device_;
  const int exceptions_ = std::uncaught_exceptions();  // under way when this was made
  ncclComm_t comm_ = nullptr;                          // nullptr once it was given up
};

// NcclSums, unless there is one process, or two have the same GPU.
FoundDeviceSums find_nccl_sums(Peers& peers, int device);

}  // namespace knear
