// cli/plan_by_sample.hpp -- `knear plan --sample`: which kind of index to make for vectors like
// those of a file, by what is measured on them (factory/choose_index.hpp).
#pragma once
#include <cstdint>
#include <string>

#include "knear/factory/index_needs.hpp"

namespace knear::cli {

struct SampledPlanArguments {
  std::string sample, metric, type;
  std::int64_t rows = 0, dim = 0;  // 0: those of the file
  std::int64_t threads = 0;
  IndexNeeds needs;
  bool json = false;
};

// Measures and prints. Throws InvalidArgument for arguments out of range, for a file that has
// another number of columns than `dim` and for vectors that are not finite; Cancelled.
void plan_by_sample(const SampledPlanArguments& arguments);

}  // namespace knear::cli
