#include "knear/core/sample.hpp"

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace knear::detail {

std::vector<std::int64_t> sample_of(std::int64_t n, std::int64_t count, Random& random) {
  std::unordered_set<std::int64_t> chosen;
  for (std::int64_t j = n - count; j < n; ++j) {
    const auto i = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(j) + 1));
    if (!chosen.insert(i).second) chosen.insert(j);
  }
  std::vector<std::int64_t> out(chosen.begin(), chosen.end());
  std::sort(out.begin(), out.end());
  return out;
}

AnyMatrix rows_at(AnyMatrixView rows, std::span<const std::int64_t> which) {
  AnyMatrix out(rows.type(), std::ssize(which), rows.cols());
  for (std::size_t i = 0; i < which.size(); ++i)
    std::memcpy(out.row(static_cast<std::int64_t>(i)), rows.row(which[i]),
                rows.cols() * size_of(rows.type()));
  return out;
}

AnyMatrixView sampled_rows(AnyMatrixView rows, std::int64_t most, std::uint64_t seed,
                           AnyMatrix& sample) {
  if (most == 0 || rows.rows() <= most) return rows;
  Random random(seed);
  sample = rows_at(rows, sample_of(rows.rows(), most, random));
  return sample.view();
}

}  // namespace knear::detail
