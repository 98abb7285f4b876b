// knear/scan/row_measurer.hpp -- the keys of single rows of a base from one query, in float64, a
// few rows side by side.
//
//   RowMeasurer measurer(job);
//   measurer.set_query(7);
//   measurer.measure(count, [&](std::int64_t i) { return rows[i]; },
//                    [&](std::int64_t i, double key) { ... });
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "knear/distance/exact.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// One thread's.
class RowMeasurer {
 public:
  explicit RowMeasurer(const ScanJob& job)
      : job_(job),
        distance_(job.metric, job.base.type(), job.isa),
        scratch_(ExactDistance::most_rows * job.base.scratch_bytes()) {}

  // A row of the job's queries.
  void set_query(std::int64_t query) { distance_.set_query(job_.queries, query); }

  // Calls take(i, key) for i in [0, count), in order; row_of(i) is the row of the base. Rows from
  // `count` to `known` are likely to be measured next: memory is asked for some of them.
  template <class RowOf, class Take>
  void measure(std::int64_t count, RowOf row_of, Take take, std::int64_t known = 0) {
    constexpr std::int64_t together = ExactDistance::most_rows;
    // Rows lie anywhere in memory. The hardware goes on with what has been begun.
    const std::int64_t ahead = std::min<std::int64_t>(512, job_.base.row_bytes());
    known = std::max(known, count);
    for (std::int64_t first = 0; first < count; first += together) {
      const std::int64_t some = std::min(count - first, together);
      const void* rows[together] = {};
      double keys[together];
      for (std::int64_t i = 0; i < some; ++i)
        rows[i] = job_.base.row(row_of(first + i), scratch_.data() + static_cast<std::size_t>(i) *
                                                                         job_.base.scratch_bytes());
      for (std::int64_t i = first + some; i < std::min(known, first + some + together); ++i)
        job_.base.prefetch(row_of(i), ahead);
      distance_.keys(rows, static_cast<int>(some), keys);
      for (std::int64_t i = 0; i < some; ++i) take(first + i, keys[i]);
    }
  }

 private:
  const ScanJob& job_;
  ExactDistance distance_;
  std::vector<std::byte> scratch_;
};

// Calls take(row) for a row that was packed and the copies that it stands for, those that may be
// found, until one is not taken: the copies that follow have the same key and larger ids.
template <class Take>
void each_copy(const Duplicates& copies, const AllowedRows& allowed, std::uint32_t row, Take take) {
  if (allowed(row) && !take(row)) return;
  if (!copies.any()) return;
  for (const std::uint32_t other : copies.others(row))
    if (allowed(other) && !take(other)) return;
}

}  // namespace knear::detail
