// knear/scan/packing/packed_base.hpp -- base rows as panels of codes, with what the certified test
// needs.
//
// Rows are interleaved over the tiles in a pseudo-random order (interleaving.hpp): each of T tiles
// holds one of each T consecutive rows, so that every tile is a sample of the whole base. A base
// sorted by class, by time or by distance is shuffled for the scan, and the first tile is the
// sample from which thresholds start. Within a tile of certified codes, rows are sorted by their
// largest coordinate, so that one scale suits the 32 rows of a panel: an outlier coarsens only its
// own panel.
//
// Memory: codes (1, 2 or 4 bytes a coordinate, rounded up to 4 bytes a row) and 8 bytes a row for
// certified formats, 12 for exact integers, and 40 bytes a panel.
//
// Coding space, of rows and queries alike: v = y - mean for l2 and ip, y / |y| - mean for cosine (0
// for a zero vector y). With u the query's, and b = -|v|^2 / 2 for l2, <mean, v> otherwise,
// g = <u, v> + b orders rows as the metric does, larger being nearer:
//   l2: distance = |u|^2 - 2 g;  ip: product = g + <x, mean>;  cosine: 1 - (g + <x / |x|, mean>).
// docs/bounds.md derives every error term.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "knear/core/checked_blocks.hpp"
#include "knear/core/cpu.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/core/value_range.hpp"
#include "knear/scan/kernels/levels.hpp"
#include "knear/scan/packing/base_rows.hpp"
#include "knear/scan/packing/duplicates.hpp"

namespace knear::detail {

// The space in which vectors are coded, and how they are moved to it.
struct CodingSpace {
  Metric metric = Metric::l2;
  const ScanKernels* kernels = nullptr;
  std::vector<double> mean;  // [dim]; empty: not centred
  double mean_norm = 0;      // |mean|, rounded up
  // Relative bound on all float64 rounding of norms, products and the reference itself.
  double slack = 0;
  // How far a given vector may be from the one it stands for: relative to its length, and absolute.
  // For rows that were computed, such as those of a prefix.
  double off_relative = 0, off_absolute = 0;
  // A bound on that distance for a vector whose length in coding space is at most `norm`.
  double off_of(double norm) const { return off_relative * (norm + mean_norm) + off_absolute; }

  // Chooses the mean of a sample of the rows if that makes the typical row shorter.
  static CodingSpace choose(const BaseRows& base, Metric metric, Isa isa);
  // The number of rows that choose() looks at.
  static std::int64_t sample_size(std::int64_t rows, std::int64_t dim);

  // The same space with this mean [dim].
  CodingSpace around(const float* centre, std::int64_t dim) const;
  // Row i of `data` in coding space, as doubles [dim].
  void load(AnyMatrixView data, std::int64_t i, double* v) const;
  // The squared lengths of rows in coding space, summed: the shorter, the finer are their codes.
  double squares_of(const BaseRows& rows) const;

  // Whether vectors have the same codes in both.
  bool operator==(const CodingSpace&) const = default;
};

// Centres of inverted lists, around which rows and queries of a list are coded: where the rows of
// a list lie close together beside all rows, a code unit is as fine as the list is small.
struct ListCentres {
  MatrixView<float> values = {};  // [lists x dim]; no rows: there are none
  std::shared_ptr<const void> keeper = {};
  // A number that values have alone, or with others that were found equal; nullptr: alone.
  std::shared_ptr<const std::atomic<std::uint64_t>> number = {};

  bool any() const { return values.rows() > 0; }
  // Whether the values are known to be equal. It compares none of them.
  bool operator==(const ListCentres& other) const {
    return values.data() == other.values.data() ||
           (number && other.number && *number == *other.number);
  }
};

// How rows are coded and laid out in panels, wherever the codes are.
struct Coding {
  Format format = format_int8;
  bool is_integer = false;
  CodingSpace space;    // certified
  ListCentres centres;  // if there are any, each list has `space` around its own centre instead
  int row_offset = 0;   // integer: 128 if codes are y + 128, else 0
  ValueRange range;     // integer: of the base
  std::int64_t rows = 0, dim = 0, steps = 0;  // rows: those packed, without copies
  std::int64_t tiles = 0, panels_per_tile = 0;
  std::int64_t tile_bytes = 0;  // as asked for; 0: usual_tile_bytes()

  // int8 codes that are the values of the whole numbers that `found` describes; l2 and ip only.
  static Coding whole_numbers(Metric metric, Isa isa, const ValueRange& found);
  // Sets rows, dim and what follows from them, by format and tile_bytes. Requires
  // 1 <= packed_rows < 2^31.
  void lay_out(std::int64_t packed_rows, std::int64_t columns);
  std::int64_t panels() const { return tiles * panels_per_tile; }
  // Whether queries that are coded for one are for the other too.
  bool shares_queries(const Coding& other) const {
    return is_integer == other.is_integer && row_offset == other.row_offset &&
           format == other.format && dim == other.dim && space == other.space &&
           centres == other.centres;
  }
  // The coding of a list that has a centre of its own, without the numbers of rows and panels.
  Coding of_list(std::int64_t list) const;
  // Whether whole queries are lowered by 128 to fit the signed factor; the row sums correct for it.
  bool shifts_queries(const ValueRange& found) const { return is_integer && found.high > 127; }
};

// Row terms that are given: b of row i in addition to what the space has (docs/bounds.md, 8).
struct RowTerms {
  const double* values = nullptr;  // by row; nullptr: none
  double norm = 0;   // of the vector m of which they are products with rows less m, rounded up
  double slack = 0;  // relative bound on the rounding of these products, and of the reference
};

class PackedBase : public Coding {
 public:
  // Codes of `format` with certified errors, in `space`, for all rows, or for a `subset` of them
  // (ascending) if that is not empty. Requires 1 <= rows < 2^31. Without find_copies each of
  // several equal rows is packed.
  static PackedBase certified(const BaseRows& base, std::span<const std::uint32_t> subset,
                              Format format, CodingSpace space, int threads,
                              const Progress& progress, std::int64_t tile_bytes = 0,
                              bool find_copies = true);
  // Packs the rows in the given order instead of interleaving them: slot i holds row order[i], or
  // nothing where that is no_row, which the last slots of a panel may be. Equal rows are not looked
  // for. With row terms the space is that of l2 or ip.
  static PackedBase certified_in_order(const BaseRows& base, std::span<const std::uint32_t> order,
                                       Format format, CodingSpace space, const RowTerms& terms,
                                       int threads, const Progress& progress,
                                       std::int64_t tile_bytes = 0);
  // The same for the rows of lists, each coded around its centre. first_panel [lists + 1]: the
  // panels of each list.
  static PackedBase certified_around(const BaseRows& base, std::span<const std::uint32_t> order,
                                     std::span<const std::int64_t> first_panel, Format format,
                                     CodingSpace space, ListCentres centres, int threads,
                                     const Progress& progress);
  // int8 codes that are the values themselves, for l2 and ip; `found` is the range of the whole
  // numbers.
  static PackedBase integer(const BaseRows& base, std::span<const std::uint32_t> subset,
                            Metric metric, Isa isa, const ValueRange& found, int threads,
                            const Progress& progress, std::int64_t tile_bytes = 0);

  // The same in the given order, as certified_in_order; rows of a panel must ascend.
  static PackedBase integer_in_order(const BaseRows& base, std::span<const std::uint32_t> order,
                                     Metric metric, Isa isa, const ValueRange& found, int threads,
                                     const Progress& progress, std::int64_t tile_bytes = 0);
  // Sorts rows for panels of whole numbers: those with even |y|^2 come first (l2), since a panel
  // without odd ones has a sharper limit, and rows of a panel ascend. `rows` ascend.
  static void sort_for_panels(const BaseRows& base, Metric metric, std::span<std::uint32_t> rows);

  double longest = 0;     // certified: the largest N of a panel, without outliers
  Duplicates duplicates;  // certified: rows that stand for others
  AlignedArray<std::uint8_t> codes;
  AlignedArray<PanelHead> heads;
  AlignedArray<float> row_bias;
  AlignedArray<std::uint32_t> row_squares;
  AlignedArray<std::int32_t> row_sums;
  AlignedArray<std::uint32_t> ids;  // the row in each slot; padding slots hold no_row
  // Checks codes in a mapped file before they are used; nullptr for codes in memory.
  std::shared_ptr<const CheckedBlocks> guard;

  static constexpr std::uint32_t no_row = 0xffffffffu;
  std::int64_t bytes() const;
  // The bytes that packing would take.
  static std::int64_t bytes_for(std::int64_t rows, std::int64_t dim, Format format, bool integer);

 private:
  static void pack_integer(PackedBase& out, const BaseRows& base,
                           std::span<const std::uint32_t> subset, bool in_order, int threads,
                           const Progress& progress);
  static void pack_certified(PackedBase& out, const BaseRows& base,
                             std::span<const std::uint32_t> subset, bool in_order,
                             const RowTerms& terms, std::span<const std::int64_t> first_panel,
                             int threads, const Progress& progress);
  // Requires that tile_bytes is set.
  void make_room(std::int64_t packed_rows, std::int64_t columns);
};

// Bytes of codes of a tile by default: half of a second-level cache, so that a tile stays there
// while all queries of a task are scored against it.
std::int64_t usual_tile_bytes();

// What is known of a query and its code, in coding space.
struct QueryCode {
  double squares;           // |u|^2 (integer: |x|^2, exact)
  double norm, error;       // |u| and the distance of its code from u, rounded up
  double constant;          // product of the unmoved query with the mean, 0 for l2
  std::int32_t correction;  // subtracted from the code dot
};
// Codes queries which[0 .. count) with one scale, the value of a code unit, which it returns: the
// least that suits them, or `least_scale` if that is larger. Query q has its first step at codes +
// 4 q and the next ones every `stride` bytes. `found` is the range of all queries. own_scale: set
// to the least that suits them, 0 if they are zero.
double code_queries(const Coding& base, AnyMatrixView queries, const std::int64_t* which,
                    std::int64_t count, const ValueRange& found, std::uint8_t* codes,
                    std::int64_t stride, QueryCode* out, double least_scale = 0,
                    double* own_scale = nullptr);

// Queries packed for the kernels. Copies share the codes, and have thresholds of their own.
struct PackedQueries {
  int group_size = max_group;
  int last_group_size = max_group;  // that of the last group, which may be smaller
  std::int64_t groups = 0, steps = 0;
  std::shared_ptr<const AlignedArray<std::uint8_t>> codes;  // [groups][steps][size of it][4]
  std::vector<GroupHead> heads;
  std::vector<double> squares;   // |u|^2 of each query (integer: |x|^2, exact)
  std::vector<double> constant;  // product of the unmoved query with the mean, 0 for l2
  std::int32_t sum_shift_mask = 0;

  int size_of(std::int64_t g) const { return g + 1 < groups ? group_size : last_group_size; }
  const std::uint8_t* group_codes(std::int64_t g) const {
    return codes->data() + g * steps * group_size * step_bytes;
  }
};

struct CodedQueries;  // scan/packing/coded_queries.hpp

// coded: what is known of all queries, coded for this base; nullptr: nothing. fits_last: the last
// group has the least size that holds its queries, so that fewer places stay empty; otherwise that
// of the others.
PackedQueries pack_queries(const Coding& base, AnyMatrixView queries, const std::int64_t* which,
                           std::int64_t count, int group_size, const ValueRange& found,
                           const CodedQueries* coded = nullptr, bool fits_last = false);

}  // namespace knear::detail
