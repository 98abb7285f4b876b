// bench/gpu/tiled_codes.hpp -- vectors in fewer bits for a library's products, and what proves an
// answer that was selected by them.
//
// With x and y a query and a row, x' and y' what their codes stand for, E the largest |y - y'| and
// N the largest |y'| of a base:  |x y - x' y'| <= |x| E + |x - x'| N.  So the key of
// tiled_search.hpp is off by slack_of() at most, the rounding of the products and of the key
// included. If the K-th smallest key lies farther than that above the k-th smallest distance
// measured among the K rows kept, no row that was dropped is among the k nearest.
#pragma once
#include <cstdint>
#include <type_traits>
#include <vector>

#include "knear/core/element_type.hpp"
#include "knear/core/matrix.hpp"

namespace knear::bench {

template <class Code>
struct TiledCodes {
  std::vector<Code> codes;      // [rows x dim]
  std::vector<float> norms;     // |y|^2, of the vectors themselves
  std::vector<double> lengths;  // |y|
  std::vector<double> errors;   // |y - y'|, rounded up
  double scale = 1;             // y' = scale * code
  double most_error = 0;        // E
  double most_length = 0;       // N

  // Of the products of codes with those of a base: the key is |y|^2 - factor * product.
  float factor(const TiledCodes& base) const { return static_cast<float>(2 * scale * base.scale); }
};

// Code: float, as they are; bf16, to nearest; std::int8_t, whole multiples of the largest magnitude
// / 127, one scale for all.
template <class Code>
TiledCodes<Code> tiled_codes(MatrixView<float> vectors);

// How far a key of query q is from |y|^2 - 2 x y for any row of the base, at most.
template <class Code>
double slack_of(const TiledCodes<Code>& queries, std::int64_t q, const TiledCodes<Code>& base,
                std::int64_t dim);

// Whether the k nearest are certainly among the rows kept. kth: the k-th smallest squared distance
// measured of them; last_value, last_place: the last of what was kept.
template <class Code>
bool is_certain(const TiledCodes<Code>& queries, std::int64_t q, const TiledCodes<Code>& base,
                std::int64_t dim, double kth, float last_value, int last_place);

}  // namespace knear::bench
