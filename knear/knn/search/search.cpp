// What every search does: the checks of what was asked for, the way over parts and chunks of them
// and what memory that takes, the passes over a chunk, the lists of the k nearest, and the report.
// What a chunk goes by is decided elsewhere (knn/search/search.hpp).
#include "knear/knn/search/search.hpp"

#include <cmath>
#include <numeric>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/work_table.hpp"

namespace knear::detail {
bool integer_fits(Metric metric, const ValueRange& base, const ValueRange& queries,
                  std::int64_t dim) {
  if (metric == Metric::cosine || !base.integer || !queries.integer) return false;
  for (const ValueRange& side : {base, queries})
    if (side.low < 0 && side.high > 127) return false;
  const std::int64_t low = std::min(base.low, queries.low),
                     high = std::max(base.high, queries.high);
  const std::int64_t reach = std::max(std::abs(low), std::abs(high)), width = high - low;
  const std::int64_t largest = metric == Metric::l2
                                   ? dim * std::max(width * width, reach * reach) / 2 + 1
                                   : 2 * dim * reach * reach;
  return largest < (std::int64_t{1} << 31) - 65536;
}

Search::Search(std::span<const SearchSegment> segments, AnyMatrixView queries, std::int64_t k,
               const KnnOptions& options, Reuse reuse, std::int64_t already)
    : queries_(queries), options_(options), reuse_(reuse), k_asked_(k) {
  isa_ = active_isa();
  threads_ = resolve_threads(options.threads);
  peaks_ = planning_peaks(isa_, threads_);
  found_ = find_value_range(queries, "queries", threads_);
  for (const SearchSegment& segment : segments) {
    const std::int64_t rows = segment.rows->base.rows();
    const std::int64_t allowed =
        segment.live ? segment.live->count()
        : segment.filter.everything()
            ? rows
            : segment.filter.count(segment.filter_offset, segment.filter_offset + rows);
    rows_ += segment.live ? allowed : rows, allowed_rows_ += allowed;
    if (allowed == 0) continue;
    const bool integer =
        integer_fits(options.metric, segment.rows->found, found_, segment.rows->base.cols());
    if (options.first_pass == FirstPass::integer && !integer)
      throw InvalidArgument(
          "first_pass is integer, but that needs l2 or ip and whole numbers of 8 bits on both "
          "sides");
    if (options.first_pass == FirstPass::prefix &&
        (options.metric == Metric::ip || queries.cols() < least_prefix_dim))
      throw InvalidArgument(
          "first_pass is prefix, but that needs l2 or cosine and {} columns, not {} and {}",
          least_prefix_dim, name_of(options.metric), queries.cols());
    segments_.push_back({segment, allowed, integer});
  }
  const TuningOverrides& choices = options.tuning;
  if (choices.group != 0 && choices.group != 1 && choices.group != 4 && choices.group != 12)
    throw InvalidArgument("choices name a group of {}, but it must be 1, 4 or 12", choices.group);
  if (choices.parts < 0 || choices.parts > 4096)
    throw InvalidArgument("choices name {} parts, but there must be 1 to 4096", choices.parts);
  if (choices.columns < 0 || choices.columns > 128 || choices.columns % 8 != 0)
    throw InvalidArgument("choices name {} columns, but it must be a multiple of 8 up to 128",
                          choices.columns);
  if (choices.tile < 0 || choices.tile > most_tile)
    throw InvalidArgument("choices name a tile of {} KiB, but there must be 1 to {}", choices.tile,
                          most_tile);
  if (options.first_pass == FirstPass::direct &&
      (choices.group > 0 || choices.parts > 0 || choices.tile > 0 || !choices.guess))
    throw InvalidArgument(
        "choices name group, parts, tile or guess=off, but first_pass is direct, which has none "
        "of these");
  if (choices.refine.value_or(false)) {
    if (options.first_pass != FirstPass::automatic && options.first_pass != FirstPass::int8 &&
        options.first_pass != FirstPass::prefix)
      throw InvalidArgument("choices say refine=on, but first_pass is {}, not int8 or prefix",
                            name_of(options.first_pass));
    if (options.memory > 0)
      throw InvalidArgument("choices say refine=on, but memory is limited to {} bytes",
                            options.memory);
    if (options.first_pass != FirstPass::int8 && !segments_.empty() &&
        std::all_of(segments_.begin(), segments_.end(), [](const Segment& p) { return p.integer; }))
      throw InvalidArgument("choices say refine=on, but whole numbers of 8 bits are exact without");
  }
  if (choices.clusters < 0)
    throw InvalidArgument("choices name {} clusters, but there must be 1 at least",
                          choices.clusters);
  if ((choices.columns > 0 || choices.clusters > 0) && options.first_pass != FirstPass::prefix)
    throw InvalidArgument(
        "choices name columns or clusters of a prefix, but first_pass is {}, not prefix",
        name_of(options.first_pass));
  if (choices.columns > queries.cols())
    throw InvalidArgument("choices name {} columns of a prefix, but there are only {}",
                          choices.columns, queries.cols());
  // From the largest, whose threshold serves the others.
  std::stable_sort(segments_.begin(), segments_.end(),
                   [](const Segment& a, const Segment& b) { return a.allowed > b.allowed; });
  k_ = std::min(k, already + allowed_rows_);
}

void Search::check_plain(std::string_view method) const {
  const TuningOverrides& choices = options_.tuning;
  if (options_.first_pass == FirstPass::prefix)
    throw InvalidArgument("first_pass is prefix, but method is {}, which has no such pass", method);
  if (!choices.guess)
    throw InvalidArgument("choices say guess=off, but method is {}, which guesses none", method);
  if (choices.refine)
    throw InvalidArgument("choices say refine={}, but method is {}, which has no such step",
                          *choices.refine ? "on" : "off", method);
  if (choices.parts > 0)
    throw InvalidArgument("choices name {} parts, but method is {}, which has none", choices.parts,
                          method);
}

Neighbors Search::run(KnnReport* report) {
  ExactNeighbors all;
  run_from(all, report);
  return rounded(all, options_.metric, queries_.rows(), k_asked_, threads_);
}

Neighbors Search::run_self(KnnReport* report) {
  self_ = true;
  ExactNeighbors all;
  run_from(all, report);
  const std::int64_t k = k_asked_ - 1;
  if (report) report->k = k;
  return rounded(all, options_.metric, queries_.rows(), k, threads_, true);
}

void Search::run_from(ExactNeighbors& all, KnnReport* report) {
  const auto start = Clock::now();
  const std::int64_t q = queries_.rows();
  bool first = all.keys.cols() == 0;
  const auto set_upper_bounds = [&] {
    if (all.keys.cols() < k_ || k_ == 0) return;
    upper_bounds_.resize(static_cast<std::size_t>(q));
    for (std::int64_t i = 0; i < q; ++i)
      upper_bounds_[static_cast<std::size_t>(i)] = all.keys.row(i)[k_ - 1];
  };
  set_upper_bounds();
  for_each_chunk([&](const BaseRows& rows, std::int64_t begin, std::int64_t) {
    const std::int64_t width = std::min(k_, count_);
    ExactNeighbors found(q, width);
    const RowIds ids = segment_->given.ids.from(begin);
    search_rows(rows, begin, found);
    if (ids.ids || ids.first != 0)
      each_query([&](std::int64_t i) {
        for (std::int64_t j = 0; j < width; ++j)
          if (found.ids.row(i)[j] != no_id) found.ids.row(i)[j] = ids(found.ids.row(i)[j]);
      });
    if (std::exchange(first, false))
      all = std::move(found);
    else
      merge(all, found, k_, threads_);
    set_upper_bounds();
  });
  if (report) fill(*report, seconds_since(start));
}

std::vector<std::int64_t> Search::all_queries() const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(queries_.rows()));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

ScanJob Search::job_for(AnyMatrixView queries, const BaseRows& rows, std::int64_t k) const {
  return {.queries = queries,
          .base = rows,
          .metric = options_.metric,
          .k = k,
          .threads = threads_,
          .isa = isa_,
          .peaks = &peaks_};
}

Search::RowSearch Search::begin_rows(const BaseRows& rows, std::int64_t begin, std::int64_t k,
                                     const std::vector<double>& upper_bounds) {
  RowSearch out{job_for(queries_, rows, k), {}, all_queries()};
  out.job.query_range = found_, out.job.pending = most_pending();
  out.job.upper_bounds = upper_bounds.empty() ? nullptr : upper_bounds.data();
  apply_tuning(out.job);
  out.choice = choose(rows, begin, out.job);
  return out;
}

void Search::make_room(std::int64_t rows, FirstPass pass) {
  if (options_.memory <= 0) return;
  const std::int64_t needed =
      packing_bytes(rows, pass) + other_bytes() + prepared().kept_bytes(nullptr);
  if (needed > options_.memory)
    prepared().release_all_but(tile_bytes() > 0 ? FirstPass::direct : pass);
}

void Search::search_rows(const BaseRows& rows, std::int64_t begin, ExactNeighbors& out) {
  search_queries(rows, begin, all_queries(), out);
}

void Search::search_queries(const BaseRows& rows, std::int64_t begin,
                            std::vector<std::int64_t> todo, ExactNeighbors& out) {
  RowSearch start = begin_rows(rows, begin, out.keys.cols(), upper_bounds_);
  ScanJob& job = start.job;
  const Choice& choice = start.choice;
  if (options_.metric != Metric::l2) answer_zero_queries(todo, job.allowed, out);
  const std::vector<FirstPass>& passes = choice.passes;
  if (self_) self_join(rows, choice, job, todo, out);
  if (const auto plan = prefix_for(rows, choice, job, todo, out))
    search_with_prefix(*plan, rows, choice, job, todo, out);
  if (todo.empty()) return;
  for (std::size_t p = 0; p < passes.size() && !todo.empty(); ++p) {
    if (passes[p] == FirstPass::direct) {
      note_pass(FirstPass::direct, todo.size() * static_cast<std::size_t>(count_));
      list_allowed(job);
      scan_directly(job, subset_, todo, out, stats_, options_.progress);
      return;
    }
    const bool last = p + 1 == passes.size();
    job.may_give_up = !last;
    make_room(rows.rows(), passes[p]);
    const auto packed = packed_form(passes[p], rows, choice);
    const std::size_t before = todo.size();
    const bool few = std::ssize(todo) < std::int64_t{48} * threads_;
    const double survivors = prepared().seen(FirstPass::int8, k_, few).survivors;
    const auto codes = per_row_codes_for(*packed, rows, choice, std::ssize(todo), survivors);
    job.per_row_codes = codes.get();
    todo = last ? scan(*packed, job, todo, out, stats_, options_.progress)
                : try_pass(*packed, rows, choice, survivors > 0, job, todo, out);
    job.per_row_codes = nullptr;
    note_scan(*packed, passes[p], static_cast<std::int64_t>(before));
    note_pass(passes[p], (before - todo.size()) * static_cast<std::size_t>(count_));
    if (p == 0 && prefix_columns_ == 0)
      fallback_queries_ = std::max(fallback_queries_, std::ssize(todo));
  }
}

std::int64_t Search::allowed_between(std::int64_t begin, std::int64_t end) const {
  const SearchSegment& segment = segment_->given;
  if (segment.live) return segment.live->count(begin, end);
  if (segment.filter.everything()) return end - begin;
  return segment.filter.count(segment.filter_offset + begin, segment.filter_offset + end);
}

std::int64_t Search::packed_bytes(std::int64_t rows, FirstPass pass) const {
  if (pass == FirstPass::direct) return 0;
  if (pass == FirstPass::prefix) return prefix_bytes_for(rows, base().cols());
  if (pass == FirstPass::integer)
    return PackedBase::bytes_for(rows, base().cols(), format_int8, true);
  return PackedBase::bytes_for(rows, base().cols(), format_of(pass), false) + 25 * rows;
}

std::int64_t Search::other_bytes() const {
  const double queries = static_cast<double>(queries_.rows()),
               dim = static_cast<double>(queries_.cols());
  const double k = static_cast<double>(k_), threads = threads_;
  const double block = std::min(queries, static_cast<double>(queries_in_block(k_)));
  const double per_query = dim * 4 + 256 + (1.5 * static_cast<double>(most_pending()) + 24) * 24;
  // Beside the lists, the prefix of each query and the clusters nearest to it.
  const double prefix = options_.first_pass == FirstPass::prefix ? 256 + 2 * 8 * 16 + 24 : 0;
  const double lists = queries * (k * 48 + static_cast<double>(k_asked_) * 12 + 64 + prefix);
  // Queries as doubles: of a task, or where there are few of them, of each thread.
  const double doubles = std::max(64.0, std::min(queries, 4 * threads));
  // And what selecting and sorting k of them takes.
  const double scratch = threads * (doubles * dim * 8 + 208 * k + (1 << 16));
  return static_cast<std::int64_t>(std::min(
      lists + threads * block * per_query + scratch + (1 << 20) + static_cast<double>(more_bytes_),
      4e18));
}

std::int64_t Search::chunk_rows() const {
  const std::int64_t n = base().rows();
  std::int64_t rows = std::clamp<std::int64_t>(n, 1, most_chunk_rows());
  if (options_.memory <= 0 || n == 0) return rows;
  const std::int64_t left = options_.memory - other_bytes();
  const FirstPass pass = first_pass();
  if (packing_bytes(rows, pass) <= left) return rows;
  const std::int64_t least = std::min<std::int64_t>(n, 4096);
  const std::int64_t per_thousand = packed_bytes(1024, pass);
  rows = std::min<std::int64_t>(rows, left > 0 ? left / per_thousand * 1024 : 0);
  if (rows < least)
    throw MemoryBudgetError(
        "memory is {} bytes, but this search needs at least {} ({} queries, k = {}, {} columns)",
        options_.memory,
        other_bytes() + std::min(packed_bytes(n, pass), (least + 1023) / 1024 * per_thousand),
        queries_.rows(), k_asked_ - self_, base().cols());
  return rows;
}

bool Search::is_zero(AnyMatrixView vectors, std::int64_t row) {
  return visit(vectors, [&](auto view) {
    const auto* x = view.row(row);
    for (std::int64_t i = 0; i < view.cols(); ++i)
      if (to_float(x[i]) != 0) return false;
    return true;
  });
}

void Search::answer_zero_queries(std::vector<std::int64_t>& todo, const AllowedRows& allowed,
                                 ExactNeighbors& out) {
  std::erase_if(todo, [&](std::int64_t q) {
    if (!is_zero(queries_, q)) return false;
    std::int64_t next = 0;
    for (std::int64_t j = 0; j < out.keys.cols(); ++j) {
      while (subset_.empty() && !allowed(next)) ++next;
      out.keys.row(q)[j] = options_.metric == Metric::ip ? 0.0 : 1.0;
      out.ids.row(q)[j] = subset_.empty() ? next++ : std::int64_t{subset_[j]};
    }
    return true;
  });
}

void Search::note_form(const PackedBase& packed, FirstPass pass) {
  const std::int64_t bytes =
      (prepared().kept(pass).get() == &packed && prepared().is_adopted(pass) ? 0 : packed.bytes()) +
      prepared().kept_bytes(&packed);
  tile_rows_ = std::max(tile_rows_, packed.panels_per_tile * panel_rows);
  packed_bytes_ = std::max(packed_bytes_, bytes + code_bytes_);
  centred_ |= !packed.space.mean.empty();
}

void Search::note_scan(const PackedBase& packed, FirstPass pass, std::int64_t queries,
                       std::int64_t times) {
  note_form(packed, pass);
  note_scored(packed, queries, times);
}

void Search::note_scored(const Coding& packed, std::int64_t queries, std::int64_t times) {
  centred_ |= !packed.space.mean.empty();
  multiply_adds_ += static_cast<double>(queries) * static_cast<double>(packed.rows) *
                    static_cast<double>(queries_.cols());
  bytes_read_ += static_cast<double>(packed.panels() * packed.steps * panel_step_bytes) *
                 static_cast<double>(times);
}

void Search::note_search(const Search& other) {
  stats_.add(other.stats_);
  stats_.buffer_bytes = std::max(stats_.buffer_bytes, other.stats_.buffer_bytes);
  for (int pass = 0; pass < any_pass_count; ++pass) done_by_[pass] += other.done_by_[pass];
  prepare_seconds_ += other.prepare_seconds_;
  multiply_adds_ += other.multiply_adds_, bytes_read_ += other.bytes_read_;
  packed_bytes_ = std::max(packed_bytes_, other.packed_bytes_);
  fallback_queries_ = std::max(fallback_queries_, other.fallback_queries_);
  tile_rows_ = std::max(tile_rows_, other.tile_rows_);
  centred_ |= other.centred_;
}

void Search::learn(KnnReport& r) const {
  if (!learns_ || segments_.size() != 1 || allowed_rows_ != rows_ || r.queries == 0) return;
  PreparedRows& rows = *segments_.front().given.rows;
  const bool few = r.queries < std::int64_t{48} * threads_;
  const PreparedRows::PassStats before = rows.seen(main_pass(), k_, few);
  r.expected_hits = before.hits, r.expected_refined = before.refined;
  r.expected_survivors = before.survivors;
  rows.note_seen(main_pass(), k_, few,
                 {r.hits_per_query, r.refined_per_query, r.survivors_per_query});
  if (main_pass() == FirstPass::prefix && before.hits == 0)
    if (const auto cost = rows.prefix_forecast(segments_.front().integer, k_))
      r.expected_hits = cost->passed;
}

void Search::fill(KnnReport& r, double seconds) const {
  const double per_query = std::max<double>(1, static_cast<double>(queries_.rows()));
  r = {};
  r.rows = rows_, r.allowed_rows = allowed_rows_, r.dim = queries_.cols();
  r.queries = queries_.rows(), r.k = k_asked_, r.metric = options_.metric;
  r.isa = name_of(isa_), r.threads = threads_;
  r.first_pass = name_of(main_pass());
  r.centred = centred_;
  r.prepare_seconds = prepare_seconds_, r.seconds = seconds - prepare_seconds_;
  r.scan_seconds = stats_.scan_seconds, r.rescore_seconds = stats_.rescore_seconds;
  r.query_seconds = stats_.query_seconds, r.seed_seconds = stats_.seed_seconds;
  r.score_seconds = stats_.score_seconds, r.select_seconds = stats_.select_seconds;
  r.hits_per_query = static_cast<double>(stats_.hits) / per_query;
  r.refined_per_query = static_cast<double>(stats_.refined) / per_query;
  r.survivors_per_query = static_cast<double>(stats_.survivors) / per_query;
  r.clusters = clusters_, r.group = stats_.group, r.parts = stats_.splits;
  r.guessed = stats_.estimated, r.tile_rows = tile_rows_;
  r.fallback_queries = fallback_queries_, r.repeated_queries = stats_.repeated;
  r.certified_queries = queries_.rows();
  r.memory_bytes =
      packed_bytes_ + stats_.buffer_bytes + queries_.rows() * (k_ * 16 + k_asked_ * 12);
  r.chunks = chunks_;
  r.multiply_adds = multiply_adds_, r.prefix_columns = prefix_columns_, r.joined = self_joined_;
  r.bytes_read = bytes_read_;
  learn(r);
}

}  // namespace knear::detail
