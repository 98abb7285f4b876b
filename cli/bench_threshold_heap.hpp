// cli/bench_threshold_heap.hpp -- the figures of `knear bench threshold-heap`, and the two parts
// that measure them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/bench_vectors.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::cli {

struct ThresholdHeapBench {
  VectorOptions vectors;
  std::string out, device = "cpu";
  std::int64_t k = 64, threads = 0, repeat = 3, count = 1000, most = 8192, matrix = 48;
  bool json = false;

  // The paper's sample size, from its Figure 9 on.
  static std::int64_t samples_for(std::int64_t k) { return 8 * k; }
};

enum class Unit : std::uint8_t {
  seconds,      // per query
  compression,  // Eq. 4
  closeness,    // Eq. 3
  times         // one time over another: for tables only
};

// One column of a table, and one line of a drawing.
struct Curve {
  std::string key, name;  // for programs, for people
  Unit unit = Unit::seconds;
  std::vector<std::vector<double>> rounds;  // [points][rounds]; NaN where there is no value

  double value(std::size_t point) const { return median(rounds[point]); }
};

struct Figure {
  std::string number;  // in the paper
  bool searches;       // whole searches, or selection alone
  std::string question, axis;
  std::vector<std::int64_t> at;  // the points on the x axis
  std::vector<Curve> curves;

  // Columns are added in the order of the table, then one value per round and point.
  void add_curve(std::string key, std::string name, Unit unit = Unit::seconds) {
    curves.push_back({std::move(key), std::move(name), unit, {}});
    curves.back().rounds.resize(at.size());
  }
  // The values of a point in one round, in the order of the curves.
  void add(std::size_t point, const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) curves[i].rounds[point].push_back(values[i]);
  }
};

// A figure without curves yet.
inline Figure search_figure(std::string number, std::string question, std::string axis,
                            std::vector<std::int64_t> at) {
  return {std::move(number), true, std::move(question), std::move(axis), std::move(at), {}};
}
inline Figure selection_figure(std::string number, std::string question, std::string axis,
                               std::vector<std::int64_t> at) {
  return {std::move(number), false, std::move(question), std::move(axis), std::move(at), {}};
}

// The numbers of neighbours of Figures 7, 8 and 11, as far as 8 k of `rows` can be sampled.
std::vector<std::int64_t> neighbour_counts(std::int64_t rows);
// The sizes of samples of Figures 5 and 6: k, 2 k, 4 k, ... up to 8192, less than `rows`.
std::vector<std::int64_t> sample_sizes(std::int64_t k, std::int64_t rows);

// The numbers of rows of Figure 10, as far as 8 k of them can be sampled: from `rows` down to a
// hundredth of it, four per decade.
std::vector<std::int64_t> row_counts(std::int64_t k, std::int64_t rows);

// Figures 6, 10 and 11 from precomputed distances [queries x n], on one thread. Throws Error if two
// methods give different answers.
std::vector<Figure> measure_selection(MatrixView<float> distances, const ThresholdHeapBench& bench,
                                      ProgressBar& bar);

// Options that all searches share.
struct SearchedBy {
  std::string first_pass;               // of all searches but those by a prefix, and those of a GPU
  std::int64_t left_by_the_device = 0;  // queries of one search that the processor had to answer
};

// Figures 5 to 10 and 12 from whole searches of a base that was packed before; if bench.device is a
// GPU, also of searches there. Throws Error if two searches give different answers.
std::vector<Figure> measure_searches(AnyMatrixView queries, AnyMatrixView base,
                                     const ThresholdHeapBench& bench, Metric metric, int threads,
                                     SearchedBy& by, ProgressBar& bar);

}  // namespace knear::cli
