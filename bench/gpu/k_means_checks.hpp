// bench/gpu/k_means_checks.hpp -- compares k_means() on a device with the processor, bit for bit.
#pragma once
#include <functional>
#include <string>

#include "bench/gpu/case_share.hpp"
#include "bench/gpu/report.hpp"
#include "knear/cluster/k_means.hpp"

namespace knear::bench {

// k_means() of rows, or of blocks of them if these are given, or a function that stands in for it.
using Clustering = std::function<KMeans(AnyMatrixView rows, const RowBlocks* blocks, std::int64_t k,
                                        const KMeansOptions&)>;

// Checks all metrics and element types, weights, frozen centroids, sizes around those of warps,
// panels and blocks, long rows, data that fill the lists or have ties, and rows that come in
// blocks: centroids, objectives, moved rows and empty centroids; also that it was the device that
// assigned them. Runs its share of the cases. `clustering` is given options.device = `device`. A
// DeviceError ends the checks.
void check_k_means(const Clustering& clustering, const std::string& device, const CaseShare& share,
                   Report& report);

}  // namespace knear::bench
