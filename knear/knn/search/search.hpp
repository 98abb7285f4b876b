// knear/knn/search/search.hpp -- one search over the segments of a base: the k nearest of each
// query. Other methods and kinds of search are derived from it, each in a file of its own.
//
//   search_request.hpp      what was asked for, checked once
//   search_position.hpp     where the search stands: the rows at hand, the memory that is left
//   report_builder.hpp      what was done so far
//   first_pass_choice.hpp   by what the rows at hand are scored first
//   tree_search.hpp         whether rows of few columns are searched by a tree, and doing so
//   prefix_search.hpp       whether they are searched by a prefix, and doing so
//   device_engine.hpp       a device that answers what it can before the processor does
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/knn/report.hpp"
#include "knear/knn/search/prefix_search.hpp"
#include "knear/knn/search/tree_search.hpp"

namespace knear::detail {

class Search {
 public:
  // device: where rows are scanned before the processor does; nullptr: nowhere. What is given has
  // to stay.
  explicit Search(const SearchRequest& request, DeviceEngine* device = nullptr)
      : request_(request), at_(request, device) {}
  virtual ~Search() = default;

  // The answer before it is rounded: [queries x the least of k and the rows allowed].
  ExactNeighbors run(KnnReport* report);
  // `all`: the best of rows elsewhere, as many columns as were announced; takes in what is found.
  void run_from(ExactNeighbors& all);
  // Returns what was done since construction.
  KnnReport report() const;
  const ReportBuilder& done() const { return report_; }

  // Packs and keeps the rows of the one segment as searches like this one want them; none if these
  // measure every row.
  std::optional<FirstPass> prepare();
  // Packs and keeps a prefix of the one segment, if searches are expected to be faster by it.
  // Returns whether there is one.
  bool optimize();

 protected:
  // Fills `out`, [queries x the least of k and the rows allowed], with the nearest of the rows at
  // hand, numbered from 0 on; of rows beyond at_.upper_bounds none need be there.
  virtual void search_chunk(ExactNeighbors& out);

  // Calls f(number) for each query, on all threads where that pays.
  void each_query(const std::function<void(std::int64_t)>& f) const;
  // Calls f(request) for copies of the rows at hand, some at a time, where these are in the memory
  // of a device alone: the search of the queries of `todo`, in this order, by the processor. Ids
  // are numbers of rows at hand.
  void each_copy(const std::vector<std::int64_t>& todo,
                 const std::function<void(const SearchRequest&)>& f) const;

  const SearchRequest& request_;
  SearchPosition at_;
  ReportBuilder report_;
  FirstPassChoice passes_{at_, report_};
  TreeSearch tree_{at_, report_, passes_};

 private:
  // The processor's way for the queries of `todo`; and by copies of rows that it has not.
  void search_queries(std::vector<std::int64_t> todo, ExactNeighbors& out);
  void search_copies(const std::vector<std::int64_t>& todo, ExactNeighbors& out);
  void search_by_passes(ChunkSearch& chunk, ExactNeighbors& out);
  // A pass that may not suit the data: a few queries go first, and if most of them are handed back,
  // so is the rest. survivors_known: whether it is known from earlier searches how many rows
  // survive.
  std::vector<std::int64_t> try_pass(const PackedBase& packed, ChunkSearch& chunk,
                                     bool survivors_known, ExactNeighbors& out);

  PrefixSearch prefix_{at_, report_, passes_};
};

}  // namespace knear::detail
