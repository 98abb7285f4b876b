#include "knear/index/lists/code_search.hpp"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/knn/device/open_device.hpp"
#include "knear/knn/search/device_engine.hpp"
#include "knear/scan/work_table.hpp"

namespace knear::detail {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t usual_scan_bytes = std::int64_t{1} << 28;
// Queries whose codes found are merged with those found before, together, where memory is limited.
constexpr std::int64_t most_merged = 1024;

}  // namespace

SearchRequest request_of_codes(SearchKind kind, const State& state,
                               std::span<const SearchSegment> segments, AnyMatrixView queries,
                               std::int64_t k, const KnnOptions& options) {
  SearchRequest request(kind, {}, queries, k, options, Reuse::expected);
  for (std::size_t s = 0; s < segments.size(); ++s)
    request.allowed_rows += segments[s].allowed_between(0, state.segments[s].rows->rows());
  request.counts_rows = std::none_of(segments.begin(), segments.end(),
                                     [](const SearchSegment& s) { return s.allowed_ids; });
  request.rows = state.size;
  request.k = std::min(request.k_asked, request.allowed_rows);
  return request;
}

CodeSearch::CodeSearch(const State& state, const SearchRequest& request,
                       std::span<const SearchSegment> segments, AnyMatrixView vectors,
                       std::int64_t refine_factor, std::int64_t more_bytes)
    : state_(state),
      request_(request),
      vectors_(vectors),
      refine_factor_(refine_factor),
      measured_codes_(request.k * refine_factor),
      device_(open_code_search(request.options)),
      at_(request, nullptr) {
  if (device_ && state.coder->code_size() != state.coder->book().code_size())
    throw InvalidArgument("device is '{}', but codes {} are scanned by processors alone",
                          request.options.device, state.coder->shape().name());
  report_.learns = false, report_.only_pass = "codes";
  report_.method = state.coarse ? "inverted-lists" : "codes";
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const SearchSegment& given = segments[s];
    const std::int64_t rows = state.segments[s].rows->rows();
    CodeSegment segment{state.segments[s].rows->coded().lists.get(), given.ids, {}};
    if (given.allowed_between(0, rows) == 0) continue;
    if (given.live)
      segment.allowed.live = given.live;
    else if (!given.filter.everything())
      segment.allowed.filter = &given.filter, segment.allowed.offset = given.filter_offset;
    segment.allowed_ids = given.allowed_ids;
    segments_.push_back(segment), numbers_.push_back(static_cast<std::uint32_t>(s));
    // What the device keeps has the ids of the rows themselves.
    const CodedRows& coded = state.segments[s].rows->coded();
    device_segments_.push_back(
        {segment, given.ids.ids == coded.ids.data() ? coded.device_copies.get() : nullptr,
         given.shard, given.shards});
  }
  if (!request.limited()) return;
  // What is found by codes, twice where queries are searched a part at a time; what is measured,
  // and as it is returned. A range search takes memory as it finds rows.
  const std::int64_t k = found_by_codes();
  constexpr auto row_bytes = static_cast<std::int64_t>(sizeof(CodedNeighbors::Row));
  const std::int64_t queries = request.queries.rows();
  kept_bytes_ = more_bytes + queries * 64;
  if (request.kind == SearchKind::nearest)
    kept_bytes_ += queries * (k * row_bytes + request.k * 16 + request.k_asked * 12) +
                   std::min(queries, most_merged) * k * row_bytes;
  const std::int64_t least =
      kept_bytes_ + request.threads * bytes_of_coded_query(state.coder->book(), k);
  if (request.options.memory < least)
    throw MemoryBudgetError(
        "memory is {} bytes, but this search needs at least {} ({} queries, k = {}, {} columns)",
        request.options.memory, enough_memory(least, more_bytes), request.queries.rows(),
        request.k_asked, request.queries.cols());
}

// Measures rows of segments by their vectors, from one query after another.
class CodeSearch::Refiner {
 public:
  explicit Refiner(const CodeSearch& of)
      : of_(of),
        refiner_(of.state_.refiner.get()),
        distance_(of.request_.options.metric,
                  refiner_ ? ElementType::f32 : of.state_.type.value_or(ElementType::f32),
                  of.request_.isa),
        decoded_(refiner_ ? together * of.vectors_.cols() : 0) {}

  struct Place {
    std::size_t segment;  // of the state
    std::int64_t row;
  };

  // Measures rows that were found by their codes for some queries after another: rows[i] of query
  // queries[i]. Calls answer(query, rows with keys and ids), which may put them in another order.
  template <class RowsOf, class Answer>
  void measure(std::span<const std::int64_t> queries, RowsOf rows_of_query, Answer answer) {
    places_.clear(), rows_.clear(), ends_.clear();
    for (const std::int64_t q : queries) {
      for (const CodedNeighbors::Row& row : rows_of_query(q)) {
        if (row.id == no_id) continue;
        places_.push_back({of_.numbers_[row.segment], row.row});
        rows_.emplace_back(0, row.id);
      }
      ends_.push_back(std::ssize(rows_));
    }
    // Rows lie anywhere in memory: it is asked for them well before they are measured.
    const std::int64_t count = std::ssize(rows_);
    std::int64_t asked = 0, first = 0;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      distance_.set_query(of_.vectors_, queries[i]);
      for (std::int64_t from = first; from < ends_[i]; from += together) {
        for (; asked < std::min(count, from + ahead); ++asked) prefetch(places_[asked]);
        const std::int64_t some = std::min(ends_[i] - from, together);
        double keys[together];
        measure(places_.data() + from, some, keys);
        for (std::int64_t j = 0; j < some; ++j) rows_[from + j].first = keys[j];
      }
      answer(queries[i], std::span(rows_).subspan(first, ends_[i] - first));
      first = ends_[i];
    }
  }

  // Adds the rows of lists that are no farther than `limit` from a query; returns how many were
  // measured.
  std::int64_t within(std::int64_t query, std::span<const Id> lists, double limit, RangeSink& sink,
                      std::vector<std::pair<double, Id>>& found) {
    std::int64_t measured = 0;
    distance_.set_query(of_.vectors_, query);
    const auto measure_places = [&] {
      double keys[together];
      const std::int64_t count = std::ssize(places_);
      measured += count;
      measure(places_.data(), count, keys);
      for (std::int64_t i = 0; i < count; ++i) {
        if (!(keys[i] <= limit)) continue;
        sink.count(1);
        const Place& place = places_[i];
        found.emplace_back(keys[i], of_.state_.segments[place.segment].rows->ids()(place.row));
      }
      places_.clear();
    };
    places_.clear();
    for (const Id list : lists)
      for (std::size_t s = 0; list != no_id && s < of_.segments_.size(); ++s) {
        const auto [begin, end] = of_.segments_[s].lists->rows_of(list);
        for (std::int64_t row = begin; row < end; ++row) {
          if (!of_.segments_[s].allowed(row)) continue;
          places_.push_back({of_.numbers_[s], row});
          if (std::ssize(places_) == together) measure_places();
        }
      }
    measure_places();
    return measured;
  }

 private:
  static constexpr std::int64_t together = ExactDistance::most_rows, ahead = 24;

  void prefetch(Place place) const {
    const BaseRows rows = rows_of(place.segment);
    rows.prefetch(place.row, std::min<std::int64_t>(512, rows.row_bytes()));
  }
  // Keys of up to `together` rows.
  void measure(const Place* places, std::int64_t count, double* out) {
    const void* measured[together] = {};
    for (std::int64_t i = 0; i < count; ++i)
      measured[i] = rows_of(places[i].segment).row(places[i].row, nullptr);
    if (refiner_) {
      const std::uint8_t* codes[together] = {};
      for (std::int64_t i = 0; i < count; ++i) {
        codes[i] = static_cast<const std::uint8_t*>(measured[i]);
        measured[i] = decoded_.data() + i * of_.vectors_.cols();
      }
      refiner_->decode({codes, static_cast<std::size_t>(count)}, decoded_.data());
    }
    distance_.keys(measured, static_cast<int>(count), out);
  }
  BaseRows rows_of(std::size_t segment) const {
    const CodedRows& coded = of_.state_.segments[segment].rows->coded();
    return {coded.vectors, coded.guard.get()};
  }

  const CodeSearch& of_;
  const RowCoder* const refiner_;
  ExactDistance distance_;
  std::vector<float> decoded_;
  std::vector<Place> places_;
  std::vector<std::pair<double, Id>> rows_;
  std::vector<std::int64_t> ends_;  // of those of each query
};

CodeScanJob CodeSearch::job_of(AnyMatrixView queries, std::int64_t k) const {
  const RowCoder& coder = *state_.coder;
  return {
      .book = &coder.book(),
      .metric = request_.options.metric,
      .squared = coder.squared(),
      .prepare = [&coder, queries](std::int64_t q, double* out) { coder.prepare(queries, q, out); },
      .k = k,
      .threads = request_.threads,
      .isa = request_.isa,
      .memory = request_.limited() ? request_.options.memory - kept_bytes_ : usual_scan_bytes,
      .vectors = coder.vectors()};
}

std::int64_t CodeSearch::rows_probed(MatrixView<Id> probes) const {
  // Of many probes the lists' rows are counted once, by list.
  std::int64_t lists = 0, sum = 0;
  for (const CodeSegment& segment : segments_)
    if (segment.lists->rows() > 0)
      lists = std::max<std::int64_t>(lists, std::int64_t{segment.lists->lists().back()} + 1);
  const auto rows_of = [&](Id list) {
    std::int64_t rows = 0;
    for (const CodeSegment& segment : segments_) {
      const auto [begin, end] = segment.lists->rows_of(list);
      rows += end - begin;
    }
    return rows;
  };
  std::vector<std::int64_t> rows;
  if (probes.rows() * probes.cols() > lists)
    for (Id list = 0; list < lists; ++list) rows.push_back(rows_of(list));
  for (std::int64_t q = 0; q < probes.rows(); ++q) {
    if (q % 1024 == 0) stop_if_asked();
    for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
      const Id list = probes.row(q)[p];
      if (rows.empty())
        sum += rows_of(list);
      else if (list < lists)
        sum += rows[list];
    }
  }
  return sum;
}

void CodeSearch::scan(const CodeScanJob& job, const CodeProbes& probes, CodedNeighbors& out) {
  if (device_) {
    try {
      device_->scan(device_segments_, job, probes, out, request_.options.progress);
      report_.note_device(device_->most_bytes(), 0);
      return;
    } catch (const MemoryBudgetError&) {
      report_.note_fallback(probes.lists.rows());
    }
  }
  scan_codes(segments_, job, probes, out, report_.stats, request_.options.progress);
}

void CodeSearch::nearest(MatrixView<Id> probes, ExactNeighbors& found,
                         std::span<const std::int64_t> which) {
  const std::int64_t k = request_.k, queries = request_.queries.rows();
  const bool first = found.columns() == 0;
  if (first) {
    found = ExactNeighbors(queries, k);
    std::fill_n(found.keys.data(), queries * k, infinity);
    std::fill_n(found.ids.data(), queries * k, no_id);
    rough_ = CodedNeighbors(queries, found_by_codes());
  }
  if (k == 0) return;
  const bool alone = first && which.empty();
  if (request_.limited() && !alone && probes.rows() > most_merged) {
    std::vector<std::int64_t> all;
    if (which.empty()) {
      all.resize(queries);
      std::iota(all.begin(), all.end(), std::int64_t{0});
      which = all;
    }
    for (std::int64_t begin = 0; begin < probes.rows(); begin += most_merged) {
      const std::int64_t end = std::min(probes.rows(), begin + most_merged);
      nearest(probes.rows(begin, end), found, which.subspan(begin, end - begin));
    }
    return;
  }
  report_.note_probed(rows_probed(probes));
  const auto number = [&](std::int64_t q) { return which.empty() ? q : which[q]; };
  AnyMatrix some;
  if (!which.empty()) some = copies_of(request_.queries, which);
  const AnyMatrixView asked = which.empty() ? request_.queries : some.view();
  const Matrix<float> terms =
      state_.coder->terms(asked, probes, request_.threads, request_.options.progress);
  CodeScanJob job = job_of(asked, rough_.k);
  job.ordered = !refined();  // measuring puts them in order
  std::vector<double> bounds;
  if (!first) {
    for (std::int64_t q = 0; q < asked.rows(); ++q) {
      double most = -infinity;
      for (const CodedNeighbors::Row& row : rough_.of(number(q)))
        most = std::max<double>(most, row.key);
      bounds.push_back(most);
    }
    job.upper_bounds = bounds.data();
  }
  CodedNeighbors part;
  if (!alone) part = CodedNeighbors(asked.rows(), rough_.k);
  scan(job, {probes, terms.view()}, alone ? rough_ : part);
  // Queries of one list after another: its rows, which many of them have measured, lie together.
  const std::vector<std::int64_t> order = by_first_list(probes);
  constexpr std::int64_t together = 64;
  const std::int64_t tasks = (asked.rows() + together - 1) / together;
  Reporter reporter(request_.options.progress, refined() ? "measure rows" : "gather", tasks);
  parallel_for(request_.threads, tasks, [&](std::int64_t task) {
    std::vector<std::int64_t> numbers;
    for (std::int64_t i = task * together; i < std::min(asked.rows(), (task + 1) * together); ++i) {
      const std::int64_t q = order[i];
      numbers.push_back(number(q));
      if (!alone) merge_rows(rough_.of(numbers.back()), part.of(q), job.ordered);
      if (!refined()) answer_by_codes(numbers.back(), found);
    }
    if (refined())
      Refiner(*this).measure(
          numbers, [&](std::int64_t q) { return rough_.of(q); },
          [&](std::int64_t q, std::span<std::pair<double, Id>> rows) { answer(q, rows, found); });
    reporter.add(1);
  });
  if (refined()) report_.stats.refined += asked.rows() * rough_.k;
}

void CodeSearch::answer_by_codes(std::int64_t q, ExactNeighbors& found) {
  const std::span<const CodedNeighbors::Row> rough = rough_.of(q);
  for (std::int64_t i = 0; i < request_.k; ++i) {
    const CodedNeighbors::Row& row = rough[i];
    found.keys.row(q)[i] = row.id == no_id ? infinity : row.key;
    found.ids.row(q)[i] = row.id;
  }
}

void CodeSearch::answer(std::int64_t q, std::span<std::pair<double, Id>> rows,
                        ExactNeighbors& found) {
  const std::int64_t count = std::min(request_.k, std::ssize(rows));
  std::partial_sort(rows.begin(), rows.begin() + count, rows.end());
  for (std::int64_t i = 0; i < request_.k; ++i) {
    const std::size_t at = i;
    found.keys.row(q)[i] = i < count ? rows[at].first : infinity;
    found.ids.row(q)[i] = i < count ? rows[at].second : no_id;
  }
}

void CodeSearch::within(MatrixView<Id> probes, double limit, RangeLists& found) {
  const std::int64_t memory = request_.limited() ? request_.options.memory : machine_memory();
  report_.note_probed(rows_probed(probes));
  RangeSink sink(found, RowIds{}, std::max<std::int64_t>(0, memory / 64));
  if (refined()) {
    // Codes do not say how far off they are, so that all rows are measured.
    std::atomic<std::int64_t> measured = 0;
    Reporter reporter(request_.options.progress, "scan", probes.rows());
    parallel_for(request_.threads, probes.rows(), [&](std::int64_t q) {
      RangeLists list(1);
      measured += Refiner(*this).within(q, {probes.row(q), static_cast<std::size_t>(probes.cols())},
                                        limit, sink, list[0]);
      sink.take({&q, 1}, list);
      reporter.add(1);
    });
    report_.stats.refined += measured;
    note_answer(found);
    return;
  }
  const Matrix<float> terms =
      state_.coder->terms(request_.queries, probes, request_.threads, request_.options.progress);
  scan_codes_range(segments_, job_of(request_.queries, 1), {probes, terms.view()}, limit, sink,
                   report_.stats, request_.options.progress);
  note_answer(found);
}

KnnReport CodeSearch::report() {
  report_.on_device = device_ != nullptr;
  KnnReport out = report_.report(at_);
  out.codes = {state_.coder->book().parts(), state_.coder->book().bits(),
               state_.refiner != nullptr};
  if (device_) out.shards.replicas = device_->replicas();
  return out;
}

}  // namespace knear::detail
