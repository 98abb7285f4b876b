// knear/mpi/device_sums.hpp -- how the GPUs of many processes add up what is in their memories: by
// NCCL, in builds that have it.
//
//   const FoundDeviceSums found = find_device_sums(peers, "cuda:1");   // in every process
//   k_means(own_rows, peers, k, options, found.sums.get());
//   found.why_not                                                      // where there are none
//
// Of sums of whole numbers the order changes nothing, so the bits are those of the way through the
// processors.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "knear/core/peers.hpp"

namespace knear {

struct FoundDeviceSums {
  std::unique_ptr<DeviceSums> sums;  // nullptr in all processes or in none
  std::string why_not;               // one line; empty where there are sums
};

// device: that of this process, "cuda" or "cuda:N". There are none for a single process, in a build
// without NCCL, and where two processes have the same GPU, which NCCL refuses. All processes call
// it, and throw what one of them throws, but for an error of NCCL itself (DeviceSums).
FoundDeviceSums find_device_sums(Peers& peers, std::string_view device);

}  // namespace knear
