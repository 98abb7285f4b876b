// knear/scan/prefix/prefix_base.hpp -- a base prepared for a scan in two stages: a few principal
// coordinates of every row, and all coordinates in 8 bits for those rows that survive.
//
// The prefix of a vector is K = m + 1 numbers: its m leading principal coordinates, and the length
// of all that they leave out. As a map it makes no distance longer (Cauchy-Schwarz on the rest), so
// a row whose prefix is too far from that of the query is too far itself, and K products of 8 bits
// rule out most rows. For ip the product of two prefixes is no less than that of the vectors less
// the mean; what the mean adds, a number a row, is the row's term. A rotation within the prefix
// spreads the large coordinates, so that codes of 8 bits lose less. Derivation, with all roundings:
// docs/bounds.md, 8.
//
// Rows lie in the order of clusters, so that the cluster nearest to a query, scored first, gives a
// threshold that is nearly final, and queries of one cluster share what they read.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/packing/packed_base.hpp"
#include "knear/scan/packing/per_row_codes.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

// The map from vectors to prefixes. Cosine's vectors are brought to unit length before; ip's
// queries are scaled.
class PrefixMap {
 public:
  struct Parts {
    std::vector<double> mean;     // [dim], subtracted from vectors
    AlignedArray<double> matrix;  // [dim x columns]: rotation times basis
    std::vector<double> rest;     // [columns]: where the rotation takes the last coordinate
    // Bounds on |given prefix - prefix of the exact map|: relative to the length of the prefix, and
    // absolute.
    double off_relative = 0, off_absolute = 0;
    double usual_length = 0;  // of rows, for ip: queries are made about as long
  };

  PrefixMap() = default;
  // Requires mean.size() * rest.size() == matrix.size(), rest.size() a multiple of 8.
  PrefixMap(Metric metric, Parts parts, Isa isa);
  // `basis` [m x dim] orthonormal up to `basis_defect` (transform/pca.hpp), `mean` [dim];
  // `rotation` [(m + 1) x (m + 1)] likewise.
  static PrefixMap from_basis(Metric metric, const std::vector<double>& mean,
                              MatrixView<double> basis, double basis_defect,
                              MatrixView<double> rotation, double rotation_defect,
                              double usual_length, Isa isa);

  const Parts& parts() const { return parts_; }
  std::int64_t dim() const { return std::ssize(parts_.mean); }
  std::int64_t columns() const { return std::ssize(parts_.rest); }
  double mean_norm() const { return space_.mean_norm; }
  // The row terms that belong to ip's prefixes.
  RowTerms row_terms(const double* values) const {
    return {values, space_.mean_norm, space_.slack};
  }

  std::int64_t bytes() const { return dim() * (columns() + 1) * 8; }
  // Whether floats hold a prefix well enough. Larger ones go by the plain scan.
  bool fits(const float* prefix) const {
    for (std::int64_t c = 0; c < columns(); ++c)
      if (!(std::fabs(prefix[c]) < 1e15f)) return false;
    return true;
  }

 private:
  friend class PrefixMapper;
  Parts parts_;
  CodingSpace space_;
};

// What a query of ip has beside its prefix: the power of two that it was multiplied by, and the
// product of the result with the mean.
struct ScaledQuery {
  double scale = 1, product = 0;
};
// Does that to v [dim]: makes it 1 to 2 times as long as usual, unless that is 0, and subtracts the
// mean.
ScaledQuery scale_query(const std::vector<double>& mean, double usual_length, double* v);

// Maps vectors, `at_once` at a time so that the matrix is read once for them. One thread's.
class PrefixMapper {
 public:
  PrefixMapper(const PrefixMap& map, std::int64_t at_once)
      : map_(map),
        vectors_(Matrix<double>::unset(at_once, map.dim())),
        products_(Matrix<double>::unset(at_once, map.columns())) {}
  // Writes the prefix [columns()] of row i of `data`, by the next finish() at the latest. Returns
  // for ip the term of a row of the base, for l2 and cosine 0.
  double add(AnyMatrixView data, std::int64_t i, float* prefix);
  // The same for a query.
  ScaledQuery add_query(AnyMatrixView data, std::int64_t i, float* prefix);
  void finish();

 private:
  void take(float* prefix);
  double* next() { return vectors_.row(std::ssize(prefixes_)); }

  const PrefixMap& map_;
  Matrix<double> vectors_, products_;
  std::vector<float*> prefixes_;  // where those of the vectors go
};

struct PrefixBase {
  PrefixMap map;
  PackedBase panels;  // of prefixes; slot i is row i of `codes`, ids are rows of the base
  PerRowCodes codes;
  // [clusters x columns], of prefixes; ip: and a column more, the mean of the row terms over the
  // length of the mean, to which a query has that length.
  Matrix<float> centroids;
  PackedBase centroid_panels;                // of `centroids`
  std::vector<std::uint32_t> cluster_begin;  // [clusters + 1]: the slots of each

  std::int64_t clusters() const { return centroids.rows(); }
  std::int64_t bytes() const;
  // What follows from centroids.
  void pack_centroids(Metric metric, int threads);
};

// At most what the squares of a query's prefix would sum up to without rounding; `squares`: as
// computed, in coding space.
inline double least_squares(double squares, const CodingSpace& space) {
  const double length = std::sqrt(squares) * (1 - space.slack);
  const double low = std::max(0.0, length - space.off_of(length * 1.01));
  return low * low;
}

// From keys to thresholds on the g of prefixes, for one query.
class PrefixKeyScale {
 public:
  PrefixKeyScale() = default;
  // space: of the panels; slack: relative bound on the reference's rounding. squares, constant: as
  // the packed query has them.
  PrefixKeyScale(Metric metric, const CodingSpace& space, double slack, double squares,
                 double constant, const ScaledQuery& query)
      : metric_(metric), slack_(slack), scale_(query.scale) {
    if (traits_of(metric).product) {
      constant_ = query.product + constant;
      const double off = space.off_of(std::sqrt(squares) * 1.01) * space.mean_norm;
      margin_ = off + 0x1p-49 * (std::fabs(query.product) + std::fabs(constant));
    } else {
      constant_ = least_squares(squares, space);
      margin_ = 2 * space.slack * squares;
    }
  }

  // Rows whose prefix has a g below this have a key above `key`.
  double threshold_for(double key) const { return top() - reach_of(metric_, slack_, scale_ * key); }

  // The threshold as a difference: of a number of the query, and of what a key, times the scale of
  // the query, takes off it.
  double top() const { return (traits_of(metric_).product ? -constant_ : constant_ / 2) - margin_; }
  static double reach_of(Metric metric, double slack, double key) {
    if (traits_of(metric).product) return key + 0x1p-49 * std::fabs(key);
    // Unit vectors: |x - y|^2 = 2 (1 - <x, y>).
    if (traits_of(metric).unit_rows) key = 2 * key + 8 * slack;
    return (key + 2 * slack * std::fabs(key)) / 2;
  }

 private:
  Metric metric_ = Metric::l2;
  double slack_ = 0, scale_ = 1, constant_ = 0, margin_ = 0;
};

}  // namespace knear::detail
