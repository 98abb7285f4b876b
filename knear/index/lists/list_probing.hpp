// knear/index/lists/list_probing.hpp -- a search of inverted lists: which lists each query probes,
// and of which queries the lists' radii prove that nothing nearer is elsewhere.
//
//   ListProbing probing(state, request, search);   // search: among the rows of lists
//   probing.probe(16);
//   probing.found(), probing.report()
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "knear/index/life/index_state.hpp"
#include "knear/index/options.hpp"
#include "knear/knn/lists/list_search.hpp"

namespace knear::detail {

// In a limited memory queries are searched so many at a time that their lists, of so many each,
// take a quarter of it at most, but one at least; else all.
std::int64_t queries_together(const SearchRequest& request, std::int64_t lists);
// The bytes of the lists of so many queries: of their numbers and keys, of what finds them, and of
// what scans have of each query and list.
std::int64_t bytes_of_probing(const SearchRequest& request, std::int64_t lists);

// The lists that queries choose from.
struct NearLists {
  std::vector<float> nearest, farthest;  // keys of the first and of the last, of each query
  Neighbors
      lists;  // numbers and keys; without rows where they are to be found again, query by query
};

// Returns the first `most` of these lists of each query, which has as many or more; without rows if
// `near` has none.
NearLists first_of(const NearLists& near, std::int64_t most);

class ListBounds;  // defined in list_probing.cpp

class ListProbing {
 public:
  // search: among the rows of lists.
  ListProbing(const State& state, const SearchRequest& request, ProbedSearch& search)
      : state_(state), request_(request), search_(search), coarse_(*state.coarse) {}

  // The first `probes` lists of each query.
  void probe(std::int64_t probes);
  // The same for certify(true) to follow: puts more lists in order, which it looks at next.
  void probe_to_certify(std::int64_t probes);

  // Those lists of each query that a rule says (index/recall/recall_rule.hpp), and more of queries
  // that find fewer than k rows in these. near: lists_near() by the same rule.
  void probe_by(const RecallRule& rule, NearLists near);

  // The nearest `most` lists of each query, or all: a rule chooses from rule.lists.
  NearLists lists_near(std::int64_t most);

  // Twice as many lists for queries that have found fewer than k rows, until they have or all lists
  // are probed.
  void widen();

  // Finds out of which queries no list that was not probed can hold a row of the answer; with
  // `go_on` the lists that can are probed too, so that it is true of all.
  void certify(bool go_on);

  // Of the answer, [queries x request.k].
  const ExactNeighbors& found() const { return found_; }
  // The same, which is gone then.
  ExactNeighbors take_found() { return std::move(found_); }
  // Returns what was done, but for the promise and the time.
  KnnReport report();
  // Returns what the lists prove of the answer.
  PromiseReport promise() const;

 private:
  Neighbors order_lists(AnyMatrixView queries, std::int64_t probes);
  bool is_short(std::int64_t q) const {
    return request_.k > 0 && found_.ids.row(q)[request_.k - 1] == no_id;
  }
  double kth_key(std::int64_t q) const;
  // Fills `left` with the lists that queries begin, ..., end - 1 have not probed and that may hold
  // a row among their k, nearest first. It orders lists only until no farther one may.
  void find_left(const ListBounds& bounds, std::int64_t begin, std::int64_t end,
                 std::span<std::vector<Id>> left);
  // Probes what find_left() gives for queries `first`, ...: some lists at a time, since few queries
  // have many.
  void probe_all(const std::vector<std::vector<Id>>& left, std::int64_t first);
  // Probes these lists of queries [begin, ...), or of all.
  void search_lists(const Neighbors& near, std::int64_t begin);

  const State& state_;
  const SearchRequest& request_;
  ProbedSearch& search_;
  const CoarseQuantizer& coarse_;
  ExactNeighbors found_;
  std::vector<std::int64_t> probed_;  // lists of each query
  Neighbors ordered_;  // the nearest lists of all queries, for certify(); without rows: not kept
  std::vector<char> certified_;  // empty: not asked for
  double coarse_seconds_ = 0;
};

// Batches of at least so many queries are calibrated by some of their own.
inline constexpr std::int64_t least_calibrated_batch = 1000;
// Smallest batch by which inverted lists of vectors learn a kind of queries, which the index keeps.
inline constexpr std::int64_t least_learned_batch = 256;

// Whether queries are like those of a calibration, near: their nearest lists. Of few (10) one that
// is far from every centroid says that they are not; of more it takes as many far ones as queries
// of that kind have once in a thousand batches, or another distribution.
bool of_one_kind(const RecallCurve& curve, const NearLists& near);
// The same by what else tells them apart, ascending.
bool of_one_kind(const RecallCurve& curve, std::span<const float> keys);

// The scales of nearness of queries (index/recall/recall_rule.hpp), near: the lists that they
// choose from.
std::vector<Nearness> nearness_scales(AnyMatrixView queries, Metric metric, const NearLists& near);
// The same where all codes are searched.
std::vector<Nearness> scales_without_lists(AnyMatrixView queries, Metric metric);
// Whether a search by the rule of a point, which was asked for a recall of k neighbours and is to
// be promised it, has found rows as near as those of the calibration. Not, if queries that find
// such rows have a lower recall, by more than chance does once in 100 batches (of 256 queries
// once in 1,000, of 1,000 once in 100,000), or if little is known of queries that find rows so far
// away.
bool finds_as_calibrated(const RecallPoint& point, double recall, std::int64_t k,
                         const ExactNeighbors& found, std::span<const Nearness> scales);

}  // namespace knear::detail
