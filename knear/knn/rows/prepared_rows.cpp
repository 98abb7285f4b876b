#include "knear/knn/rows/prepared_rows.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace knear::detail {
namespace {

int number_of(FirstPass pass) { return static_cast<int>(pass); }

}  // namespace

Format format_of(FirstPass pass) {
  if (pass == FirstPass::int16) return format_int16;
  return pass == FirstPass::fp32 || pass == FirstPass::direct ? format_fp32 : format_int8;
}

// What is kept is made by one search while others wait for it; what is not concerns no other.
template <class Find, class Make>
auto PreparedRows::found_or_made(bool keep, Find find, Make make) {
  std::unique_lock lock(making_, std::defer_lock);
  if (keep) {
    if (auto kept = find()) return kept;
    lock.lock();
    if (auto kept = find()) return kept;
  }
  return make();
}

std::shared_ptr<const PackedBase> PreparedRows::packed(FirstPass pass, const PackingJob& job) {
  const auto find = [&] {
    auto form = kept(pass);
    return form && form->tile_bytes == job.tile_bytes ? form : nullptr;
  };
  return found_or_made(job.keep, find, [&] {
    const auto made = make(pass, job, true);
    std::lock_guard state(mutex_);
    if (job.keep && !adopted_[number_of(pass)]) forms_[number_of(pass)] = made;
    return made;
  });
}

std::shared_ptr<const PackedBase> PreparedRows::bins(FirstPass pass, const PackingJob& job) {
  const auto find = [&]() -> std::shared_ptr<const PackedBase> {
    std::lock_guard state(mutex_);
    const bool fits = bins_ && bins_->tile_bytes == job.tile_bytes &&
                      bins_->is_integer == (pass == FirstPass::integer) &&
                      (bins_->is_integer || bins_->format == format_of(pass));
    return fits ? bins_ : nullptr;
  };
  return found_or_made(job.keep, find, [&] {
    const auto made = make(pass, job, false);
    std::lock_guard state(mutex_);
    if (job.keep) bins_ = made;
    return made;
  });
}

std::shared_ptr<const PackedBase> PreparedRows::make(FirstPass pass, const PackingJob& job,
                                                     bool find_copies) {
  const Stopwatch time;
  std::shared_ptr<const PackedBase> made;
  if (pass == FirstPass::integer)
    made = std::make_shared<PackedBase>(PackedBase::integer(job.rows, job.subset, metric,
                                                            active_isa(), found, job.threads,
                                                            job.progress, job.tile_bytes));
  else
    made = std::make_shared<PackedBase>(
        PackedBase::certified(job.rows, job.subset, format_of(pass), coding_space(), job.threads,
                              job.progress, job.tile_bytes, find_copies));
  job.seconds += time.seconds();
  return made;
}

void PreparedRows::adopt(FirstPass pass, std::shared_ptr<const PackedBase> form) {
  std::lock_guard lock(mutex_);
  forms_[number_of(pass)] = std::move(form);
  adopted_[number_of(pass)] = true;
}

std::shared_ptr<const PackedBase> PreparedRows::kept(FirstPass pass) {
  std::lock_guard lock(mutex_);
  return forms_[number_of(pass)];
}

bool PreparedRows::is_adopted(FirstPass pass) {
  std::lock_guard lock(mutex_);
  return adopted_[number_of(pass)];
}

CodingSpace PreparedRows::coding_space() {
  std::lock_guard lock(mutex_);
  return space_chosen();
}

const CodingSpace& PreparedRows::space_chosen() {
  if (!space_) space_ = CodingSpace::choose(base, metric, active_isa());
  return *space_;
}

std::optional<bool> PreparedRows::known_worth(FirstPass pass, std::int64_t k) {
  std::lock_guard lock(mutex_);
  const PassViability& seen = pass_viability_[number_of(pass)];
  if (k <= seen.up_to) return true;
  if (k >= seen.not_from) return false;
  return {};
}

void PreparedRows::note_worth(FirstPass pass, std::int64_t k, bool worth) {
  std::lock_guard lock(mutex_);
  PassViability& seen = pass_viability_[number_of(pass)];
  if (worth)
    seen.up_to = std::max(seen.up_to, k);
  else
    seen.not_from = std::min(seen.not_from, k);
}

std::int64_t PreparedRows::worth_up_to(FirstPass pass) {
  std::lock_guard lock(mutex_);
  return pass_viability_[number_of(pass)].up_to;
}

bool PreparedRows::no_prefix() {
  std::lock_guard lock(mutex_);
  return no_prefix_;
}

std::shared_ptr<const PrefixBase> PreparedRows::kept_prefix(bool integer) {
  std::lock_guard lock(mutex_);
  return prefix_ && prefix_->codes.is_integer == integer ? prefix_ : nullptr;
}

std::shared_ptr<const PrefixBase> PreparedRows::prefix(bool integer, const PrefixPlan& plan,
                                                       const PackingJob& job, bool wait) {
  std::unique_lock lock(making_, std::defer_lock);
  if (no_prefix()) return nullptr;
  if (job.keep) {
    if (auto form = kept_prefix(integer)) return form;
    if (wait)
      lock.lock();
    else if (!lock.try_lock())
      return nullptr;
    if (auto form = kept_prefix(integer)) return form;
  }
  const bool whole = job.rows.rows() == base.rows();
  auto study = whole ? prefix_study(job.threads, job.progress, job.seconds) : nullptr;
  const Stopwatch time;
  if (!whole)
    study = std::make_shared<const PrefixStudy>(
        study_prefix(job.rows, metric, job.threads, job.progress));
  CodingSpace space;
  if (integer) {
    space.metric = metric, space.kernels = &scan_kernels(active_isa());
  } else {
    space = coding_space();
  }
  auto made = make_prefix(job.rows, *study, space, integer, found, plan, job.threads, job.progress,
                          job.prefixes);
  job.seconds += time.seconds();
  std::lock_guard state(mutex_);
  if (!made) no_prefix_ = true;
  if (job.keep && !prefix_) prefix_ = made;
  return made;
}

void PreparedRows::adopt_prefix(AdoptedPrefix prefix) {
  std::lock_guard lock(mutex_);
  const bool integer = prefix.base->codes.is_integer;
  std::erase_if(prefix_decisions_, [&](const PrefixDecision& d) { return d.integer == integer; });
  for (const PrefixOutlook& at : prefix.outlook)
    prefix_decisions_.push_back({integer, at.k, at.forecast, 0, 0});
  prefix_ = prefix.base, study_ = nullptr;
  adopted_prefix_ = std::move(prefix);
}

AdoptedPrefix PreparedRows::adopted_prefix() {
  std::lock_guard lock(mutex_);
  return adopted_prefix_;
}

bool PreparedRows::has_adopted_prefix() {
  std::lock_guard lock(mutex_);
  return adopted_prefix_.base != nullptr;
}

std::shared_ptr<const PrefixStudy> PreparedRows::prefix_study(int threads, const Progress& progress,
                                                              double& prepare_seconds) {
  {
    std::lock_guard lock(mutex_);
    if (study_) return study_;
  }
  const Stopwatch time;
  auto made = std::make_shared<const PrefixStudy>(study_prefix(base, metric, threads, progress));
  prepare_seconds += time.seconds();
  std::lock_guard lock(mutex_);
  if (!study_) study_ = std::move(made);
  return study_;
}

std::optional<PrefixForecast> PreparedRows::prefix_forecast(bool integer, std::int64_t k) {
  std::lock_guard lock(mutex_);
  for (const PrefixDecision& v : prefix_decisions_)
    if (v.integer == integer && k <= 2 * v.k && v.k <= 2 * k) return v.cost;
  return {};
}

void PreparedRows::note_prefix_forecast(bool integer, std::int64_t k, const PrefixForecast& cost) {
  std::lock_guard lock(mutex_);
  prefix_decisions_.push_back({integer, k, cost, 0, 0});
}

void PreparedRows::note_prefix_served(bool integer, std::int64_t k, std::size_t queries,
                                      std::size_t not_served) {
  std::lock_guard lock(mutex_);
  for (PrefixDecision& v : prefix_decisions_) {
    if (v.integer != integer || k > 2 * v.k || v.k > 2 * k) continue;
    v.queries += queries, v.not_served += not_served;
    if (v.queries >= 24 && 4 * v.not_served > v.queries) v.cost.refused = true;
  }
}

double PreparedRows::searched_without_prefix(double more) {
  std::lock_guard lock(mutex_);
  return without_prefix_ += more;
}

std::shared_ptr<const PerRowCodes> PreparedRows::kept_per_row_codes(const CodingSpace& space) {
  std::lock_guard lock(mutex_);
  return per_row_codes_ && per_row_codes_->space.mean == space.mean ? per_row_codes_ : nullptr;
}

std::shared_ptr<const PerRowCodes> PreparedRows::per_row_codes(const CodingSpace& space,
                                                               const PackingJob& job) {
  const auto find = [&] { return kept_per_row_codes(space); };
  return found_or_made(job.keep, find, [&] {
    const Stopwatch time;
    std::vector<std::uint32_t> order(job.rows.rows());
    std::iota(order.begin(), order.end(), 0u);
    const auto made = std::make_shared<const PerRowCodes>(
        detail::per_row_codes(job.rows, order, space, false, found, job.threads, job.progress));
    job.seconds += time.seconds();
    std::lock_guard state(mutex_);
    if (job.keep && !per_row_codes_) per_row_codes_ = made;
    return made;
  });
}

double PreparedRows::spared_by_per_row_codes(double more) {
  std::lock_guard lock(mutex_);
  return spared_ += more;
}

std::shared_ptr<const RowTree> PreparedRows::kept_tree() {
  std::lock_guard lock(mutex_);
  return tree_;
}

std::shared_ptr<const RowTree> PreparedRows::tree(const PackingJob& job) {
  const auto find = [&] { return kept_tree(); };
  return found_or_made(job.keep, find, [&] {
    const Stopwatch time;
    const auto made = RowTree::make(job.rows, coding_space(), job.threads, job.progress);
    job.seconds += time.seconds();
    std::lock_guard state(mutex_);
    if (job.keep && !tree_) tree_ = made;
    return made;
  });
}

double PreparedRows::searched_without_tree(double more) {
  std::lock_guard lock(mutex_);
  return without_tree_ += more;
}

namespace {

int magnitude_of(std::int64_t k) { return std::bit_width(static_cast<std::uint64_t>(k)); }

}  // namespace

double PreparedRows::known_tree_cost(std::int64_t k) {
  std::lock_guard lock(mutex_);
  const auto known = cost_of_tree_.find(magnitude_of(k));
  return known == cost_of_tree_.end() ? 0 : known->second;
}

double PreparedRows::note_tree_cost(std::int64_t k, double cost) {
  std::lock_guard lock(mutex_);
  return cost_of_tree_[magnitude_of(k)] = cost;
}

PreparedRows::PassStats PreparedRows::seen(FirstPass pass, std::int64_t k, bool few) {
  std::lock_guard lock(mutex_);
  const auto known = seen_.find({pass, 2 * magnitude_of(k) + few});
  return known == seen_.end() ? PassStats{} : known->second;
}

void PreparedRows::note_seen(FirstPass pass, std::int64_t k, bool few, const PassStats& what) {
  std::lock_guard lock(mutex_);
  seen_[{pass, 2 * magnitude_of(k) + few}] = what;
}

void PreparedRows::release_all_but(FirstPass pass) {
  std::lock_guard lock(mutex_);
  for (int i = 0; i < first_pass_count; ++i)
    if (i != number_of(pass) && !adopted_[i]) forms_[i] = nullptr;
  if (pass != FirstPass::prefix) prefix_ = adopted_prefix_.base, study_ = nullptr;
  per_row_codes_ = nullptr, spared_ = 0, bins_ = nullptr, tree_ = nullptr;
}

std::int64_t PreparedRows::kept_bytes(const PackedBase* except) {
  std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (int i = 0; i < first_pass_count; ++i)
    if (forms_[i] && !adopted_[i] && forms_[i].get() != except) sum += forms_[i]->bytes();
  if (bins_ && bins_.get() != except) sum += bins_->bytes();
  return sum + other_bytes();
}

std::int64_t PreparedRows::bytes() {
  std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (const auto& form : forms_)
    if (form) sum += form->bytes();
  if (bins_) sum += bins_->bytes();
  if (adopted_prefix_.base) sum += adopted_prefix_.base->bytes();
  return sum + other_bytes();
}

std::int64_t PreparedRows::other_bytes() const {
  const bool own_prefix = prefix_ && prefix_ != adopted_prefix_.base;
  return (own_prefix ? prefix_->bytes() : 0) + (study_ ? study_->bytes() : 0) +
         (per_row_codes_ ? per_row_codes_->bytes() : 0) + (tree_ ? tree_->bytes() : 0);
}

}  // namespace knear::detail
