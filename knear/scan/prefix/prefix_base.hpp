// knear/scan/prefix/prefix_base.hpp -- a base prepared for a scan in two stages: a few principal
// coordinates of every row, and all coordinates in 8 bits for those rows that survive.
//
// The prefix of a vector is K = m + 1 numbers: its m leading principal coordinates, and the length
// of all that they leave out. As a map it makes no distance longer (Cauchy-Schwarz on the rest), so
// a row whose prefix is too far from that of the query is too far itself, and K products of 8 bits
// rule out most rows. A rotation within the prefix spreads the large coordinates, so that codes of
// 8 bits lose less. Derivation, with all roundings: docs/bounds.md, 8.
//
// Rows lie in the order of clusters, so that the cluster nearest to a query, scored first, gives a
// threshold that is nearly final, and queries of one cluster share what they read.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/packing/per_row_codes.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// The map from vectors to prefixes, for l2 and cosine (whose vectors are brought to unit length).
class PrefixMap {
 public:
  PrefixMap() = default;
  // `basis` [m x dim] orthonormal up to `basis_defect` (transform/pca.hpp), `mean` [dim];
  // `rotation`
  // [(m + 1) x (m + 1)] likewise. m + 1 must be a multiple of 8.
  PrefixMap(Metric metric, const std::vector<double>& mean, MatrixView<double> basis,
            double basis_defect, MatrixView<double> rotation, double rotation_defect, Isa isa);

  std::int64_t dim() const { return dim_; }
  std::int64_t columns() const { return columns_; }
  // Bounds on |given prefix - prefix of the exact map|: relative to the length of the prefix, and
  // absolute.
  double off_relative() const { return off_relative_; }
  double off_absolute() const { return off_absolute_; }

  std::int64_t bytes() const { return dim_ * (columns_ + 1) * 8; }
  // Whether floats hold a prefix well enough. Larger ones go by the plain scan.
  bool fits(const float* prefix) const {
    for (std::int64_t c = 0; c < columns_; ++c)
      if (!(std::fabs(prefix[c]) < 1e15f)) return false;
    return true;
  }

 private:
  friend class PrefixMapper;
  CodingSpace space_;
  std::int64_t dim_ = 0, columns_ = 0;
  Matrix<double> matrix_;     // [dim x columns]: rotation times basis
  std::vector<double> rest_;  // [columns]: where the rotation takes the last coordinate
  double off_relative_ = 0, off_absolute_ = 0;
};

// Maps vectors, `at_once` at a time so that the matrix is read once for them. One thread's.
class PrefixMapper {
 public:
  PrefixMapper(const PrefixMap& map, std::int64_t at_once)
      : map_(map),
        vectors_(Matrix<double>::unset(at_once, map.dim())),
        products_(Matrix<double>::unset(at_once, map.columns())) {}
  // Writes the prefix [columns()] of row i of `data`, by the next finish() at the latest.
  void add(AnyMatrixView data, std::int64_t i, float* prefix);
  void finish();

 private:
  const PrefixMap& map_;
  Matrix<double> vectors_, products_;
  std::vector<float*> prefixes_;  // where those of the vectors go
};

struct PrefixBase {
  PrefixMap map;
  PackedBase panels;  // of prefixes; slot i is row i of `codes`, ids are rows of the base
  PerRowCodes codes;
  Matrix<float> centroids;                   // [clusters x columns], of prefixes
  PackedBase centroid_panels;                // of `centroids`
  std::vector<std::uint32_t> cluster_begin;  // [clusters + 1]: the slots of each

  std::int64_t bytes() const;
};

// At most what the squares of a query's prefix would sum up to without rounding; `squares`: as
// computed, in coding space.
inline double least_squares(double squares, const CodingSpace& space) {
  const double length = std::sqrt(squares) * (1 - space.slack);
  const double low = std::max(0.0, length - space.off_of(length * 1.01));
  return low * low;
}

// Rows whose prefix has a g below this have a key above `key`. least: least_squares(); slack: that
// of all coordinates.
inline double threshold_of_prefix(Metric metric, double key, double least, double slack) {
  // Unit vectors: |x - y|^2 = 2 (1 - <x, y>).
  if (metric == Metric::cosine) key = 2 * key + 8 * slack;
  return (least - key - 2 * slack * std::fabs(key)) / 2;
}

// As scan(), by way of the prefix; job.base must be the rows that `base` was made of. Queries that
// the prefix serves badly are given up, whatever job.may_give_up says.
std::vector<std::int64_t> scan_with_prefix(const PrefixBase& base, const ScanJob& job,
                                           const std::vector<std::int64_t>& which,
                                           ExactNeighbors& out, ScanStats& stats,
                                           const Progress& progress);

// The k nearest of rows `which` of job.base, which are job.queries, among all its rows: each row
// among its own k, or copies of it with smaller ids. Each pair is scored once. Rows with the bytes
// of one in `which` must be in it too. No row may be forbidden, and no upper bounds be known.
// False, with `out` untouched or partly filled, where the prefix rules out too little.
bool self_join_with_prefix(const PrefixBase& base, const ScanJob& job,
                           const std::vector<std::int64_t>& which, ExactNeighbors& out,
                           ScanStats& stats, const Progress& progress);
// What that takes beside its arguments, at most.
std::int64_t self_join_bytes(std::int64_t rows, std::int64_t dim, std::int64_t k, int threads);
// Rows whose prefixes are made at a time.
inline constexpr std::int64_t self_join_block = 65536;

}  // namespace knear::detail
