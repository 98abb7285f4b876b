// knear/knn/rows/prefix_form.hpp -- the base of a scan in two stages
// (scan/prefix/prefix_base.hpp): whether it pays, how wide the prefix should be, and making it.
//
//   PrefixStudy study = study_prefix(rows, metric, threads);  // principal components of a sample
//   PrefixForecast f = forecast(study, queries, upper_bounds, shape, {});
//   if (prefix_cost(shape, f).seconds < 0.85 * plain_cost(shape).seconds)
//     form = make_prefix(rows, study, space, integer, found, f.plan, ...);
#pragma once
#include <memory>

#include "knear/core/progress.hpp"
#include "knear/cost/plan.hpp"
#include "knear/scan/prefix/prefix_base.hpp"
#include "knear/transform/pca.hpp"

namespace knear::detail {

struct PrefixPlan {
  std::int64_t columns = 0;  // of the prefix: a multiple of 8; 0: not decided
  std::int64_t clusters = 0;
  std::int64_t tile_bytes = 0;  // 0: usual_tile_bytes()
};

// What is known of the rows before anything is prepared: a sample of them in principal coordinates.
struct PrefixStudy {
  Metric metric = Metric::l2;
  PrincipalComponents pca;
  Matrix<float> rows;             // [sample x components]
  std::vector<float> rest, norm;  // [sample]: length of what is left out, and of the whole
  std::vector<double> term;       // [sample]: for ip, of the rows
  double usual_length = 0;        // of a row
  std::int64_t bytes() const;
};

// Prefixes are made of at least this many columns and rows.
inline constexpr std::int64_t least_prefix_dim = 8, least_prefix_rows = 2;
// The widest prefix that is considered.
inline constexpr std::int64_t most_prefix_columns = 128;

PrefixStudy study_prefix(const BaseRows& base, Metric metric, int threads,
                         const Progress& progress = {});

// A search of which the time is wanted.
struct SearchShape {
  std::int64_t rows, dim, k, queries;
  bool integer;
  Format format;              // of the first pass on all coordinates
  const MachinePeaks* peaks;  // of all its threads
  // Rows a query that passed and that were measured in earlier searches by that pass; 0: not known.
  double hits = 0, survivors = 0;
  // The share of the pairs that a prefix is scored for: half in a self-join, of which those pass
  // that either row wants.
  double scored = 1;

  // By another pass than was thought.
  void go_by(Format other) {
    if (other != format) hits = survivors = 0;
    format = other;
  }
};

struct PrefixForecast {
  PrefixPlan plan;
  double passed = 0;  // rows a query that the prefix does not rule out
  bool possible = false;
  Format format = format_int8;  // of the pass that served the queries of the forecast
  bool refused = false;         // it served too few queries
};
// A scan as the model of costs sees it.
ScanShape scan_shape(std::int64_t rows, std::int64_t dim, std::int64_t queries, std::int64_t k,
                     bool integer, Format format);
// What a scan of all coordinates takes, all being prepared, and one by a prefix.
ScanCost plain_cost(const SearchShape& shape);
ScanCost prefix_cost(const SearchShape& shape, const PrefixForecast& by);
// Seconds to make a prefix, and of these to study the rows.
double making_seconds(const SearchShape& shape);
double study_seconds(const SearchShape& shape);

// From a few `queries` [q x dim] of which the key of the k-th nearest row is known: what part of
// the sample a prefix of each width would let through. With a plan whose columns are not 0, for
// that plan alone.
PrefixForecast forecast(const PrefixStudy& study, AnyMatrixView queries, const double* upper_bounds,
                        const SearchShape& shape, const PrefixPlan& made);

// Bytes of a prefix form of usual width and of what making it takes.
std::int64_t prefix_bytes_for(std::int64_t rows, std::int64_t dim);

// The plan for searches whose data are not looked at.
PrefixPlan usual_plan(const SearchShape& shape);

// Requires base.cols() >= least_prefix_dim, base.rows() >= least_prefix_rows,
// plan.columns <= base.cols() and a multiple of 8. `space`: in which all coordinates are coded;
// `integer`: whether their codes are the values themselves, `found` the value range that says so.
// nullptr if a row has a coordinate too large for it (PrefixMap::fits). `prefixes`, if given, gets
// those of all rows [rows x columns], zeros for copies of rows before them.
std::shared_ptr<const PrefixBase> make_prefix(const BaseRows& base, const PrefixStudy& study,
                                              const CodingSpace& space, bool integer,
                                              const ValueRange& found, const PrefixPlan& plan,
                                              int threads, const Progress& progress,
                                              Matrix<float>* prefixes = nullptr);

}  // namespace knear::detail
