// knear/index/graph/graph_coding.hpp -- what a graph keeps of a vector, and what it compares with
// it of a query.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/value_range.hpp"
#include "knear/scan/kernels/row_code_kernels.hpp"

namespace knear::detail {

// What a graph keeps of a vector: a code of 8 bits with one unit for all columns, or the numbers
// themselves where such codes cannot tell near rows apart (far clusters, uneven lengths).
struct GraphCoding {
  Metric metric = Metric::l2;
  std::int64_t dim = 0;                // of the vectors
  std::optional<ElementType> numbers;  // the type of the numbers, f32 or f64; nothing: codes
  std::vector<double> lows;            // of codes [columns], what code 0 stands for
  double scale = 1;                    // codes a unit; of numbers, by which squares are multiplied
  double longest = 0;                  // ip: the length of all vectors, with their last column
  double query_length = 0;             // ip: to which queries are scaled, which changes no order

  std::int64_t columns() const { return dim + traits_of(metric).lifted; }
  // Bytes of a row.
  std::int64_t stride() const {
    const std::int64_t bytes = columns() * (numbers ? size_of(*numbers) : 1);
    return (bytes + row_code_step - 1) / row_code_step * row_code_step;
  }
  // Whether codes are the numbers of rows among which those were found, less the lowest of them.
  bool are_numbers_of(const ValueRange& found) const;
  // What is kept of a row [stride bytes]; scratch [columns].
  void code_row(AnyMatrixView vectors, std::int64_t row, double* scratch, std::uint8_t* out) const;
  // The code of a query, which may lie beyond the rows; out [stride], scratch [columns]. Returns
  // whether nothing was rounded or cut off.
  bool code_query(AnyMatrixView vectors, std::int64_t row, double* scratch,
                  std::int16_t* out) const;

  // What is coded: the vector itself, of length 1, or with its last column; out [columns].
  void to_space(AnyMatrixView vectors, std::int64_t row, bool query, double* out) const;
};

}  // namespace knear::detail
