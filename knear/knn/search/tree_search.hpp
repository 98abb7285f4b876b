// knear/knn/search/tree_search.hpp -- rows of few columns, or in far clusters, by a tree of boxes
// (knn/rows/row_tree.hpp): whether that is faster than a scan of all rows, and the search itself.
// The answer is the same.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "knear/knn/rows/row_tree.hpp"
#include "knear/knn/search/first_pass_choice.hpp"
#include "knear/knn/search/tree_visit.hpp"
#include "knear/scan/methods/range_scan.hpp"

namespace knear::detail {

class TreeSearch {
 public:
  TreeSearch(SearchPosition& at, ReportBuilder& report, FirstPassChoice& passes)
      : at_(at), report_(report), passes_(passes) {}

  // Answers the queries of chunk.todo, if a tree pays, and leaves those that would look at too many
  // leaves.
  void search(ChunkSearch& chunk, ExactNeighbors& out);
  // Gives to the sink every row whose key is at most `limit` from a query of the job, if the rows
  // have few columns and a tree pays; else returns false.
  bool within(const ScanJob& job, const Choice& choice, double limit, RangeSink& sink);

 private:
  // Whether the rows at hand and what was asked allow for a tree.
  bool is_possible(const ChunkSearch& chunk) const;
  // Whether the rows may lie in far clusters: codes of 8 bits in one unit were found useless.
  bool may_have_clusters(const ChunkSearch& chunk) const;
  // Returns what a query takes, in times that measuring a row takes; no bound if it looks at too
  // much.
  double cost_of_query(const TreeVisit& visit) const;
  // The tree that is kept, or a new one where it pays; else nullptr. cost(): what a query takes, in
  // times that measuring a row takes.
  template <class Cost>
  std::shared_ptr<const RowTree> tree_for(const ChunkSearch& chunk, Cost cost);
  // Answers queries by measuring the rows of leaves, and adds those that it leaves to `left`.
  void answer_by_points(const RowTree& tree, const ScanJob& job,
                        std::span<const std::int64_t> which, ExactNeighbors& out,
                        std::vector<std::int64_t>& left);
  // Answers some queries by codes of the leaves, and adds those that it leaves to `left`.
  void answer(const RowTree& tree, const ScanJob& of_chunk, std::span<const std::int64_t> which,
              ExactNeighbors& out, std::vector<std::int64_t>& left);

  SearchPosition& at_;
  ReportBuilder& report_;
  FirstPassChoice& passes_;
};

}  // namespace knear::detail
