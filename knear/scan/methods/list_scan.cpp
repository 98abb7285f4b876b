// Work tables of inverted lists, in two rounds; and few rows, measured.
#include "knear/scan/methods/list_scan.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/cost/scan_cost_model.hpp"
#include "knear/scan/methods/filtered_lists.hpp"
#include "knear/scan/nearest_state.hpp"
#include "knear/scan/packing/coded_queries.hpp"
#include "knear/scan/probed_lists.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/scan/tile_loop.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {
namespace {

// Adds the panels that a list has in each part, without those of further copies of a row.
void add_panels(const ListParts& lists, Id list, std::vector<PanelRange>& panels) {
  for (std::size_t part = 0; part < lists.parts.size(); ++part) {
    auto [from, to] = lists.parts[part]->panels(list);
    const auto number = static_cast<std::int64_t>(part);
    if (!lists.copies.empty()) {
      const std::vector<CopyRuns::Run>& runs = *lists.copies[part];
      auto run = std::lower_bound(
          runs.begin(), runs.end(), from,
          [](const CopyRuns::Run& each, std::int64_t panel) { return each.begin < panel; });
      for (; run != runs.end() && run->begin < to; ++run) {
        const std::int64_t last = std::min(run->end, run->begin + lists.copied_panels);
        panels.push_back({from, last, number});
        from = run->end;
      }
    }
    if (from < to) panels.push_back({from, to, number});
  }
}

// Finds which panels only hold further copies of a row. Whether all rows may be found is up to the
// caller.
void leave_out_copies(ListParts& lists, const ScanJob& job) {
  static const std::vector<CopyRuns::Run> no_runs;
  bool any = false;
  for (std::size_t part = 0; part < lists.parts.size(); ++part) {
    const PackedLists& each = *lists.parts[part];
    if (lists.first_lists[part]) {
      lists.copies.push_back(&no_runs);
      continue;
    }
    lists.copies.push_back(
        &each.copy_runs->of(each.packed, each.first_panel, job.base, lists.first_rows[part]));
    any |= !lists.copies.back()->empty();
  }
  lists.copied_panels = std::max<std::int64_t>(1, (job.k + panel_rows - 1) / panel_rows);
  if (!any) lists.copies.clear();
}

// A table without tasks whose ranges are of these parts.
WorkTable table_for(const ListParts& lists, GroupSize group) {
  WorkTable out;
  out.group = group;
  if (!lists.are_plain())
    for (std::size_t part = 0; part < lists.parts.size(); ++part)
      out.parts.push_back(
          {&lists.parts[part]->packed, lists.first_rows[part], lists.first_lists[part]});
  return out;
}

// About how far queries are from the centres of lists, as a coding space has them.
class CentreDistances {
 public:
  CentreDistances(const ListParts& lists, const ScanJob& job)
      : centres_(lists.first().packed.centres.values),
        queries_(job.queries.rows(), centres_.cols()) {
    const bool unit_rows = traits_of(job.metric).unit_rows;
    constexpr std::int64_t block = 256;
    parallel_for(job.threads, (queries_.rows() + block - 1) / block, [&](std::int64_t b) {
      std::vector<double> row(queries_.cols());
      for (std::int64_t q = b * block; q < std::min(queries_.rows(), (b + 1) * block); ++q) {
        row_as_doubles(job.queries, q, row.data());
        double squares = 0;
        for (const double x : row) squares += x * x;
        const double factor = unit_rows && squares > 0 ? 1 / std::sqrt(squares) : 1;
        for (std::int64_t j = 0; j < queries_.cols(); ++j)
          queries_.row(q)[j] = static_cast<float>(row[j] * factor);
      }
    });
  }

  // Brings queries that are near the centre of a list to the front, and writes their distances to
  // `out`.
  void sort(std::int64_t list, std::span<std::int64_t> queries, std::span<float> out) const {
    const float* const centre = centres_.row(list);
    std::vector<std::pair<float, std::int64_t>> order;
    for (const std::int64_t q : queries) {
      const float* const x = queries_.row(q);
      float squares = 0;
      for (std::int64_t j = 0; j < queries_.cols(); ++j)
        squares += (x[j] - centre[j]) * (x[j] - centre[j]);
      order.emplace_back(std::sqrt(squares), q);
    }
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i)
      queries[i] = order[i].second, out[i] = order[i].first;
  }

 private:
  const MatrixView<float> centres_;
  Matrix<float> queries_;
};

// Queries [begin, end) and their probes [first, last), list by list.
WorkTable by_list(const ListParts& lists, const ScanJob& job, MatrixView<Id> probes,
                  std::int64_t first, std::int64_t last) {
  // Counted, then put in place, those of a list in the order of all.
  const std::int64_t* const order = job.coded ? job.coded->order.data() : nullptr;
  std::vector<std::int64_t> begin(static_cast<std::size_t>(lists.lists()) + 1);
  const auto each = [&](auto f) {
    for (std::int64_t i = 0; i < probes.rows(); ++i) {
      const std::int64_t q = order ? order[i] : i;
      for (std::int64_t p = first; p < last && probes.row(q)[p] != no_id; ++p)
        f(q, probes.row(q)[p]);
    }
  };
  each([&](std::int64_t, std::size_t list) { ++begin[list + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::int64_t> next = begin, queries(begin.back());
  each([&](std::int64_t q, std::size_t list) { queries[next[list]++] = q; });
  const auto differ = [&](std::int64_t shorter, std::int64_t longer) {
    return job.coded && job.coded->differ(shorter, longer);
  };
  // Queries that are coded together have one scale, so those near a centre go by themselves.
  constexpr float most_apart = 4;
  const bool around_centres = lists.first().has_centres();
  std::vector<float> distances(around_centres ? queries.size() : 0);
  if (around_centres) {
    const CentreDistances centres(lists, job);
    parallel_for(job.threads, lists.lists(), [&](std::int64_t l) {
      const auto from = static_cast<std::size_t>(begin[l]),
                 count = static_cast<std::size_t>(begin[l + 1]) - from;
      centres.sort(l, std::span(queries).subspan(from, count),
                   std::span(distances).subspan(from, count));
    });
  }
  const auto apart = [&](std::int64_t nearer, std::int64_t farther) {
    return around_centres ? distances[farther] > most_apart * distances[nearer]
                          : differ(queries[nearer], queries[farther]);
  };
  WorkTable out = table_for(lists, group_12);
  std::vector<PanelRange> panels;
  const std::int64_t most = queries_in_block(job.k);
  for (std::int64_t l = 0; l < lists.lists(); ++l) {
    panels.clear();
    add_panels(lists, l, panels);
    const std::int64_t from = begin[l], end = begin[l + 1];
    for (std::int64_t q = from; q < end && !panels.empty();) {
      std::int64_t count = 1;
      while (count < most && q + count < end && !apart(q, q + count)) ++count;
      out.queries.insert(out.queries.end(), queries.begin() + q, queries.begin() + q + count);
      out.add(count, panels, 1);
      if (around_centres) out.sets.back().list = l;
      q += count;
    }
  }
  return out;
}

// The same, query by query, those after one another whose nearest list is the same: it and some of
// the others are in a cache then. A query's lists are one task, in which thresholds fall from list
// to list, unless threads would be idle.
WorkTable by_query(const ListParts& lists, const ScanJob& job, MatrixView<Id> probes,
                   std::int64_t first, std::int64_t last) {
  WorkTable out = table_for(lists, group_1);
  const auto find_panels = [&](std::int64_t q, std::vector<PanelRange>& panels) {
    panels.clear();
    for (std::int64_t p = first; p < last && probes.row(q)[p] != no_id; ++p)
      add_panels(lists, probes.row(q)[p], panels);
    return !panels.empty();
  };
  std::vector<PanelRange> panels;
  // So many tasks keep all threads busy until the end. A filter may leave few queries.
  const std::int64_t wanted = job.threads == 1 ? 1 : 4 * job.threads;
  std::int64_t queries = 0;
  for (std::int64_t q = 0; q < probes.rows() && queries < wanted; ++q)
    queries += find_panels(q, panels);
  const std::int64_t tasks = (wanted + queries - 1) / std::max<std::int64_t>(1, queries);
  for (const std::int64_t q : by_first_list(probes)) {
    if (!find_panels(q, panels)) continue;
    out.queries.push_back(q);
    out.add(1, panels, std::min(tasks, std::ssize(panels)));
  }
  return out;
}

// The same where each list has its own centre, around which a query is coded for it: a set for each
// query and list.
WorkTable by_query_and_list(const ListParts& lists, MatrixView<Id> probes, std::int64_t first,
                            std::int64_t last) {
  WorkTable out = table_for(lists, group_12);
  std::vector<PanelRange> panels;
  for (const std::int64_t q : by_first_list(probes))
    for (std::int64_t p = first; p < last && probes.row(q)[p] != no_id; ++p) {
      panels.clear();
      add_panels(lists, probes.row(q)[p], panels);
      if (panels.empty()) continue;
      out.queries.push_back(q);
      out.add(1, panels, 1);
      out.sets.back().list = probes.row(q)[p];
    }
  return out;
}

// Whether so many queries come to each list that twelve of them can be scored side by side; fewer
// leave places empty.
bool goes_by_list(std::int64_t lists, std::int64_t pairs) {
  constexpr ScanCostModel model;
  return static_cast<double>(pairs) / static_cast<double>(lists) >= model.least_queries_of_a_list;
}

WorkTable table_of(const ListParts& lists, const ScanJob& job, MatrixView<Id> probes,
                   std::int64_t first, std::int64_t last) {
  if (goes_by_list(lists.lists(), probes.rows() * (last - first)))
    return by_list(lists, job, probes, first, last);
  return lists.first().has_centres() ? by_query_and_list(lists, probes, first, last)
                                     : by_query(lists, job, probes, first, last);
}

// The queries coded, where each is packed several times: for each list that it probes. Their codes
// are a little coarser than those of a group by itself, but for whole numbers, so that a few more
// rows are measured: 5 % more with 96 columns, which eight lists make up for.
std::optional<CodedQueries> coded_for(const PackedLists& lists, const ScanJob& job,
                                      MatrixView<Id> probes) {
  const std::int64_t least = lists.packed.is_integer ? 2 : 8;
  if (lists.has_centres() || probes.cols() < least ||
      !goes_by_list(lists.lists(), probes.rows() * (probes.cols() - 1)))
    return {};
  return code_all(lists.packed, job.queries, job.query_range, job.threads);
}

// Counts the codes of the queries beside the buffers of the threads that scan while it lives.
class CodesCounted {
 public:
  CodesCounted(const std::optional<CodedQueries>& coded, ScanStats& stats)
      : bytes_(coded ? coded->bytes() : 0),
        stats_(stats),
        before_(std::exchange(stats.buffer_bytes, 0)) {}
  ~CodesCounted() { stats_.buffer_bytes = std::max(before_, stats_.buffer_bytes + bytes_); }
  CodesCounted(const CodesCounted&) = delete;
  CodesCounted& operator=(const CodesCounted&) = delete;

 private:
  const std::int64_t bytes_;
  ScanStats& stats_;
  const std::int64_t before_;
};

// Places for rows in the lists that queries probe.
std::int64_t places_of(const ListParts& lists, MatrixView<Id> probes) {
  std::int64_t sum = 0;
  for (std::int64_t q = 0; q < probes.rows(); ++q)
    for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p)
      sum += lists.panels(probes.row(q)[p]) * panel_rows;
  return sum;
}

// Whether a filter is laid out by lists before these are scanned; otherwise each row that passes is
// looked up. For a few queries only where most lists will be followed: laying out takes a quarter
// of the time of scoring, more than it saves elsewhere.
bool lays_out_filter(const PackedLists& lists, const ScanJob& job, MatrixView<Id> probes) {
  if (job.allowed.all()) return false;
  return goes_by_list(lists.lists(), probes.rows() * probes.cols()) ||
         FilteredLists::share_left(lists, job.allowed, probes) * FilteredLists::few_left < 1;
}

// Measures the rows rows_of(list) of the lists that each query probes: calls take(query, key, row)
// for each, and end(query) once all of a query were measured. A thread has a query.
template <class RowsOf, class Take, class End>
class MeasuredLists {
 public:
  MeasuredLists(std::int64_t lists, const ScanJob& job, MatrixView<Id> probes, RowsOf rows_of,
                Take take, End end)
      : lists_(lists), job_(job), probes_(probes), rows_of_(rows_of), take_(take), end_(end) {}

  void run(ScanStats& stats, const Progress& progress) {
    const std::int64_t queries = probes_.rows();
    const std::int64_t each =
        std::clamp<std::int64_t>((queries + job_.threads - 1) / job_.threads, 1, most_together);
    const std::int64_t tasks = (queries + each - 1) / each;
    Reporter reporter(progress, "search", tasks);
    std::mutex mutex;
    parallel_for(job_.threads, tasks, [&](std::int64_t task) {
      const auto start = std::chrono::steady_clock::now();
      ScanStats local;
      local.survivors = measure(task * each, std::min(queries, (task + 1) * each));
      local.rescore_seconds = seconds_since(start);
      reporter.add(1);
      std::lock_guard lock(mutex);
      stats.add(local);
    });
  }

 private:
  static constexpr std::int64_t most_together = 1024;
  // Rows and queries of a list from which it is gone over once for all of them, four at a time:
  // the rows stay in cache, but the queries are made double once for each list.
  static constexpr std::int64_t least_rows = 4, least_queries = 3;

  template <class F>
  void each_pair(std::int64_t begin, std::int64_t end, F f) const {
    for (std::int64_t q = begin; q < end; ++q)
      for (std::int64_t p = 0; p < probes_.cols() && probes_.row(q)[p] != no_id; ++p)
        f(q, probes_.row(q)[p]);
  }

  // Returns how many rows were measured.
  std::int64_t measure(std::int64_t begin, std::int64_t end) {
    std::int64_t measured = 0;
    std::vector<std::int64_t> first;  // [lists + 1]: places in `queries`; empty: no list has enough
    if (end - begin >= least_queries) {
      first.resize(static_cast<std::size_t>(lists_) + 1);
      each_pair(begin, end, [&](std::int64_t, Id list) {
        first[list + 1] += std::ssize(rows_of_(list)) >= least_rows;
      });
      for (std::int64_t& count : first) count = count < least_queries ? 0 : count;
      std::partial_sum(first.begin(), first.end(), first.begin());
      measured += measure_by_list(begin, end, first);
    }
    RowMeasurer measurer(job_);
    std::vector<std::uint32_t> rows;
    for (std::int64_t q = begin; q < end; ++q) {
      rows.clear();
      each_pair(q, q + 1, [&](std::int64_t, Id list) {
        if (goes_by_list(first, list)) return;
        const std::span<const std::uint32_t> more = rows_of_(list);
        rows.insert(rows.end(), more.begin(), more.end());
      });
      if (!rows.empty()) {
        measurer.set_query(q);
        measurer.measure(
            std::ssize(rows), [&](std::int64_t i) { return rows[i]; },
            [&](std::int64_t i, double key) { take_(q, key, rows[i]); });
      }
      measured += std::ssize(rows);
      end_(q);
    }
    return measured;
  }
  static bool goes_by_list(const std::vector<std::int64_t>& first, Id list) {
    const std::size_t at = list;
    return !first.empty() && first[at] < first[at + 1];
  }
  std::int64_t measure_by_list(std::int64_t begin, std::int64_t end,
                               const std::vector<std::int64_t>& first) {
    std::vector<std::int64_t> next = first, queries(first.back());
    each_pair(begin, end, [&](std::int64_t q, Id list) {
      if (goes_by_list(first, list)) queries[next[list]++] = q;
    });
    ExactGroup group(job_.metric, job_.base.type(), job_.isa);
    std::vector<std::byte> scratch(job_.base.scratch_bytes());
    std::int64_t measured = 0;
    for (Id list = 0; list < lists_; ++list) {
      if (!goes_by_list(first, list)) continue;
      const std::int64_t last = first[list + 1];
      const std::span<const std::uint32_t> rows = rows_of_(list);
      for (std::int64_t i = first[list]; i < last; i += ExactGroup::size) {
        const std::int64_t* const some = queries.data() + i;
        group.set_queries(job_.queries, some,
                          static_cast<int>(std::min<std::int64_t>(ExactGroup::size, last - i)));
        for (const std::uint32_t row : rows) {
          double keys[ExactGroup::size];
          group.keys(job_.base.row(row, scratch.data()), keys);
          for (int j = 0; j < group.count(); ++j) take_(some[j], keys[j], row);
        }
      }
      measured += (last - first[list]) * std::ssize(rows);
    }
    return measured;
  }

  const std::int64_t lists_;
  const ScanJob& job_;
  const MatrixView<Id> probes_;
  RowsOf rows_of_;
  Take take_;
  End end_;
};

// Measures what a filter leaves of lists where that is little. Returns a key for each query that k
// rows do not exceed, or as many as job.upper_bounds says.
std::vector<double> follow_lists(const FilteredLists& filtered, const PackedLists& lists,
                                 const ScanJob& job, MatrixView<Id> probes, NearestState& state,
                                 ScanStats& stats, const Progress& progress) {
  std::vector<double> bounds(probes.rows(), infinity);
  if (job.upper_bounds) std::copy_n(job.upper_bounds, probes.rows(), bounds.begin());
  const auto best = [&](std::int64_t q) -> TopK& {
    const std::size_t at = q;
    return lists.packed.is_integer ? state.best[at] : state.candidates[at].exact;
  };
  MeasuredLists(
      lists.lists(), job, probes, [&](Id list) { return filtered.followed(list); },
      [&](std::int64_t q, double key, std::uint32_t row) { best(q).push(key, row); },
      [&](std::int64_t q) {
        best(q).cut();
        double& bound = bounds[q];
        bound = std::min(bound, best(q).bound());
      })
      .run(stats, progress);
  return bounds;
}

// Gives the sink the rows rows_of(list) of the lists that a query probes whose key is at most
// `limit`. are_twice: whether a row may be in two of its lists.
template <class RowsOf>
void measure_within(std::int64_t lists, const ScanJob& job, MatrixView<Id> probes, RowsOf rows_of,
                    double limit, RangeSink& sink, ScanStats& stats, const Progress& progress,
                    bool are_twice = false) {
  std::vector<RangeLists> found(probes.rows(), RangeLists(1));
  const auto list = [&](std::int64_t q) -> RangeLists& { return found[q]; };
  MeasuredLists(
      lists, job, probes, rows_of,
      [&](std::int64_t q, double key, std::uint32_t row) {
        if (key <= limit) list(q)[0].emplace_back(key, row);
      },
      [&](std::int64_t q) {
        if (are_twice) {
          auto& pairs = list(q)[0];
          std::sort(pairs.begin(), pairs.end());
          pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
        }
        sink.count(std::ssize(list(q)[0]));
        sink.take({&q, 1}, list(q));
      })
      .run(stats, progress);
}

// The rows of each list that may be found.
RowLists allowed_rows(const RowLists& lists, const AllowedRows& allowed) {
  if (allowed.all()) return lists;
  RowLists out;
  out.are_twice = lists.are_twice;
  for (std::int64_t l = 0; l < lists.lists(); ++l) {
    for (const std::uint32_t row : lists.rows_of(l))
      if (allowed(row)) out.rows.push_back(row);
    out.begin.push_back(std::ssize(out.rows));
  }
  return out;
}

}  // namespace

void ListParts::add(const PackedLists& lists) {
  parts.push_back(&lists), first_rows.push_back(next_row), first_lists.push_back(nullptr);
  next_row += static_cast<std::uint32_t>(lists.packed.rows);
}

void ListParts::add_second(const PackedLists& lists, std::span<const std::uint32_t> own) {
  const std::uint32_t first = parts.empty() ? 0 : first_rows.back();
  parts.push_back(&lists), first_rows.push_back(first), first_lists.push_back(own.data());
  repeats = true;
}

std::int64_t ListParts::panels(std::int64_t list) const {
  std::int64_t sum = 0;
  if (!copies.empty()) {
    std::vector<PanelRange> panels;
    add_panels(*this, list, panels);
    for (const PanelRange& range : panels) sum += range.end - range.begin;
    return sum;
  }
  for (const PackedLists* part : parts) {
    const auto [from, to] = part->panels(list);
    sum += to - from;
  }
  return sum;
}

ScoredLists::ScoredLists(ListParts lists, const ScanJob& job, MatrixView<Id> probes,
                         ScanStats& stats, const Progress& progress)
    : lists_(std::move(lists)), job_(job), probes_(probes) {
  // A list is no sample of the others: nothing can be estimated from it.
  job_.may_estimate = false, job_.may_give_up = false;
  const std::int64_t most = probes.cols();
  const PackedLists& first_part = lists_.first();
  state_ = std::make_unique<NearestState>(probes.rows(), first_part.packed, job_);
  if (lists_.repeat_rows()) {
    probed_ = std::make_unique<ProbedLists>(probes, lists_.lists());
    job_.probed = probed_.get();
  }
  if (!first_part.packed.is_integer && job.allowed.all() && !first_part.packed.duplicates.any())
    leave_out_copies(lists_, job);
  std::vector<double> bounds;
  if (lists_.are_plain() && lays_out_filter(first_part, job, probes)) {
    filtered_ = std::make_unique<FilteredLists>(first_part, job.allowed, probes, job.threads);
    job_.allowed_slots = filtered_->slots();
    if (filtered_->any_followed()) {
      bounds = follow_lists(*filtered_, first_part, job, probes, *state_, stats, progress);
      job_.upper_bounds = bounds.data();
    }
    probes_ = filtered_->scanned();
  }
  scored_ = places_of(lists_, probes_);
  if (scored_ > 0) {
    const std::optional<CodedQueries> coded = coded_for(first_part, job, probes_);
    if (coded) job_.coded = &*coded;
    const auto round = [&](std::int64_t first, std::int64_t last) {
      if (first >= last) return;
      scan_tasks(first_part.packed, job_, table_of(lists_, job_, probes_, first, last), *state_,
                 stats, progress);
    };
    // What others have found is a threshold as good as that of the first list.
    const std::int64_t alone = job.upper_bounds ? 0 : std::min<std::int64_t>(1, most);
    const CodesCounted counted(coded, stats);
    round(0, alone);
    round(alone, most);
  }
  job_.coded = nullptr, job_.upper_bounds = nullptr;
}

ScoredLists::~ScoredLists() = default;

void ScoredLists::add_keys(std::int64_t query, std::vector<double>& keys) const {
  const std::size_t at = query;
  const bool whole = lists_.first().packed.is_integer;
  const TopK& measured = whole ? state_->best[at] : state_->candidates[at].exact;
  for (const TopK::Item& item : measured.items()) keys.push_back(item.first);
  if (whole) return;
  const QueryCandidates& c = state_->candidates[at];
  for (const ScoreInterval& x : c.pending)
    if (!(x.lower < c.threshold)) keys.push_back(state_->scales[at].key_at_most(x.lower));
}

void ScoredLists::finish(const double* bounds, ExactNeighbors& out, ScanStats& stats) {
  job_.upper_bounds = bounds;
  // The rows that queries of one list measure lie together.
  finish_nearest(lists_.first().packed, job_, by_first_list(probes_), *state_, out, stats);
}

void scan_lists_directly(const RowLists& lists, const ScanJob& job, MatrixView<Id> probes,
                         ExactNeighbors& out, ScanStats& stats, const Progress& progress) {
  const RowLists left = allowed_rows(lists, job.allowed);
  // The nearest 2 k of rows that come twice hold the k nearest.
  std::vector<TopK> best(probes.rows(), TopK(lists.are_twice ? 2 * job.k : job.k));
  const auto list = [&](std::int64_t q) -> TopK& { return best[q]; };
  MeasuredLists(
      left.lists(), job, probes, [&](Id l) { return left.rows_of(l); },
      [&](std::int64_t q, double key, std::uint32_t row) { list(q).push(key, row); },
      [&](std::int64_t q) {
        list(q).finish();
        if (lists.are_twice) list(q).drop_copies(job.k);
        write_list(list(q), job.k, out.keys.row(q), out.ids.row(q));
        list(q) = TopK();
      })
      .run(stats, progress);
}

std::int64_t scan_lists_range(const ListParts& parts, const ScanJob& job, MatrixView<Id> probes,
                              double limit, RangeSink& sink, ScanStats& stats,
                              const Progress& progress) {
  const PackedLists& lists = parts.first();
  ScanJob each = job;
  std::optional<FilteredLists> filtered;
  std::optional<ProbedLists> probed;
  if (parts.repeat_rows()) {
    probed.emplace(probes, lists.lists());
    each.probed = &*probed;
  } else if (lays_out_filter(lists, job, probes)) {
    filtered.emplace(lists, job.allowed, probes, job.threads);
    each.allowed_slots = filtered->slots();
    if (filtered->any_followed())
      measure_within(
          lists.lists(), job, probes, [&](Id list) { return filtered->followed(list); }, limit,
          sink, stats, progress);
    probes = filtered->scanned();
  }
  const std::int64_t scored = places_of(parts, probes);
  if (scored == 0) return 0;
  const std::optional<CodedQueries> coded = coded_for(lists, job, probes);
  if (coded) each.coded = &*coded;
  const CodesCounted counted(coded, stats);
  scan_range(lists.packed, each, table_of(parts, each, probes, 0, probes.cols()), limit, sink,
             stats, progress);
  return scored;
}

void scan_lists_range_directly(const RowLists& lists, const ScanJob& job, MatrixView<Id> probes,
                               double limit, RangeSink& sink, ScanStats& stats,
                               const Progress& progress) {
  const RowLists left = allowed_rows(lists, job.allowed);
  measure_within(
      left.lists(), job, probes, [&](Id l) { return left.rows_of(l); }, limit, sink, stats,
      progress, left.are_twice);
}

}  // namespace knear::detail
