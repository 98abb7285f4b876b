// knear/quantize/plain_codes.hpp -- scalar codes as FAISS makes and keeps them: one row of bytes
// after another, of numbers of 8, 6 or 4 bits, or of halves.
//
//   const PlainCode code{PlainCode::Kind::bits6, 96, low, span};
//   if (encode_plain(code, rows, {}, {}, 0, out) < rows.rows()) ...   // a row that has no code
//
// Rows are read once: vectors of 512 bytes become bytes at the rate of memory. ScalarQuantizer
// rounds to the nearest level; these numbers are cut off, as FAISS's are.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "knear/core/matrix.hpp"

namespace knear::detail {

class PlainCode {
 public:
  enum class Kind : std::uint8_t { bits8, bits6, bits4, f16, bf16 };
  // "8", "6", "4", "fp16", "bf16". Throws InvalidArgument for another name.
  static Kind kind_of(std::string_view name);

  // low, span [dim] of finite numbers: the least value of each column and what the largest is above
  // it; empty for halves. Throws InvalidArgument for dim < 1; ShapeMismatch.
  PlainCode(Kind kind, std::int64_t dim, std::span<const float> low, std::span<const float> span);

  Kind kind() const { return kind_; }
  std::int64_t dim() const { return dim_; }
  // Bytes of a code: numbers follow one another, low bits first.
  std::int64_t code_size() const;

  // Writes codes [n x code_size] of rows [n x dim]. Row list_of[i] of `centroids` is taken from row
  // i first, in float, unless `centroids` has no columns. Returns the first row that has no code,
  // since a value is not finite or too large for a half, or n if every row has one. The codes from
  // that row on are undefined. Requires that list_of [n] are rows of
  // `centroids`, and that `out` is at an even address where codes are halves.
  std::int64_t encode(MatrixView<float> rows, MatrixView<float> centroids,
                      std::span<const std::int64_t> list_of, int threads, std::uint8_t* out) const;

 private:
  const Kind kind_;
  const std::int64_t dim_;
  std::vector<float> low_, span_, top_;  // [dim], where there are numbers
};

}  // namespace knear::detail
