// cli/recall_curve.hpp -- recall against time: what an index finds with more and more probes, and
// how long that takes. For `knear bench recall` and the demo's report.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/recall.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"

namespace knear::cli {

struct RecallCurvePoint {
  std::int64_t probes = 0;  // 0: the index has no lists
  double asked = 0;         // the recall that was asked for; 0: none
  double recall = 0;        // by distance (cli/recall.hpp)
  Interval interval;
  double seconds = 0;        // of all queries in one call, the median
  double alone_seconds = 0;  // of one query in a call by one thread, the median; 0: not measured
};

struct RecallCurveOf {
  std::string factory;
  double build_seconds = 0;  // training and adding
  std::int64_t memory_bytes = 0;
  std::vector<RecallCurvePoint> points;  // by ascending probes
};

struct RecallCurveJob {
  AnyMatrixView base, queries;
  MatrixView<Id> truth;  // [queries x k], or of the first few queries
  std::int64_t k = 10;
  Metric metric = Metric::l2;
  std::int64_t most_probes = 256;
  std::int64_t repeat = 3;
  std::int64_t queries_alone = 0;  // how many are also searched for one by one
  // The queries are the rows of the base, and no row is its own neighbour.
  bool of_itself = false;
  int threads = 0;
  Progress progress = {};
};

// Name of the curve of partial-reduce, which has no index.
inline constexpr const char* partial_reduce_curve = "partial-reduce";

// Makes the index and searches it with 1, 2, 4, ... probes; an index without lists once. Of
// partial-reduce, searches all rows by it for some recalls. Throws InvalidArgument for a string
// that names none, Cancelled.
RecallCurveOf measure_recall_curve(const std::string& factory, const RecallCurveJob& job);

// About how long the searches of all these indexes take, where an exact search of the queries takes
// exact_seconds; building them comes on top. Throws as measure_recall_curve().
double searching_seconds(const std::vector<std::string>& factories, const RecallCurveJob& job,
                         double exact_seconds);

// Inverted lists of the vectors and of codes for a base of this size, in place of what nobody
// named.
std::vector<std::string> usual_indexes(std::int64_t rows, std::int64_t dim);

// Queries per second, or with `build` seconds of building and searching, against recall.
std::string recall_chart(const std::vector<RecallCurveOf>& curves, std::int64_t queries,
                         std::int64_t k, bool build);

}  // namespace knear::cli
