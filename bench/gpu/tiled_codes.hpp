// bench/gpu/tiled_codes.hpp -- vectors in fewer bits for a library's products, and the proof that
// an answer selected by them is right.
//
// Let x and y be a query and a row, x' and y' the vectors that their codes stand for, E the largest
// |y - y'| and N the largest |y'| of a base. Then  |x y - x' y'| <= |x| E + |x - x'| N.  So the key
// of tiled_search.hpp is off by slack_of() at most, including the rounding of the products and of
// the key. If the K-th smallest key lies farther than that above the k-th smallest distance
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

  // The factor of the products of codes with those of a base: the key is |y|^2 - factor * product.
  float factor(const TiledCodes& base) const { return static_cast<float>(2 * scale * base.scale); }
};

// Code: float, unchanged; bf16, rounded to nearest; std::int8_t, whole multiples of the largest
// magnitude / 127, one scale for all.
template <class Code>
TiledCodes<Code> tiled_codes(MatrixView<float> vectors);

// The largest difference of a key of query q from |y|^2 - 2 x y, for any row of the base.
template <class Code>
double slack_of(const TiledCodes<Code>& queries, std::int64_t q, const TiledCodes<Code>& base,
                std::int64_t dim);

// Whether the k nearest are certainly among the rows kept. kth: the k-th smallest squared distance
// measured among them; last_value, last_place: the last of the rows kept.
template <class Code>
bool is_certain(const TiledCodes<Code>& queries, std::int64_t q, const TiledCodes<Code>& base,
                std::int64_t dim, double kth, float last_value, int last_place);

}  // namespace knear::bench
