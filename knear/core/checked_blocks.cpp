#include "knear/core/checked_blocks.hpp"

#ifdef KNEAR_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear {

std::uint64_t CheckedBlocks::sum_of(const std::byte* data, std::size_t bytes) {
#ifdef KNEAR_XXHASH_DISPATCH
  return XXH3_64bits_dispatch(data, bytes);  // by the vector instructions that there are
#else
  return XXH3_64bits(data, bytes);
#endif
}

CheckedBlocks::CheckedBlocks(const std::byte* data, std::size_t bytes, const std::uint64_t* sums,
                             std::shared_ptr<const void> keeper, std::string name)
    : data_(data),
      bytes_(bytes),
      sums_(sums),
      keeper_(std::move(keeper)),
      name_(std::move(name)),
      done_(std::make_unique<std::atomic<std::uint64_t>[]>(block_count(bytes) / 64 + 1)) {}

void CheckedBlocks::check(std::size_t block) const {
  const std::size_t begin = block * block_bytes, end = std::min(bytes_, begin + block_bytes);
  if (sum_of(data_ + begin, end - begin) != sums_[block])
    throw CorruptFile("{} has been altered: bytes {} to {} of it do not give their checksum", name_,
                      begin, end - 1);
  done_[block / 64].fetch_or(std::uint64_t{1} << (block % 64), std::memory_order_release);
}

void CheckedBlocks::touch_all(int threads) const {
  if (all_.load(std::memory_order_acquire)) return;
  constexpr std::size_t task_bytes = 256 * block_bytes;
  const auto tasks = static_cast<std::int64_t>((bytes_ + task_bytes - 1) / task_bytes);
  parallel_for(threads, tasks, [&](std::int64_t t) {
    const std::size_t begin = static_cast<std::size_t>(t) * task_bytes;
    touch(data_ + begin, std::min(bytes_ - begin, task_bytes));
  });
  all_.store(true, std::memory_order_release);
}

}  // namespace knear
