// knear/scan/kernels/tile_kernels.hpp -- the boundary of the tile kernels: plain structs, one table
// per level.
//
// A kernel scores one group of up to 12 queries against a run of panels of 32 base rows and appends
// the pairs that pass the threshold test to a small buffer; it calls no other code and updates no
// threshold. Scores are dot products of codes; they stay in registers, and all but the few that
// pass are dropped there.
//
// Memory order of codes. A step is 4 bytes of a row: four int8, two int16 or one float.
//   panel    [steps][32 rows][4 bytes]        so one step of all its rows is two cache lines
//   queries  [steps][group size][4 bytes]     so one step of a query is one broadcast
//
// int8 codes of rows are stored as code + 128 (the first factor of the dot-product instruction is
// unsigned), those of queries as they are; the difference, 128 sum(query codes), is in
// `correction`.
//
// The test (derived in docs/bounds.md). `certified` formats keep a pair unless it is proven that
// its g = <u, v> + b cannot reach the query's threshold G, where per panel v ~ scale * codes with
// error at most `error`, and likewise per query:
//   code dot + (b - bias_max) / (s_q s_p)  >=  (G - bias_max - |u| E_p - e_q N_p) / (s_q s_p)
// The left fraction is rounded up, the right one down. `integer` is exact:
//   code dot + row term >= limit, in int32 modulo 2^32, with the true difference within int32,
// where ties with the k-th row so far pass only in panels that have a row before it.
//
// `self_join` is for queries that are rows of the base; each pair is scored once for both. A k-th
// key lowers G by a row's reach, so a pair passes if it does for its query or if it would with the
// row's reach in place of the query's own:
//   dot + row term >= min(limit, (top - bias_max - ...) / (s_q s_p) - reach / (s_q s_p)).
#pragma once
#include <cstdint>

namespace knear::detail {

inline constexpr int panel_rows = 32;
inline constexpr int step_bytes = 4;
inline constexpr int panel_step_bytes = panel_rows * step_bytes;
inline constexpr int max_group = 12;
inline constexpr int head_lanes = 16;  // arrays of a group head, padded for whole registers

// The head of a panel, shared by its rows; all in the space that was coded (centred, normalised).
struct PanelHead {
  double scale;     // value of a code unit
  double bias_max;  // the largest b of its rows, plus slack for float64 rounding
  double error;     // E: at least the distance of any row from its code
  double norm;      // N: at least the length of any row or code
  double slack;     // absolute, for float64 rounding; already in bias_max
};

// The thresholds and errors of each query of a group. Lanes from `count` on repeat the last query.
struct GroupHead {
  double threshold[head_lanes];         // G, less slack; -infinity: keep everything
  double norm[head_lanes];              // |u|, rounded up
  double error[head_lanes];             // e: distance of the query's code from u, rounded up
  std::int32_t correction[head_lanes];  // added to the limit, since the code dot contains it
  // `integer` only. With `bound` the key that a pair must not exceed: floor((|x|^2 - bound) / 2)
  // and the bit that this drops for l2, -bound and 0 for ip; and the row that has the key `bound`
  // now: rows after it must have smaller keys.
  std::int32_t limit[head_lanes];
  std::uint32_t limit_bit[head_lanes];
  std::uint32_t bound_row[head_lanes];
  // `self_join` only: G for a reach of 0.
  double top[head_lanes];
  double scale;  // value of a code unit, common to the group
  int count;
};

struct Hit {
  std::int32_t
      score;  // the code dot as accumulated (correction included); bits of a float for fp32
  std::uint32_t slot;   // panel * 32 + row of the panel
  std::uint32_t query;  // number in the group
};

struct TileArgs {
  // The base: whole arrays, indexed by panel.
  const std::uint8_t* codes;
  const PanelHead* heads;            // certified
  const float* row_bias;             // certified: (b - bias_max) / scale^2, rounded towards 0
  const std::uint32_t* ids;          // integer: ids of the rows, ascending in a panel
  const std::uint32_t* row_squares;  // integer: |y|^2, or 0 for ip
  const std::int32_t* row_sums;      // integer: sum of y
  std::int32_t sum_shift_mask;       // integer: -1 if the queries were shifted by 128, else 0
  std::int64_t steps;
  // `certified` and `integer` only: bit r of word `panel` is set if row r of the panel may pass, as
  // a filter says; nullptr: every row may.
  const std::uint32_t* allowed;
  // Queries.
  const std::uint8_t* query_codes;
  const GroupHead* group;
  // The run of panels: [panel, panel_end). On return `panel` is the next one to score: it is less
  // than panel_end if hit_limit was reached.
  std::int64_t panel, panel_end;
  // Room for hit_limit + max_group * panel_rows hits.
  Hit* hits;
  int hit_count, hit_limit;
  // `self_join` only: by how much the key that a neighbour of the row must not exceed lowers `top`,
  // rounded up, from the first row of `reach_panel` on. It may be negative; infinite, everything
  // passes for the row, and with the lowest float nothing.
  const float* row_reach;
  std::int64_t reach_panel;
  // `collect` and `self_join` only, instead of hits: the slots that passed, in a list for each
  // query of the group with room for list_limit + panel_rows. The kernel stops once a list has
  // list_limit.
  std::uint32_t* lists[max_group];
  int list_count[max_group], list_limit;
  // `scores` only, instead of hits: the products of all pairs [group size x score_stride], slots
  // from the first panel on, as they were accumulated (corrections included).
  std::int32_t* scores;
  std::int64_t score_stride;
};

using TileKernel = void (*)(TileArgs*);

enum Format { format_int8, format_int16, format_fp32, format_count };
enum GroupSize { group_1, group_4, group_12, group_size_count };
inline constexpr int group_sizes[group_size_count] = {1, 4, 12};

// The sums over a vector v [dim], and over its codes, that packing needs.
struct VectorSize {
  double largest;  // coordinate, in magnitude
  double squares;  // sum of squares
};
struct CodeSize {
  double error;      // sum of (v - scale * code)^2
  double squares;    // sum of code^2
  std::int64_t sum;  // of the codes; int8 only
};
using LoadFloats = void (*)(const float* from, const double* mean, std::int64_t dim, double* v);
using Measure = VectorSize (*)(const double* v, std::int64_t dim);
// Writes one step every `stride` bytes; `offset` is added to int8 codes.
using Encode = CodeSize (*)(const double* v, std::int64_t dim, double scale, int offset,
                            std::uint8_t* out, std::int64_t stride);

// out[i] = product of row which[i] of `rows` (u8, `stride` bytes apart) with `query`, in int32.
// Both are read in pieces of 64 bytes: beyond `dim` the query must be zero, the rows may be
// anything.
using RowProducts = void (*)(const std::uint8_t* rows, std::int64_t stride,
                             const std::uint32_t* which, std::int64_t count,
                             const std::int8_t* query, std::int64_t dim, std::int32_t* out);

// What the products of one query with all rows are worth, and which of them are the largest. Slots
// are those of whole panels.
//
// Upper ends of what is certain of g, in any unit: out[slot] is at least
//   unit (score - correction) + bias_unit bias[slot] + most
// of the panel's numbers, in real arithmetic, if most has room for 2^-21 of the largest product
// and bias_unit, which multiplies numbers that are at most 0, is rounded to be 2^-20 smaller.
struct ScoreUnits {
  float unit, bias_unit, most;
};
using UpperEnds = void (*)(const std::int32_t* scores, std::int32_t correction, const float* bias,
                           const ScoreUnits* units, std::int64_t panels, float* out);
// A number that at least k of the values are not below, and few more, unless many are equal; the
// lowest float if there are fewer than k finite ones. No NaN.
using LargestValue = float (*)(const float* values, std::int64_t count, std::int64_t k);
// The places of values that are at least `least`, ascending; returns how many. `out` has room for
// one more than there are.
using PlacesAtLeast = std::int64_t (*)(const float* values, std::int64_t count, float least,
                                       std::uint32_t* out);
struct ScanKernels {
  TileKernel certified[format_count][group_size_count];
  TileKernel integer[group_size_count];  // on int8 codes
  TileKernel collect[group_size_count];  // certified on int8 codes, for a second stage
  TileKernel self_join;                  // as collect, with 12 rows of the base as queries
  TileKernel scores[group_size_count];   // on int8 codes: every product, no test
  UpperEnds upper_ends;
  LargestValue largest_value;
  PlacesAtLeast places_at_least;
  LoadFloats load_floats;  // v = from - mean; mean may be nullptr
  Measure measure;
  Encode encode[format_count];
  RowProducts row_products;
};

const ScanKernels& scan_kernels_scalar();
const ScanKernels& scan_kernels_avx2();
const ScanKernels& scan_kernels_avx512();
const ScanKernels& scan_kernels_avx512_vnni();
const ScanKernels& scan_kernels_avx512_amx();
const ScanKernels& scan_kernels_neon();
const ScanKernels& scan_kernels_neon_dot();
const ScanKernels& scan_kernels_neon_i8mm();

// Bounds of the int32 arithmetic of the certified test: |code dot| <= 2^29 by construction, the row
// term is clamped to [-2^29, 0] (upwards: conservative), the limit to [-2^30 - 8, 2^29 + 8], where
// the lower end keeps every row and the upper end none.
inline constexpr double code_dot_bound = 536870912.0;

}  // namespace knear::detail
