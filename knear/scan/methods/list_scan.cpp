// Work tables of inverted lists, in two rounds; and few rows, measured.
#include "knear/scan/methods/list_scan.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <optional>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/cost/scan_cost_model.hpp"
#include "knear/scan/nearest_state.hpp"
#include "knear/scan/packing/coded_queries.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/scan/tile_loop.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

using Panels = std::vector<std::pair<std::int64_t, std::int64_t>>;

// Queries [begin, end) and their probes [first, last), list by list.
WorkTable by_list(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes,
                  std::int64_t first, std::int64_t last) {
  // Counted, then put in place, those of a list in the order of all.
  std::vector<std::int64_t> order;
  if (job.coded) order = job.coded->order();
  std::vector<std::int64_t> begin(static_cast<std::size_t>(lists.lists()) + 1);
  const auto each = [&](auto f) {
    for (std::int64_t i = 0; i < probes.rows(); ++i) {
      const std::int64_t q = order.empty() ? i : order[static_cast<std::size_t>(i)];
      for (std::int64_t p = first; p < last && probes.row(q)[p] != no_id; ++p)
        f(q, static_cast<std::size_t>(probes.row(q)[p]));
    }
  };
  each([&](std::int64_t, std::size_t list) { ++begin[list + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::int64_t> next = begin, queries(static_cast<std::size_t>(begin.back()));
  each([&](std::int64_t q, std::size_t list) {
    queries[static_cast<std::size_t>(next[list]++)] = q;
  });
  const auto differ = [&](std::int64_t shorter, std::int64_t longer) {
    return job.coded && job.coded->differ(shorter, longer);
  };
  WorkTable out;
  out.group = group_12;
  const std::int64_t most = queries_in_block(job.k);
  for (std::int64_t l = 0; l < lists.lists(); ++l) {
    const auto [from, to] = lists.panels(l);
    const std::int64_t end = begin[static_cast<std::size_t>(l) + 1];
    for (std::int64_t q = begin[static_cast<std::size_t>(l)]; q < end && from < to;) {
      std::int64_t count = 1;
      while (count < most && q + count < end && !differ(queries[q], queries[q + count])) ++count;
      out.queries.insert(out.queries.end(), queries.begin() + q, queries.begin() + q + count);
      out.add(count, {{from, to}});
      q += count;
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

// Whether so many queries come to each list that twelve of them can be scored side by side; fewer
// leave places empty.
bool goes_by_list(const PackedLists& lists, std::int64_t pairs) {
  constexpr ScanCostModel model;
  return static_cast<double>(pairs) / static_cast<double>(lists.lists()) >=
         model.least_queries_of_a_list;
}

WorkTable table_of(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes,
                   std::int64_t first, std::int64_t last) {
  return goes_by_list(lists, probes.rows() * (last - first))
             ? by_list(lists, job, probes, first, last)
             : by_query(lists, probes, first, last);
}

// The queries coded, where each is packed several times: for each list that it probes. Their codes
// are a little coarser than those of a group by itself, but for whole numbers, so that a few more
// rows are measured: 5 % more with 96 columns, which eight lists make up for.
std::optional<CodedQueries> coded_for(const PackedLists& lists, const ScanJob& job,
                                      MatrixView<Id> probes) {
  const std::int64_t least = lists.packed.is_integer ? 2 : 8;
  if (probes.cols() < least || !goes_by_list(lists, probes.rows() * (probes.cols() - 1))) return {};
  return code_all(lists.packed, job.queries, job.query_range, job.threads);
}

// Measures the rows that each query probes: calls begin(query), then take(query, key, row) for each
// row that may be found, then end(query). A thread has a query at a time.
template <class Begin, class Take, class End>
void measure_lists(const RowLists& lists, const ScanJob& job, MatrixView<Id> probes,
                   ScanStats& stats, const Progress& progress, Begin begin, Take take, End end) {
  const std::int64_t queries = probes.rows(), together = 16;
  const std::int64_t tasks = (queries + together - 1) / together;
  Reporter reporter(progress, "search", tasks);
  std::mutex mutex;
  parallel_for(job.threads, tasks, [&](std::int64_t task) {
    const auto start = std::chrono::steady_clock::now();
    RowMeasurer measurer(job);
    std::vector<std::uint32_t> rows;
    ScanStats local;
    for (std::int64_t q = task * together; q < std::min(queries, (task + 1) * together); ++q) {
      rows.clear();
      for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p)
        for (const std::uint32_t row : lists.rows_of(probes.row(q)[p]))
          if (job.allowed(row)) rows.push_back(row);
      begin(q);
      if (!rows.empty()) {
        measurer.set_query(q);
        measurer.measure(
            std::ssize(rows), [&](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; },
            [&](std::int64_t i, double key) { take(q, key, rows[static_cast<std::size_t>(i)]); });
      }
      end(q);
      local.survivors += std::ssize(rows);
    }
    local.rescore_seconds = seconds_since(start);
    reporter.add(1);
    std::lock_guard lock(mutex);
    stats.add(local);
  });
}

}  // namespace

void scan_lists(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes,
                ExactNeighbors& out, ScanStats& stats, const Progress& progress) {
  ScanJob each = job;
  // A list is no sample of the others: nothing can be estimated from it.
  each.may_estimate = false, each.may_give_up = false;
  const std::optional<CodedQueries> coded = coded_for(lists, job, probes);
  if (coded) each.coded = &*coded;
  const std::int64_t queries = probes.rows(), most = probes.cols();
  NearestState state(queries, lists.packed, each);
  const auto round = [&](std::int64_t first, std::int64_t last) {
    if (first >= last) return;
    scan_tasks(lists.packed, each, table_of(lists, each, probes, first, last), state, stats,
               progress);
  };
  // What others have found is a threshold as good as that of the first list.
  const std::int64_t alone = job.upper_bounds ? 0 : std::min<std::int64_t>(1, most);
  round(0, alone);
  round(alone, most);
  std::vector<std::int64_t> all(static_cast<std::size_t>(queries));
  std::iota(all.begin(), all.end(), 0);
  finish_nearest(lists.packed, each, all, state, out, stats);
}

void scan_lists_directly(const RowLists& lists, const ScanJob& job, MatrixView<Id> probes,
                         ExactNeighbors& out, ScanStats& stats, const Progress& progress) {
  std::vector<TopK> best(static_cast<std::size_t>(probes.rows()));
  const auto list = [&](std::int64_t q) -> TopK& { return best[static_cast<std::size_t>(q)]; };
  measure_lists(
      lists, job, probes, stats, progress, [&](std::int64_t q) { list(q) = TopK(job.k); },
      [&](std::int64_t q, double key, std::uint32_t row) {
        if (list(q).admits(key, row)) list(q).push(key, row);
      },
      [&](std::int64_t q) {
        list(q).finish();
        write_list(list(q), job.k, out.keys.row(q), out.ids.row(q));
        list(q) = TopK();
      });
}

void scan_lists_range(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes,
                      double limit, RangeSink& sink, ScanStats& stats, const Progress& progress) {
  const std::optional<CodedQueries> coded = coded_for(lists, job, probes);
  ScanJob each = job;
  if (coded) each.coded = &*coded;
  scan_range(lists.packed, each, table_of(lists, each, probes, 0, probes.cols()), limit, sink,
             stats, progress);
}

void scan_lists_range_directly(const RowLists& lists, const ScanJob& job, MatrixView<Id> probes,
                               double limit, RangeSink& sink, ScanStats& stats,
                               const Progress& progress) {
  std::vector<RangeLists> found(static_cast<std::size_t>(probes.rows()), RangeLists(1));
  const auto list = [&](std::int64_t q) -> RangeLists& {
    return found[static_cast<std::size_t>(q)];
  };
  measure_lists(
      lists, job, probes, stats, progress, [](std::int64_t) {},
      [&](std::int64_t q, double key, std::uint32_t row) {
        if (key <= limit) list(q)[0].emplace_back(key, row);
      },
      [&](std::int64_t q) {
        sink.count(std::ssize(list(q)[0]));
        sink.take({&q, 1}, list(q));
      });
}

}  // namespace knear::detail
