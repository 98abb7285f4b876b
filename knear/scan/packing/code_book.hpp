// knear/scan/packing/code_book.hpp -- what codes stand for: each part of a code, 8 or 4 bits,
// numbers one of the centroids of its part of the columns.
//
//   CodeBook book(std::move(centroids), 32, 8);     // of 32 parts of 8 bits
//   book.sum(code, 1, query, true)                  // |query - what the code stands for|^2
//
// Sums of a query and a code are those of the tables of Jegou et al. (2011): of each part the sum
// over its columns in float64, rounded to float32; of these the sum in float32, from the first part
// on. They are the same whether tables are made or not.
#pragma once
#include <cstdint>

#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/scan/packing/code_tiles.hpp"

namespace knear::detail {

class CodeBook {
 public:
  // Centroids [parts * 2^bits x columns of a part], those of the first part first; bits 4 or 8.
  CodeBook(Matrix<float> centroids, std::int64_t parts, int bits);

  std::int64_t dim() const { return parts_ * width(); }
  std::int64_t parts() const { return parts_; }
  int bits() const { return bits_; }
  std::int64_t count() const { return std::int64_t{1} << bits_; }  // centroids of a part
  std::int64_t width() const { return centroids_.cols(); }         // columns of a part
  // Bytes of a code: one for each part of 8 bits; for two of 4 bits, the first in the lower half.
  std::int64_t code_size() const { return (parts_ * bits_ + 7) / 8; }
  MatrixView<float> centroids() const { return centroids_.view(); }
  MatrixView<float> part(std::int64_t m) const {
    return centroids_.view().rows(m * count(), (m + 1) * count());
  }

  // Part m of a code whose bytes lie `stride` apart.
  std::int64_t get(const std::uint8_t* code, std::int64_t stride, std::int64_t m) const {
    return bits_ == 8 ? code[m * stride] : code[m / 2 * stride] >> (m % 2 * 4) & 15;
  }

  // The tables of a query [dim], [parts * 2^bits]: of squared differences or of products. With
  // ranges [2 * parts] also the least and the largest entry of each.
  void fill_tables(const double* query, bool squared, Isa isa, float* tables,
                   float* ranges = nullptr) const;
  // What they give a code whose bytes lie `stride` apart, without tables.
  float sum(const std::uint8_t* code, std::int64_t stride, const double* query,
            bool squared) const {
    return squared ? sum_of<true>(code, stride, query) : sum_of<false>(code, stride, query);
  }
  // What a code stands for, out [dim].
  void decode(const std::uint8_t* code, std::int64_t stride, float* out) const;

  // The same in 8 bits, for many queries at once.
  const CodeTiles& tiles() const { return tiles_; }

  std::int64_t bytes() const {
    return 4 * (centroids_.rows() * centroids_.cols() + by_column_.rows() * by_column_.cols()) +
           tiles_.bytes();
  }

 private:
  const float* column(std::int64_t j) const {
    return width() == 1 ? centroids_.row(j * count()) : by_column_.row(j);
  }
  template <bool squared>
  float sum_of(const std::uint8_t* code, std::int64_t stride, const double* query) const;
  template <int fixed>
  void copy_parts(const std::uint8_t* code, std::int64_t stride, float* out) const;

  std::int64_t parts_;
  int bits_;
  Matrix<float> centroids_;
  // [dim x 2^bits]: column j among the centroids of its part. Empty where parts have one column:
  // their centroids are that already.
  Matrix<float> by_column_;
  CodeTiles tiles_;
};

}  // namespace knear::detail
