// cli/device_prediction.hpp -- a search on a GPU compared with its plan.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cli/machine.hpp"
#include "knear/core/element_type.hpp"
#include "knear/cost/device_plan.hpp"
#include "knear/knn/knn.hpp"

namespace knear::cli {

struct DevicePrediction {
  DevicePeaks device;
  FasterPlace place;
  bool measured_processor = false;  // else its peaks are estimated: `knear roofline` has not run
};

// Where a search ran for which --device says `device`: of auto what it chose.
std::string place_of(const std::string& device, const KnnReport& report);

// Whether there is a plan of a GPU for what was done: scans of all rows, by the methods exact and
// partial-reduce, whose scan is the same.
bool has_device_plan(const KnnReport& report);

// Plans the search of a report for a GPU, its rows in the processor's memory before. type: of the
// rows; memory: the limit of the search, 0 for none.
DevicePrediction predict_on_device(const KnnReport& report, ElementType type, std::int64_t memory,
                                   const DevicePeaks& device, const KnownPeaks& processor);

// The lines of --explain: name, planned, happened; empty where one of them has no figure.
std::vector<std::vector<std::string>> explain_lines(const KnnReport& report,
                                                    const DevicePrediction& prediction);
// What follows them: what the plan stands on, and what the processor is predicted to take.
std::string explain_place(const DevicePrediction& prediction);

}  // namespace knear::cli
