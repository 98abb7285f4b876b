#include "knear/knn/search/prefix_search.hpp"

#include <limits>
#include <numeric>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/scan/prefix/prefix_scan.hpp"
#include "knear/scan/prefix/prefix_self_join.hpp"

namespace knear::detail {
namespace {

// The share of the time of a search for all rows by a prefix that a self-join by the same one
// takes.
constexpr double self_join_share = 0.65;

// A prefix is used if it is expected to take no more than this share of the time without one.
constexpr double worth_it = 0.85;

// For one search alone it is made if that saves so many times the time of making it; and rows are
// studied for it only where it may, taking the least share of the time that is usual.
constexpr double least_gain_once = 1.5, best_share = 0.33;

// The plan of a prefix that is kept; none is.
PrefixPlan plan_of(const std::shared_ptr<const PrefixBase>& kept) {
  return kept ? PrefixPlan{kept->map.columns(), kept->clusters()} : PrefixPlan{};
}

}  // namespace

PrefixPlan PrefixSearch::chosen(PrefixPlan plan) const {
  const TuningOverrides& choices = at_.request.options.tuning;
  plan.tile_bytes = at_.tile_bytes;
  if (choices.columns > 0) plan.columns = choices.columns;
  if (choices.clusters > 0) plan.clusters = std::min(choices.clusters, at_.base().rows());
  return plan;
}

SearchShape PrefixSearch::shape_of(FirstPass pass, std::int64_t queries) const {
  const SearchRequest& request = at_.request;
  SearchShape shape{at_.rows.rows(),      at_.rows.cols(), request.k,     queries,
                    at_.segment->integer, format_of(pass), &request.peaks};
  const PreparedRows::PassStats seen =
      at_.prepared().seen(pass, request.k, queries < std::int64_t{48} * request.threads);
  shape.hits = seen.hits, shape.survivors = seen.survivors;
  return shape;
}

bool PrefixSearch::forecasts(const Choice& choice) const {
  const KnnOptions& options = at_.request.options;
  const std::int64_t rows = at_.rows.rows(), dim = at_.rows.cols();
  return options.first_pass == FirstPass::automatic && at_.whole && choice.packed_rows.empty() &&
         choice.passes.front() != FirstPass::direct && rows >= 8192 && dim >= 32 && dim <= 4096 &&
         at_.request.k <= rows / 64;
}

std::optional<PrefixPlan> PrefixSearch::plan_for(ChunkSearch& chunk, ExactNeighbors& out) {
  const SearchRequest& request = at_.request;
  PreparedRows& prepared = at_.prepared();
  const bool integer = at_.segment->integer;
  if (prepared.no_prefix()) return {};
  const std::int64_t queries = std::ssize(chunk.todo), rows = at_.rows.rows();
  SearchShape shape = shape_of(chunk.choice.passes.front(), queries);
  const auto made = at_.whole ? prepared.kept_prefix(integer) : nullptr;
  const PrefixPlan kept = plan_of(made);
  if (request.options.first_pass == FirstPass::prefix) {
    if (rows < least_prefix_rows || chunk.todo.empty()) return {};
    return chosen(made ? kept : usual_plan(shape));
  }
  if (!forecasts(chunk.choice) || at_.count < rows / 4) return {};
  // With a memory limit none is made, nor are the rows studied.
  const bool limited = request.limited();
  if (limited && (!made || !prepared.has_adopted_prefix())) return {};
  // Few queries at a time wait for memory instead, and cannot be spared to try a prefix on.
  const bool few = queries < std::int64_t{24} * request.threads, reuses = request.reuses();
  if (few && !reuses) return {};
  // Only one is kept: that of the other kind of codes serves the other searches.
  if (!made && prepared.kept_prefix(!integer)) return {};
  double plain = plain_cost(shape).seconds;
  SearchShape trial = shape;
  trial.queries = 192;
  const double before = reuses ? prepared.searched_without_prefix(0) : 0;
  auto cost = prepared.prefix_forecast(integer, request.k);
  // Rows are studied, and a prefix is made, for searches to come. Either takes as long as many of
  // them, so that a server does it aside.
  const auto may_make = [&] { return !reuses || may_prepare(); };
  if (!cost && !limited && before + plain >= 3 * study_seconds(shape) + plain_cost(trial).seconds &&
      (reuses || plain >= least_gain_once / (1 - best_share) * making_seconds(shape)) && may_make())
    cost = few ? try_on_rows(shape, chunk.choice, kept) : try_on_queries(shape, chunk, out, kept);
  if (cost && cost->possible && !cost->refused) {
    shape.go_by(cost->format), plain = plain_cost(shape).seconds;
    const double share = prefix_cost(shape, *cost).seconds / plain;
    if (share < worth_it && made && !differs(made, chosen(kept))) return kept;
    if (limited) return {};
    // One in tiles that were chosen is made for this search alone.
    const double saved = (at_.tile_bytes > 0 ? plain : before + plain) * (1 - share);
    if (share < worth_it && saved >= (reuses ? 1.0 : least_gain_once) * making_seconds(shape) &&
        may_make())
      return chosen(cost->plan);
  }
  if (reuses) prepared.searched_without_prefix(plain);
  return {};
}

PrefixSearch::RowsAsQueries PrefixSearch::search_rows(FirstPass pass, const Choice& choice,
                                                      std::int64_t k) {
  const auto packed = passes_.packed(pass, choice);
  const Stopwatch time;
  const ValueRange& found = at_.prepared().found;
  constexpr std::int64_t count = 96;
  const AnyMatrix sample = at_.rows.sample(count);
  ScanJob job = at_.job(sample, k + 1);
  job.query_range = found;
  std::vector<std::int64_t> asked;
  if (!at_.segment->integer ||
      integer_fits(at_.request.options.metric, found, found, at_.rows.cols()))
    for (std::int64_t q = 0; q < count; ++q)
      if (!is_zero(sample, q)) asked.push_back(q);
  RowsAsQueries out{copies_of(sample, asked), ExactNeighbors(std::ssize(asked), k + 1)};
  job.queries = out.queries;
  std::iota(asked.begin(), asked.end(), 0);
  static const Progress quiet;
  ScanStats stats;
  if (!asked.empty()) scan(*packed, job, asked, out.nearest, stats, quiet);
  report_.prepare_seconds += time.seconds();
  return out;
}

std::vector<double> PrefixSearch::RowsAsQueries::keys_of(std::int64_t k) const {
  std::vector<double> out;
  for (std::int64_t q = 0; q < queries.rows(); ++q) out.push_back(nearest.keys.row(q)[k]);
  return out;
}

PrefixForecast PrefixSearch::try_on_rows(const SearchShape& shape, const Choice& choice,
                                         const PrefixPlan& kept) {
  const std::int64_t k = at_.request.k;
  const RowsAsQueries rows = search_rows(choice.passes.front(), choice, k);
  return forecast_for(rows.queries, rows.keys_of(k), shape, kept, shape.format);
}

bool PrefixSearch::optimize(const Choice& choice) {
  PreparedRows& prepared = at_.prepared();
  if (prepared.has_adopted_prefix()) return true;
  if (prepared.no_prefix() || !forecasts(choice)) return false;
  const std::int64_t most = std::min<std::int64_t>(4096, at_.rows.rows() / 64);
  const FirstPass pass = choice.passes.front();
  const RowsAsQueries rows = search_rows(pass, choice, most);
  const auto study = prepared.prefix_study(at_.request.threads, at_.request.options.progress,
                                           report_.prepare_seconds);
  SearchShape shape = shape_of(pass, 1000);
  const auto forecast_at = [&](std::int64_t k, const PrefixPlan& made) {
    shape.k = k;
    PrefixForecast out = forecast(*study, rows.queries, rows.keys_of(k).data(), shape, made);
    out.format = shape.format;
    return out;
  };
  const bool integer = at_.segment->integer;
  const PrefixForecast usual = forecast_at(at_.request.k, plan_of(prepared.kept_prefix(integer)));
  const auto pays = [&](std::int64_t queries) {
    shape.queries = queries;
    return prefix_cost(shape, usual).seconds < worth_it * plain_cost(shape).seconds;
  };
  if (!usual.possible || (!pays(1) && !pays(1000))) return false;
  const auto made = packed(chosen(usual.plan), choice, true);
  if (!made) return false;
  std::vector<PrefixOutlook> outlook;
  for (std::int64_t k = 1; k <= most; k *= 4) outlook.push_back({k, forecast_at(k, plan_of(made))});
  prepared.adopt_prefix({made, std::move(outlook)});
  return true;
}

PrefixForecast PrefixSearch::forecast_for(AnyMatrixView queries,
                                          const std::vector<double>& upper_bounds,
                                          const SearchShape& shape, const PrefixPlan& kept,
                                          Format format) {
  const auto study = at_.prepared().prefix_study(at_.request.threads, at_.request.options.progress,
                                                 report_.prepare_seconds);
  const Stopwatch time;
  const auto forecast_of = [&](const SearchShape& of) {
    PrefixForecast cost = forecast(*study, queries, upper_bounds.data(), of, kept);
    cost.format = format;
    return cost;
  };
  const PrefixForecast cost = forecast_of(shape);
  // For products a self-join is another case: queries are not scaled, and bounds differ more.
  SearchShape alone = shape;
  alone.scored = 1;
  const bool apart = shape.scored < 1 && traits_of(study->metric).product;
  at_.prepared().note_prefix_forecast(at_.segment->integer, at_.request.k,
                                      apart ? forecast_of(alone) : cost);
  report_.prepare_seconds += time.seconds();
  return cost;
}

PrefixForecast PrefixSearch::try_on_queries(const SearchShape& shape, ChunkSearch& chunk,
                                            ExactNeighbors& out, const PrefixPlan& kept) {
  std::vector<std::int64_t>& todo = chunk.todo;
  const std::size_t count = std::min<std::size_t>(192, todo.size() / 4);
  std::vector<std::int64_t> few, rest;
  for (std::size_t i = 0; i < todo.size(); ++i)
    (i * count / todo.size() != (i + 1) * count / todo.size() ? few : rest).push_back(todo[i]);
  static const Progress quiet;
  const std::vector<FirstPass>& passes = chunk.choice.passes;
  std::vector<std::int64_t> again = few;
  Format format = format_int8;
  for (std::size_t p = 0; 2 * again.size() > few.size() && p < passes.size(); ++p) {
    const FirstPass pass = passes[p];
    if (pass == FirstPass::direct) break;
    const auto packed = passes_.packed(pass, chunk.choice);
    chunk.job.may_give_up = p + 1 < passes.size();
    const std::int64_t before = std::ssize(again);
    again = scan(*packed, chunk.job, again, out, report_.stats, quiet);
    report_.note_packed(at_.prepared(), *packed, pass);
    report_.note_pass(pass, before - std::ssize(again), at_.count);
    format = format_of(pass);
  }
  std::sort(again.begin(), again.end());
  std::vector<double> upper_bounds;
  std::vector<std::int64_t> answered;
  for (const std::int64_t q : few) {
    double bound = out.keys.row(q)[out.columns() - 1];
    if (chunk.job.upper_bounds) bound = std::min(bound, chunk.job.upper_bounds[q]);
    if (!(bound < std::numeric_limits<double>::infinity()) ||
        std::binary_search(again.begin(), again.end(), q))
      continue;
    answered.push_back(q), upper_bounds.push_back(bound);
  }
  const PrefixForecast cost =
      forecast_for(copies_of(at_.request.queries, answered), upper_bounds, shape, kept, format);
  todo = std::move(rest);
  todo.insert(todo.end(), again.begin(), again.end());
  std::sort(todo.begin(), todo.end());
  return cost;
}

std::optional<PrefixPlan> PrefixSearch::plan_of_self_join(ChunkSearch& chunk, ExactNeighbors& out) {
  const SearchRequest& request = at_.request;
  const TuningOverrides& choices = request.options.tuning;
  const std::int64_t rows = at_.rows.rows(), dim = at_.rows.cols();
  const bool forced = request.options.first_pass == FirstPass::prefix,
             integer = at_.segment->integer;
  if ((choices.group > 0 && choices.group != 12) || choices.parts > 0) return {};
  if (chunk.todo.empty() || !at_.whole || at_.count < rows ||
      chunk.choice.passes.front() == FirstPass::direct || at_.prepared().no_prefix() ||
      rows < least_prefix_rows)
    return {};
  if (at_.packing_bytes(rows, FirstPass::prefix) + at_.other_bytes() +
              self_join_bytes(rows, dim, request.k, request.threads) >
          (request.limited() ? request.options.memory : machine_memory() / 4 * 3) ||
      (request.limited() && !forced))
    return {};
  SearchShape shape = shape_of(chunk.choice.passes.front(), std::ssize(chunk.todo));
  const auto kept = at_.prepared().kept_prefix(integer);
  const PrefixPlan plan = chosen(kept ? plan_of(kept) : usual_plan(shape));
  if (forced) return plan;
  if (!forecasts(chunk.choice)) return {};
  auto cost = at_.prepared().prefix_forecast(integer, request.k);
  if (!cost) {
    const std::vector<std::int64_t> all = chunk.todo;  // some are answered on the way
    shape.scored = 0.5;                                // for the width alone
    cost = try_on_queries(shape, chunk, out, kept ? plan : PrefixPlan{});
    chunk.todo = all;
    shape.scored = 1;
  }
  if (!cost->possible) return {};
  shape.go_by(cost->format);
  const double joining = self_join_share * prefix_cost(shape, *cost).seconds;
  const double making = kept && !differs(kept, plan) ? 0 : making_seconds(shape);
  double searching = 0.9 * plain_cost(shape).seconds;
  const auto alone = at_.prepared().prefix_forecast(integer, request.k);
  if (traits_of(request.options.metric).product && alone && alone->possible)
    searching = std::min(searching, making + prefix_cost(shape, *alone).seconds);
  if (!(joining + making < searching)) return {};
  at_.expect(joining + (making > 0 ? making - study_seconds(shape) : 0));
  return kept ? plan : chosen(cost->plan);
}

void PrefixSearch::self_join(ChunkSearch& chunk, ExactNeighbors& out) {
  const auto plan = plan_of_self_join(chunk, out);
  if (!plan) return;
  Matrix<float> prefixes;  // rows are queries too; those of ip want terms as well, and are not kept
  const bool ip = traits_of(at_.request.options.metric).product;
  const auto prefix = packed(*plan, chunk.choice, true, ip ? nullptr : &prefixes);
  FinishedRows finished;
  if (at_.request.joined)
    finished = [&](std::span<const Id> rows) { at_.request.joined(rows, out); };
  if (!prefix || !self_join_with_prefix(*prefix, chunk.job, chunk.todo, out, report_.stats,
                                        at_.request.options.progress, finished, prefixes.view()))
    return;
  const std::int64_t queries = std::ssize(chunk.todo);
  report_.note_pass(FirstPass::prefix, queries, at_.count);
  report_.note_prefix(at_.prepared(), *prefix, chunk.choice.keep,
                      0.5 * static_cast<double>(queries));
  report_.self_joined = true;
  chunk.todo.clear();
}

bool PrefixSearch::differs(const std::shared_ptr<const PrefixBase>& kept,
                           const PrefixPlan& plan) const {
  const TuningOverrides& choices = at_.request.options.tuning;
  return kept && ((plan.tile_bytes > 0 && kept->panels.tile_bytes != plan.tile_bytes) ||
                  (choices.columns > 0 && kept->map.columns() != plan.columns) ||
                  (choices.clusters > 0 && kept->centroids.rows() != plan.clusters));
}

std::shared_ptr<const PrefixBase> PrefixSearch::packed(const PrefixPlan& plan, const Choice& choice,
                                                       bool wait, Matrix<float>* prefixes) {
  const bool integer = at_.segment->integer;
  PackingJob job = passes_.packing(choice);
  job.prefixes = prefixes;
  job.keep &= plan.tile_bytes == 0 && !differs(at_.prepared().kept_prefix(integer), plan);
  return at_.prepared().prefix(integer, plan, job, wait);
}

void PrefixSearch::search(ChunkSearch& chunk, ExactNeighbors& out) {
  const auto plan = plan_for(chunk, out);
  if (!plan) return;
  const SearchRequest& request = at_.request;
  PreparedRows& prepared = at_.prepared();
  const bool integer = at_.segment->integer, own_tiles = at_.tile_bytes > 0;
  if (const auto cost = prepared.prefix_forecast(integer, request.k)) {
    SearchShape shape = shape_of(chunk.choice.passes.front(), std::ssize(chunk.todo));
    shape.go_by(cost->format);
    at_.expect(prefix_cost(shape, *cost).seconds +
               (prepared.kept_prefix(integer) ? 0 : making_seconds(shape) - study_seconds(shape)));
  }
  if (request.limited() && (own_tiles || !prepared.kept_prefix(integer)))
    prepared.release_all_but(own_tiles ? FirstPass::direct : FirstPass::prefix);
  const auto prefix = packed(*plan, chunk.choice, request.options.first_pass == FirstPass::prefix);
  if (!prefix) return;
  const std::size_t before = chunk.todo.size();
  chunk.todo = scan_with_prefix(*prefix, chunk.job, chunk.todo, out, report_.stats,
                                request.options.progress);
  report_.note_pass(FirstPass::prefix, static_cast<std::int64_t>(before - chunk.todo.size()),
                    at_.count);
  report_.note_fallback(std::ssize(chunk.todo));
  prepared.note_prefix_served(integer, request.k, before, chunk.todo.size());
  report_.note_prefix(prepared, *prefix, chunk.choice.keep, static_cast<double>(before));
}

}  // namespace knear::detail
