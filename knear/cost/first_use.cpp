#include "knear/cost/first_use.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "knear/core/checked_blocks.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/random.hpp"
#include "knear/core/threads.hpp"

namespace knear {
namespace {

constexpr std::size_t block = CheckedBlocks::block_bytes, file_bytes = std::size_t{64} << 20;

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File file_of_random_bytes() {
  File file(std::tmpfile(), std::fclose);
  if (!file) throw IoError("no temporary file: {}", std::strerror(errno));
  std::vector<std::uint64_t> words(block / sizeof(std::uint64_t));
  Random random(1);
  for (std::size_t at = 0; at < file_bytes; at += block) {
    for (std::uint64_t& word : words) word = random.next();
    if (std::fwrite(words.data(), 1, block, file.get()) != block)
      throw IoError("a temporary file of {} bytes cannot be written: {}", file_bytes,
                    std::strerror(errno));
  }
  if (std::fflush(file.get()) != 0)
    throw IoError("a temporary file of {} bytes cannot be written: {}", file_bytes,
                  std::strerror(errno));
  return file;
}

// The file, mapped anew as knear/io maps one that is opened.
class Mapped {
 public:
  explicit Mapped(std::FILE* file)
      : data_(mmap(nullptr, file_bytes, PROT_READ, MAP_PRIVATE, fileno(file), 0)) {
    if (data_ == MAP_FAILED)
      throw IoError("a temporary file of {} bytes cannot be mapped: {}", file_bytes,
                    std::strerror(errno));
  }
  ~Mapped() { munmap(data_, file_bytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  std::uint64_t sums(std::size_t begin, std::size_t end) const {
    std::uint64_t out = 0;
    for (std::size_t at = begin; at < end; at += block)
      out += CheckedBlocks::sum_of(static_cast<const std::byte*>(data_) + at, block);
    return out;
  }

 private:
  void* const data_;
};

}  // namespace

double measure_first_use(int threads) {
  return detail::public_call([&] {
    threads = resolve_threads(threads);
    const File file = file_of_random_bytes();
    constexpr int slices = 5;
    const std::size_t blocks = file_bytes / block;
    std::vector<double> seconds;
    std::atomic<std::uint64_t> sum = 0;              // so that nothing is left out
    for (int slice = 0; slice <= slices; ++slice) {  // the first one is not counted
      const Mapped mapped(file.get());
      const auto begin = std::chrono::steady_clock::now();
      run_together(threads, [&](int thread) {
        const auto part = [&](int i) {
          return blocks * std::size_t(i) / std::size_t(threads) * block;
        };
        sum += mapped.sums(part(thread), part(thread + 1));
      });
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      if (slice > 0) seconds.push_back(taken.count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + slices / 2, seconds.end());
    return double(file_bytes) / seconds[slices / 2];
  });
}

}  // namespace knear
