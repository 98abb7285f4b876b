#include "cli/recall.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/distance/reference.hpp"

namespace knear::cli {
namespace {

double mean_of(std::span<const double> values) {
  return values.empty()
             ? 1.0
             : std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

// Rows of an id list without padding and repetition, checked.
std::vector<Id> valid_ids(const Id* ids, std::int64_t k, std::int64_t rows, const char* argument,
                          std::int64_t query) {
  std::vector<Id> out;
  for (std::int64_t i = 0; i < k; ++i) {
    if (ids[i] == no_id) continue;
    if (ids[i] < 0 || ids[i] >= rows)
      throw InvalidArgument("{} names row {} for query {}, but the base has {} rows", argument,
                            ids[i], query, rows);
    out.push_back(ids[i]);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

void check_shapes(std::int64_t queries, MatrixView<Id> found, MatrixView<Id> truth,
                  std::int64_t k) {
  if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
  if (truth.rows() != queries)
    throw ShapeMismatch("truth has {} rows, queries have {}", truth.rows(), queries);
  if (truth.cols() < k) throw ShapeMismatch("truth has {} columns, k is {}", truth.cols(), k);
  if (found.rows() != queries || found.cols() < k)
    throw ShapeMismatch("the answer is {} x {}, but {} queries with k = {} were expected",
                        found.rows(), found.cols(), queries, k);
}

// How many of the wanted ids, ascending, are among others.
std::size_t in_both(const std::vector<Id>& wanted, const std::vector<Id>& answer) {
  return std::count_if(answer.begin(), answer.end(),
                       [&](Id id) { return std::binary_search(wanted.begin(), wanted.end(), id); });
}

}  // namespace

RecallFigures measure_recall_by_id(MatrixView<Id> found, MatrixView<Id> truth, std::int64_t k,
                                   int threads) {
  check_shapes(found.rows(), found, truth, k);
  std::vector<double> by_id(found.rows(), 1.0);
  parallel_for(threads, found.rows(), [&](std::int64_t q) {
    constexpr Id any = std::numeric_limits<Id>::max();
    const auto wanted = valid_ids(truth.row(q), k, any, "truth", q);
    const auto answer = valid_ids(found.row(q), k, any, "the answer", q);
    if (!wanted.empty()) by_id[q] = double(in_both(wanted, answer)) / double(wanted.size());
  });
  const Interval interval = mean_interval(by_id);
  return {{}, mean_of(by_id), interval, interval};
}

RecallFigures measure_recall(AnyMatrixView queries, AnyMatrixView base, Metric metric,
                             MatrixView<Id> found, MatrixView<Id> truth, std::int64_t k,
                             int threads) {
  check_shapes(queries.rows(), found, truth, k);
  if (queries.cols() != base.cols())
    throw ShapeMismatch("queries have {} columns, base has {}", queries.cols(), base.cols());
  std::vector<double> by_distance(queries.rows(), 1.0), by_id(queries.rows(), 1.0);
  visit(queries, [&](auto typed_queries) {
    visit(base, [&](auto typed_base) {
      parallel_for(threads, queries.rows(), [&](std::int64_t q) {
        const auto wanted = valid_ids(truth.row(q), k, base.rows(), "truth", q);
        const auto answer = valid_ids(found.row(q), k, base.rows(), "the answer", q);
        if (wanted.empty()) return;
        const auto key = [&](Id id) {
          return order_key(metric, reference_distance(metric, typed_queries.row(q),
                                                      typed_base.row(id), base.cols()));
        };
        double farthest = -std::numeric_limits<double>::infinity();
        for (Id id : wanted) farthest = std::max(farthest, key(id));
        std::size_t near = 0;
        for (Id id : answer) near += key(id) <= farthest;
        by_distance[q] = double(std::min(near, wanted.size())) / double(wanted.size());
        by_id[q] = double(in_both(wanted, answer)) / double(wanted.size());
      });
    });
  });
  return {mean_of(by_distance), mean_of(by_id), mean_interval(by_distance), mean_interval(by_id)};
}

}  // namespace knear::cli
