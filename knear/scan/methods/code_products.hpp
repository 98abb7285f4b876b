// knear/scan/methods/code_products.hpp -- codes for many queries at once: rows are decoded to 8
// bits once, and the tile kernels multiply them with queries. For one query, tables of its own
// would take longer to make than some lists take to scan.
//
// With the centroids of 8-bit parts coded once (code_tiles.hpp) a row of codes is v + mean. What
// the tables of code_scan.hpp give it is
//   key = A + C - g,   g = <w, v> - t
// where they are of products with p: w = -p, C = <p, mean>, t = 0; where they are of squared
// differences from p: w = 2 (p - mean), C = |p - mean|^2, t = |v|^2. For l2 the row's scalar, where
// it has one, is in t besides; for cosine the key is 1 + (A + C - g) / s, and g - (1 - key) s
// stands for g. With u = w - middle, the mean of the queries at hand taken off,
//   g = <u, v> + (<middle, v> - t),
// of which <u, v> comes from the product of codes, within |u| error + e norm by Cauchy and Schwarz
// (docs/bounds.md, 2), and the other is a number of the row. A row is left out only if that proves
// its key, as it is rounded to float32, to be too large.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"
#include "knear/scan/packing/code_book.hpp"
#include "knear/scan/packing/coded_lists.hpp"

namespace knear::detail {

// Rows [row, row + rows) of a list, the first of which is the first of its group, that take the
// places from `place` on, a multiple of code_group_rows.
struct DecodedRun {
  const CodedLists* lists;
  std::int64_t row, rows, place;
};

// Whether each row has a sum by tables of its own for such queries (below: <middle, v> - t), which
// is most of what decoding takes: where these are of squared differences, or lie about a mean.
bool rows_have_sums(const CodeBook& book, bool squared, MatrixView<double> queries);

class CodeProducts {
 public:
  // squared: whether tables are of squared differences. For cosine rows have scalars.
  CodeProducts(const CodeBook& book, Metric metric, bool squared, Isa isa);

  // Queries that are gone over together, as the book's tables take them [queries x dim].
  void set_queries(Matrix<double> queries);

  // Takes up rows, whose places ascend, and decodes them, or not, where only sums() are wanted.
  void set_rows(std::span<const DecodedRun> runs, bool decoded = true);
  // Multiplies all of these with up to max_group queries.
  void multiply(std::span<const std::uint32_t> queries);

  // For query number `lane` of the last call: bounds from above of each row's g, in a unit of
  // the query, infinity below zero where no row is; nullptr where floats hold none. For cosine
  // of g - (1 - bound) s, or of g if the bound is infinite.
  float* bounds_of(int lane, float bound);
  // The number that these are not below of rows whose key is at most `bound`, with the term A.
  float least_of(float term, float bound) const;
  // The places that bounds_of() fills: those of whole panels.
  std::int64_t places() const { return panels_ * panel_rows; }

  // The scalar of the row in a place, 0 where there are none.
  float scalar(std::uint32_t at) const { return scalars_[at]; }
  // What the tables of a query of the block would give rows: out[i] that in place at[i]; ascending.
  void sums(std::uint32_t query, const std::uint32_t* at, std::int64_t count, float* out);

 private:
  void decode_rows();
  void add_terms(const DecodedRun& run, const std::uint8_t* codes);

  // A query's codes, and what is known of it.
  struct Query {
    double scale = 1, norm = 0, error = 0;  // of u: of a code unit; |u| and |u - codes|, at most
    double offset = 0;                      // C
    double size = 0;                        // what the entries of its tables add up to, at most
    double length = 0;                      // of all that rounding to float64 goes by
    std::int32_t correction = 0;
  };
  const CodeBook& book_;
  const Metric metric_;
  const bool squared_;
  const Isa isa_;

  Matrix<double> queries_;
  std::vector<Query> coded_;          // [queries]
  AlignedArray<std::uint8_t> codes_;  // [queries][steps][4]
  double middle_norm_ = 0;            // |middle|, at most
  std::vector<float> terms_;          // [parts][256]: what is the row's own in g, without scalars

  // A number of each place less the largest of a row, in a unit.
  struct Bias {
    void set(const std::vector<double>& numbers, std::span<const DecodedRun> runs);
    std::vector<float> values;
    double largest = 0, span = 0, unit = 1;
  };
  // Rows at hand: what is each row's own in g and, for cosine, -s.
  std::vector<DecodedRun> runs_;
  std::int64_t panels_ = 0;
  AlignedArray<std::uint8_t> row_codes_;  // [panels_]
  Bias bias_, scalar_bias_;
  std::vector<float> scalars_;
  double largest_scalar_ = 0;
  std::vector<double> own_;
  std::vector<float> own_sums_;  // of a run
  std::vector<std::uint16_t> own_numbers_;
  std::vector<std::uint64_t> all_;
  std::vector<std::uint32_t> in_run_;

  // Queries at hand.
  std::vector<std::uint32_t> group_;
  AlignedArray<std::uint8_t> group_codes_;  // [steps][max_group][4]
  AlignedArray<std::int32_t> scores_;       // [max_group][places]
  std::vector<ScoreUnits> units_;
  std::vector<float> bounds_;
  const Query* at_hand_ = nullptr;
  double per_unit_ = 0;  // of the bounds of the query at hand
};

}  // namespace knear::detail
