#include "knear/index/impl/index_body.hpp"

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/knn/search/report_builder.hpp"

namespace knear::detail {

void IndexBody::check_columns(std::string_view argument, AnyMatrixView vectors) const {
  if (vectors.cols() != shape.dim)
    throw ShapeMismatch("{} {} {} columns, index has {}", argument,
                        argument == "base" ? "has" : "have", vectors.cols(), shape.dim);
}

Neighbors IndexBody::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                            KnnReport* report) const {
  const Stopwatch time;
  const ExactNeighbors near = nearest(queries, k, options, report);
  Neighbors out = rounded(near, shape.metric, queries.rows(),
                          options.method.partial_reduce.aggregate ? k : near.columns(),
                          resolve_threads(options.threads));
  if (report) set_seconds(*report, time);
  return out;
}

RangeNeighbors IndexBody::range_search(AnyMatrixView queries, double radius,
                                       const SearchOptions& options, KnnReport* report) const {
  const Stopwatch time;
  RangeNeighbors out = within(queries, radius, options, report);
  if (report) set_seconds(*report, time);
  return out;
}

}  // namespace knear::detail
