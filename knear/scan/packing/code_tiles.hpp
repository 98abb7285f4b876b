// knear/scan/packing/code_tiles.hpp -- what codes stand for, in 8 bits: rows of codes as panels of
// the tile kernels.
//
//   const CodeTiles tiles(book);
//   tiles.decode(codes, stride, rows, panels);       // what 64 codes stand for
//
// A row r is v + mean, where the mean of each part is that of its centroids, and v is near scale
// times its codes: |v - scale codes| <= error. Each centroid is coded once, so that decoding a row
// copies bytes.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/scan/kernels/tile_kernels.hpp"

namespace knear::detail {

class CodeBook;

class CodeTiles {
 public:
  CodeTiles() = default;
  // Of parts of 8 bits; of 4 bits empty.
  explicit CodeTiles(const CodeBook& book);
  // Whether rows can be decoded: numbers may be so large or so small that products lose them.
  bool usable() const { return usable_; }

  double scale = 1;          // the value of a code unit
  double error = 0;          // |v - scale codes| of any row, at most
  double norm = 0;           // |v| and |scale codes| of any row, at most
  double row_norm = 0;       // |r| of any row, at most
  std::vector<double> mean;  // [dim]

  std::int64_t steps() const { return (dim_ + 3) / 4; }
  // Bytes of a panel.
  std::int64_t panel_bytes() const { return steps() * panel_step_bytes; }
  // Writes the panels of `rows` <= 64 codes of a group, whose bytes lie as far apart, as
  // CodeDecodeArgs has them.
  void decode(const std::uint8_t* codes, std::int64_t rows, Isa isa, std::uint8_t* panels) const;

  std::int64_t bytes() const { return std::ssize(by_code_) + std::ssize(by_column_); }

 private:
  std::int64_t dim_ = 0, width_ = 0, parts_ = 0;
  bool usable_ = false;
  // The code of each centroid, + 128: [parts][256][width], and [dim][256].
  std::vector<std::uint8_t> by_code_, by_column_;  // the second is empty where both are the same
};

}  // namespace knear::detail
