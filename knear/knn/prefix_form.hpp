// knear/knn/prefix_form.hpp -- makes the base of a scan in two stages (scan/prefix_base.hpp):
// principal components, clusters, the order of rows, codes.
#pragma once
#include <memory>

#include "knear/core/progress.hpp"
#include "knear/scan/prefix_base.hpp"

namespace knear::detail {

struct PrefixPlan {
  std::int64_t columns = 64;  // of the prefix: a multiple of 8
  std::int64_t clusters = 256;
};

// Requires metric l2 or cosine, plan.columns <= base.cols(), 1 <= plan.clusters <= base.rows().
// `space`: in which all coordinates are coded; `integer`: whether their codes are the values
// themselves, `found` the survey that says so.
std::shared_ptr<const PrefixBase> make_prefix(const BaseRows& base, Metric metric,
                                              const CodingSpace& space, bool integer,
                                              const DataSurvey& found, const PrefixPlan& plan,
                                              int threads, const Progress& progress);

}  // namespace knear::detail
