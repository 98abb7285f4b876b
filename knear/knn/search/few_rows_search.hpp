// knear/knn/search/few_rows_search.hpp -- the k nearest of few rows to one query. All rows are
// measured at once, since a plan for 20 rows takes many times as long as their distances.
//
//   if (FewRowsSearch::serves(queries, metric) && FewRowsSearch::are_few(rows, dim)) {
//     FewRowsSearch search;
//     search.begin(queries, metric, k, threads);
//     search.add(base, ids, nullptr);   // each segment
//     search.write(ids, distances);     // both [k]
//   }
//
// The answer has the bits of every other exact search. Nothing is allocated.
#pragma once
#include <chrono>
#include <cstdint>

#include "knear/core/row_set.hpp"
#include "knear/distance/short_query.hpp"
#include "knear/knn/report.hpp"
#include "knear/scan/packing/base_rows.hpp"

namespace knear::detail {

// The facts from which the report of such a search is made when a caller looks at it.
struct FewRowsFacts {
  std::int64_t rows = 0, dim = 0, version = 0;  // of the index
  std::int64_t k = 0, segments = 0;
  std::int64_t measured = 0;  // rows
  Metric metric = Metric::l2;
  int threads = 0;  // as the caller gave it
  double seconds = 0;

  // Returns the report of a planned search of these rows that measures all of them.
  KnnReport report() const;
};

class FewRowsSearch {
 public:
  static constexpr std::int64_t most_rows = 255, most_elements = 1 << 15;

  // Returns true if rows of so many columns are few enough to be measured at once.
  static bool are_few(std::int64_t rows, std::int64_t dim) {
    return rows <= most_rows && rows * dim <= most_elements && dim <= ShortQuery::most_dim;
  }
  // Returns true for one query of f32 whose elements are finite and not all zero.
  static bool serves(AnyMatrixView queries, Metric metric);

  FewRowsSearch() {}  // leaves its memory as it is, since zeroing it takes as long as the search
  // Begins the search for the k >= 1 nearest to a query that serves() returns true for.
  void begin(AnyMatrixView queries, Metric metric, std::int64_t k, int threads);

  // Measures the rows that are live, or all if live is nullptr. Ids ascend with the rows. Requires
  // at most most_rows rows in all segments. Throws CorruptFile for rows of a damaged file.
  void add(const BaseRows& rows, const RowIds& ids, const RowSet* live);
  // Writes the answer, both [k], padded with no_id and no_distance(); and completes the facts.
  void write(Id* ids, float* distances);

  FewRowsFacts facts;
  bool timed = true;  // false: no report will be made, so that the clock is not read

 private:
  struct Row {
    double key;
    Id id;
    bool operator<(const Row& other) const {
      return key < other.key || (key == other.key && id < other.id);
    }
  };
  void insert(Row row);

  std::chrono::steady_clock::time_point start_;
  ShortQuery query_;
  std::int64_t count_ = 0;  // rows in the list
  Row list_[most_rows];     // ascending where k is small, else in no order
};

}  // namespace knear::detail
