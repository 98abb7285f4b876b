// knear/scan/packing/per_row_codes.hpp -- rows as 8-bit codes, each with a scale of its own, and
// queries in two planes of 8 bits: for rows scored one by one, with narrower intervals than those
// of panels.
//
//   PerRowCodes rows = per_row_codes(base, order, space, false, {}, threads, {});
//   CodedQuery query = code_query(rows, queries, i, {}, scratch, codes);
//   kernels.row_products(rows.codes.data(), rows.stride, slots, count, codes, rows.dim, products);
//   interval_of(rows, slots[0], id, products[0], query);
//
// The second stage of a prefix (scan/prefix/second_stage.hpp) and the last stage of the precision
// cascade before float64 (scan/candidate_refiner.hpp) score by them. Derivation: docs/bounds.md, 2,
// 3 and 5.
#pragma once
#include <cstdint>
#include <span>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"
#include "knear/scan/kernels/bounds.hpp"
#include "knear/scan/packing/base_rows.hpp"
#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// Rows as 8-bit codes, each coded by itself and contiguous, in the order of slots.
struct PerRowCodes {
  struct Head {   // certified: of the row in coding space, rounded up
    float scale;  // value of a code unit, exact
    float error;  // distance of the code from the row
    float norm;   // bound on the lengths of the row and of its code
    float bias;   // b in units of scale^2, rounded to nearest, for rows of any size
  };
  bool is_integer = false;
  CodingSpace space;
  int row_offset = 0;  // integer: 128 if codes are y + 128
  ValueRange range;    // integer
  std::int64_t dim = 0, stride = 0;
  AlignedArray<std::uint8_t> codes;     // [slots][stride], and 64 more
  AlignedArray<Head> heads;             // certified
  AlignedArray<std::uint32_t> squares;  // integer, l2
  AlignedArray<std::int32_t> sums;      // integer
  // Checks the codes of a mapped file before they are used; nullptr for others.
  std::shared_ptr<const CheckedBlocks> guard;

  void check(const std::uint32_t* slots, std::size_t count) const {
    if (guard)
      for (std::size_t i = 0; i < count; ++i)
        guard->touch(codes.data() + slots[i] * stride, stride);
  }
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(codes.bytes() + heads.bytes() + squares.bytes() +
                                     sums.bytes());
  }
};

// `order` holds the row of each slot. With `integer`, codes are the values themselves, whose range
// is `found`.
PerRowCodes per_row_codes(const BaseRows& base, std::span<const std::uint32_t> order,
                          const CodingSpace& space, bool integer, const ValueRange& found,
                          int threads, const Progress& progress);

// A query as it is scored with PerRowCodes. The residual of its codes is coded again, in units some
// 250 times smaller: with both planes the query contributes almost none of the error.
struct CodedQuery {
  double scale = 1, norm = 0, error = 0;  // certified, as in GroupHead
  double squares = 0, constant = 0;       // |u|^2 (integer: |x|^2); <x, mean>
  std::int32_t correction = 0;            // subtracted from a product
  std::int32_t sum_shift_mask = 0;
  double fine_scale = 0, fine_error = 0;  // of the second plane; what both planes leave out
  std::int32_t fine_correction = 0;
};
// Bytes of a plane of codes: dim, rounded up.
inline std::int64_t plane_bytes(std::int64_t dim) { return (dim + 63) / 64 * 64; }
// Codes of row i of `queries`: two planes, one after the other (integer: one). scratch [dim]
// doubles.
CodedQuery code_query(const PerRowCodes& rows, AnyMatrixView queries, std::int64_t i,
                      const ValueRange& found, double* scratch, std::int8_t* codes);
// The same of the row of a slot, whose codes are at hand; integer. |x|^2 is 0 but for l2.
CodedQuery code_query(const PerRowCodes& rows, std::uint32_t slot, const ValueRange& found,
                      std::int8_t* codes);

// The interval of a row and a query (docs/bounds.md, 3; the row is a panel of its own): `dot` is
// the product of their codes in units of the row's scale, `query_error` what the codes of the query
// leave out.
inline ScoreInterval interval_of(const PerRowCodes& rows, std::uint32_t slot, std::uint32_t id,
                                 double dot, double query_error, const CodedQuery& query) {
  const PerRowCodes::Head& head = rows.heads[slot];
  const GInterval g =
      row_interval(rows.space.metric, rows.space.slack, rows.space.mean_norm, head.scale,
                   head.error, head.norm, head.bias, dot, query.norm, query_error, query.squares);
  return {g.upper, g.lower, id};
}
// The interval by the first plane of the query.
inline ScoreInterval interval_of(const PerRowCodes& rows, std::uint32_t slot, std::uint32_t id,
                                 std::int32_t product, const CodedQuery& query) {
  return interval_of(rows, slot, id, (product - query.correction) * query.scale, query.error,
                     query);
}
// The interval by both planes.
inline ScoreInterval interval_of(const PerRowCodes& rows, std::uint32_t slot, std::uint32_t id,
                                 std::int32_t product, std::int32_t fine_product,
                                 const CodedQuery& query) {
  const double dot = (product - query.correction) * query.scale +
                     (fine_product - query.fine_correction) * query.fine_scale;
  return interval_of(rows, slot, id, dot, query.fine_error, query);
}

inline double integer_key(const PerRowCodes& rows, std::uint32_t slot, std::int32_t product,
                          const CodedQuery& query) {
  const bool shifted = query.sum_shift_mask != 0, l2 = traits_of(rows.space.metric).squared;
  return integer_key(
      l2, integer_product(product, query.correction, shifted, shifted ? rows.sums[slot] : 0),
      query.squares, l2 ? rows.squares[slot] : 0);
}

}  // namespace knear::detail
