// Sums between GPUs: what NCCL is told, and what becomes of its errors. Processes are threads, NCCL
// and CUDA fakes that hold the caller to their references.
#include "knear/mpi/nccl_sums.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/cuda/device_error.hpp"
#include "tests/core/peer_threads.hpp"
#include "tests/cuda/fake_runtime.hpp"
#include "tests/mpi/fake_nccl.hpp"

namespace knear {
namespace {

using test::as_peers;
using test::FakeNccl;
using test::FakeRuntime;
using Numbers = std::vector<unsigned long long>;

// Each thread that plays a process has a number as its stream.
cudaStream_t stream_of(int rank) {
  return reinterpret_cast<cudaStream_t>(static_cast<std::uintptr_t>(rank + 1));
}

// Starts both fakes, with a GPU for each of so many processes.
FakeNccl& start(int devices) {
  FakeRuntime::start({.devices = devices});
  return FakeNccl::start();
}

// The sum of `numbers` of all, once it is there.
Numbers summed(DeviceSums& sums, const Numbers& numbers, int rank) {
  Numbers out(numbers.size(), 7);
  sums.sum(numbers.data(), out.data(), numbers.size(), stream_of(rank));
  sums.wait([&] { return FakeNccl::now().done(stream_of(rank)); });
  return out;
}

// What f throws.
template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const cuda::DeviceError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(NcclSums, AreTheSumsOfAllProcesses) {
  for (const int size : {2, 3, 5}) {
    FakeNccl& nccl = start(size);
    std::vector<cudaStream_t> streams(2);
    as_peers(size, [&](Peers& peers) {
      const int rank = peers.rank();
      const FoundDeviceSums found = find_nccl_sums(peers, rank);
      EXPECT_EQ(found.why_not, "");
      ASSERT_TRUE(found.sums);
      // Of numbers without a sign, beyond their range, and not into those that were given.
      const Numbers own = {static_cast<unsigned long long>(rank), 1ull << 63, 0ull - 1};
      EXPECT_EQ(summed(*found.sums, own, rank),
                (Numbers{static_cast<unsigned long long>(size * (size - 1) / 2),
                         size % 2 == 0 ? 0 : 1ull << 63, 0ull - size}));
      EXPECT_EQ(own[0], static_cast<unsigned long long>(rank));
      EXPECT_EQ(summed(*found.sums, {5}, rank), Numbers{5ull * size});
    });
    EXPECT_EQ(nccl.made(), size);
    EXPECT_EQ(nccl.closed(), size);
    EXPECT_EQ(nccl.aborted(), 0);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(nccl.device_of(rank), rank);
      EXPECT_EQ(nccl.streams_of(rank), std::vector<cudaStream_t>(2, stream_of(rank)));
      EXPECT_EQ(nccl.counts_of(rank), (std::vector<std::size_t>{3, 1}));
    }
  }
}

TEST(NcclSums, NotOfProcessesThatShareAGpu) {
  FakeNccl& nccl = start(4);
  as_peers(4, [&](Peers& peers) {
    const int devices[] = {0, 2, 1, 2};
    const FoundDeviceSums found = find_nccl_sums(peers, devices[peers.rank()]);
    EXPECT_FALSE(found.sums);
    EXPECT_EQ(found.why_not, "processes 1 and 3 have the same GPU");
  });
  as_peers(1, [&](Peers& peers) {
    const FoundDeviceSums found = find_nccl_sums(peers, 0);
    EXPECT_FALSE(found.sums);
    EXPECT_EQ(found.why_not, "there is one process");
  });
  EXPECT_EQ(nccl.made(), 0);
}

// The one whose NCCL fails says so, in one line; the others are told by NCCL that it is gone.
TEST(NcclSums, ErrorsAreOneLine) {
  const std::string remote = "remote process exited or there was a network error";
  const std::string system = "unhandled system error; socket closed";
  for (const bool at_once : {true, false})
    for (const std::string call : {"ncclCommInitRankConfig", "ncclAllReduce"}) {
      FakeNccl& nccl = start(3);
      nccl.fail(1, call, 0, ncclSystemError, at_once);
      std::vector<std::string> messages(3);
      as_peers(3, [&](Peers& peers) {
        messages[static_cast<std::size_t>(peers.rank())] = message_of([&] {
          const FoundDeviceSums found = find_nccl_sums(peers, peers.rank());
          (void)summed(*found.sums, {1}, peers.rank());
        });
      });
      const std::string what = call + (at_once ? ", at once" : ", later");
      EXPECT_EQ(messages[1], "NCCL in process 1 of 3, GPU 1: " + call + ": " + system) << what;
      // In whichever call they are by then.
      for (const std::size_t other : {0, 2}) {
        const std::string number = std::to_string(other);
        const std::string begin = "NCCL in process " + number + " of 3, GPU " + number + ": nccl";
        EXPECT_EQ(messages[other].substr(0, begin.size()), begin) << what;
        EXPECT_TRUE(messages[other].ends_with(": " + remote)) << what << ": " << messages[other];
      }
      EXPECT_EQ(nccl.aborted(), 3) << what;
      EXPECT_EQ(nccl.closed(), 0) << what;
    }
}

TEST(NcclSums, NothingIsSummedAfterAnError) {
  FakeNccl& nccl = start(2);
  nccl.fail(0, "ncclAllReduce", 1, ncclSystemError, true);
  as_peers(2, [&](Peers& peers) {
    const FoundDeviceSums found = find_nccl_sums(peers, peers.rank());
    EXPECT_EQ(summed(*found.sums, {4}, peers.rank()), Numbers{8});
    (void)peers.gather({});  // both have it before one of them fails
    const auto again = [&] { return message_of([&] { summed(*found.sums, {4}, peers.rank()); }); };
    EXPECT_NE(again().find("NCCL in process"), std::string::npos);
    EXPECT_EQ(again(), "NCCL failed before");
  });
  EXPECT_EQ(nccl.aborted(), 2);
}

// A process that something else ends takes no part in a sum: it does not wait for the others, and
// they do not wait for it.
TEST(NcclSums, AProcessThatEndsEndsTheOthers) {
  FakeNccl& nccl = start(2);
  const auto begin = std::chrono::steady_clock::now();
  as_peers(2, [&](Peers& peers) {
    const std::string message = message_of([&] {
      const FoundDeviceSums found = find_nccl_sums(peers, peers.rank());
      if (peers.rank() == 1) throw cuda::DeviceError("a kernel failed");
      (void)summed(*found.sums, {1}, 0);
    });
    EXPECT_NE(message.find(peers.rank() == 1 ? "a kernel failed" : "remote process exited"),
              std::string::npos)
        << message;
  });
  EXPECT_EQ(nccl.aborted(), 2);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// What the stream itself throws ends the sum too.
TEST(NcclSums, ErrorsOfTheStreamGiveItUp) {
  FakeNccl& nccl = start(2);
  as_peers(2, [&](Peers& peers) {
    const FoundDeviceSums found = find_nccl_sums(peers, peers.rank());
    const Numbers one = {1};
    Numbers out(1);
    found.sums->sum(one.data(), out.data(), 1, stream_of(peers.rank()));
    (void)peers.gather({});  // before one of them gives up
    EXPECT_EQ(message_of([&] {
                found.sums->wait([]() -> bool { throw cuda::DeviceError("the stream failed"); });
              }),
              "the stream failed");
  });
  EXPECT_EQ(nccl.aborted(), 2);
  EXPECT_EQ(nccl.closed(), 0);
}

// Each process has its own, in any order, and the id of the first.
TEST(NcclSums, SeveralOneAfterAnother) {
  FakeNccl& nccl = start(2);
  as_peers(2, [&](Peers& peers) {
    for (unsigned long long i = 0; i < 3; ++i) {
      const FoundDeviceSums found = find_nccl_sums(peers, 1 - peers.rank());
      EXPECT_EQ(summed(*found.sums, {i}, peers.rank()), Numbers{2 * i});
    }
  });
  EXPECT_EQ(nccl.made(), 6);
  EXPECT_EQ(nccl.closed(), 6);
  EXPECT_EQ(nccl.device_of(0), 1);
}

}  // namespace
}  // namespace knear
