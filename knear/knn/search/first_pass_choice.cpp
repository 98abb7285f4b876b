#include "knear/knn/search/first_pass_choice.hpp"

#include "knear/core/stop_check.hpp"
#include "knear/cost/plan.hpp"
#include "knear/scan/worthwhile.hpp"

namespace knear::detail {
namespace {

// `count` rows of a matrix, or all if it has no more, evenly spaced.
AnyMatrixView every_nth(AnyMatrixView all, std::int64_t count) {
  if (all.rows() <= count) return all;
  const std::int64_t step = all.rows() / count;
  return {all.type(), all.row(0), count, all.cols(), all.stride() * step};
}

// Choices that measuring every row would leave without effect.
bool names_a_kernel(const TuningOverrides& choices) {
  return choices.group > 0 || choices.parts > 0 || choices.tile > 0 ||
         choices.refine.value_or(false);
}

}  // namespace

bool FirstPassChoice::direct_pays(std::int64_t rows) const {
  const KnnOptions& options = at_.request.options;
  if (options.first_pass == FirstPass::direct || !traits_of(options.metric).by_products)
    return true;
  if (options.first_pass != FirstPass::automatic || names_a_kernel(options.tuning)) return false;
  if (rows < least_packed_rows) return true;
  if (at_.packs_always) return false;
  const bool packed = at_.request.reuses() || at_.prepared().is_kept(at_.first_pass());
  return measuring_seconds(rows) < scanning_seconds(rows, 0, packed ? 0 : 1);
}

ScanShape FirstPassChoice::shape(std::int64_t rows, Format format) const {
  const AnyMatrixView queries = at_.request.queries;
  return scan_shape(rows, queries.cols(), queries.rows(), at_.request.k, at_.segment->integer,
                    format);
}

double FirstPassChoice::scanning_seconds(std::int64_t rows, std::int64_t allowed,
                                         double packing) const {
  ScanShape scan = shape(rows, format_of(at_.cascade().front()));
  scan.allowed = allowed, scan.packing = true;
  const ScanCost cost = predict_scan(scan, at_.request.peaks);
  return cost.seconds - (1 - packing) * cost.packing_seconds;
}

double FirstPassChoice::measuring_seconds(std::int64_t rows) const {
  ScanShape scan = shape(rows, format_fp32);
  scan.bytes_per_element = static_cast<double>(size_of(at_.base().type()));
  return predict_direct(scan, at_.request.peaks).seconds;
}

FirstPassChoice::Way FirstPassChoice::way_for(bool kept, bool will_be_kept) const {
  const KnnOptions& options = at_.request.options;
  const std::int64_t rows = at_.rows.rows(), count = at_.count;
  if (at_.packs_always) return 2 * count < rows ? Way::subset : Way::whole;
  const double whole = scanning_seconds(rows, count, kept ? 0 : will_be_kept ? 0.05 : 1);
  const double subset = scanning_seconds(count, 0, 1);
  if (options.first_pass == FirstPass::automatic && !names_a_kernel(options.tuning) &&
      measuring_seconds(count) <= std::min(whole, subset))
    return Way::direct;
  return whole <= subset ? Way::whole : Way::subset;
}

bool FirstPassChoice::choose_rows(ScanJob& job, Choice& choice) {
  const KnnOptions& options = at_.request.options;
  bool directly = direct_pays(at_.count);
  job.allowed = at_.allowed();
  if (job.allowed.all() || job.allowed.live || directly ||
      options.first_pass == FirstPass::prefix || options.tuning.refine.value_or(false))
    return directly;
  const bool keep = at_.whole && at_.request.reuses();
  const Way way = way_for(keep && at_.prepared().is_kept(at_.first_pass()), keep);
  if (way == Way::subset) {
    at_.list_allowed();
    choice.packed_rows = at_.subset, job.allowed = {};
  }
  return way == Way::direct;
}

Choice FirstPassChoice::choose(ScanJob& job) {
  const SearchRequest& request = at_.request;
  Choice choice;
  const bool directly = choose_rows(job, choice);
  choice.keep = at_.whole && request.reuses() && choice.packed_rows.empty() &&
                (!request.limited() || request.segments.size() == 1);
  std::vector<FirstPass>& passes = choice.passes;
  passes = directly ? std::vector{FirstPass::direct} : at_.cascade();
  const FirstPass first = passes.front();
  if (request.limited())  // wider codes only where they fit; the first is what chunks fit
    std::erase_if(passes, [&](FirstPass pass) {
      return pass != first &&
             at_.packing_bytes(at_.rows.rows(), pass) + at_.other_bytes() > request.options.memory;
    });
  else if (!request.options.tuning.refine.value_or(false))
    skip_useless(passes);
  return choice;
}

ChunkSearch FirstPassChoice::begin(std::int64_t k, const std::vector<double>& upper_bounds) {
  ChunkSearch out{at_.job(at_.request.queries, k), {}, at_.all_queries()};
  out.job.pending = at_.most_pending();
  out.job.upper_bounds = upper_bounds.empty() ? nullptr : upper_bounds.data();
  apply_tuning(out.job);
  out.choice = choose(out.job);
  return out;
}

void FirstPassChoice::apply_tuning(ScanJob& job) const {
  const TuningOverrides& choices = at_.request.options.tuning;
  job.group = choices.group, job.splits = choices.parts;
  job.may_estimate = choices.guess;
  job.may_refine = choices.refine.value_or(true);
  job.must_refine = choices.refine.value_or(false);
  job.by_rows = !at_.request.limited();
}

double FirstPassChoice::expected_seconds(const Choice& choice) const {
  const FirstPass first = choice.passes.front();
  if (first == FirstPass::direct) return measuring_seconds(at_.count);
  if (!choice.packed_rows.empty()) return scanning_seconds(at_.count, 0, 1);
  return scanning_seconds(at_.rows.rows(), at_.count, at_.prepared().is_kept(first) ? 0 : 1);
}

PackingJob FirstPassChoice::packing(const Choice& choice) const {
  return {.rows = at_.rows,
          .subset = choice.packed_rows,
          .keep = choice.keep,
          .threads = at_.request.threads,
          .progress = at_.request.options.progress,
          .seconds = report_.prepare_seconds,
          .tile_bytes = at_.tile_bytes};
}

std::shared_ptr<const PackedBase> FirstPassChoice::packed(FirstPass pass, const Choice& choice) {
  if (at_.whole && choice.packed_rows.empty() && at_.prepared().is_adopted(pass) &&
      at_.tile_bytes == 0)
    return at_.prepared().kept(pass);
  return at_.prepared().packed(pass, packing(choice));
}

std::shared_ptr<const PerRowCodes> FirstPassChoice::per_row_codes(const PackedBase& packed,
                                                                  const Choice& choice,
                                                                  std::int64_t queries,
                                                                  double survivors) {
  const SearchRequest& request = at_.request;
  const std::optional<bool>& asked = request.options.tuning.refine;
  if (packed.is_integer || packed.format != format_int8 || !choice.packed_rows.empty() ||
      request.limited() || !asked.value_or(at_.whole))
    return nullptr;
  PreparedRows& prepared = at_.prepared();
  if (at_.whole)
    if (const auto kept = prepared.kept_per_row_codes(packed.space)) return kept;
  if (!asked) {
    const std::int64_t dim = at_.base().cols();
    const double spared =
        survivors > 0
            ? spared_by_refining(survivors, static_cast<double>(request.k), dim, request.peaks) *
                  static_cast<double>(queries) / request.threads
            : 0;
    if (!(spared > 0)) return nullptr;
    const double all = request.reuses() ? prepared.spared_by_per_row_codes(spared) : spared;
    if (all < (request.reuses() ? 1.0 : 1.5) *
                  per_row_codes_seconds(at_.base().rows(), dim, request.peaks))
      return nullptr;
    if (request.reuses() && !may_prepare()) return nullptr;
  }
  const auto codes = prepared.per_row_codes(packed.space, packing(choice));
  if (prepared.kept_per_row_codes(packed.space) != codes) report_.note_codes(codes->bytes());
  return codes;
}

void FirstPassChoice::skip_useless(std::vector<FirstPass>& passes) {
  // Small beside the work itself: two passes on it are packed and measured where both are useless.
  const std::int64_t all_queries = at_.request.queries.rows();
  const std::int64_t sample_queries = std::clamp<std::int64_t>(all_queries / 8, 6, 48);
  const std::int64_t sample_rows = std::clamp<std::int64_t>(at_.rows.rows() / 32, 256, 2048);
  if (at_.rows.rows() < 8 * sample_rows || all_queries == 0) return;
  AnyMatrix base;  // sampled when it is needed
  const AnyMatrixView queries = every_nth(at_.request.queries, sample_queries);
  // As near to the k-th of all rows as a rank in the sample can be.
  const std::int64_t wanted = at_.request.k;
  const std::int64_t k = std::clamp<std::int64_t>(
      wanted * sample_rows / std::max<std::int64_t>(1, at_.request.allowed_rows), 1, sample_rows);
  while (passes.size() > 1 && passes.front() != FirstPass::integer) {
    const FirstPass pass = passes.front();
    std::optional<bool> worth = at_.prepared().known_worth(pass, wanted);
    if (!worth) {
      const Stopwatch time;
      if (base.rows() == 0) base = at_.rows.sample(sample_rows);
      worth = is_worth(pass, base.view(), queries, k);
      if (worth) at_.prepared().note_worth(pass, wanted, *worth);
      report_.prepare_seconds += time.seconds();
    }
    if (worth.value_or(true)) return;
    passes.erase(passes.begin());
  }
}

std::optional<bool> FirstPassChoice::is_worth(FirstPass pass, AnyMatrixView rows,
                                              AnyMatrixView queries, std::int64_t k) {
  static const Progress quiet;
  const PackedBase packed = PackedBase::certified(
      rows, {}, format_of(pass), at_.prepared().coding_space(), at_.request.threads, quiet);
  ScanJob job = at_.job(queries, k);
  job.base = rows;
  ExactNeighbors out(queries.rows(), k);
  // All rows are as far from a zero query by cosine and ip, so that it is answered without a scan.
  const bool scans_zero = traits_of(job.metric).squared;
  std::vector<std::int64_t> scanned;
  for (std::int64_t q = 0; q < queries.rows(); ++q)
    if (scans_zero || !is_zero(queries, q)) scanned.push_back(q);
  if (scanned.empty()) return {};
  ScanStats stats;
  scan(packed, job, scanned, out, stats, quiet);
  const double count = static_cast<double>(scanned.size());
  const double share = (static_cast<double>(stats.survivors) - static_cast<double>(k) * count) /
                       (count * static_cast<double>(rows.rows()));
  return share <= worthwhile_survivors(format_of(pass), rows.cols(), at_.request.peaks);
}

}  // namespace knear::detail
