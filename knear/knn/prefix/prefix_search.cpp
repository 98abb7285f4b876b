// Everything about a prefix: whether the queries at hand go by one, which is found out on a few of
// them or of the rows, how wide it is, searching by it, and joining a base with itself by it. The
// forms themselves and what they cost are in knn/prefix/prefix_form.hpp.
#include <cstring>
#include <limits>

#include "knear/knn/search/search.hpp"

namespace knear::detail {
namespace {

// What a join of a base with itself takes, of a search for its rows by the same prefix.
constexpr double self_join_share = 0.65;

}  // namespace

PrefixPlan Search::chosen(PrefixPlan plan) const {
  plan.tile_bytes = tile_bytes();
  if (options_.tuning.columns > 0) plan.columns = options_.tuning.columns;
  if (options_.tuning.clusters > 0)
    plan.clusters = std::min(options_.tuning.clusters, base().rows());
  return plan;
}

SearchShape Search::shape_of(const BaseRows& rows, FirstPass pass, std::int64_t queries) const {
  SearchShape shape{rows.rows(),       rows.cols(),     k_,     queries,
                    segment_->integer, format_of(pass), &peaks_};
  const PreparedRows::PassStats seen =
      prepared().seen(pass, k_, queries < std::int64_t{48} * threads_);
  shape.hits = seen.hits, shape.survivors = seen.survivors;
  return shape;
}

std::optional<PrefixPlan> Search::prefix_for(const BaseRows& rows, const Choice& choice,
                                             ScanJob& job, std::vector<std::int64_t>& todo,
                                             ExactNeighbors& out) {
  const bool integer = segment_->integer;
  if (prepared().no_prefix()) return {};
  const std::int64_t queries = std::ssize(todo);
  SearchShape shape = shape_of(rows, choice.passes.front(), queries);
  const auto made = whole_ ? prepared().kept_prefix(integer) : nullptr;
  const PrefixPlan kept =
      made ? PrefixPlan{made->map.columns(), made->centroids.rows()} : PrefixPlan{};
  if (options_.first_pass == FirstPass::prefix) {
    if (rows.rows() < least_prefix_rows || todo.empty()) return {};
    return chosen(made ? kept : usual_plan(shape));
  }
  if (options_.first_pass != FirstPass::automatic || options_.metric == Metric::ip || !whole_ ||
      !choice.packed_rows.empty() || choice.passes.front() == FirstPass::direct ||
      options_.memory > 0 || rows.rows() < 8192 || rows.cols() < 32 || rows.cols() > 4096 ||
      k_ > rows.rows() / 64 || count_ < rows.rows() / 4)
    return {};
  // Few queries at a time wait for memory instead, and cannot be spared to try a prefix on.
  const bool few = queries < std::int64_t{24} * threads_;
  if (few && reuse_ == Reuse::none) return {};
  // Only one is kept: that of the other kind of codes serves the other searches.
  if (!made && prepared().kept_prefix(!integer)) return {};
  double plain = plain_cost(shape).seconds;
  SearchShape trial = shape;
  trial.queries = 192;
  const double before = reuse_ == Reuse::none ? 0 : prepared().searched_without_prefix(0);
  auto cost = prepared().prefix_forecast(integer, k_);
  if (!cost && before + plain >= 3 * study_seconds(shape) + plain_cost(trial).seconds &&
      (reuse_ == Reuse::expected || plain >= making_seconds(shape)))
    cost = few ? try_prefix_on_rows(rows, shape, choice, kept)
               : try_prefix(rows, shape, choice, job, todo, out, kept);
  if (cost && cost->possible && !cost->refused) {
    shape.go_by(cost->format), plain = plain_cost(shape).seconds;
    const double share = prefix_cost(shape, *cost).seconds / plain;
    if (share < 0.85 && made && !differs(made, chosen(kept))) return kept;
    // One in tiles that were chosen is made for this search alone.
    const double saved = (tile_bytes() > 0 ? plain : before + plain) * (1 - share);
    if (share < 0.85 && saved >= (reuse_ == Reuse::none ? 1.5 : 1.0) * making_seconds(shape))
      return chosen(cost->plan);
  }
  if (reuse_ == Reuse::expected) prepared().searched_without_prefix(plain);
  return {};
}

PrefixForecast Search::try_prefix_on_rows(const BaseRows& rows, const SearchShape& shape,
                                          const Choice& choice, const PrefixPlan& kept) {
  const auto packed = packed_form(choice.passes.front(), rows, choice);
  const auto start = Clock::now();
  const AnyMatrix sample = rows.sample(96);
  const std::int64_t k = k_ + 1;  // a row is the nearest to itself
  ScanJob job = job_for(sample, rows, k);
  job.query_range = prepared().found;
  ExactNeighbors out(96, k);
  std::vector<std::int64_t> all;
  AnyMatrix queries(sample.type(), 96, sample.cols());
  std::vector<double> upper_bounds;
  for (std::int64_t q = 0; q < 96; ++q)
    if (!is_zero(sample, q)) all.push_back(q);
  static const Progress quiet;
  ScanStats stats;
  if (!segment_->integer ||
      integer_fits(options_.metric, prepared().found, prepared().found, rows.cols()))
    scan(*packed, job, all, out, stats, quiet);
  else
    all.clear();
  for (const std::int64_t q : all) {
    std::memcpy(queries.row(std::ssize(upper_bounds)), sample.view().row(q),
                static_cast<std::size_t>(rows.row_bytes()));
    upper_bounds.push_back(out.keys.row(q)[k_]);
  }
  prepare_seconds_ += seconds_since(start);
  return forecast_prefix(queries.view(), upper_bounds, shape, kept, shape.format);
}

PrefixForecast Search::forecast_prefix(AnyMatrixView queries,
                                       const std::vector<double>& upper_bounds,
                                       const SearchShape& shape, const PrefixPlan& kept,
                                       Format format) {
  const auto study = prepared().prefix_study(threads_, options_.progress, prepare_seconds_);
  const auto start = Clock::now();
  PrefixForecast cost =
      forecast(*study, queries.rows(0, std::ssize(upper_bounds)), upper_bounds.data(), shape, kept);
  cost.format = format;
  prepared().note_prefix_forecast(segment_->integer, k_, cost);
  prepare_seconds_ += seconds_since(start);
  return cost;
}

PrefixForecast Search::try_prefix(const BaseRows& rows, const SearchShape& shape,
                                  const Choice& choice, ScanJob& job,
                                  std::vector<std::int64_t>& todo, ExactNeighbors& out,
                                  const PrefixPlan& kept) {
  const std::size_t count = std::min<std::size_t>(192, todo.size() / 4);
  std::vector<std::int64_t> few, rest;
  for (std::size_t i = 0; i < todo.size(); ++i)
    (i * count / todo.size() != (i + 1) * count / todo.size() ? few : rest).push_back(todo[i]);
  static const Progress quiet;
  std::vector<std::int64_t> again = few;
  Format format = format_int8;
  for (std::size_t p = 0; 2 * again.size() > few.size() && p < choice.passes.size(); ++p) {
    const FirstPass pass = choice.passes[p];
    if (pass == FirstPass::direct) break;
    const auto packed = packed_form(pass, rows, choice);
    job.may_give_up = p + 1 < choice.passes.size();
    const std::size_t before = again.size();
    again = scan(*packed, job, again, out, stats_, quiet);
    note_form(*packed, pass);
    note_pass(pass, (before - again.size()) * static_cast<std::size_t>(count_));
    format = format_of(pass);
  }
  std::sort(again.begin(), again.end());
  std::vector<double> upper_bounds;
  AnyMatrix sample(queries_.type(), std::ssize(few), queries_.cols());
  for (const std::int64_t q : few) {
    double bound = out.keys.row(q)[out.keys.cols() - 1];
    if (job.upper_bounds) bound = std::min(bound, job.upper_bounds[q]);
    if (!(bound < std::numeric_limits<double>::infinity()) ||
        std::binary_search(again.begin(), again.end(), q))
      continue;
    std::memcpy(sample.row(std::ssize(upper_bounds)), queries_.row(q),
                static_cast<std::size_t>(queries_.cols() * size_of(queries_.type())));
    upper_bounds.push_back(bound);
  }
  const PrefixForecast cost = forecast_prefix(sample.view(), upper_bounds, shape, kept, format);
  todo = std::move(rest);
  todo.insert(todo.end(), again.begin(), again.end());
  std::sort(todo.begin(), todo.end());
  return cost;
}

void Search::self_join(const BaseRows& rows, const Choice& choice, ScanJob& job,
                       std::vector<std::int64_t>& todo, ExactNeighbors& out) {
  const bool forced = options_.first_pass == FirstPass::prefix, integer = segment_->integer;
  const TuningOverrides& choices = options_.tuning;
  if ((choices.group > 0 && choices.group != 12) || choices.parts > 0) return;
  if (todo.empty() || !whole_ || !job.allowed.all() || options_.metric == Metric::ip ||
      choice.passes.front() == FirstPass::direct || prepared().no_prefix() ||
      rows.rows() < least_prefix_rows)
    return;
  if (options_.memory > 0 &&
      (!forced || packing_bytes(rows.rows(), FirstPass::prefix) + other_bytes() +
                          self_join_bytes(rows.rows(), rows.cols(), k_, threads_) >
                      options_.memory))
    return;
  SearchShape shape = shape_of(rows, choice.passes.front(), std::ssize(todo));
  const auto kept = prepared().kept_prefix(integer);
  PrefixPlan plan =
      chosen(kept ? PrefixPlan{kept->map.columns(), kept->centroids.rows()} : usual_plan(shape));
  if (!forced) {
    if (options_.first_pass != FirstPass::automatic || rows.rows() < 8192 || rows.cols() < 32 ||
        rows.cols() > 4096 || k_ > rows.rows() / 64)
      return;
    auto cost = prepared().prefix_forecast(integer, k_);
    if (!cost) {
      const std::vector<std::int64_t> all = todo;  // some are answered on the way
      cost = try_prefix(rows, shape, choice, job, todo, out, kept ? plan : PrefixPlan{});
      todo = all;
    }
    if (!cost->possible) return;
    shape.go_by(cost->format);
    const double joined = self_join_share * prefix_cost(shape, *cost).seconds;
    const double making = kept && !differs(kept, plan) ? 0 : making_seconds(shape);
    if (!(joined + making < 0.9 * plain_cost(shape).seconds)) return;
    if (!kept) plan = chosen(cost->plan);
  }
  const auto form =
      prepared().prefix(integer, plan, rows, choice.keep && !made_for_once(kept, plan), true,
                        threads_, options_.progress, prepare_seconds_);
  if (!form || !self_join_with_prefix(*form, job, todo, out, stats_, options_.progress)) return;
  note_pass(FirstPass::prefix, todo.size() * static_cast<std::size_t>(count_));
  note_prefix(*form, choice.keep, 0.5 * static_cast<double>(todo.size()));
  self_joined_ = true;
  todo.clear();
}

bool Search::differs(const std::shared_ptr<const PrefixBase>& kept, const PrefixPlan& plan) const {
  return kept && ((plan.tile_bytes > 0 && kept->panels.tile_bytes != plan.tile_bytes) ||
                  (options_.tuning.columns > 0 && kept->map.columns() != plan.columns) ||
                  (options_.tuning.clusters > 0 && kept->centroids.rows() != plan.clusters));
}

void Search::note_prefix(const PrefixBase& form, bool keep, double queries) {
  prefix_columns_ = std::max(prefix_columns_, form.map.columns());
  clusters_ = std::max(clusters_, form.centroids.rows());
  tile_rows_ = form.panels.panels_per_tile * panel_rows;
  packed_bytes_ =
      std::max(packed_bytes_, prepared().kept_bytes(nullptr) + (keep ? 0 : form.bytes()));
  multiply_adds_ +=
      queries * static_cast<double>(form.panels.rows) * static_cast<double>(form.map.columns());
  bytes_read_ += static_cast<double>(form.panels.codes.bytes());
}

void Search::search_with_prefix(const PrefixPlan& plan, const BaseRows& rows, const Choice& choice,
                                const ScanJob& job, std::vector<std::int64_t>& todo,
                                ExactNeighbors& out) {
  const bool forced = options_.first_pass == FirstPass::prefix;
  if (options_.memory > 0 && (tile_bytes() > 0 || !prepared().kept_prefix(segment_->integer)))
    prepared().release_all_but(tile_bytes() > 0 ? FirstPass::direct : FirstPass::prefix);
  const auto kept = prepared().kept_prefix(segment_->integer);
  const auto form =
      prepared().prefix(segment_->integer, plan, rows, choice.keep && !made_for_once(kept, plan),
                        forced, threads_, options_.progress, prepare_seconds_);
  if (!form) return;
  const std::size_t before = todo.size();
  todo = scan_with_prefix(*form, job, todo, out, stats_, options_.progress);
  note_pass(FirstPass::prefix, (before - todo.size()) * static_cast<std::size_t>(count_));
  fallback_queries_ = std::max(fallback_queries_, std::ssize(todo));
  prepared().note_prefix_served(segment_->integer, k_, before, todo.size());
  note_prefix(*form, choice.keep, static_cast<double>(before));
}

}  // namespace knear::detail
