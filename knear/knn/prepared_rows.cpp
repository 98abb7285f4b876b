#include "knear/knn/prepared_rows.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace knear::detail {
namespace {

using Clock = std::chrono::steady_clock;

int number_of(FirstPass pass) { return static_cast<int>(pass); }

}  // namespace

Format format_of(FirstPass pass) {
  return pass == FirstPass::int8    ? format_int8
         : pass == FirstPass::int16 ? format_int16
                                    : format_fp32;
}

std::shared_ptr<const PackedBase> PreparedRows::packed(FirstPass pass, const BaseRows& rows,
                                                       std::span<const std::uint32_t> subset,
                                                       bool keep, int threads,
                                                       const Progress& progress,
                                                       double& prepare_seconds) {
  // What is kept is made by one search while others wait for it; what is not concerns no other.
  std::unique_lock lock(making_, std::defer_lock);
  if (keep) {
    if (auto form = kept(pass)) return form;
    lock.lock();
    if (auto form = kept(pass)) return form;
  }
  const auto start = Clock::now();
  std::shared_ptr<const PackedBase> made;
  if (pass == FirstPass::integer)
    made = std::make_shared<PackedBase>(
        PackedBase::integer(rows, subset, metric, active_isa(), found, threads, progress));
  else
    made = std::make_shared<PackedBase>(
        PackedBase::certified(rows, subset, format_of(pass), coding_space(), threads, progress));
  prepare_seconds += std::chrono::duration<double>(Clock::now() - start).count();
  if (keep) {
    std::lock_guard state(mutex_);
    forms_[number_of(pass)] = made;
  }
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
  const Worth& seen = worths_[number_of(pass)];
  if (k <= seen.up_to) return true;
  if (k >= seen.not_from) return false;
  return {};
}

void PreparedRows::note_worth(FirstPass pass, std::int64_t k, bool worth) {
  std::lock_guard lock(mutex_);
  Worth& seen = worths_[number_of(pass)];
  if (worth)
    seen.up_to = std::max(seen.up_to, k);
  else
    seen.not_from = std::min(seen.not_from, k);
}

std::int64_t PreparedRows::worth_up_to(FirstPass pass) {
  std::lock_guard lock(mutex_);
  return worths_[number_of(pass)].up_to;
}

void PreparedRows::release_all_but(FirstPass pass) {
  std::lock_guard lock(mutex_);
  for (int i = 0; i < first_pass_count; ++i)
    if (i != number_of(pass) && !adopted_[i]) forms_[i] = nullptr;
}

std::int64_t PreparedRows::kept_bytes(const PackedBase* except) {
  std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (int i = 0; i < first_pass_count; ++i)
    if (forms_[i] && !adopted_[i] && forms_[i].get() != except) sum += forms_[i]->bytes();
  return sum;
}

std::int64_t PreparedRows::bytes() {
  std::lock_guard lock(mutex_);
  std::int64_t sum = 0;
  for (const auto& form : forms_)
    if (form) sum += form->bytes();
  return sum;
}

}  // namespace knear::detail
