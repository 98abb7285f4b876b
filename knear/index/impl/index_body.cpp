#include "knear/index/impl/index_body.hpp"

#include "knear/core/error.hpp"
#include "knear/core/thread_count.hpp"
#include "knear/core/threads.hpp"
#include "knear/index/recall/audit_log.hpp"
#include "knear/knn/search/few_rows_search.hpp"
#include "knear/knn/search/report_builder.hpp"

namespace knear::detail {

void IndexBody::check_columns(std::string_view argument, AnyMatrixView vectors) const {
  if (vectors.cols() != shape.dim)
    throw ShapeMismatch("{} {} {} columns, index has {}", argument,
                        argument == "base" ? "has" : "have", vectors.cols(), shape.dim);
}

bool IndexBody::search_at_once(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                               KnnReport* report, Neighbors& out) const {
  FewRowsSearch search;
  search.timed = report != nullptr;
  if (!nearest_at_once(queries, k, options, search)) return false;
  out = {Matrix<Id>(1, k), Matrix<float>(1, k)};
  search.write(out.ids.data(), out.distances.data());
  if (report) *report = search.facts.report();
  return true;
}

void IndexBody::check_audit(double share) const {
  const AuditLog checked(share);
  if (share == 0) return;
  if (shape.lists == 0 && !shape.has_graph() && !shape.codes)
    throw InvalidArgument(
        "audit is {}, but index {} compares all rows: inverted lists, graphs and codes with their "
        "vectors are audited",
        share, shape.description());
  if (!shape.keeps_vectors())
    throw InvalidArgument(
        "audit is {}, but index {} lacks the vectors as they were added, which audits compare "
        "queries with",
        share, shape.description());
}

Neighbors IndexBody::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                            KnnReport* report) const {
  Neighbors out;
  if (queries.rows() == 1 && search_at_once(queries, k, options, report, out)) return out;
  const ThreadCount once;
  const Stopwatch time;
  const ExactNeighbors near = nearest(queries, k, options, report);
  out = rounded(near, shape.metric, queries.rows(),
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
