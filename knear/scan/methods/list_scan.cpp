// Work tables of inverted lists, in two rounds.
#include "knear/scan/methods/list_scan.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/scan/nearest_state.hpp"

namespace knear::detail {
namespace {

using Panels = std::vector<std::pair<std::int64_t, std::int64_t>>;

// Queries [begin, end) and their probes [first, last), list by list.
WorkTable by_list(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes,
                  std::int64_t first, std::int64_t last) {
  // Counted, then put in place: queries of a list ascend.
  std::vector<std::int64_t> begin(static_cast<std::size_t>(lists.lists()) + 1);
  const auto each = [&](auto f) {
    for (std::int64_t q = 0; q < probes.rows(); ++q)
      for (std::int64_t p = first; p < last && probes.row(q)[p] != no_id; ++p)
        f(q, static_cast<std::size_t>(probes.row(q)[p]));
  };
  each([&](std::int64_t, std::size_t list) { ++begin[list + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::int64_t> next = begin, queries(static_cast<std::size_t>(begin.back()));
  each([&](std::int64_t q, std::size_t list) {
    queries[static_cast<std::size_t>(next[list]++)] = q;
  });
  WorkTable out;
  out.group = group_12;
  const std::int64_t most = queries_in_block(job.k);
  for (std::int64_t l = 0; l < lists.lists(); ++l) {
    const auto [from, to] = lists.panels(l);
    const std::int64_t end = begin[static_cast<std::size_t>(l) + 1];
    for (std::int64_t q = begin[static_cast<std::size_t>(l)]; q < end && from < to; q += most) {
      const std::int64_t count = std::min(most, end - q);
      out.queries.insert(out.queries.end(), queries.begin() + q, queries.begin() + q + count);
      out.add(count, {{from, to}});
    }
  }
  return out;
}

// The same, query by query.
WorkTable by_query(const PackedLists& lists, MatrixView<Id> probes, std::int64_t first,
                   std::int64_t last) {
  WorkTable out;
  out.group = group_1;
  for (std::int64_t q = 0; q < probes.rows(); ++q) {
    Panels panels;
    for (std::int64_t p = first; p < last && probes.row(q)[p] != no_id; ++p)
      if (const auto run = lists.panels(probes.row(q)[p]); run.first < run.second)
        panels.push_back(run);
    if (panels.empty()) continue;
    out.queries.push_back(q);
    out.add(1, panels);
  }
  return out;
}

}  // namespace

void scan_lists(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes,
                ExactNeighbors& out, ScanStats& stats, const Progress& progress) {
  ScanJob each = job;
  // A list is no sample of the others: nothing can be estimated from it.
  each.may_estimate = false, each.may_give_up = false;
  const std::int64_t queries = probes.rows(), most = probes.cols();
  NearestState state(queries, lists.packed, each);
  // Twelve queries are scored side by side; fewer leave places empty.
  const bool together = queries * most >= 4 * lists.lists();
  const auto round = [&](std::int64_t first, std::int64_t last) {
    if (first >= last) return;
    const WorkTable table =
        together ? by_list(lists, each, probes, first, last) : by_query(lists, probes, first, last);
    scan_tasks(lists.packed, each, table, state, stats, progress);
  };
  round(0, std::min<std::int64_t>(1, most));
  round(1, most);
  std::vector<std::int64_t> all(static_cast<std::size_t>(queries));
  std::iota(all.begin(), all.end(), 0);
  finish_nearest(lists.packed, each, all, state, out, stats);
}

}  // namespace knear::detail
