// knear/scan/methods/few_rows_scan.hpp -- the nearest of at most 1,024 rows of few columns, by l2:
// what product quantisers and k-means with few centroids ask of every row.
//
//   FewRowsScan scan(centroids);
//   scan.find(rows, active_isa(), nearest);        // in the calling thread
//
// Queries are not coded and rows have no panels: scores are float32 in registers
// (kernels/few_rows_kernels.hpp). Where more than one row may be the nearest, those are measured in
// float64, so that the answer is the one of every other scan.
#pragma once
#include <cstdint>
#include <span>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/scan/kernels/few_rows_kernels.hpp"

namespace knear::detail {

class FewRowsScan {
 public:
  // Whether this is the faster way for so many rows and columns.
  static bool suits(std::int64_t rows, std::int64_t dim);

  // Keeps a reference to rows [r x dim], 1 <= r <= most_few_rows, finite.
  explicit FewRowsScan(MatrixView<float> rows);

  // nearest [queries]: the row nearest to each query, ties to the smaller number; finite. Returns
  // how many pairs were measured. Threads: any number at once.
  std::int64_t find(AnyMatrixView queries, Isa isa, std::span<std::uint32_t> nearest) const;

 private:
  std::int64_t find_some(AnyMatrixView queries, const float* moved, Isa isa,
                         std::uint32_t* nearest) const;
  std::int64_t measure(AnyMatrixView queries, std::int64_t query, const std::uint64_t* candidates,
                       Isa isa, std::uint32_t* nearest) const;

  MatrixView<float> rows_;
  std::int64_t padded_;
  AlignedArray<float> middle_, factors_, squares_;
  float twice_largest_, relative_slack_;
};

}  // namespace knear::detail
