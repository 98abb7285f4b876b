// bench/gpu/k_means_checks.hpp -- compares k_means() on a device with the processor, bit for bit.
#pragma once
#include <string>

#include "bench/gpu/case_share.hpp"
#include "bench/gpu/report.hpp"

namespace knear::bench {

// Checks all metrics and element types, weights, frozen centroids, sizes around those of warps,
// panels and blocks, long rows, data that fill the lists or have ties, and rows that come in
// blocks: centroids, objectives, moved rows and empty centroids; also that it was the device that
// assigned them. Runs its share of the cases. A DeviceError ends the checks.
void check_k_means(const std::string& device, const CaseShare& share, Report& report);

}  // namespace knear::bench
