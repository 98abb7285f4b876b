#include "knear/knn/list_search.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/knn/listed_rows.hpp"
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

// Rows, or places for rows, of the lists that queries probe.
std::int64_t rows_probed(const ListedRows& rows, MatrixView<Id> probes) {
  const RowLists* numbers = rows.numbers();
  const auto packed = rows.first_form();
  std::int64_t sum = 0;
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

}  // namespace

void check_list_options(const KnnOptions& options, std::string_view lists) {
  const std::string search = fmt::format("a search of {}", lists);
  check_processor(options, search);
  check_exact(options, search);
  if (options.first_pass != FirstPass::automatic)
    throw InvalidArgument("first_pass is {}, but {} have none to choose",
                          name_of(options.first_pass), lists);
  const TuningOverrides& choices = options.tuning;
  if (choices.group || choices.parts || choices.columns || choices.clusters || choices.tile ||
      !choices.guess || choices.refine)
    throw InvalidArgument("choices are for a scan of all rows, and {} have none", lists);
}

ListSearch::ListSearch(const SearchRequest& request, std::int64_t more_bytes)
    : request_(request), more_bytes_(more_bytes), at_(request, nullptr) {
  check_list_options(request.options, "inverted lists");
  check_memory();
}

void ListSearch::check_memory() const {
  if (!request_.limited()) return;
  // The answer of all queries, and what a block of one needs.
  const std::int64_t least = least_bytes();
  if (request_.options.memory < least)
    throw MemoryBudgetError(
        "memory is {} bytes, but this search needs at least {} ({} queries, k = {}, {} columns)",
        request_.options.memory, least, request_.queries.rows(), request_.k_asked,
        request_.queries.cols());
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

std::int64_t ListSearch::block_size() const {
  const std::int64_t each = bytes_of_query(request_);
  const std::int64_t room =
      request_.limited() ? request_.options.memory - least_bytes() + each : most_waiting_bytes;
  return std::clamp<std::int64_t>(room / each, 1, most_queries);
}

template <class F>
void ListSearch::each_block(std::int64_t queries, F f) {
  const std::int64_t size = block_size();
  for (std::int64_t begin = 0; begin < queries; begin += size)
    f(begin, std::min(queries, begin + size));
}

template <class F>
void ListSearch::each_segment(AnyMatrixView queries, F f) {
  for (const SearchRequest::Segment& segment : request_.segments) {
    at_.enter(segment, 0, segment.given.rows->base.rows());
    ScanJob job = at_.job(queries, std::min(request_.k, at_.count));
    job.allowed = at_.allowed();
    if (request_.limited()) job.pending = least_pending(request_.k);
    f(job, *segment.given.lists);
  }
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
  pairs_ += pairs;
  if (const RowLists* numbers = rows.numbers()) {
    report_.note_pass(FirstPass::direct, 1, pairs);
    return few(*numbers);
  }
  const auto lists = rows.packed(at_.segment->integer, at_.prepared(), request_.threads,
                                 request_.options.progress, report_.prepare_seconds);
  const FirstPass pass = lists->packed.is_integer ? FirstPass::integer : FirstPass::int8;
  const std::int64_t measured = report_.stats.survivors, scored = many(*lists);
  report_.note_pass(pass, 1, scored);
  report_.note_listed(lists->packed, scored);
  // Lists of which a filter leaves little were not scored.
  if (scored == 0) report_.note_pass(FirstPass::direct, 1, report_.stats.survivors - measured);
}

void ListSearch::nearest(MatrixView<Id> probes, ExactNeighbors& found,
                         std::span<const std::int64_t> which) {
  const std::int64_t k = request_.k;
  const bool first = found.columns() == 0;
  if (first) {
    found = ExactNeighbors(request_.queries.rows(), k);
    std::fill_n(found.keys.data(), found.keys.rows() * k, infinity);
    std::fill_n(found.ids.data(), found.ids.rows() * k, no_id);
  }
  if (k == 0) return;
  const auto number = [&](std::int64_t q) {
    return which.empty() ? q : which[static_cast<std::size_t>(q)];
  };
  each_block(probes.rows(), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t count = end - begin;
    const Progress progress = progress_of(begin, end);
    const MatrixView<Id> theirs = probes.rows(begin, end);
    AnyMatrix some;
    if (!which.empty())
      some = copies_of(request_.queries, which.subspan(static_cast<std::size_t>(begin),
                                                       static_cast<std::size_t>(count)));
    const AnyMatrixView queries = which.empty() ? request_.queries.rows(begin, end) : some.view();
    ExactNeighbors best;
    if (!first) {
      best = ExactNeighbors(count, k);
      for (std::int64_t q = 0; q < count; ++q) {
        std::copy_n(found.keys.row(number(begin + q)), k, best.keys.row(q));
        std::copy_n(found.ids.row(number(begin + q)), k, best.ids.row(q));
      }
    }
    std::vector<double> bounds;
    each_segment(queries, [&](ScanJob& job, ListedRows& rows) {
      if (best.columns() == k) {
        bounds.resize(static_cast<std::size_t>(count));
        for (std::int64_t q = 0; q < count; ++q)
          bounds[static_cast<std::size_t>(q)] = best.keys.row(q)[k - 1];
        job.upper_bounds = bounds.data();
      }
      ExactNeighbors part(count, job.k);
      scan_segment(
          rows, theirs,
          [&](const RowLists& lists) {
            scan_lists_directly(lists, job, theirs, part, report_.stats, progress);
          },
          [&](const PackedLists& lists) {
            return scan_lists(lists, job, theirs, part, report_.stats, progress);
          });
      const RowIds ids = at_.ids();
      for (Id* id = part.ids.data(); id != part.ids.data() + count * job.k; ++id)
        if (*id != no_id) *id = ids(*id);
      if (best.columns() == 0)
        best = std::move(part);
      else
        merge(best, part, k, request_.threads);
    });
    for (std::int64_t q = 0; q < count; ++q) {
      std::copy_n(best.keys.row(q), best.columns(), found.keys.row(number(begin + q)));
      std::copy_n(best.ids.row(q), best.columns(), found.ids.row(number(begin + q)));
    }
  });
}

void ListSearch::within(MatrixView<Id> probes, double limit, RangeLists& found) {
  const std::int64_t memory = request_.limited() ? request_.options.memory : machine_memory();
  std::vector<std::int64_t> which;
  each_block(probes.rows(), [&](std::int64_t begin, std::int64_t end) {
    which.resize(static_cast<std::size_t>(end - begin));
    std::iota(which.begin(), which.end(), begin);
    const Progress progress = progress_of(begin, end);
    const MatrixView<Id> theirs = probes.rows(begin, end);
    each_segment(request_.queries.rows(begin, end), [&](ScanJob& job, ListedRows& rows) {
      RangeSink sink(found, at_.ids(), std::max<std::int64_t>(0, (memory - least_bytes()) / 64),
                     which);
      scan_segment(
          rows, theirs,
          [&](const RowLists& lists) {
            scan_lists_range_directly(lists, job, theirs, limit, sink, report_.stats, progress);
          },
          [&](const PackedLists& lists) {
            return scan_lists_range(lists, job, theirs, limit, sink, report_.stats, progress);
          });
    });
  });
}

KnnReport ListSearch::report() {
  report_.learns = false;
  KnnReport out = report_.report(at_, time_.seconds());
  out.probed_rows = static_cast<double>(pairs_) /
                    static_cast<double>(std::max<std::int64_t>(1, request_.queries.rows()));
  out.first_pass = pairs_ > 0 ? out.first_pass : std::string(name_of(FirstPass::direct));
  return out;
}

}  // namespace knear::detail
