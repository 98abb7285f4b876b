// knear/select/warp/device_rows.hpp -- rows of a matrix in device memory, and what to select of
// each.
#pragma once
#include <cstdint>
#include <limits>

#include "knear/core/host_device.hpp"
#include "knear/core/metric.hpp"

namespace knear {

// values [rows x cols]: row i begins at values + i * stride. lengths [rows], in device memory too:
// how many values of a row count, from its beginning, each between 0 and cols; nullptr: all of
// them. Both are borrowed.
struct DeviceRows {
  const float* values = nullptr;
  std::int64_t rows = 0, cols = 0, stride = 0;
  const int* lengths = nullptr;

  KNEAR_HD const float* row(std::int64_t i) const { return values + i * stride; }
  KNEAR_HD int length(std::int64_t i) const { return lengths ? lengths[i] : int(cols); }
};

struct DeviceSelectOptions {
  Extreme extreme = Extreme::smallest;
  bool sorted = true;  // best first; otherwise by ascending place
};

namespace detail {

// Makes the message "NAME must be MUST, but is VALUE"; nothing is wrong where name is nullptr.
struct BadArgument {
  const char* name = nullptr;
  const char* must = nullptr;
  long long value = 0;
};

// A place is an int, and the largest int means no place. 2^32 rows are 2^30 blocks of warps.
constexpr BadArgument bad_argument(const DeviceRows& rows, std::int64_t k) {
  constexpr std::int64_t most = std::numeric_limits<int>::max();
  if (k < 1 || k > most) return {"k", "between 1 and 2^31 - 1", k};
  if (rows.cols < 0 || rows.cols >= most) return {"cols", "between 0 and 2^31 - 2", rows.cols};
  if (rows.stride < rows.cols) return {"stride", "at least cols", rows.stride};
  if (rows.rows < 0 || rows.rows > std::int64_t{1} << 32)
    return {"rows", "between 0 and 2^32", rows.rows};
  return {};
}

}  // namespace detail
}  // namespace knear
