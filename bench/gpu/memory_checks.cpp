#include "bench/gpu/memory_checks.hpp"

#include <fmt/format.h>

#include <exception>
#include <optional>

#include "knear/cuda/queue.hpp"

namespace knear::bench {
namespace {

std::size_t free_bytes() {
  std::size_t free = 0, all = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free, &all));
  return free;
}

}  // namespace

void check_memory(Report& report) {
  int device = 0;
  KNEAR_CHECK(cudaGetDevice(&device));
  const std::size_t before = free_bytes(), most = before / 10 * 6;
  const auto expect = [&](bool right, const char* what) {
    ++report.tests;
    if (!right)
      report.fail(fmt::format("memory of queues: {}, {} MB are free", what, free_bytes() >> 20));
  };
  {
    std::optional<cuda::Queue> one(std::in_place, device);
    (void)one->allocate<char>(most);  // given back at once, in the order of its stream
    cuda::Queue other(device);
    try {
      (void)other.allocate<char>(most);
      expect(true, "");
    } catch (const std::exception& error) {
      expect(false, error.what());
    }
    one->wait(), other.wait();
    void* plain = nullptr;
    expect(cudaMalloc(&plain, most) == cudaSuccess, "queues kept what cudaMalloc wanted");
    KNEAR_CHECK(cudaFree(plain));
    one.reset();
    const auto array = other.allocate<char>(most);
    other.wait();
  }
  KNEAR_CHECK(cudaDeviceSynchronize());
  // Streams and the code of kernels take some megabytes for good.
  expect(free_bytes() + (64 << 20) >= before, "not all was given back");
}

}  // namespace knear::bench
