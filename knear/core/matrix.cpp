#include "knear/core/matrix.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "knear/core/stop_check.hpp"
#include "knear/core/system.hpp"

namespace knear {

void* aligned_memory(std::size_t bytes, bool zeroed) {
  constexpr std::size_t large_page = std::size_t{2} << 20;
  const bool large = bytes >= 2 * large_page;
  const std::size_t alignment = large ? large_page : 64;
  if (bytes > SIZE_MAX - alignment) return nullptr;
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!memory) return nullptr;
  // What is left of the last large page is never touched, and takes no memory: the end that is in
  // use lies in small pages.
  if (large) detail::want_large_pages(memory, bytes / large_page * large_page);
  if (!zeroed) return memory;
  // Gigabytes take a second, most of it the system's.
  constexpr std::size_t together = std::size_t{32} << 20;
  try {
    for (std::size_t begin = 0; begin < bytes; begin += together) {
      if (begin > 0) stop_if_asked();
      std::memset(static_cast<std::byte*>(memory) + begin, 0, std::min(together, bytes - begin));
    }
  } catch (...) {
    std::free(memory);
    throw;
  }
  return memory;
}

void aligned_free(void* memory) { std::free(memory); }

bool same_bits(MatrixView<float> a, MatrixView<float> b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return false;
  if (a.cols() == 0) return true;  // such rows may lie nowhere, and memcmp takes no null
  const auto bytes = static_cast<std::size_t>(a.cols()) * sizeof(float);
  for (std::int64_t i = 0; i < a.rows(); ++i)
    if (std::memcmp(a.row(i), b.row(i), bytes) != 0) return false;
  return true;
}

}  // namespace knear
