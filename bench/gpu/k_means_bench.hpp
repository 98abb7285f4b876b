// bench/gpu/k_means_bench.hpp -- an iteration of k-means, compared with the library's product in
// int8.
#pragma once
#include "bench/gpu/report.hpp"
#include "bench/gpu/timing.hpp"

namespace knear::bench {

// A million rows of 128 floats to 4,096 centroids. The data are those of make_clusters().
//
// What an iteration takes is the processor's clock around all of it, as KMeansStep has it: rows are
// on the device and coded, centroids are sent, coded and moved. The median of those from the third
// on: the first has no centroids from before, and thresholds come closer in the second. The ceiling
// is the rate of the int8 product that `report` has already. Two iterations are compared with those
// of the processor, to the bit.
void bench_k_means(int device, const Deadline& deadline, Report& report);

}  // namespace knear::bench
