#include "knear/knn/search/joined_reports.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "knear/knn/search/report_builder.hpp"

namespace knear::detail {
namespace {

// How much an argument for a recall is worth, least first.
int worth(const std::string& argument) {
  return argument == "exact" ? 3 : argument == "analytic" ? 2 : argument == "calibrated" ? 1 : 0;
}

template <class Number>
void raise(Number& to, const Number& other) {
  to = std::max(to, other);
}

// What was done beside, for the same queries or others.
void add_work(ScanReport& all, const ScanReport& more) {
  all.scan_seconds += more.scan_seconds, all.rescore_seconds += more.rescore_seconds;
  all.query_seconds += more.query_seconds, all.seed_seconds += more.seed_seconds;
  all.score_seconds += more.score_seconds, all.select_seconds += more.select_seconds;
  all.fallback_queries += more.fallback_queries, all.repeated_queries += more.repeated_queries;
  all.multiply_adds += more.multiply_adds, all.bytes_read += more.bytes_read;
  raise(all.prefix_columns, more.prefix_columns), raise(all.clusters, more.clusters);
  raise(all.leaves, more.leaves);
  raise(all.group, more.group), raise(all.parts, more.parts), raise(all.tile_rows, more.tile_rows);
  all.centred |= more.centred, all.guessed |= more.guessed, all.joined |= more.joined;
}

void add_work(KnnReport& all, const KnnReport& more) {
  raise(all.prepare_seconds, more.prepare_seconds);
  all.memory_bytes += more.memory_bytes, all.device.bytes += more.device.bytes;
  add_work(all.scan, more.scan);
  all.threshold_heap.sampling_seconds += more.threshold_heap.sampling_seconds;
  all.threshold_heap.sorting_seconds += more.threshold_heap.sorting_seconds;
  all.partial_reduce.repaired_queries += more.partial_reduce.repaired_queries;
  raise(all.partial_reduce.kept_per_bin, more.partial_reduce.kept_per_bin);
  all.lists.coarse_seconds += more.lists.coarse_seconds;
  raise(all.lists.count, more.lists.count), raise(all.graph.ef, more.graph.ef);
  PromiseReport& promise = all.promise;
  promise.promised_recall = std::min(promise.promised_recall, more.promise.promised_recall);
  promise.expected_recall = std::min(promise.expected_recall, more.promise.expected_recall);
  promise.audited_queries = std::min(promise.audited_queries, more.promise.audited_queries);
  if (worth(more.promise.recall_argument) < worth(promise.recall_argument))
    promise.recall_argument = more.promise.recall_argument;
  if (all.note.find(more.note) == std::string::npos) add_note(all.note, more.note);
}

// Figures of a query, on average.
constexpr double ScanReport::*means[] = {
    &ScanReport::hits_per_query, &ScanReport::refined_per_query, &ScanReport::survivors_per_query,
    &ScanReport::expected_hits,  &ScanReport::expected_refined,  &ScanReport::expected_survivors,
    &ScanReport::probed_rows};

// Adds the means of a part that has this share of the queries.
void add_means(ScanReport& all, const ScanReport& more, double share) {
  for (const auto mean : means) all.*mean += share * more.*mean;
}

}  // namespace

Progress SharedProgress::of(std::int64_t part) {
  if (!progress_ || parts_ == 1) return progress_;
  return [this, part](std::string_view stage, double fraction) {
    std::lock_guard lock(mutex_);
    auto& done = done_[std::string(stage)];
    done.resize(parts_);
    done[part] = fraction;
    double sum = 0;
    for (const double some : done) sum += some;
    goes_on_ = goes_on_ && progress_(stage, sum / static_cast<double>(parts_));
    return goes_on_;
  };
}

bool tells_certified(const KnnReport& report) {
  return report.promise.certified_queries + std::ssize(report.promise.uncertified) ==
         report.queries;
}

void add_shard(KnnReport& all, const KnnReport& more) {
  PromiseReport& promise = all.promise;
  const bool told = tells_certified(all) && tells_certified(more);
  std::vector<std::int64_t> open;
  std::set_union(promise.uncertified.begin(), promise.uncertified.end(),
                 more.promise.uncertified.begin(), more.promise.uncertified.end(),
                 std::back_inserter(open));
  promise.certified_queries = told ? all.queries - std::ssize(open) : 0;
  promise.uncertified = told ? std::move(open) : std::vector<std::int64_t>{};
  all.allowed_rows =
      all.allowed_rows < 0 || more.allowed_rows < 0 ? -1 : all.allowed_rows + more.allowed_rows;
  all.scan.chunks += more.scan.chunks, all.partial_reduce.bins += more.partial_reduce.bins;
  ThresholdHeapReport& heap = all.threshold_heap;
  heap.samples += more.threshold_heap.samples;
  raise(heap.compression_ratio, more.threshold_heap.compression_ratio);
  raise(heap.threshold_ratio, more.threshold_heap.threshold_ratio);
  raise(all.lists.probes, more.lists.probes);
  add_work(all, more);
  add_means(all.scan, more.scan, 1);
}

void add_queries(KnnReport& all, const KnnReport& more, std::int64_t first, std::int64_t queries) {
  const double share = static_cast<double>(more.queries) / static_cast<double>(queries);
  for (const std::int64_t q : more.promise.uncertified)
    all.promise.uncertified.push_back(first + q);
  all.promise.certified_queries += more.promise.certified_queries;
  all.queries += more.queries;
  all.threshold_heap.compression_ratio += share * more.threshold_heap.compression_ratio;
  all.threshold_heap.threshold_ratio += share * more.threshold_heap.threshold_ratio;
  all.lists.probes += share * more.lists.probes;
  add_work(all, more);
  add_means(all.scan, more.scan, share);
}

KnnReport begin_queries(const KnnReport& part, std::int64_t queries) {
  KnnReport out = part;
  const double share = static_cast<double>(part.queries) / static_cast<double>(queries);
  for (const auto mean : means) out.scan.*mean *= share;
  out.threshold_heap.compression_ratio *= share, out.threshold_heap.threshold_ratio *= share;
  out.lists.probes *= share;
  return out;
}

void add_block(KnnReport& all, const KnnReport& before) {
  all.rows += before.rows, all.allowed_rows += before.allowed_rows;
  all.scan.chunks += before.scan.chunks, all.scan.repeated_queries += before.scan.repeated_queries;
  all.prepare_seconds += before.prepare_seconds, all.seconds += before.seconds;
  for (const auto sum :
       {&ScanReport::scan_seconds, &ScanReport::rescore_seconds, &ScanReport::query_seconds,
        &ScanReport::seed_seconds, &ScanReport::score_seconds, &ScanReport::select_seconds,
        &ScanReport::hits_per_query, &ScanReport::refined_per_query,
        &ScanReport::survivors_per_query, &ScanReport::multiply_adds, &ScanReport::bytes_read})
    all.scan.*sum += before.scan.*sum;
  raise(all.scan.fallback_queries, before.scan.fallback_queries);
  raise(all.memory_bytes, before.memory_bytes), raise(all.device.bytes, before.device.bytes);
}

}  // namespace knear::detail
