// knear/core/checked_blocks.hpp -- mapped bytes that are compared with their checksums before use.
//
//   blocks.touch(row, row_bytes);      // throws CorruptFile if what lies there was altered
//
// A large file is opened without being read. The first touch of a block of 4 KiB (a page) compares
// it with its checksum (XXH3, 64 bits); every later one costs the test of a bit.
//
// Threads: any number at once.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace knear {

class CheckedBlocks {
 public:
  static constexpr std::size_t block_bytes = 4096;
  static std::size_t block_count(std::size_t bytes) {
    return (bytes + block_bytes - 1) / block_bytes;
  }
  // The checksum of one block, which holds up to block_bytes bytes.
  static std::uint64_t sum_of(const std::byte* data, std::size_t bytes);

  // Guards `bytes` bytes with the checksums of their blocks; `keeper` keeps both alive. `name` says
  // in messages what the bytes are.
  CheckedBlocks(const std::byte* data, std::size_t bytes, const std::uint64_t* sums,
                std::shared_ptr<const void> keeper, std::string name);

  // Throws CorruptFile unless all blocks that these bytes lie in are as they were saved.
  void touch(const void* begin, std::size_t bytes) const {
    if (bytes == 0) return;
    const std::size_t from = static_cast<const std::byte*>(begin) - data_;
    for (std::size_t b = from / block_bytes; b <= (from + bytes - 1) / block_bytes; ++b)
      if (!(done_[b / 64].load(std::memory_order_acquire) >> (b % 64) & 1)) check(b);
  }
  void touch_all(int threads) const;

 private:
  void check(std::size_t block) const;

  const std::byte* data_;
  std::size_t bytes_;
  const std::uint64_t* sums_;
  std::shared_ptr<const void> keeper_;
  std::string name_;
  std::unique_ptr<std::atomic<std::uint64_t>[]> done_;
  mutable std::atomic<bool> all_ = false;
};

}  // namespace knear
