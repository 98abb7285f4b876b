#include "knear/knn/lists/list_search.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/knn/lists/listed_rows.hpp"
#include "knear/scan/methods/list_scan.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Queries that are searched together at most: more would not fill lists better, and what waits to
// be measured of all of them stays in memory meanwhile.
constexpr std::int64_t most_queries = 1 << 15;
constexpr std::int64_t most_waiting_bytes = std::int64_t{1} << 29;

// Bytes that a query has while lists are scanned: candidates, thresholds, codes, the answer.
std::int64_t bytes_of_query(const SearchRequest& request) {
  const std::int64_t k = request.k;
  const std::int64_t waiting = request.limited() ? 2 * least_pending(k) : 2 * k + 160;
  return 24 * waiting + 48 * k + 12 * request.k_asked + 576 + 9 * request.queries.cols();
}

// The nearest of a block of queries among the segments so far. Packed segments that are not joined
// wait for each other to be measured, so that only rows are that may be among the k nearest of all;
// in limited memory each is measured at once.
class BlockAnswer {
 public:
  // waits: whether there are several that may. repeats_rows: whether rows in two lists may be found
  // again that were found in lists probed before. best: of the lists that were probed before;
  // without columns: of none.
  BlockAnswer(const SearchRequest& request, MatrixView<Id> probes, bool waits, bool repeats_rows,
              ExactNeighbors best, ScanStats& stats)
      : request_(request),
        probes_(probes),
        waits_(waits),
        repeats_rows_(repeats_rows),
        best_(std::move(best)),
        stats_(stats) {
    if (best_.columns() == 0) return;
    // Rows in two lists may be found again, and would count twice.
    if (waits_ && !repeats_rows_) note_keys(best_);
    note_best();
  }

  // A key for each query that k rows do not exceed; nullptr: nothing was found.
  const double* bounds() const { return bounds_.empty() ? nullptr : bounds_.data(); }

  // The rows of a segment that were measured.
  void add(ExactNeighbors part, const RowIds& ids) {
    if (waits_) note_keys(part);
    merge_in(std::move(part), ids);
  }

  // Returns how many places of panels were scored. keeper: of the lists.
  std::int64_t scan(ListParts lists, std::vector<std::shared_ptr<const PackedLists>> keeper,
                    const ScanJob& job, RowIds ids, const Progress& progress) {
    waiting_.push_back(std::make_unique<WaitingSegment>(std::move(lists), std::move(keeper), job,
                                                        ids, probes_, stats_, progress));
    const ScoredLists& scan = waiting_.back()->scan;
    const std::int64_t scored = scan.scored();
    if (waits_)
      note_keys([&](std::int64_t q, std::vector<double>& keys) { scan.add_keys(q, keys); });
    else
      measure();
    return scored;
  }

  ExactNeighbors take() {
    measure();
    return std::move(best_);
  }

 private:
  struct WaitingSegment {
    WaitingSegment(ListParts lists, std::vector<std::shared_ptr<const PackedLists>> keeper_of_lists,
                   const ScanJob& job, RowIds row_ids, MatrixView<Id> probes, ScanStats& stats,
                   const Progress& progress)
        : keeper(std::move(keeper_of_lists)),
          k(job.k),
          ids(row_ids),
          scan(std::move(lists), job, probes, stats, progress) {}
    const std::vector<std::shared_ptr<const PackedLists>> keeper;
    const std::int64_t k;
    const RowIds ids;
    ScoredLists scan;
  };

  void measure() {
    while (!waiting_.empty()) {
      const std::unique_ptr<WaitingSegment> segment = std::move(waiting_.back());
      waiting_.pop_back();
      ExactNeighbors part(probes_.rows(), segment->k);
      segment->scan.finish(bounds(), part, stats_);
      merge_in(std::move(part), segment->ids);
    }
  }

  void merge_in(ExactNeighbors part, const RowIds& ids) {
    for (Id* id = part.ids.data(); id != part.ids.data() + part.ids.rows() * part.columns(); ++id)
      if (*id != no_id) *id = ids(*id);
    if (best_.columns() == 0)
      best_ = std::move(part);
    else
      merge(best_, part, request_.k, request_.threads, repeats_rows_);
    note_best();
  }

  // The k-th of what was measured is a bound.
  void note_best() {
    if (best_.columns() < request_.k) return;
    bounds_.resize(probes_.rows(), infinity);
    for (std::int64_t q = 0; q < probes_.rows(); ++q) {
      double& bound = bounds_[q];
      bound = std::min(bound, best_.keys.row(q)[request_.k - 1]);
    }
  }

  // So is the k-th of keys that rows do not exceed, no row counted twice. add_keys(q, keys) adds
  // those of rows that were not among them.
  template <class AddKeys>
  void note_keys(AddKeys add_keys) {
    const auto queries = static_cast<std::size_t>(probes_.rows()),
               k = static_cast<std::size_t>(request_.k);
    bounds_.resize(queries, infinity);
    keys_.resize(queries);
    constexpr std::size_t block = 256;
    parallel_for(request_.threads, static_cast<std::int64_t>((queries + block - 1) / block),
                 [&](std::int64_t b) {
                   const std::size_t begin = static_cast<std::size_t>(b) * block;
                   for (std::size_t q = begin; q < std::min(queries, begin + block); ++q) {
                     std::vector<double>& keys = keys_[q];
                     add_keys(static_cast<std::int64_t>(q), keys);
                     if (keys.size() < k) continue;
                     const auto kth = keys.begin() + static_cast<std::ptrdiff_t>(k) - 1;
                     std::nth_element(keys.begin(), kth, keys.end());
                     keys.resize(k);
                     bounds_[q] = std::min(bounds_[q], keys.back());
                   }
                 });
  }
  void note_keys(const ExactNeighbors& measured) {
    note_keys([&](std::int64_t q, std::vector<double>& keys) {
      for (std::int64_t j = 0; j < measured.columns() && measured.ids.row(q)[j] != no_id; ++j)
        keys.push_back(measured.keys.row(q)[j]);
    });
  }

  const SearchRequest& request_;
  const MatrixView<Id> probes_;
  const bool waits_, repeats_rows_;
  ExactNeighbors best_;
  ScanStats& stats_;
  std::vector<double> bounds_;             // [queries], or none
  std::vector<std::vector<double>> keys_;  // of each query, the k smallest of note_keys()
  std::vector<std::unique_ptr<WaitingSegment>> waiting_;
};

}  // namespace

ExactNeighbors nothing_found(std::int64_t queries, std::int64_t k) {
  ExactNeighbors out(queries, k);
  std::fill_n(out.keys.data(), queries * k, infinity);
  std::fill_n(out.ids.data(), queries * k, no_id);
  return out;
}

std::int64_t rows_probed(const ListedRows& rows, MatrixView<Id> probes) {
  const RowLists* numbers = rows.numbers();
  const auto packed = rows.first_form();
  std::int64_t sum = rows.second() ? rows_probed(*rows.second(), probes) : 0;
  for (std::int64_t q = 0; q < probes.rows(); ++q)
    for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
      const Id list = probes.row(q)[p];
      if (numbers) {
        sum += std::ssize(numbers->rows_of(list));
      } else {
        const auto [from, to] = packed->panels(list);
        sum += (to - from) * panel_rows;
      }
    }
  return sum;
}

void check_list_options(const MethodOptions& method, FirstPass first_pass,
                        const TuningOverrides& tuning, std::string_view lists) {
  check_exact(method, fmt::format("a search of {}", lists));
  if (first_pass != FirstPass::automatic)
    throw InvalidArgument("first_pass is {}, but {} have none to choose", name_of(first_pass),
                          lists);
  if (tuning != TuningOverrides{})
    throw InvalidArgument("choices are for a scan of all rows, and {} have none", lists);
}

std::int64_t enough_memory(std::int64_t least, std::int64_t more_bytes) {
  return more_bytes == 0 ? least : std::max(least, (least - more_bytes + 2) / 3 * 4);
}

ListSearch::ListSearch(const SearchRequest& request, std::int64_t more_bytes)
    : request_(request),
      more_bytes_(more_bytes),
      at_(request, nullptr),
      repeats_rows_(std::any_of(request.segments.begin(), request.segments.end(),
                                [](const Segment& each) { return each.given.lists->second(); })) {
  report_.learns = false, report_.method = "inverted-lists";
  report_.idle_pass = FirstPass::direct;
  check_memory();
}

void ListSearch::check_memory() const {
  if (!request_.limited()) return;
  // The answer of all queries, and what a block of one needs.
  const std::int64_t least = least_bytes();
  if (request_.options.memory < least)
    throw MemoryBudgetError(
        "memory is {} bytes, but this search needs at least {} ({} queries, k = {}, {} columns)",
        request_.options.memory, enough_memory(least, more_bytes_), request_.queries.rows(),
        request_.k_asked, request_.queries.cols());
}

std::int64_t ListSearch::least_bytes() const {
  // What a filter leaves of a segment's lists (scan/methods/filtered_lists.hpp), and its padding.
  std::int64_t filter_bytes = 0;
  for (const SearchRequest::Segment& segment : request_.segments)
    if (const std::int64_t rows = segment.given.rows->base.rows(); segment.allowed < rows)
      filter_bytes = std::max(filter_bytes, rows / 2 + 4 * segment.given.lists->lists());
  return filter_bytes + request_.queries.rows() * (request_.k * 32 + request_.k_asked * 12 + 64) +
         request_.threads * (std::int64_t{1} << 16) + bytes_of_query(request_) + more_bytes_;
}

bool ListSearch::fits(const Group& group, PreparedRows& rows, const PackedLists& lists) const {
  if (group.packed.empty()) return false;
  const Coding& coding = lists.packed;
  const bool whole =
      !coding.is_integer || integer_fits(request_.options.metric, united(group.range, coding.range),
                                         request_.query_range, coding.dim);
  return whole && group.packed[0]->packed.shares_queries(coding) &&
         group.rows.parts()[0].rows.type() == rows.base.type() &&
         group.rows.rows() + rows.base.rows() < PackedBase::no_row;
}

bool ListSearch::joins(const Segment& segment) {
  return 4 * segment.allowed >= 3 * segment.given.rows->base.rows();
}

void ListSearch::join_segments() {
  if (!groups_.empty()) return;
  for (const Segment& segment : request_.segments) {
    PreparedRows& prepared = *segment.given.rows;
    ListedRows& rows = *segment.given.lists;
    if (request_.segments.size() == 1 || rows.numbers() || !joins(segment)) {
      groups_.push_back({.segments = {&segment}});
      continue;
    }
    auto lists = rows.packed(segment.integer, prepared, request_.threads, request_.options.progress,
                             report_.prepare_seconds);
    auto group = std::find_if(groups_.begin(), groups_.end(),
                              [&](const Group& each) { return fits(each, prepared, *lists); });
    if (group == groups_.end()) group = groups_.emplace(group, Group{.range = lists->packed.range});
    group->segments.push_back(&segment);
    group->range = united(group->range, lists->packed.range);
    group->packed.push_back(std::move(lists));
    group->second.push_back(second_lists(segment));
    group->rows.add(prepared.base, segment.given.ids);
    at_.enter(segment, 0, prepared.base.rows());
    group->allowed.push_back(at_.allowed());
    group->allowed_count += segment.allowed;
  }
}

std::shared_ptr<const PackedLists> ListSearch::second_lists(const Segment& segment) {
  ListedRows* const second = segment.given.lists->second();
  return second ? second->packed(segment.integer, *segment.given.rows, request_.threads,
                                 request_.options.progress, report_.prepare_seconds)
                : nullptr;
}

std::int64_t ListSearch::block_size(std::int64_t waiting) const {
  if (request_.limited()) waiting = 1;
  const std::int64_t each = bytes_of_query(request_) * std::max<std::int64_t>(1, waiting);
  const std::int64_t room =
      request_.limited() ? request_.options.memory - least_bytes() + each : most_waiting_bytes;
  return std::clamp<std::int64_t>(room / each, 1, most_queries);
}

template <class F>
void ListSearch::each_block(std::int64_t queries, std::int64_t waiting, F f) {
  const std::int64_t size = block_size(waiting);
  for (std::int64_t begin = 0; begin < queries; begin += size)
    f(begin, std::min(queries, begin + size));
}

ScanJob ListSearch::enter(const Segment& segment, AnyMatrixView queries) {
  at_.enter(segment, 0, segment.given.rows->base.rows());
  ScanJob job = at_.job(queries, std::min(request_.k, at_.count));
  job.allowed = at_.allowed();
  if (request_.limited()) job.pending = least_pending(request_.k);
  return job;
}

Progress ListSearch::progress_of(std::int64_t begin, std::int64_t end) const {
  const Progress& whole = request_.options.progress;
  if (!whole) return {};
  const auto all = static_cast<double>(request_.queries.rows());
  return [&whole, all, begin, end](std::string_view stage, double fraction) {
    return whole(stage,
                 (static_cast<double>(begin) + fraction * static_cast<double>(end - begin)) / all);
  };
}

template <class Few, class Many>
void ListSearch::scan_segment(ListedRows& rows, MatrixView<Id> probes, Few few, Many many) {
  const std::int64_t pairs = rows_probed(rows, probes);
  report_.note_probed(pairs);
  if (rows.numbers()) {
    report_.note_pass(FirstPass::direct, 1, pairs);
    return few(rows.measured());
  }
  const auto lists = rows.packed(at_.segment->integer, at_.prepared(), request_.threads,
                                 request_.options.progress, report_.prepare_seconds);
  const FirstPass pass = lists->packed.is_integer ? FirstPass::integer : FirstPass::int8;
  const std::int64_t measured = report_.stats.survivors, scored = many(lists);
  report_.note_pass(pass, 1, scored);
  report_.note_listed(lists->packed, scored);
  // Lists of which a filter leaves little were not scored.
  if (scored == 0) report_.note_pass(FirstPass::direct, 1, report_.stats.survivors - measured);
}

template <class Scan>
void ListSearch::scan_joined(const Group& group, AnyMatrixView queries, MatrixView<Id> probes,
                             Scan scan) {
  ScanJob job = enter(*group.segments.front(), queries);
  job.base = BaseRows(group.rows);
  job.k = std::min(request_.k, group.allowed_count);
  job.allowed = {};
  if (group.allowed_count < group.rows.rows())
    job.allowed = {.joined = &group.rows, .of_parts = group.allowed.data()};
  ListParts lists;
  for (std::size_t i = 0; i < group.packed.size(); ++i) {
    lists.add(*group.packed[i]);
    if (group.second[i])
      lists.add_second(*group.second[i], group.segments[i]->given.lists->first_lists());
  }
  for (const Segment* segment : group.segments)
    report_.note_probed(rows_probed(*segment->given.lists, probes));
  const Coding& coding = group.packed[0]->packed;
  const std::int64_t scored = scan(job, std::move(lists));
  report_.note_pass(coding.is_integer ? FirstPass::integer : FirstPass::int8, 1, scored);
  report_.note_listed(coding, scored);
}

void ListSearch::nearest(MatrixView<Id> probes, ExactNeighbors& found,
                         std::span<const std::int64_t> which) {
  const std::int64_t k = request_.k;
  const bool first = found.columns() == 0;
  if (first) found = nothing_found(request_.queries.rows(), k);
  if (k == 0) return;
  const auto number = [&](std::int64_t q) { return which.empty() ? q : which[q]; };
  join_segments();
  const std::int64_t scans = (repeats_rows_ ? 2 : 1) * std::ssize(groups_);
  each_block(probes.rows(), scans, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t count = end - begin;
    const Progress progress = progress_of(begin, end);
    const MatrixView<Id> theirs = probes.rows(begin, end);
    AnyMatrix some;
    if (!which.empty()) some = copies_of(request_.queries, which.subspan(begin, count));
    const AnyMatrixView queries = which.empty() ? request_.queries.rows(begin, end) : some.view();
    ExactNeighbors best;
    if (!first) {
      best = ExactNeighbors(count, k);
      for (std::int64_t q = 0; q < count; ++q) {
        std::copy_n(found.keys.row(number(begin + q)), k, best.keys.row(q));
        std::copy_n(found.ids.row(number(begin + q)), k, best.ids.row(q));
      }
    }
    BlockAnswer answer(request_, theirs, !request_.limited() && scans > 1, repeats_rows_,
                       std::move(best), report_.stats);
    for (const Group& group : groups_) {
      if (group.joined()) {
        scan_joined(group, queries, theirs, [&](ScanJob& job, ListParts lists) {
          job.upper_bounds = answer.bounds();
          return answer.scan(std::move(lists), {}, job, RowIds{}, progress);
        });
        continue;
      }
      ScanJob job = enter(*group.segments.front(), queries);
      job.upper_bounds = answer.bounds();
      scan_segment(
          *group.segments.front()->given.lists, theirs,
          [&](const RowLists& lists) {
            ExactNeighbors part(count, job.k);
            scan_lists_directly(lists, job, theirs, part, report_.stats, progress);
            answer.add(std::move(part), at_.ids());
          },
          [&](std::shared_ptr<const PackedLists> lists) {
            const Segment& segment = *group.segments.front();
            const std::span<const std::uint32_t> first_lists = segment.given.lists->first_lists();
            const auto second = second_lists(segment);
            ListParts parts(*lists);
            if (!second || joins(segment)) {
              if (second) parts.add_second(*second, first_lists);
              return answer.scan(std::move(parts), {std::move(lists), second}, job, at_.ids(),
                                 progress);
            }
            // A filter is laid out by first lists, and their answer is a bound for the second.
            std::int64_t scored =
                answer.scan(std::move(parts), {std::move(lists)}, job, at_.ids(), progress);
            ListParts others;
            others.add_second(*second, first_lists);
            job.upper_bounds = answer.bounds();
            scored += answer.scan(std::move(others), {second}, job, at_.ids(), progress);
            return scored;
          });
    }
    best = answer.take();
    for (std::int64_t q = 0; q < count; ++q) {
      std::copy_n(best.keys.row(q), best.columns(), found.keys.row(number(begin + q)));
      std::copy_n(best.ids.row(q), best.columns(), found.ids.row(number(begin + q)));
    }
  });
}

void ListSearch::within(MatrixView<Id> probes, double limit, RangeLists& found) {
  const std::int64_t memory = request_.limited() ? request_.options.memory : machine_memory();
  std::vector<std::int64_t> which;
  each_block(
      probes.rows(), std::ssize(request_.segments), [&](std::int64_t begin, std::int64_t end) {
        which.resize(end - begin);
        std::iota(which.begin(), which.end(), begin);
        const Progress progress = progress_of(begin, end);
        const MatrixView<Id> theirs = probes.rows(begin, end);
        for (const Segment& segment : request_.segments) {
          const ScanJob job = enter(segment, request_.queries.rows(begin, end));
          RangeSink sink(found, at_.ids(), std::max<std::int64_t>(0, (memory - least_bytes()) / 64),
                         which);
          scan_segment(
              *segment.given.lists, theirs,
              [&](const RowLists& lists) {
                scan_lists_range_directly(lists, job, theirs, limit, sink, report_.stats, progress);
              },
              [&](const std::shared_ptr<const PackedLists>& lists) {
                std::int64_t scored =
                    scan_lists_range(*lists, job, theirs, limit, sink, report_.stats, progress);
                if (const auto second = second_lists(segment)) {
                  ListParts others;
                  others.add_second(*second, segment.given.lists->first_lists());
                  scored +=
                      scan_lists_range(others, job, theirs, limit, sink, report_.stats, progress);
                }
                return scored;
              });
        }
      });
  for (const auto& list : found) report_.note_answer(64 * std::ssize(list));
}

KnnReport ListSearch::report() { return report_.report(at_); }

}  // namespace knear::detail
