// The memory of queues (knear/cuda/queue.hpp), and what kernels are allowed, over a CUDA runtime
// that needs no GPU: who gets what another gave back, what is kept of it, and what is called.
#include "knear/cuda/queue.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/cuda/device.hpp"
#include "tests/cuda/fake_runtime.hpp"

namespace knear {
namespace {

using cuda::Queue;
using test::FakeRuntime;

// Streams of an application.
const auto stream_a = reinterpret_cast<cudaStream_t>(1),
           stream_b = reinterpret_cast<cudaStream_t>(2);

template <class Error, class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void take_and_give_back(Queue& queue, std::size_t bytes) {
  (void)queue.allocate<char>(bytes);
  queue.wait();
}

// A 32nd of it is kept at most: 1000 bytes.
constexpr std::size_t device_bytes = 32000;

TEST(Queue, WhatOneGivesBackAnotherGets) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  runtime.take(0, device_bytes - 1000);
  Queue one(0), other(0, 0, stream_a);
  take_and_give_back(one, 600);
  EXPECT_EQ(runtime.reserved(0), 600u);
  const auto array = other.allocate<char>(600);
  EXPECT_EQ(runtime.reserved(0), 600u);
  EXPECT_EQ(runtime.used(0), 600u);
  EXPECT_EQ(runtime.pools(0), 1);
}

TEST(Queue, WhatIsKeptIsLimited) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  Queue unlimited(0), limited(0, 300);
  take_and_give_back(limited, 300);
  EXPECT_EQ(runtime.reserved(0), 300u);  // its budget
  take_and_give_back(limited, 200);
  EXPECT_EQ(runtime.reserved(0), 200u);  // in one piece, where 300 more would be beyond it
  take_and_give_back(unlimited, 5000);
  EXPECT_LE(runtime.reserved(0), 1000u);  // a 32nd of the device
  {
    const auto array = unlimited.allocate<char>(4000);
    take_and_give_back(limited, 100);
    EXPECT_LE(runtime.reserved(0), 5000u);
    EXPECT_GE(runtime.reserved(0), 4100u);
  }
  unlimited.wait();
  EXPECT_LE(runtime.reserved(0), 1000u);
}

TEST(Queue, TheBudgetBoundsWhatIsReserved) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  Queue one(0, 500);
  Queue other = one.beside();
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    const auto first = one.allocate<char>(1 + random.below(250));
    const auto second = other.allocate<char>(1 + random.below(250));
    EXPECT_EQ(one.bytes_in_use(), first.size() + second.size());
    one.wait(), other.wait();
    EXPECT_LE(runtime.reserved(0), 500u);
  }
  EXPECT_LE(one.most_bytes_in_use(), 500u);
  EXPECT_EQ(message_of<MemoryBudgetError>([&] {
              const auto first = one.allocate<char>(400);
              (void)other.allocate<char>(101);
            }),
            "memory is 500 bytes on device 0, of which 400 are in use, but 101 more are needed");
}

TEST(Queue, PiecesThatAreTooSmallMakeRoom) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  runtime.take(0, device_bytes - 1000);
  Queue one(0), other(0);
  take_and_give_back(one, 300);
  take_and_give_back(one, 400);
  EXPECT_EQ(runtime.reserved(0), 400u);  // no more than there ever was
  const auto array = other.allocate<char>(900);
  EXPECT_EQ(runtime.reserved(0), 900u);
}

TEST(Queue, WaitsForWhatAnotherGaveBackWhereMemoryIsMissing) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = 1000});
  Queue one(0, 0, stream_a), other(0);
  (void)one.allocate<char>(800);  // in the order of a stream that nobody waited for
  EXPECT_EQ(runtime.reserved(0), 800u);
  const auto array = other.allocate<char>(700);
  EXPECT_EQ(runtime.reserved(0), 700u);
}

TEST(Queue, DoesNotWaitForAStreamThatIsCaptured) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = 1000});
  Queue one(0, 0, stream_a);
  const auto array = one.allocate<char>(800);
  runtime.begin_capture(stream_a);
  (void)one.allocate<char>(500);  // memory of the graph
  EXPECT_NE(message_of<MemoryBudgetError>([&] { (void)one.allocate<char>(5000); }),
            "nothing was thrown");
  runtime.end_capture(stream_a);
  EXPECT_EQ(runtime.forbidden(), 0);
  EXPECT_EQ(runtime.graph_bytes(), 500u);
}

TEST(Queue, WhatCannotBeHadIsNotCounted) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = 1000});
  Queue queue(0);
  const auto array = queue.allocate<char>(10);
  EXPECT_EQ(message_of<MemoryBudgetError>([&] { (void)queue.allocate<char>(2000); }),
            "device 0 has no 2000 bytes left; 10 are in use by this search or index");
  EXPECT_EQ(queue.bytes_in_use(), 10u);
  EXPECT_EQ(queue.most_bytes_in_use(), 10u);
  EXPECT_EQ(runtime.used(0), 10u);
}

TEST(Queue, FreeBytesCountWhatIsKeptForAll) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  Queue one(0), limited(0, 700);
  const std::size_t all = one.free_bytes();
  EXPECT_EQ(all, device_bytes);
  const auto array = one.allocate<char>(200);
  take_and_give_back(one, 500);
  EXPECT_EQ(runtime.reserved(0), 700u);
  EXPECT_EQ(one.free_bytes(), all - 200);
  EXPECT_EQ(limited.free_bytes(), 700u);
  runtime.take(0, device_bytes - 700);
  EXPECT_EQ(one.free_bytes(), 500u);
  EXPECT_EQ(limited.free_bytes(), 500u);
}

TEST(Queue, TheLastOneGivesAllBack) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  Queue::Array<char> outlives;
  {
    Queue one(0), other(0);
    outlives = one.allocate<char>(100);
    take_and_give_back(other, 900);
    EXPECT_EQ(runtime.reserved(0), 1000u);
  }
  EXPECT_EQ(runtime.reserved(0), 100u);
  EXPECT_EQ(runtime.pools(0), 1);
  outlives = {};
  EXPECT_EQ(runtime.reserved(0), 0u);
  EXPECT_EQ(runtime.pools(0), 0);
  // Freed in the order of a stream that is not there yet: it goes back when it is.
  {
    Queue late(0, 0, stream_a);
    (void)late.allocate<char>(300);
  }
  EXPECT_EQ(runtime.pools(0), 0);
  EXPECT_EQ(runtime.reserved(0), 300u);
  EXPECT_EQ(cudaStreamSynchronize(stream_a), cudaSuccess);
  EXPECT_EQ(runtime.reserved(0), 0u);
}

TEST(Queue, WhatIsKeptCanBeHadByOthers) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  EXPECT_FALSE(cuda::give_back_memory(0));
  Queue one(0), other(0, 0, stream_a);
  take_and_give_back(one, 400);
  (void)other.allocate<char>(300);
  EXPECT_EQ(runtime.reserved(0), 700u);
  EXPECT_TRUE(cuda::give_back_memory(0));
  EXPECT_EQ(runtime.reserved(0), 0u);
}

TEST(Queue, PinnedMemoryThatIsKeptMakesRoom) {
  FakeRuntime& runtime = FakeRuntime::start({.pinned_bytes = 1000});
  Queue queue(0);
  for (const std::size_t size : {300, 400}) (void)queue.allocate_host<char>(size);
  EXPECT_EQ(runtime.pinned(), 700u);
  {
    const auto again = queue.allocate_host<char>(300);
    EXPECT_EQ(runtime.pinned(), 700u);
    const auto large = queue.allocate_host<char>(600);
    EXPECT_EQ(runtime.pinned(), 900u);
    EXPECT_EQ(message_of<MemoryBudgetError>([&] { (void)queue.allocate_host<char>(200); }),
              "the system has no 200 bytes left for copies to device 0");
  }
  (void)queue.allocate_host<char>(1000);  // all that was kept goes, so that the next test has none
  EXPECT_EQ(cudaFreeHost(queue.allocate_host<char>(1000).data()), cudaSuccess);
}

// To ask whether work is done leaves no error behind that the next launch would throw.
TEST(Queue, AMarkIsDoneWhenItsWorkIs) {
  FakeRuntime::start({});
  Queue queue(0);
  const Queue::Mark mark = queue.mark();
  EXPECT_FALSE(mark.done());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  queue.wait();
  EXPECT_TRUE(mark.done());
  EXPECT_TRUE(Queue::Mark().done());
}

TEST(Queue, EachDeviceHasItsOwn) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes, .devices = 2});
  int device = -1;
  {
    Queue one(0), other(1);
    take_and_give_back(other, 500);
    EXPECT_EQ(runtime.reserved(0), 0u);
    EXPECT_EQ(runtime.reserved(1), 500u);
    EXPECT_EQ(one.free_bytes(), device_bytes);
    const auto array = other.allocate<char>(100);
    ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
  }
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(runtime.pools(0) + runtime.pools(1), 0);
  EXPECT_EQ(message_of<DeviceUnavailable>([] { Queue(2); }),
            "device must be between cuda:0 and cuda:1, but is cuda:2");
}

TEST(Queue, DevicesWithoutPools) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = 1000, .has_pools = false});
  Queue queue(0, 700);
  {
    const auto array = queue.allocate<char>(600);
    EXPECT_EQ(queue.free_bytes(), 100u);
    EXPECT_EQ(runtime.calls("cudaMalloc"), 1);
  }
  EXPECT_EQ(queue.free_bytes(), 700u);
  EXPECT_EQ(runtime.calls("cudaMallocFromPoolAsync") + runtime.calls("cudaMemPoolCreate"), 0);
}

TEST(Queue, ManyThreads) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  {
    Queue common(0, 2000);
    std::vector<std::thread> threads;
    for (std::uint64_t number = 0; number < 4; ++number)
      threads.emplace_back([&common, number] {
        Random random(number);
        for (int round = 0; round < 300; ++round) {
          Queue mine = number % 2 ? common.beside() : Queue(0, 1000);
          const auto array = mine.allocate<char>(1 + random.below(500));
          const auto other = mine.allocate<char>(1 + random.below(500));
          if (round % 3 == 0) mine.wait();
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(common.bytes_in_use(), 0u);
    EXPECT_LE(common.most_bytes_in_use(), 2000u);
  }
  EXPECT_EQ(runtime.reserved(0), 0u);
  EXPECT_EQ(runtime.pools(0), 0);
}

// A kernel's limit of shared memory is that of all threads.
TEST(Queue, SharedMemoryOfAKernelIsNeverTakenBack) {
  FakeRuntime& runtime = FakeRuntime::start({.devices = 1});
  Queue first(0);
  const int kernels[2] = {};
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    threads.emplace_back([&, number] {
      Queue queue(0);
      Random random(static_cast<std::uint64_t>(number));
      for (int round = 0; round < 500; ++round) {
        const int bytes = static_cast<int>((48 << 10) + random.below(100 << 10));
        const int* const kernel = &kernels[round % 2];
        queue.allow_shared_memory(kernel, static_cast<std::size_t>(bytes));
        EXPECT_GE(runtime.shared_limit(kernel), bytes);  // as a launch would find it
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(runtime.shared_limit_was_lowered());
  const int before = runtime.calls("cudaFuncSetAttribute");
  EXPECT_LT(before, 200);
  first.allow_shared_memory(&kernels[0], 49 << 10);
  EXPECT_EQ(runtime.calls("cudaFuncSetAttribute"), before);
}

// for_call() keeps its pool, so these come last and go together.
TEST(QueueForCall, MakesNothingAndMayBeCaptured) {
  FakeRuntime& runtime = FakeRuntime::start({.device_bytes = device_bytes});
  const auto call = [](cudaStream_t stream) {
    Queue queue = Queue::for_call(0, stream);
    const auto values = queue.allocate<float>(100);
    const auto places = queue.allocate<int>(50);
    queue.allow_shared_memory(&device_bytes, 64 << 10);
  };
  call(stream_a);
  EXPECT_EQ(runtime.pools(0), 1);
  EXPECT_EQ(cudaStreamSynchronize(stream_a), cudaSuccess);
  EXPECT_EQ(runtime.reserved(0), 600u);  // for the next

  runtime.forget_calls();
  for (int time = 0; time < 3; ++time) call(stream_a);
  EXPECT_EQ(runtime.calls("cudaMallocFromPoolAsync"), 6);
  EXPECT_EQ(runtime.calls("cudaFreeAsync"), 6);
  for (const char* name : {"cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaMemPoolCreate",
                           "cudaMemPoolDestroy", "cudaMemPoolTrimTo", "cudaMemPoolSetAttribute",
                           "cudaStreamCreateWithFlags", "cudaStreamDestroy",
                           "cudaStreamSynchronize", "cudaEventSynchronize", "cudaFuncSetAttribute"})
    EXPECT_EQ(runtime.calls(name), 0) << name;

  // As it is, and with more than there ever was before.
  runtime.begin_capture(stream_b);
  call(stream_b);
  {
    Queue queue = Queue::for_call(0, stream_b);
    const auto many = queue.allocate<char>(20000);
  }
  EXPECT_EQ(runtime.forbidden(), 0);
  runtime.end_capture(stream_b);
  EXPECT_EQ(runtime.graph_bytes(), 20600u);
  EXPECT_EQ(runtime.reserved(0), 600u);

  // Queues share its pool, and leave what calls keep.
  {
    Queue queue(0);
    take_and_give_back(queue, 900);
    EXPECT_EQ(runtime.pools(0), 1);
  }
  EXPECT_LE(runtime.reserved(0), 1000u);
  EXPECT_EQ(runtime.pools(0), 1);
}

// What a child inherits does nothing, and to use a device there is refused in one line.
TEST(QueueForCall, ProcessesMadeByFork) {
  FakeRuntime& runtime = FakeRuntime::now();
  auto queue = std::make_optional<Queue>(0);
  auto array = std::make_optional(queue->allocate<char>(10));
  auto pinned = std::make_optional(queue->allocate_host<char>(10));
  const pid_t child = fork();
  if (child == 0) {
    runtime.forget_calls();
    array.reset(), pinned.reset(), queue.reset();
    const std::string refusal = message_of<DeviceUnavailable>([] { Queue(0); });
    const std::string of_call = message_of<DeviceUnavailable>([] { Queue::for_call(0, stream_a); });
    const bool right = runtime.calls("cudaFreeAsync") + runtime.calls("cudaFreeHost") +
                               runtime.calls("cudaStreamDestroy") +
                               runtime.calls("cudaMemPoolSetAttribute") ==
                           0 &&
                       refusal == of_call && refusal.find("fork()") != std::string::npos &&
                       !cuda::give_back_memory(0);
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(queue->bytes_in_use(), 10u);
}

// A queue may be a static object, which goes when the runtime is gone.
TEST(QueueForCall, TheEndOfTheProcess) {
  FakeRuntime& runtime = FakeRuntime::now();
  auto queue = std::make_optional<Queue>(0);
  auto array = std::make_optional(queue->allocate<char>(10));
  runtime.unload();
  array.reset(), queue.reset();
  EXPECT_EQ(runtime.forbidden(), 0);
  EXPECT_NE(message_of<DeviceUnavailable>([] { Queue(0); }), "nothing was thrown");
}

// An H100's.
TEST(Device, RatesAreThoseThatTheDriverTells) {
  FakeRuntime::start({.rates = {{cudaDevAttrClockRate, 1980000},
                                {cudaDevAttrMemoryClockRate, 2619000},
                                {cudaDevAttrGlobalMemoryBusWidth, 5120}}});
  const cuda::DeviceInfo info = cuda::device_info(0);
  EXPECT_DOUBLE_EQ(info.cycles_per_second, 1.98e9);
  EXPECT_NEAR(info.memory_bytes_per_second, 3352e9, 1e9);
}

TEST(Device, RatesThatTheDriverDoesNotTellAreNone) {
  FakeRuntime::start({.rates = {{cudaDevAttrClockRate, -1}, {cudaDevAttrMemoryClockRate, -1}}});
  const cuda::DeviceInfo info = cuda::device_info(0);
  EXPECT_EQ(info.cycles_per_second, 0);
  EXPECT_EQ(info.memory_bytes_per_second, 0);
}

// Products of warpgroups: never but where they are asked for, and only of a device that has them.
TEST(Queue, WarpgroupsWhereTheyAreAskedFor) {
  const auto start = [](int major, int minor) {
    FakeRuntime::start({.rates = {{cudaDevAttrComputeCapabilityMajor, major},
                                  {cudaDevAttrComputeCapabilityMinor, minor}}});
  };
  unsetenv("KNEAR_GPU_WARPGROUPS");
  start(9, 0);
  {
    Queue queue;
    EXPECT_FALSE(queue.warpgroups());
    queue.use_warpgroups(true);
    EXPECT_TRUE(queue.warpgroups());
    EXPECT_TRUE(queue.beside().warpgroups());
    EXPECT_FALSE(Queue().warpgroups());
    queue.use_warpgroups(false);
    EXPECT_FALSE(queue.warpgroups());
    EXPECT_FALSE(queue.beside().warpgroups());
    setenv("KNEAR_GPU_WARPGROUPS", "1", 1);
    EXPECT_TRUE(Queue().warpgroups());
    setenv("KNEAR_GPU_WARPGROUPS", "0", 1);
    EXPECT_FALSE(Queue().warpgroups());
    setenv("KNEAR_GPU_WARPGROUPS", "yes", 1);
    EXPECT_EQ(message_of<InvalidArgument>([] { Queue(); }),
              "KNEAR_GPU_WARPGROUPS must be 0 or 1, but is 'yes'");
  }
  setenv("KNEAR_GPU_WARPGROUPS", "1", 1);
  for (const auto& [major, minor] : {std::pair{8, 0}, std::pair{8, 9}, std::pair{10, 0}}) {
    start(major, minor);
    Queue queue;
    queue.use_warpgroups(true);
    EXPECT_FALSE(queue.warpgroups()) << major << "." << minor;
  }
  unsetenv("KNEAR_GPU_WARPGROUPS");
}

// Searches in one launch: where they are asked for.
TEST(Queue, OneLaunchWhereItIsAskedFor) {
  unsetenv("KNEAR_GPU_ONE_LAUNCH");
  FakeRuntime::start({.rates = {{cudaDevAttrCooperativeLaunch, 1}}});
  Queue queue;
  EXPECT_FALSE(queue.one_launch());
  queue.use_one_launch(true);
  EXPECT_TRUE(queue.one_launch());
  EXPECT_TRUE(queue.beside().one_launch());
  EXPECT_FALSE(Queue().one_launch());
  setenv("KNEAR_GPU_ONE_LAUNCH", "1", 1);
  EXPECT_TRUE(Queue().one_launch());
  setenv("KNEAR_GPU_ONE_LAUNCH", "on", 1);
  EXPECT_EQ(message_of<InvalidArgument>([] { Queue(); }),
            "KNEAR_GPU_ONE_LAUNCH must be 0 or 1, but is 'on'");
  unsetenv("KNEAR_GPU_ONE_LAUNCH");
}
TEST(Queue, NoOneLaunchWhereTheDeviceCannot) {
  FakeRuntime::start({.rates = {{cudaDevAttrCooperativeLaunch, 0}}});
  setenv("KNEAR_GPU_ONE_LAUNCH", "1", 1);
  Queue queue;
  EXPECT_FALSE(queue.one_launch());
  queue.use_one_launch(true);
  EXPECT_FALSE(queue.one_launch());
  unsetenv("KNEAR_GPU_ONE_LAUNCH");
}

}  // namespace
}  // namespace knear
