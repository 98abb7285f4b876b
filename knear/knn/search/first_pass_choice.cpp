// By what a chunk is scored first: which passes are tried, whether it pays to pack its rows, all or
// those allowed, whether codes of rows pay beside an 8-bit form, and when a pass is given up. Apart
// from the search itself, since this is planning: by forecasts (cost/plan.hpp), by what earlier
// searches saw, and by trials on samples and on the first queries.
#include <numeric>

#include "knear/cost/plan.hpp"
#include "knear/knn/search/search.hpp"

namespace knear::detail {
namespace {

// The ladder of first passes for data that is not whole: each is tried where the one before let
// too much through. Without the dot-product instructions all run at the rate of fp32, whose bound
// is the tightest. Where even that is useless, measuring every row in order is cheaper than
// measuring most of them as they come.
std::vector<FirstPass> precision_cascade(Isa isa) {
  if (isa == Isa::avx512_vnni)
    return {FirstPass::int8, FirstPass::int16, FirstPass::fp32, FirstPass::direct};
  return {FirstPass::fp32, FirstPass::direct};
}

// `count` rows of a matrix, or all if it has no more, evenly spaced.
AnyMatrixView every_nth(AnyMatrixView all, std::int64_t count) {
  if (all.rows() <= count) return all;
  const std::int64_t step = all.rows() / count;
  return {all.type(), all.row(0), count, all.cols(), all.stride() * step};
}

}  // namespace

std::vector<FirstPass> Search::cascade_of(const Segment& segment) const {
  if (options_.first_pass != FirstPass::automatic && options_.first_pass != FirstPass::prefix)
    return {options_.first_pass};
  if (segment.integer) return {FirstPass::integer};
  std::vector<FirstPass> passes = precision_cascade(isa_);
  if (packs_always_) std::erase(passes, FirstPass::direct);
  if (options_.tuning.refine.value_or(false)) {  // what it refines is 8 bits
    std::erase(passes, FirstPass::int8);
    passes.insert(passes.begin(), FirstPass::int8);
    return passes;
  }
  // A form that an index keeps, from a machine with other instructions say, costs no packing; and
  // those before it were found useless when it was made.
  for (FirstPass pass : {FirstPass::int16, FirstPass::int8})
    if (segment.given.rows->is_adopted(pass)) {
      const auto at = std::find(passes.begin(), passes.end(), pass);
      if (at == passes.end())
        passes.insert(passes.begin(), pass);
      else
        passes.erase(passes.begin(), at);
    }
  return passes;
}

bool Search::direct_pays(std::int64_t rows) const {
  if (options_.first_pass == FirstPass::direct) return true;
  if (options_.first_pass != FirstPass::automatic || kernel_chosen()) return false;
  if (rows < least_packed_rows) return true;
  if (packs_always_) return false;
  const bool packed =
      reuse_ == Reuse::expected || prepared().is_kept(cascade_of(*segment_).front());
  return measuring_seconds(rows) < scanning_seconds(rows, 0, packed ? 0 : 1);
}

double Search::scanning_seconds(std::int64_t rows, std::int64_t allowed, double packing) const {
  ScanShape shape = scan_shape(rows, queries_.cols(), queries_.rows(), k_, segment_->integer,
                               format_of(cascade_of(*segment_).front()));
  shape.allowed = allowed, shape.packing = true;
  const ScanCost cost = predict_scan(shape, peaks_);
  return cost.seconds - (1 - packing) * cost.packing_seconds;
}

double Search::measuring_seconds(std::int64_t rows) const {
  ScanShape shape =
      scan_shape(rows, queries_.cols(), queries_.rows(), k_, segment_->integer, format_fp32);
  shape.bytes_per_element = static_cast<double>(size_of(base().type()));
  return predict_direct(shape, peaks_).seconds;
}

Search::Way Search::way_for(std::int64_t rows, bool kept, bool will_be_kept) const {
  if (packs_always_) return 2 * count_ < rows ? Way::subset : Way::whole;
  const double whole = scanning_seconds(rows, count_, kept ? 0 : will_be_kept ? 0.05 : 1);
  const double subset = scanning_seconds(count_, 0, 1);
  if (options_.first_pass == FirstPass::automatic && !kernel_chosen() &&
      measuring_seconds(count_) <= std::min(whole, subset))
    return Way::direct;
  return whole <= subset ? Way::whole : Way::subset;
}

AllowedRows Search::allowed_rows(const BaseRows& rows, std::int64_t begin) const {
  const SearchSegment& segment = segment_->given;
  if (count_ == rows.rows()) return {};
  if (segment.live) return {.live = segment.live, .live_offset = begin};
  return {.filter = &segment.filter, .offset = segment.filter_offset + begin};
}

bool Search::choose_rows(const BaseRows& rows, std::int64_t begin, ScanJob& job, Choice& choice) {
  bool directly = direct_pays(count_);
  job.allowed = allowed_rows(rows, begin);
  if (!job.allowed.all()) {
    bool packed_alone = false;
    if (!job.allowed.live && !directly && options_.first_pass != FirstPass::prefix &&
        !options_.tuning.refine.value_or(false)) {
      const bool keep = whole_ && reuse_ == Reuse::expected;
      const Way way = way_for(rows.rows(), keep && prepared().is_kept(first_pass()), keep);
      directly = way == Way::direct, packed_alone = way == Way::subset;
    }
    if (packed_alone) {
      list_allowed(job);
      choice.packed_rows = subset_, job.allowed = {};
    }
  }
  return directly;
}

Search::Choice Search::choose(const BaseRows& rows, std::int64_t begin, ScanJob& job) {
  Choice choice;
  const bool directly = choose_rows(rows, begin, job, choice);
  choice.keep = whole_ && reuse_ == Reuse::expected && choice.packed_rows.empty() &&
                (options_.memory <= 0 || segments_.size() == 1);
  std::vector<FirstPass>& passes = choice.passes;
  passes = directly ? std::vector{FirstPass::direct} : cascade_of(*segment_);
  const FirstPass first = passes.front();
  if (options_.memory > 0)  // wider codes only where they fit; the first is what chunks fit
    std::erase_if(passes, [&](FirstPass pass) {
      return pass != first && packing_bytes(rows.rows(), pass) + other_bytes() > options_.memory;
    });
  else if (!options_.tuning.refine.value_or(false))
    skip_useless(passes, rows);
  return choice;
}

void Search::apply_tuning(ScanJob& job) const {
  job.group = options_.tuning.group, job.splits = options_.tuning.parts;
  job.may_estimate = options_.tuning.guess;
  job.may_refine = options_.tuning.refine.value_or(true);
  job.must_refine = options_.tuning.refine.value_or(false);
  job.by_rows = options_.memory <= 0;
}

void Search::list_allowed(const ScanJob& job) {
  const AllowedRows& allowed = job.allowed;
  if (allowed.all() || !subset_.empty()) return;
  const std::int64_t rows = job.base.rows();
  if (!allowed.live) {
    subset_ = allowed.filter->allowed(allowed.offset, allowed.offset + rows);
    return;
  }
  for (std::int64_t row = 0; row < rows; ++row)
    if (allowed(row)) subset_.push_back(static_cast<std::uint32_t>(row));
}

std::shared_ptr<const PackedBase> Search::packed_form(FirstPass pass, const BaseRows& rows,
                                                      const Choice& choice) {
  if (whole_ && choice.packed_rows.empty() && prepared().is_adopted(pass) && tile_bytes() == 0)
    return prepared().kept(pass);
  return prepared().packed(pass, rows, choice.packed_rows, choice.keep, threads_, options_.progress,
                           prepare_seconds_, tile_bytes());
}

std::shared_ptr<const PerRowCodes> Search::per_row_codes_for(const PackedBase& packed,
                                                             const BaseRows& rows,
                                                             const Choice& choice,
                                                             std::int64_t queries,
                                                             double survivors) {
  const std::optional<bool>& asked = options_.tuning.refine;
  if (packed.is_integer || packed.format != format_int8 || !choice.packed_rows.empty() ||
      options_.memory > 0 || !asked.value_or(whole_))
    return nullptr;
  if (whole_)
    if (const auto kept = prepared().kept_per_row_codes(packed.space)) return kept;
  const std::int64_t dim = base().cols();
  if (!asked) {
    const double spared =
        survivors > 0 ? spared_by_refining(survivors, static_cast<double>(k_), dim, peaks_) *
                            static_cast<double>(queries) / threads_
                      : 0;
    if (!(spared > 0)) return nullptr;
    const double all = reuse_ == Reuse::none ? spared : prepared().spared_by_per_row_codes(spared);
    if (all <
        (reuse_ == Reuse::none ? 1.5 : 1.0) * per_row_codes_seconds(base().rows(), dim, peaks_))
      return nullptr;
  }
  const auto codes = prepared().per_row_codes(packed.space, rows, choice.keep, threads_,
                                              options_.progress, prepare_seconds_);
  if (prepared().kept_per_row_codes(packed.space) != codes)
    code_bytes_ = std::max(code_bytes_, codes->bytes());
  return codes;
}

void Search::skip_useless(std::vector<FirstPass>& passes, const BaseRows& rows) {
  // Small beside the work itself: two rungs of it are packed and measured where both are useless.
  const std::int64_t sample_queries = std::clamp<std::int64_t>(queries_.rows() / 8, 6, 48);
  const std::int64_t sample_rows = std::clamp<std::int64_t>(rows.rows() / 32, 256, 2048);
  if (rows.rows() < 8 * sample_rows || queries_.rows() == 0) return;
  AnyMatrix base;  // sampled when it is needed
  const AnyMatrixView queries = every_nth(queries_, sample_queries);
  // As near to the k-th of all rows as a rank in the sample can be.
  const std::int64_t k = std::clamp<std::int64_t>(
      k_ * sample_rows / std::max<std::int64_t>(1, allowed_rows_), 1, sample_rows);
  while (passes.size() > 1) {
    if (passes.front() == FirstPass::integer) return;
    const auto known = prepared().known_worth(passes.front(), k_);
    if (known.value_or(false)) return;
    if (!known) {
      const auto start = Clock::now();
      static const Progress quiet;
      if (base.rows() == 0) base = rows.sample(sample_rows);
      const PackedBase packed = PackedBase::certified(base.view(), {}, format_of(passes.front()),
                                                      prepared().coding_space(), threads_, quiet);
      ScanJob job = job_for(queries, base.view(), k);
      job.query_range = found_;
      ExactNeighbors out(queries.rows(), k);
      std::vector<std::int64_t> all(queries.rows());
      std::iota(all.begin(), all.end(), 0);
      ScanStats stats;
      scan(packed, job, all, out, stats, quiet);
      const double share = static_cast<double>(stats.survivors - k * queries.rows()) /
                           static_cast<double>(queries.rows() * base.rows());
      const bool worth =
          share <= worthwhile_survivors(format_of(passes.front()), base.cols(), peaks_);
      prepared().note_worth(passes.front(), k_, worth);
      prepare_seconds_ += seconds_since(start);
      if (worth) return;
    }
    passes.erase(passes.begin());
  }
}

std::vector<std::int64_t> Search::try_pass(const PackedBase& packed, const BaseRows& rows,
                                           const Choice& choice, bool survivors_known, ScanJob job,
                                           const std::vector<std::int64_t>& todo,
                                           ExactNeighbors& out) {
  const std::size_t probe = std::min<std::size_t>(todo.size() / 120 * 12, 96);
  if (probe == 0) return scan(packed, job, todo, out, stats_, options_.progress);
  const std::size_t step = todo.size() / probe;
  std::vector<std::int64_t> first, rest;
  for (std::size_t i = 0; i < todo.size(); ++i)
    (i % step == step / 2 && first.size() < probe ? first : rest).push_back(todo[i]);
  static const Progress quiet;
  const std::int64_t before = stats_.survivors;
  std::vector<std::int64_t> again = scan(packed, job, first, out, stats_, quiet);
  if (2 * again.size() <= first.size()) {
    const std::shared_ptr<const PerRowCodes> codes =
        job.per_row_codes || survivors_known
            ? nullptr
            : per_row_codes_for(packed, rows, choice, std::ssize(rest),
                                static_cast<double>(stats_.survivors - before) /
                                    static_cast<double>(first.size()));
    if (codes) job.per_row_codes = codes.get();
    rest = scan(packed, job, rest, out, stats_, options_.progress);
  }
  again.insert(again.end(), rest.begin(), rest.end());
  std::sort(again.begin(), again.end());
  return again;
}

std::optional<FirstPass> Search::prepare() {
  segment_ = &segments_.front();
  std::vector<FirstPass> passes = cascade_of(*segment_);
  skip_useless(passes, base());
  if (passes.front() == FirstPass::direct) return {};
  prepared().adopt(passes.front(), prepared().packed(passes.front(), base(), {}, true, threads_,
                                                     options_.progress, prepare_seconds_));
  return passes.front();
}

}  // namespace knear::detail
