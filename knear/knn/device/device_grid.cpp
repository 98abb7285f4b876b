#include "knear/knn/device/device_grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/knn/device/present_devices.hpp"
#include "knear/knn/search/joined_reports.hpp"
#include "knear/knn/search/nearest_search.hpp"
#include "knear/knn/search/range_search.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search.hpp"

namespace knear::detail {
namespace {

// The queries that a block of the scan on a GPU holds (scan/device/scan_launches.hpp): fewer take
// as long.
constexpr std::int64_t block_of_queries = 128;

// How fast GPUs are is a property of them, not of what is searched. Kept until the process ends.
ReplicaSpeeds& speeds_of(const Devices& devices, std::int64_t replicas) {
  static std::mutex mutex;
  static std::map<std::pair<std::vector<int>, std::int64_t>, std::unique_ptr<ReplicaSpeeds>> all;
  const std::lock_guard lock(mutex);
  auto& speeds = all[{devices.gpus, replicas}];
  if (!speeds) speeds = std::make_unique<ReplicaSpeeds>(replicas);
  return *speeds;
}

std::int64_t replicas_on(const Devices& devices, std::int64_t shards) {
  const auto gpus = std::ssize(devices.gpus);
  if (gpus > shards && gpus % shards != 0)
    throw InvalidArgument(
        "device is {}, {} GPUs, but the index has {} shards: up to {} have a share of the rows "
        "each, and a multiple of {} replicas of all",
        words_of(devices), gpus, shards, shards, shards);
  return std::max<std::int64_t>(1, gpus / shards);
}

std::int64_t shards_of(const SearchRequest& request) {
  return request.segments.empty() ? 1 : request.segments.front().given.shards;
}

// The rows of a column.
std::vector<SearchSegment> segments_of(const SearchRequest& request, const DeviceGrid& grid,
                                       std::int64_t column) {
  std::vector<SearchSegment> out;
  for (const SearchRequest::Segment& segment : request.segments)
    if (grid.column_of(segment.given.shard) == column) out.push_back(segment.given);
  return out;
}

// What one GPU is asked for: some of the queries, among the rows of its column.
SearchRequest request_of_part(const SearchRequest& request, const DeviceGrid& grid,
                              std::int64_t replica, std::int64_t column, std::int64_t begin,
                              std::int64_t end, Progress progress) {
  SearchRequest out = request.among(segments_of(request, grid, column),
                                    request.queries.rows(begin, end), request.k_asked);
  if (request.kind == SearchKind::range) out.kind = SearchKind::range;
  out.options.device = fmt::format("cuda:{}", grid.gpu(replica, column));
  out.options.progress = std::move(progress);
  const std::int64_t parts = grid.size();
  out.threads = out.options.threads =
      std::max(1, request.threads / static_cast<int>(std::min<std::int64_t>(parts, 4096)));
  if (request.limited())
    out.options.memory = std::max<std::int64_t>(1, request.options.memory / parts);
  return out;
}

// Of a search of all rows.
template <class Found>
struct Part {
  SearchRequest request;
  std::int64_t replica, begin;
  std::unique_ptr<DeviceEngine> engine;
  Found found = {};
  KnnReport report = {};
  double seconds = 0;
};

// Parts with something to do, and at least one, replica by replica; all of it run by
// run(part), which fills `found` and `report`.
template <class Found, class Run>
std::vector<Part<Found>> searched(const DeviceGrid& grid, const std::vector<std::int64_t>& begin,
                                  const SearchRequest& request, Run run) {
  SharedProgress progress(request.options.progress, grid.size());
  std::vector<Part<Found>> parts;
  for (std::int64_t r = 0; r < grid.replicas(); ++r)
    for (std::int64_t c = 0; c < grid.columns(); ++c) {
      const std::int64_t from = begin[r], to = begin[r + 1];
      const bool last = parts.empty() && r + 1 == grid.replicas() && c + 1 == grid.columns();
      if (from == to && !last) continue;
      SearchRequest some =
          request_of_part(request, grid, r, c, from, to, progress.of(r * grid.columns() + c));
      if (some.segments.empty() && !last) continue;
      auto engine = device_maker()->engine(grid.gpu(r, c), some.options.memory);
      parts.push_back({std::move(some), r, from, std::move(engine)});
    }
  run_parts(request.threads, std::ssize(parts), [&](std::int64_t i) {
    Part<Found>& part = parts[i];
    const Stopwatch time;
    run(part);
    // What was sent there now stays, or is sent again by all.
    part.seconds = time.seconds() - part.report.prepare_seconds;
  });
  std::vector<double> seconds(grid.replicas());
  for (const Part<Found>& part : parts) {
    double& longest = seconds[part.replica];
    longest = std::max(longest, part.seconds);
  }
  grid.note(begin, seconds);
  return parts;
}

// merge_bytes: what putting the answers together took.
template <class Found>
KnnReport report_of(const std::vector<Part<Found>>& parts, const SearchRequest& request,
                    std::int64_t merge_bytes, double merge_seconds) {
  const std::int64_t queries = request.queries.rows();
  KnnReport out;
  bool told = true;
  std::int64_t replicas = 0;
  for (std::size_t i = 0; i < parts.size();) {
    KnnReport of_replica = parts[i].report;
    const std::int64_t begin = parts[i].begin, replica = parts[i].replica;
    while (++i < parts.size() && parts[i].replica == replica)
      add_shard(of_replica, parts[i].report);
    told &= tells_certified(of_replica);
    if (replicas++ == 0)
      out = queries > 0 ? begin_queries(of_replica, queries) : of_replica;
    else
      add_queries(out, of_replica, begin, queries);
  }
  if (!told) out.promise.certified_queries = 0, out.promise.uncertified.clear();
  set_request(out, request);
  out.memory_bytes += merge_bytes;
  out.shards.replicas = replicas, out.shards.merge_seconds = merge_seconds;
  out.device.name = request.options.device;
  return out;
}

}  // namespace

DeviceGrid::DeviceGrid(Devices devices, std::int64_t shards)
    : devices_(std::move(devices)),
      columns_(std::min(shards, std::ssize(devices_.gpus))),
      replicas_(replicas_on(devices_, shards)),
      speeds_(speeds_of(devices_, replicas_)) {}

std::vector<std::int64_t> DeviceGrid::split(std::int64_t queries) const {
  const std::int64_t used = std::clamp<std::int64_t>(queries / block_of_queries, 1, replicas_);
  // By speed, or, where whose turn it is decides which they are, evenly.
  std::vector<std::int64_t> begin{0};
  if (used == replicas_) begin = speeds_.split(queries, used);
  for (std::int64_t r = 1; used < replicas_ && r <= used; ++r) begin.push_back(queries * r / used);
  // Whole blocks, one at least.
  for (std::int64_t r = 1; r < used; ++r) {
    const std::size_t at = r;
    const std::int64_t whole =
        (begin[at] + block_of_queries / 2) / block_of_queries * block_of_queries;
    begin[at] = std::clamp(whole, begin[at - 1] + block_of_queries,
                           queries - (used - r) * block_of_queries);
  }
  if (used == replicas_) return begin;
  static std::atomic<std::uint64_t> turn = 0;
  const auto first =
      static_cast<std::int64_t>(turn++ % static_cast<std::uint64_t>(replicas_ - used + 1));
  std::vector<std::int64_t> out(first, 0);
  out.insert(out.end(), begin.begin(), begin.end());
  out.resize(replicas_ + 1, queries);
  return out;
}

void DeviceGrid::note(const std::vector<std::int64_t>& begin,
                      const std::vector<double>& seconds) const {
  if (replicas_ > 1) speeds_.note(begin, seconds);
}

void run_parts(int threads, std::int64_t parts, const std::function<void(std::int64_t)>& body) {
  if (parts == 1) return body(0);
  const int workers = static_cast<int>(std::min<std::int64_t>(std::max(1, threads), parts));
  if (workers == 1) {
    for (std::int64_t part = 0; part < parts; ++part) body(part);
    return;
  }
  run_together(workers, [&](int worker) {
    for (std::int64_t part = worker; part < parts; part += workers) body(part);
  });
}

ExactNeighbors nearest_on_several(const Devices& devices, const SearchRequest& request,
                                  ExactNeighbors found, KnnReport* report) {
  const DeviceGrid grid(devices, shards_of(request));
  const std::int64_t queries = request.queries.rows();
  const std::vector<std::int64_t> begin = grid.split(queries);
  auto parts = searched<ExactNeighbors>(grid, begin, request, [&](Part<ExactNeighbors>& part) {
    if (request.kind != SearchKind::blocks) {
      part.found = nearest_on(part.engine.get(), part.request, &part.report);
      return;
    }
    // A block of rows, which are one shard: on from what was found before.
    const std::int64_t some = part.request.queries.rows(), before = found.columns();
    if (before > 0) {
      part.found = ExactNeighbors(some, before);
      std::copy_n(found.keys.row(part.begin), some * before, part.found.keys.data());
      std::copy_n(found.ids.row(part.begin), some * before, part.found.ids.data());
    }
    part.request.merge_with(before);
    Search search(part.request, part.engine.get());
    search.run_from(part.found);
    part.report = search.report();
  });
  // The columns of a replica, one into the other; then replicas behind one another.
  const Stopwatch merging;
  ExactNeighbors all;
  for (std::size_t i = 0; i < parts.size();) {
    ExactNeighbors near = std::move(parts[i].found);
    const std::int64_t first = parts[i].begin, replica = parts[i].replica,
                       some = parts[i].request.queries.rows();
    while (++i < parts.size() && parts[i].replica == replica) {
      if (near.columns() == 0)
        near = std::move(parts[i].found);
      else if (parts[i].found.columns() > 0)
        merge(near, parts[i].found, request.k, request.threads);
    }
    if (some == queries) {
      all = std::move(near);
      continue;
    }
    const std::int64_t columns = near.columns();
    if (all.columns() == 0) all = ExactNeighbors(queries, columns);
    if (columns == 0) continue;
    std::copy_n(near.keys.data(), some * columns, all.keys.row(first));
    std::copy_n(near.ids.data(), some * columns, all.ids.row(first));
  }
  if (report)
    *report =
        report_of(parts, request, parts.size() > 1 ? queries * request.k * 16 * grid.columns() : 0,
                  grid.columns() > 1 ? merging.seconds() : 0);
  return all;
}

RangeLists within_on_several(const Devices& devices, const SearchRequest& request, double radius,
                             KnnReport* report) {
  const DeviceGrid grid(devices, shards_of(request));
  const std::vector<std::int64_t> begin = grid.split(request.queries.rows());
  auto parts = searched<RangeLists>(grid, begin, request, [&](Part<RangeLists>& part) {
    part.found = within_on(part.engine.get(), part.request, radius, &part.report);
  });
  RangeLists all(request.queries.rows());
  for (Part<RangeLists>& part : parts)
    for (std::size_t q = 0; q < part.found.size(); ++q) {
      auto& to = all[static_cast<std::size_t>(part.begin) + q];
      if (to.empty())
        to = std::move(part.found[q]);
      else
        to.insert(to.end(), part.found[q].begin(), part.found[q].end());
    }
  if (report) *report = report_of(parts, request, 0, 0);
  return all;
}

struct DividedListSearch::Part {
  SearchRequest request;  // of all queries
  std::int64_t replica, column;
  std::unique_ptr<ProbedSearch> search;
};

DividedListSearch::DividedListSearch(const SearchRequest& request, const Devices& devices,
                                     std::int64_t more_bytes)
    : request_(request),
      grid_(devices, shards_of(request)),
      progress_(std::make_unique<SharedProgress>(request.options.progress, grid_.size())) {
  for (std::int64_t r = 0; r < grid_.replicas(); ++r)
    for (std::int64_t c = 0; c < grid_.columns(); ++c) {
      auto part = std::make_unique<Part>(
          Part{request_of_part(request, grid_, r, c, 0, request.queries.rows(),
                               progress_->of(r * grid_.columns() + c)),
               r, c, nullptr});
      part->search =
          device_maker()->list_search(grid_.gpu(r, c), part->request, more_bytes / grid_.size());
      parts_.push_back(std::move(part));
    }
  if (grid_.columns() == 1) return;
  for (std::int64_t c = 0; c < grid_.columns(); ++c)
    found_.push_back(nothing_found(request.queries.rows(), parts_[c]->request.k));
}

DividedListSearch::~DividedListSearch() = default;

void DividedListSearch::nearest(MatrixView<Id> probes, ExactNeighbors& found,
                                std::span<const std::int64_t> which) {
  const std::int64_t k = request_.k, count = probes.rows();
  if (found.columns() == 0) found = nothing_found(request_.queries.rows(), k);
  if (k == 0 || count == 0) return;
  std::vector<std::int64_t> all;
  if (which.empty()) {
    all.resize(count);
    std::iota(all.begin(), all.end(), 0);
    which = all;
  }
  const std::vector<std::int64_t> begin = grid_.split(count);
  std::vector<double> seconds(grid_.size());
  run_parts(request_.threads, grid_.size(), [&](std::int64_t i) {
    Part& part = *parts_[i];
    const std::int64_t first = begin[part.replica], some = begin[part.replica + 1] - first;
    if (some == 0 || part.request.k == 0) return;
    // What is sent there now is no part of the speed, by which queries are divided.
    const double before = part.search->report().prepare_seconds;
    const Stopwatch time;
    // Each query's row is one replica's.
    part.search->nearest(probes.rows(first, first + some),
                         found_.empty() ? found : found_[part.column], which.subspan(first, some));
    seconds[i] = time.seconds() - (part.search->report().prepare_seconds - before);
  });
  std::vector<double> of_replicas;
  for (std::int64_t r = 0; r < grid_.replicas(); ++r) {
    const auto from = seconds.begin() + r * grid_.columns();
    of_replicas.push_back(*std::max_element(from, from + grid_.columns()));
  }
  grid_.note(begin, of_replicas);
  if (found_.empty()) return;
  parallel_for(request_.threads, (count + 63) / 64, [&](std::int64_t task) {
    std::vector<std::pair<double, Id>> rows;
    for (std::int64_t i = task * 64; i < std::min(count, task * 64 + 64); ++i) {
      const std::int64_t q = which[i];
      rows.clear();
      for (const ExactNeighbors& some : found_)
        for (std::int64_t j = 0; j < some.columns() && some.ids.row(q)[j] != no_id; ++j)
          rows.emplace_back(some.keys.row(q)[j], some.ids.row(q)[j]);
      const std::int64_t there = std::min(k, std::ssize(rows));
      std::partial_sort(rows.begin(), rows.begin() + there, rows.end());
      for (std::int64_t j = 0; j < there; ++j)
        std::tie(found.keys.row(q)[j], found.ids.row(q)[j]) = rows[j];
    }
  });
}

void DividedListSearch::within(MatrixView<Id>, double, RangeLists&) {
  check_processor(request_.options.device, "a range search of some inverted lists");
}

KnnReport DividedListSearch::report() {
  KnnReport out = parts_.front()->search->report();
  for (std::size_t i = 1; i < parts_.size(); ++i) add_shard(out, parts_[i]->search->report());
  set_request(out, request_);
  out.prepare_seconds += request_.preparation.seconds;
  add_note(out.note, request_.preparation.note);
  out.shards.replicas = grid_.replicas(), out.device.name = request_.options.device;
  return out;
}

void DividedCodeSearch::scan(std::span<const Segment> segments, const CodeScanJob& job,
                             const CodeProbes& probes, CodedNeighbors& out,
                             const Progress& progress) {
  const DeviceGrid grid(devices_, segments.empty() ? 1 : segments.front().shards);
  replicas_ = grid.replicas();
  const std::vector<std::int64_t> begin = grid.split(probes.lists.rows());
  struct Part {
    std::int64_t begin, end;
    std::vector<Segment> segments;
    std::vector<std::uint32_t> numbers;  // of these among all
    std::unique_ptr<DeviceCodeSearch> device;
    CodedNeighbors found;
  };
  std::vector<Part> parts;
  for (std::int64_t r = 0; r < grid.replicas(); ++r)
    for (std::int64_t c = 0; c < grid.columns(); ++c) {
      Part part{begin[r], begin[r + 1], {}, {}, nullptr, {}};
      for (std::size_t s = 0; s < segments.size(); ++s)
        if (grid.column_of(segments[s].shard) == c)
          part.segments.push_back(segments[s]),
              part.numbers.push_back(static_cast<std::uint32_t>(s));
      if (part.begin == part.end || part.segments.empty()) continue;
      part.device = device_maker()->device_code_search(grid.gpu(r, c));
      part.found = CodedNeighbors(part.end - part.begin, job.k);
      parts.push_back(std::move(part));
    }
  std::fill(out.rows.begin(), out.rows.end(), CodedNeighbors::Row{});
  if (parts.empty()) return;
  SharedProgress shared(progress, std::ssize(parts));
  run_parts(job.threads, std::ssize(parts), [&](std::int64_t i) {
    Part& part = parts[i];
    CodeScanJob some = job;
    some.prepare = [&job, first = part.begin](std::int64_t query, double* to) {
      job.prepare(first + query, to);
    };
    some.threads = std::max(1, job.threads / static_cast<int>(parts.size()));
    if (job.upper_bounds) some.upper_bounds = job.upper_bounds + part.begin;
    const Progress told = shared.of(i);
    part.device->scan(
        part.segments, some,
        {probes.lists.rows(part.begin, part.end), probes.terms.rows(part.begin, part.end)},
        part.found, told);
  });
  std::size_t bytes = 0;
  for (Part& part : parts) {
    bytes += part.device->most_bytes();
    for (CodedNeighbors::Row& row : part.found.rows)
      if (row.id != no_id) row.segment = part.numbers[row.segment];
    for (std::int64_t q = part.begin; q < part.end; ++q)
      merge_rows(out.of(q), part.found.of(q - part.begin), job.ordered);
  }
  most_bytes_ = std::max(most_bytes_, bytes);
}

}  // namespace knear::detail
