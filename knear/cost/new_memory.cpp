#include "knear/cost/new_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/system.hpp"
#include "knear/core/threads.hpp"

namespace knear {
namespace {

class NewPages {
 public:
  explicit NewPages(std::size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw MemoryBudgetError("no memory for {} bytes", bytes);
    detail::want_large_pages(memory_, bytes_);
  }
  ~NewPages() { munmap(memory_, bytes_); }
  NewPages(const NewPages&) = delete;
  NewPages& operator=(const NewPages&) = delete;

  void write_to_each() {
    constexpr std::size_t page = 4096;
    for (std::size_t at = 0; at < bytes_; at += page) static_cast<volatile char*>(memory_)[at] = 1;
  }

 private:
  const std::size_t bytes_;
  void* const memory_;
};

}  // namespace

double measure_new_memory(int threads) {
  return detail::public_call([&] {
    threads = resolve_threads(threads);
    constexpr std::size_t large_page = std::size_t{2} << 20, of_slice = std::size_t{32} << 20;
    constexpr int slices = 5;
    const std::size_t bytes =
        std::max<std::size_t>(1, of_slice / std::size_t(threads) / large_page) * large_page;
    // All are kept to the end: what was just given back would come again at once.
    std::vector<std::unique_ptr<NewPages>> pages;
    std::vector<double> seconds;
    for (int slice = 0; slice <= slices; ++slice) {  // the first one is not counted
      for (int thread = 0; thread < threads; ++thread)
        pages.push_back(std::make_unique<NewPages>(bytes));
      const auto begin = std::chrono::steady_clock::now();
      run_together(threads, [&](int thread) {
        pages[std::size_t(slice) * std::size_t(threads) + std::size_t(thread)]->write_to_each();
      });
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      if (slice > 0) seconds.push_back(taken.count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + slices / 2, seconds.end());
    return double(threads) * double(bytes) / seconds[slices / 2];
  });
}

}  // namespace knear
