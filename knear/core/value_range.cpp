#include "knear/core/value_range.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "knear/core/far_rows.hpp"
#include "knear/core/threads.hpp"

namespace knear {
namespace {

// The bits of a float or double, as a number that grows with it, up to infinity and then NaN.
std::int32_t size_bits(float x) { return std::bit_cast<std::int32_t>(x) & 0x7fffffff; }
std::int64_t size_bits(double x) {
  return std::bit_cast<std::int64_t>(x) & std::numeric_limits<std::int64_t>::max();
}

// Whether a search takes the row; narrows low, high and integer on the way. The loops reduce
// integers, which compilers vectorise, as they do not with floats.
template <class T>
bool value_range_of_row(const T* row, std::int64_t cols, Metric metric, ValueRange& out) {
  if constexpr (sizeof(T) == 1) {
    // In bytes, of which a vector register holds most.
    T low = std::numeric_limits<T>::max(), high = std::numeric_limits<T>::lowest();
    for (std::int64_t i = 0; i < cols; ++i) low = std::min(low, row[i]);
    for (std::int64_t i = 0; i < cols; ++i) high = std::max(high, row[i]);
    if (cols > 0) out.low = std::min(out.low, int{low}), out.high = std::max(out.high, int{high});
    return true;
  } else {
    using Wide = decltype(widened(T{}));
    decltype(size_bits(Wide{})) largest = 0;
    for (std::int64_t i = 0; i < cols; ++i) largest = std::max(largest, size_bits(widened(row[i])));
    if (largest > size_bits(Wide{std::numeric_limits<float>::max()})) return false;
    if (sizeof(T) == 8 && traits_of(metric).unit_rows && largest != 0 &&
        largest < size_bits(static_cast<Wide>(shortest_for_cosine)))
      return false;
    // The range is looked for until a row is found that is not whole.
    if (!out.integer) return true;
    if (largest > size_bits(Wide{255})) {
      out.integer = false;
      return true;
    }
    int low = out.low, high = out.high, fractions = 0;
    for (std::int64_t i = 0; i < cols; ++i) {
      const Wide x = widened(row[i]);
      const int whole = static_cast<int>(x);
      fractions |= static_cast<Wide>(whole) != x;
      low = std::min(low, whole);
      high = std::max(high, whole);
    }
    out.integer = fractions == 0 && low >= -128;
    if (out.integer) out.low = low, out.high = high;
    return true;
  }
}

template <class T>
[[noreturn]] void refuse(const T* row, std::int64_t cols, std::string_view argument,
                         std::int64_t number) {
  double largest = 0;
  for (std::int64_t i = 0; i < cols; ++i) {
    const double x = to_double(row[i]);
    if (!std::isfinite(x))
      throw InvalidArgument("{} must be finite, but row {} column {} is {}", argument, number, i,
                            x);
    if (std::fabs(x) > std::numeric_limits<float>::max())
      throw InvalidArgument(
          "{} must be at most 3.4e38 in size, the largest float, but row {} column {} is {}",
          argument, number, i, x);
    largest = std::max(largest, std::fabs(x));
  }
  throw InvalidArgument(
      "{} of type f64 must be zero or at least {:.2g} in some column for cosine, but the largest "
      "of row {} is {}",
      argument, shortest_for_cosine, number, largest);
}

}  // namespace

ValueRange find_value_range(AnyMatrixView data, Metric metric, std::string_view argument,
                            int threads, std::int64_t first_row) {
  if (traits_of(metric).bits && data.type() != ElementType::u8)
    throw InvalidArgument(
        "metric is {}, which takes u8, eight bits a byte, but elements of {} are {}",
        name_of(metric), argument, name_of(data.type()));
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
        if (!value_range_of_row(view.row(r), view.cols(), metric, part)) {
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
      refuse(view.row(bad_row), view.cols(), argument, first_row + bad_row);
    });
  return total;
}

namespace {

double rounding_of(double x) { return static_cast<float>(x) - x; }

}  // namespace

// Rows that something is learned from. A few that are added later may be nearly alike, and their
// codes are as good as any: far_rows.hpp.
void check_float32_tells_apart(AnyMatrixView rows, std::string_view argument,
                               std::string_view made) {
  check_float32_tells_apart(rows, argument, made, 0);
}

void check_float32_tells_apart(AnyMatrixView rows, std::string_view argument, std::string_view made,
                               double codes_variance, std::span<const float> offset) {
  if (rows.type() != ElementType::f64 || rows.rows() < 2) return;
  constexpr std::int64_t most = 1000;
  const std::int64_t stride = std::max<std::int64_t>(1, rows.rows() / most), dim = rows.cols();
  std::vector<double> sums(4 * dim);
  double *const x_sum = sums.data(), *const x_square = x_sum + dim, *const e_sum = x_square + dim,
                *const e_square = e_sum + dim;
  const auto at = [&](std::int64_t row, std::int64_t j) {
    return static_cast<const double*>(rows.row(row))[j] +
           (offset.empty() ? 0.0 : double{offset[j]});
  };
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < rows.rows(); r += stride, ++count) {
    for (std::int64_t j = 0; j < dim; ++j) {
      // Beside those of the first row, so that equal rows have neither.
      const double x = at(r, j) - at(0, j), error = rounding_of(at(r, j)) - rounding_of(at(0, j));
      x_sum[j] += x, x_square[j] += x * x;
      e_sum[j] += error, e_square[j] += error * error;
    }
  }
  const auto n = static_cast<double>(count);
  double spread = 0, rounding = 0, largest = 0;
  std::int64_t column = 0;
  for (std::int64_t j = 0; j < dim; ++j) {
    spread += std::max(0.0, x_square[j] / n - x_sum[j] / n * (x_sum[j] / n));
    const double of_column = std::max(0.0, e_square[j] / n - e_sum[j] / n * (e_sum[j] / n));
    rounding += of_column;
    if (of_column > largest) largest = of_column, column = j;
  }
  if (rounding <= std::max(spread, codes_variance) / 100) return;
  throw InvalidArgument(
      "{} lie so far from 0 (column {} near {:.6g}, where neighbouring numbers of float32 are "
      "{:.3g} apart) that {}, which are float32, cannot tell them apart: subtract the mean of each "
      "column first",
      argument, column, at(0, column), std::ldexp(1.0, std::ilogb(at(0, column)) - 23), made);
}

}  // namespace knear
