#include "knear/knn/search/joined_reports.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace knear::detail {
namespace {

// How much an argument for a recall is worth, least first.
int worth(const std::string& argument) {
  return argument == "exact" ? 3 : argument == "analytic" ? 2 : argument == "calibrated" ? 1 : 0;
}

// What was done beside, for the same queries or others.
void add_work(KnnReport& all, const KnnReport& more) {
  all.prepare_seconds = std::max(all.prepare_seconds, more.prepare_seconds);
  all.scan_seconds += more.scan_seconds, all.rescore_seconds += more.rescore_seconds;
  all.query_seconds += more.query_seconds, all.seed_seconds += more.seed_seconds;
  all.score_seconds += more.score_seconds, all.select_seconds += more.select_seconds;
  all.coarse_seconds += more.coarse_seconds, all.sorting_seconds += more.sorting_seconds;
  all.sampling_seconds += more.sampling_seconds;
  all.fallback_queries += more.fallback_queries, all.repeated_queries += more.repeated_queries;
  all.repaired_queries += more.repaired_queries;
  all.memory_bytes += more.memory_bytes, all.device_bytes += more.device_bytes;
  all.multiply_adds += more.multiply_adds, all.bytes_read += more.bytes_read;
  all.prefix_columns = std::max(all.prefix_columns, more.prefix_columns);
  all.clusters = std::max(all.clusters, more.clusters);
  all.group = std::max(all.group, more.group), all.parts = std::max(all.parts, more.parts);
  all.tile_rows = std::max(all.tile_rows, more.tile_rows);
  all.centred |= more.centred, all.guessed |= more.guessed, all.joined |= more.joined;
  all.kept_per_bin = std::max(all.kept_per_bin, more.kept_per_bin);
  all.lists = std::max(all.lists, more.lists), all.ef = std::max(all.ef, more.ef);
  all.promised_recall = std::min(all.promised_recall, more.promised_recall);
  all.expected_recall = std::min(all.expected_recall, more.expected_recall);
  if (worth(more.recall_argument) < worth(all.recall_argument))
    all.recall_argument = more.recall_argument;
  if (all.note.find(more.note) == std::string::npos)
    all.note += (all.note.empty() ? "" : "; ") + more.note;
}

// What is said of a query on average, of which `share` is for these.
void add_means(KnnReport& all, const KnnReport& more, double share) {
  const auto add = [&](double KnnReport::*mean) { all.*mean += share * more.*mean; };
  for (const auto mean :
       {&KnnReport::hits_per_query, &KnnReport::refined_per_query, &KnnReport::survivors_per_query,
        &KnnReport::expected_hits, &KnnReport::expected_refined, &KnnReport::expected_survivors,
        &KnnReport::probed_rows})
    add(mean);
}

}  // namespace

Progress SharedProgress::of(std::int64_t part) {
  if (!progress_ || parts_ == 1) return progress_;
  return [this, part](std::string_view stage, double fraction) {
    std::lock_guard lock(mutex_);
    auto& done = done_[std::string(stage)];
    done.resize(static_cast<std::size_t>(parts_));
    done[part] = fraction;
    double sum = 0;
    for (const double some : done) sum += some;
    goes_on_ = goes_on_ && progress_(stage, sum / static_cast<double>(parts_));
    return goes_on_;
  };
}

bool tells_certified(const KnnReport& report) {
  return report.certified_queries + std::ssize(report.uncertified) == report.queries;
}

void add_shard(KnnReport& all, const KnnReport& more) {
  const bool told = tells_certified(all) && tells_certified(more);
  std::vector<std::int64_t> open;
  std::set_union(all.uncertified.begin(), all.uncertified.end(), more.uncertified.begin(),
                 more.uncertified.end(), std::back_inserter(open));
  all.certified_queries = told ? all.queries - std::ssize(open) : 0;
  all.uncertified = told ? std::move(open) : std::vector<std::int64_t>{};
  all.rows += more.rows;
  all.allowed_rows =
      all.allowed_rows < 0 || more.allowed_rows < 0 ? -1 : all.allowed_rows + more.allowed_rows;
  all.chunks += more.chunks, all.bins += more.bins, all.samples += more.samples;
  all.compression_ratio = std::max(all.compression_ratio, more.compression_ratio);
  all.threshold_ratio = std::max(all.threshold_ratio, more.threshold_ratio);
  all.probes = std::max(all.probes, more.probes);
  add_work(all, more);
  add_means(all, more, 1);
}

void add_queries(KnnReport& all, const KnnReport& more, std::int64_t first, std::int64_t queries) {
  const double share = static_cast<double>(more.queries) / static_cast<double>(queries);
  for (const std::int64_t q : more.uncertified) all.uncertified.push_back(first + q);
  all.certified_queries += more.certified_queries;
  all.queries += more.queries;
  all.compression_ratio += share * more.compression_ratio;
  all.threshold_ratio += share * more.threshold_ratio;
  all.probes += share * more.probes;
  add_work(all, more);
  add_means(all, more, share);
}

KnnReport begin_queries(const KnnReport& part, std::int64_t queries) {
  KnnReport out = part;
  for (const auto mean :
       {&KnnReport::hits_per_query, &KnnReport::refined_per_query, &KnnReport::survivors_per_query,
        &KnnReport::expected_hits, &KnnReport::expected_refined, &KnnReport::expected_survivors,
        &KnnReport::probed_rows, &KnnReport::compression_ratio, &KnnReport::threshold_ratio,
        &KnnReport::probes})
    out.*mean *= static_cast<double>(part.queries) / static_cast<double>(queries);
  return out;
}

}  // namespace knear::detail
