// knear/quantize/scalar_quantizer.hpp -- vectors with fewer bits a coordinate: 8 or 4 bits of a
// range of each column, or halves of a float.
//
//   const auto sq = ScalarQuantizer::train(rows, ScalarCode::bits8);
//   const Matrix<std::uint8_t> codes = sq.encode(rows);        // [n x dim]
//   const Matrix<float> near = sq.distances(queries, codes.view(), Metric::cosine);
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/progress.hpp"

namespace knear {

enum class ScalarCode : std::uint8_t { bits8, bits4, f16, bf16 };
// "8", "4", "fp16", "bf16", as behind SQ in the names of indexes.
std::string_view name_of(ScalarCode code);

// A value, cheap to copy: copies share what they hold. Threads: calls may run at once.
class ScalarQuantizer {
 public:
  // Of rows [n x dim] of any element type, n >= 1. A column of 8 bits has 256 levels from its least
  // value to its largest; one of 4 bits 16 levels, moved together where that loses less, squared
  // and summed over a sample of 65,536 rows. Far rows have no say in that, so that they take no
  // levels from the others: rows, at most one in 1,000, that have a value farther from the middle
  // 98 % of its column than 16 times the width of these. In such a column they get the first or
  // last level. f16 and bf16 look at the columns alone. Throws InvalidArgument naming the argument,
  // for a NaN or an infinity with its row.
  static ScalarQuantizer train(AnyMatrixView rows, ScalarCode code, int threads = 0);
  // The levels of column j are low[j] + c step[j], c = 0 ... 255 or 15. For f16 and bf16: `dim`
  // columns without levels.
  static ScalarQuantizer from_levels(ScalarCode code, std::span<const float> low,
                                     std::span<const float> step);
  static ScalarQuantizer of_halves(ScalarCode code, std::int64_t dim);

  std::int64_t dim() const;
  ScalarCode code() const;
  // Bytes of a code: dim, (dim + 1) / 2 with the first of two columns in the lower half, or 2 dim
  // with the lower byte first.
  std::int64_t code_size() const;
  // The levels [dim], empty for f16 and bf16.
  std::span<const float> low() const;
  std::span<const float> step() const;

  // The codes [n x code_size] of rows [n x dim] of any element type: the nearest level, ties to the
  // lower one; the nearest half of the value as a float, ties to even. A value outside the levels
  // gets the first or last one; one that is no finite f16 is an InvalidArgument that names the row.
  Matrix<std::uint8_t> encode(AnyMatrixView rows, int threads = 0,
                              const Progress& progress = {}) const;
  // The vectors [n x dim] that codes stand for: levels rounded to floats, halves as they are.
  Matrix<float> decode(MatrixView<std::uint8_t> codes, int threads = 0) const;
  // The vector out [dim] that one code [code_size] stands for; neither is checked.
  void decode_one(const std::uint8_t* code, float* out) const;
  // Distances [q x n] of queries [q x dim] to what codes stand for: reference_distance() as a
  // float.
  Matrix<float> distances(AnyMatrixView queries, MatrixView<std::uint8_t> codes, Metric metric,
                          int threads = 0) const;
  // The same between codes and codes.
  Matrix<float> code_distances(MatrixView<std::uint8_t> from, MatrixView<std::uint8_t> to,
                               Metric metric, int threads = 0) const;

 private:
  struct State;
  explicit ScalarQuantizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace knear
