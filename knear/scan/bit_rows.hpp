// knear/scan/bit_rows.hpp -- a block of rows of bits, and which of them are near to queries of
// bits.
//
//   BitRows rows(job, which);                            // the queries, laid out once
//   rows.load(first, count);
//   rows.each_near(q, [&] { return limit; }, [&](double key, std::int64_t i) { ... });
//
// One thread's. Eight rows lie together, so that a register counts bits of as many; laying a block
// out takes about as long as comparing it with three queries.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "knear/scan/kernels/levels.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

class BitRows {
 public:
  // Requires rows of u8. which: the numbers of the queries of the job.
  BitRows(const ScanJob& job, std::span<const std::int64_t> which)
      : base_(job.base),
        kernels_(bit_kernels(job.isa)),
        words_((job.base.cols() + 7) / 8),
        queries_(which.size() * static_cast<std::size_t>(words_)),
        few_queries_(which.size() <= 3),
        scratch_(job.base.scratch_bytes()) {
    for (std::size_t q = 0; q < which.size(); ++q)
      std::memcpy(queries_.data() + q * static_cast<std::size_t>(words_), job.queries.row(which[q]),
                  job.queries.cols());
  }

  // How many rows to load at once: as many as stay in the first cache beside the queries.
  static std::int64_t rows_at_once(std::int64_t bytes) {
    return std::clamp<std::int64_t>((32 << 10) / bytes, 1, 4096);
  }

  // Takes in rows first, ..., first + count - 1 of the base.
  void load(std::int64_t first, std::int64_t count) {
    make_room(count);
    const void* const rows = base_.in_a_row(first, count);
    as_they_lie_ = few_queries_ ? rows : nullptr;
    if (as_they_lie_) return;
    if (rows)
      kernels_.lay_out(rows, base_.stride_bytes(), count, base_.cols(), laid_.data());
    else
      load_apart(count, [&](std::int64_t i) { return first + i; });
  }
  // Takes in these rows.
  void load(std::span<const std::uint32_t> rows) {
    make_room(std::ssize(rows)), as_they_lie_ = nullptr;
    load_apart(count_, [&](std::int64_t i) { return std::int64_t{rows[i]}; });
  }

  // Calls take(bits, i) for each row that differs from query q in at most limit() bits, ascending;
  // limit() is asked again after every few rows.
  template <class Limit, class Take>
  void each_near(std::int64_t q, Limit limit, Take take) const {
    BitHit hits[rows_asked];
    const std::uint64_t* const query = queries_.data() + q * words_;
    for (std::int64_t begin = 0; begin < count_; begin += rows_asked) {
      const double most = limit();
      if (most < 0) return;
      constexpr double no_limit = 0x1p62;
      const auto bits = static_cast<std::uint64_t>(std::min(most, no_limit));
      const std::int64_t found =
          as_they_lie_
              ? kernels_.within_rows(
                    static_cast<const std::byte*>(as_they_lie_) + begin * base_.stride_bytes(),
                    base_.stride_bytes(), std::min(rows_asked, count_ - begin), base_.cols(), query,
                    bits, hits)
              : kernels_.within(
                    laid_.data() + begin * words_,
                    std::min(rows_asked / bit_rows_together, groups_ - begin / bit_rows_together),
                    words_, query, bits, hits);
      for (std::int64_t h = 0; h < found; ++h)
        if (const std::int64_t i = begin + hits[h].row; i < count_)
          take(static_cast<double>(hits[h].bits), i);
    }
  }

 private:
  static constexpr std::int64_t rows_asked = 256;

  void make_room(std::int64_t count) {
    constexpr std::int64_t step = bit_rows_together * bit_groups_together;
    count_ = count, groups_ = (count + step - 1) / step * bit_groups_together;
    laid_.resize(groups_ * words_ * bit_rows_together);
  }
  template <class RowOf>
  void load_apart(std::int64_t count, RowOf row_of) {
    const std::int64_t group = words_ * bit_rows_together;
    for (std::int64_t i = 0; i < count; ++i)
      kernels_.lay_out(base_.row(row_of(i), scratch_.data()), 0, 1, base_.cols(),
                       laid_.data() + i / bit_rows_together * group + i % bit_rows_together);
  }

  const BaseRows& base_;
  const BitKernels& kernels_;
  const std::int64_t words_;
  std::vector<std::uint64_t> queries_;  // [queries][words]
  const bool few_queries_;
  const void* as_they_lie_ = nullptr;  // the rows, where they are not laid out
  std::vector<std::byte> scratch_;
  std::vector<std::uint64_t> laid_;  // [groups][words][8]
  std::int64_t count_ = 0, groups_ = 0;
};

}  // namespace knear::detail
