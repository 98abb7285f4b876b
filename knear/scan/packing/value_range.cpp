#include "knear/scan/packing/value_range.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>

#include "knear/core/threads.hpp"

namespace knear {
namespace {

// Whether all elements of a row are finite; narrows low, high and integer on the way. The loops
// reduce integers, which compilers vectorise, as they do not with floats.
template <class T>
bool value_range_of_row(const T* row, std::int64_t cols, ValueRange& out) {
  if constexpr (sizeof(T) == 1) {
    int low = out.low, high = out.high;
    for (std::int64_t i = 0; i < cols; ++i) {
      low = std::min(low, int{row[i]});
      high = std::max(high, int{row[i]});
    }
    out.low = low, out.high = high;
    return true;
  } else {
    // Without its sign, a float's bit pattern grows with the float, up to infinity and then NaN.
    std::int32_t largest = 0;
    for (std::int64_t i = 0; i < cols; ++i)
      largest = std::max(largest, std::bit_cast<std::int32_t>(to_float(row[i])) & 0x7fffffff);
    if (largest >= 0x7f800000) return false;
    // The range is looked for until a row is found that is not whole.
    if (!out.integer) return true;
    if (std::bit_cast<float>(largest) > 255) {
      out.integer = false;
      return true;
    }
    int low = out.low, high = out.high, fractions = 0;
    for (std::int64_t i = 0; i < cols; ++i) {
      const float x = to_float(row[i]);
      const int whole = static_cast<int>(x);
      fractions |= static_cast<float>(whole) != x;
      low = std::min(low, whole);
      high = std::max(high, whole);
    }
    out.integer = fractions == 0 && low >= -128;
    if (out.integer) out.low = low, out.high = high;
    return true;
  }
}

}  // namespace

ValueRange find_value_range(AnyMatrixView data, std::string_view argument, int threads,
                            std::int64_t first_row) {
  const std::int64_t block =
      std::max<std::int64_t>(1, (1 << 18) / std::max<std::int64_t>(1, data.cols()));
  const std::int64_t blocks = (data.rows() + block - 1) / block;
  ValueRange total;
  std::int64_t bad_row = std::numeric_limits<std::int64_t>::max();
  std::mutex mutex;
  std::atomic<bool> integer = true;
  parallel_for(threads, blocks, [&](std::int64_t b) {
    ValueRange part;
    part.integer = integer.load(std::memory_order_relaxed);
    std::int64_t bad = std::numeric_limits<std::int64_t>::max();
    visit(data, [&](auto view) {
      const std::int64_t end = std::min(view.rows(), (b + 1) * block);
      for (std::int64_t r = b * block; r < end; ++r)
        if (!value_range_of_row(view.row(r), view.cols(), part)) {
          bad = r;
          break;
        }
    });
    std::lock_guard lock(mutex);
    bad_row = std::min(bad_row, bad);
    total.integer = total.integer && part.integer;
    integer.store(total.integer, std::memory_order_relaxed);
    total.low = std::min(total.low, part.low), total.high = std::max(total.high, part.high);
  });
  if (bad_row != std::numeric_limits<std::int64_t>::max())
    visit(data, [&](auto view) {
      for (std::int64_t i = 0; i < view.cols(); ++i) {
        const float x = to_float(view.row(bad_row)[i]);
        if (!std::isfinite(x))
          throw InvalidArgument("{} must be finite, but row {} column {} is {}", argument,
                                first_row + bad_row, i, x);
      }
    });
  return total;
}

}  // namespace knear
