// knear/knn/search/prefix_search.hpp -- whether the queries of a chunk go by a prefix, which is
// found out on a few of them or of the rows, how wide it is, searching by it, and a self-join by
// it. What is packed for it, and what that costs, is in knn/rows/prefix_form.hpp.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "knear/knn/rows/prefix_form.hpp"
#include "knear/knn/search/first_pass_choice.hpp"

namespace knear::detail {

class PrefixSearch {
 public:
  PrefixSearch(SearchPosition& at, ReportBuilder& report, FirstPassChoice& passes)
      : at_(at), report_(report), passes_(passes) {}

  // Each takes the queries that it answers out of chunk.todo.
  // Scores each pair of rows once and answers all, where that is expected to pay.
  void self_join(ChunkSearch& chunk, ExactNeighbors& out);
  // Answers what a prefix serves, if the queries go by one.
  void search(ChunkSearch& chunk, ExactNeighbors& out);

  // Packs a prefix for the segment at hand, which adopts it, unless it has one or searches are not
  // expected to be faster by one. The queries at hand are some of its rows. Returns whether it has
  // one.
  bool optimize(const Choice& choice);

 private:
  // A plan as it was asked for.
  PrefixPlan chosen(PrefixPlan plan) const;
  SearchShape shape_of(FirstPass pass, std::int64_t queries) const;
  // Whether the time of a prefix can be forecast for the chunk, and is worth forecasting.
  bool forecasts(const Choice& choice) const;
  // The plan by which the queries go. To find out, it may answer a few of them without.
  std::optional<PrefixPlan> plan_for(ChunkSearch& chunk, ExactNeighbors& out);
  // The neighbours of some rows among all, and these rows; some rows are none where no exact scan
  // serves them.
  struct RowsAsQueries {
    AnyMatrix queries;
    ExactNeighbors nearest;  // each row is the nearest to itself

    // The keys of the k-th nearest others.
    std::vector<double> keys_of(std::int64_t k) const;
  };
  RowsAsQueries search_rows(FirstPass pass, const Choice& choice, std::int64_t k);
  // Plans from the neighbours of some rows what a prefix would cost.
  PrefixForecast try_on_rows(const SearchShape& shape, const Choice& choice,
                             const PrefixPlan& kept);
  // Answers a few queries without a prefix and plans from their distances what one would cost.
  PrefixForecast try_on_queries(const SearchShape& shape, ChunkSearch& chunk, ExactNeighbors& out,
                                const PrefixPlan& kept);
  PrefixForecast forecast_for(AnyMatrixView queries, const std::vector<double>& upper_bounds,
                              const SearchShape& shape, const PrefixPlan& kept, Format format);
  // The plan of a self-join, if one is expected to pay.
  std::optional<PrefixPlan> plan_of_self_join(ChunkSearch& chunk, ExactNeighbors& out);
  // Whether the prefix that is kept is not the one that was asked for.
  bool differs(const std::shared_ptr<const PrefixBase>& kept, const PrefixPlan& plan) const;
  // The prefix for the rows at hand; nullptr where there is none, or unless `wait` where another
  // search is making it. What is kept is of the usual tiles and as it was first made.
  // `prefixes` gets those of the rows where it is made.
  std::shared_ptr<const PrefixBase> packed(const PrefixPlan& plan, const Choice& choice, bool wait,
                                           Matrix<float>* prefixes = nullptr);

  SearchPosition& at_;
  ReportBuilder& report_;
  FirstPassChoice& passes_;
};

}  // namespace knear::detail
