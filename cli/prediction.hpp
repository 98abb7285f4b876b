// cli/prediction.hpp -- a search compared with its plan: what the model predicted, and what the
// machine could do.
#pragma once
#include <string>
#include <vector>

#include "cli/machine.hpp"
#include "knear/cost/plan.hpp"
#include "knear/cost/roofline.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {

struct Prediction {
  ScanCost cost;
  // Of an index in shards, parts of cost.seconds: to put together what these found, and what each
  // shard but one does again for every query.
  double merge_seconds = 0, repeated_seconds = 0;
  bool measured_peaks = false;  // else estimated: `knear roofline` has not run here
  // Multiply-adds of the whole search at the peak rate of its first pass, as a share of the time
  // that the search took (packing of the base left out); 0 for an empty search.
  double peak_fraction = 0;
  std::string peak_name;  // what that is a fraction of: "int8 multiply-adds"
  MachinePeaks peaks;     // those of the plan
  double peak = 0;        // operations per second of the first pass
};

// Predicts from the shape of the search, the first pass that the data allowed, and the machine. The
// time that the search took enters peak_fraction only.
Prediction predict(const KnnReport& report, const KnownPeaks& machine);

// What the same search would cost on another machine: all coordinates in 8 bits where it has them,
// else in 16.
ScanCost predict_elsewhere(const KnnReport& report, const KnownMachine& machine);

// Returns true if the report knows for each query whether it is certified.
bool tells_certified(const KnnReport& report);

// The lines of --explain: name, planned, happened; empty where one of them has no figure.
std::vector<std::vector<std::string>> explain_lines(const KnnReport& report,
                                                    const Prediction& prediction);

}  // namespace knear::cli
