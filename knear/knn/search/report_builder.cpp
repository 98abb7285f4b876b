#include "knear/knn/search/report_builder.hpp"

#include <utility>

#include "knear/core/error.hpp"
#include "knear/knn/search/search_position.hpp"

namespace knear::detail {

void ReportBuilder::note_packed(PreparedRows& prepared, const PackedBase& packed, FirstPass pass) {
  const bool adopted = prepared.kept(pass).get() == &packed && prepared.is_adopted(pass);
  const std::int64_t bytes = (adopted ? 0 : packed.bytes()) + prepared.kept_bytes(&packed);
  tile_rows_ = std::max(tile_rows_, packed.panels_per_tile * panel_rows);
  packed_bytes_ = std::max(packed_bytes_, bytes + code_bytes_);
  centred_ |= !packed.space.mean.empty();
}

void ReportBuilder::note_scored(const Coding& coding, std::int64_t queries, std::int64_t times) {
  centred_ |= !coding.space.mean.empty();
  multiply_adds_ += static_cast<double>(queries) * static_cast<double>(coding.rows) *
                    static_cast<double>(coding.dim);
  bytes_read_ += static_cast<double>(coding.panels() * coding.steps * panel_step_bytes) *
                 static_cast<double>(times);
}

void ReportBuilder::note_listed(const Coding& coding, std::int64_t pairs) {
  centred_ |= !coding.space.mean.empty();
  multiply_adds_ += static_cast<double>(pairs) * static_cast<double>(coding.dim);
}

void ReportBuilder::note_prefix(PreparedRows& prepared, const PrefixBase& prefix, bool keep,
                                double queries) {
  prefix_columns_ = std::max(prefix_columns_, prefix.map.columns());
  clusters_ = std::max(clusters_, prefix.centroids.rows());
  tile_rows_ = prefix.panels.panels_per_tile * panel_rows;
  packed_bytes_ =
      std::max(packed_bytes_, prepared.kept_bytes(nullptr) + (keep ? 0 : prefix.bytes()));
  multiply_adds_ +=
      queries * static_cast<double>(prefix.panels.rows) * static_cast<double>(prefix.map.columns());
  bytes_read_ += static_cast<double>(prefix.panels.codes.bytes());
}

void ReportBuilder::note_tree(PreparedRows& prepared, const RowTree& tree, bool keep) {
  const BoxTree& boxes = tree.boxes();
  leaves_ = std::max(leaves_, boxes.leaves());
  for (std::int64_t leaf = 0; leaf < boxes.leaves(); ++leaf)
    tile_rows_ = std::max(tile_rows_, boxes.begin_of(leaf + 1) - boxes.begin_of(leaf));
  packed_bytes_ = std::max(packed_bytes_, prepared.kept_bytes(nullptr) + (keep ? 0 : tree.bytes()));
}

void ReportBuilder::note_search(const ReportBuilder& other) {
  stats.add(other.stats);
  stats.buffer_bytes = std::max(stats.buffer_bytes, other.stats.buffer_bytes);
  for (int pass = 0; pass < any_pass_count; ++pass) done_by_[pass] += other.done_by_[pass];
  prepare_seconds += other.prepare_seconds;
  multiply_adds_ += other.multiply_adds_, bytes_read_ += other.bytes_read_;
  packed_bytes_ = std::max(packed_bytes_, other.packed_bytes_);
  device_bytes_ = std::max(device_bytes_, other.device_bytes_);
  tile_rows_ = std::max(tile_rows_, other.tile_rows_);
  centred_ |= other.centred_;
  note_fallback(other.fallback_queries_);
}

void ReportBuilder::learn(const SearchPosition& at, const KnnReport& report, ScanReport& r) const {
  const SearchRequest& request = at.request;
  if (!learns || at.device || request.segments.size() != 1 || report.queries == 0 ||
      request.allowed_rows != request.rows)
    return;
  const SearchRequest::Segment& segment = request.segments.front();
  PreparedRows& rows = *segment.given.rows;
  const FirstPass pass = main_pass();
  const bool few = report.queries < std::int64_t{48} * request.threads;
  const PreparedRows::PassStats before = rows.seen(pass, request.k, few);
  r.expected_hits = before.hits, r.expected_refined = before.refined;
  r.expected_survivors = before.survivors;
  rows.note_seen(pass, request.k, few,
                 {r.hits_per_query, r.refined_per_query, r.survivors_per_query});
  if (pass == FirstPass::prefix && before.hits == 0)
    if (const auto cost = rows.prefix_forecast(segment.integer, request.k))
      r.expected_hits = cost->passed;
}

std::int64_t ReportBuilder::memory_bytes(const SearchRequest& request) const {
  const std::int64_t queries = request.queries.rows();
  return std::max(packed_bytes_ + stats.buffer_bytes + answer_bytes_ +
                      queries * (request.k * 16 + request.k_asked * 12),
                  least_memory_);
}

KnnReport ReportBuilder::report(const SearchPosition& at) const {
  const SearchRequest& request = at.request;
  const std::int64_t queries = request.queries.rows();
  const auto of_query = [&](std::int64_t sum) {
    return static_cast<double>(sum) / static_cast<double>(std::max<std::int64_t>(1, queries));
  };
  KnnReport out;
  set_request(out, request);
  out.method = method, out.note = request.preparation.note;
  out.prepare_seconds = request.preparation.seconds + prepare_seconds;
  out.memory_bytes = memory_bytes(request);
  if (on_device || at.device) out.device.name = request.options.device;
  out.device.bytes = device_bytes_;
  ScanReport& r = out.scan;
  r.isa = name_of(request.isa);
  r.first_pass = only_pass.empty() ? name_of(main_pass()) : only_pass;
  r.centred = centred_;
  r.scan_seconds = stats.scan_seconds, r.rescore_seconds = stats.rescore_seconds;
  r.query_seconds = stats.query_seconds, r.seed_seconds = stats.seed_seconds;
  r.score_seconds = stats.score_seconds, r.select_seconds = stats.select_seconds;
  r.hits_per_query = of_query(stats.hits), r.refined_per_query = of_query(stats.refined);
  r.survivors_per_query = of_query(stats.survivors), r.probed_rows = of_query(probed_);
  r.clusters = clusters_, r.leaves = leaves_, r.group = stats.group, r.parts = stats.splits;
  r.guessed = stats.estimated, r.tile_rows = tile_rows_;
  r.fallback_queries = fallback_queries_, r.repeated_queries = stats.repeated;
  r.chunks = at.chunks;
  r.multiply_adds = multiply_adds_, r.prefix_columns = prefix_columns_, r.joined = self_joined;
  r.bytes_read = bytes_read_;
  learn(at, out, r);
  return out;
}

void add_note(std::string& note, std::string_view more) {
  if (!note.empty() && !more.empty()) note += "; ";
  note += more;
}

PromiseReport all_exact(std::int64_t queries) {
  PromiseReport out;
  out.certified_queries = queries;
  return out;
}

PromiseReport no_promise() {
  PromiseReport out;
  out.promised_recall = out.expected_recall = 0, out.recall_argument = "none";
  return out;
}

void set_request(KnnReport& report, const SearchRequest& request) {
  report.queries = request.queries.rows();
  report.k = request.kind == SearchKind::range
                 ? 0
                 : request.k_asked - (request.kind == SearchKind::self_join);
  report.allowed_rows = request.counts_rows ? request.allowed_rows : -1;
  report.metric = request.options.metric, report.threads = request.threads;
}

void set_promise(KnnReport& report, const SearchRequest& request, PromiseReport promise) {
  if (!request.altered_by.empty()) {
    if (promise.recall_argument != "none")
      add_note(
          report.note,
          fmt::format("{} with respect to the vectors as index {} keeps them, not to those "
                      "that were added",
                      promise.recall_argument == "exact"
                          ? "exact"
                          : fmt::format("a recall of {:.3f} is expected", promise.expected_recall),
                      request.altered_by));
    promise = no_promise();
  }
  report.promise = std::move(promise);
}

void set_rows(KnnReport& report, std::int64_t rows, std::int64_t dim) {
  report.rows = rows, report.dim = dim;
}

void set_seconds(KnnReport& report, const Stopwatch& time) {
  report.seconds = time.seconds() - report.prepare_seconds;
}

}  // namespace knear::detail
