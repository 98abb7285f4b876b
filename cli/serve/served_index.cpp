#include "cli/serve/served_index.hpp"

#include <algorithm>
#include <utility>

#include "cli/interrupt.hpp"
#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/system.hpp"
#include "knear/serve/refusal.hpp"

namespace knear::cli {
namespace {

ServedIndex::About about_of(const serve::StoredIndex& index) {
  return {.kind = index.description(),
          .dim = index.dim(),
          .rows = index.size(),
          .next_id = index.next_id(),
          .version = index.version(),
          .memory_bytes = index.memory_bytes(),
          .metric = index.metric(),
          .type = index.element_type(),
          .audits = index.audits()};
}

// What the first searches would stop to make for themselves, and for all that wait behind them: the
// prefix of a flat index (2.7 seconds of one thread for 1,000,000 x 96), a graph.
void prepare(serve::StoredIndex& index, int threads, const Progress& progress) {
  if (index.lists() > 0 || index.has_codes()) return;
  // Rows that stay in their file are read for it, and it takes about as much as they do in bytes.
  if (index.size() > available_memory() / 4 / (index.dim() + 200)) return;
  try {
    index.optimize({.threads = threads, .progress = progress});
  } catch (const MemoryBudgetError&) {  // searches do without it
  } catch (const Cancelled&) {          // a reload that has begun is finished all the same
  }
}

// Has an index audit itself, where that was asked for or the index can do it.
void begin_audits(serve::StoredIndex& index, std::optional<double> share, const std::string& name) {
  constexpr double usual_share = 0.02;
  try {
    index.set_audit(share.value_or(usual_share));
  } catch (const InvalidArgument& error) {
    if (share) throw InvalidArgument("--{} (index {})", error.what(), name);
  }
}

bool go_on(std::string_view, double) { return !interrupted(); }

// The first k neighbours of each query.
Neighbors first_neighbors(const Neighbors& near, std::int64_t k) {
  const std::int64_t queries = near.ids.rows();
  Neighbors out{Matrix<Id>(queries, k), Matrix<float>(queries, k)};
  for (std::int64_t q = 0; q < queries; ++q) {
    std::copy_n(near.ids.row(q), k, out.ids.row(q));
    std::copy_n(near.distances.row(q), k, out.distances.row(q));
  }
  return out;
}

}  // namespace

std::int64_t calibrated_k(std::int64_t k) {
  std::int64_t step = 1;
  while (8 * step < k) step *= 2;
  return (k + step - 1) / step * step;
}

std::int64_t available_memory() {
  return detail::available_memory().value_or(std::int64_t{1} << 62);
}

ServedIndex::ServedIndex(std::string name, std::string path, bool read_only,
                         std::optional<double> audit, serve::DurableOptions options,
                         const Progress& progress)
    : name_(std::move(name)), path_(std::move(path)), threads_(options.threads), audit_(audit) {
  if (read_only) {
    fixed_ = open(path_, progress);
    return;
  }
  options.name = name_;
  // A later reload prepares the index without showing progress.
  const auto shown = std::make_shared<Progress>(progress);
  options.prepare = [this, threads = threads_, shown](serve::StoredIndex& index) {
    begin_audits(index, audit_, name_);
    prepare(index, threads, *shown ? *shown : go_on);
  };
  durable_ = std::make_unique<serve::DurableIndex>(path_, std::move(options));
  *shown = nullptr;
}

ServedIndex::State ServedIndex::open(const std::string& path, const Progress& progress) const {
  auto index = std::make_shared<serve::StoredIndex>(serve::StoredIndex::load(path));
  begin_audits(*index, audit_, name_);
  prepare(*index, threads_, progress);
  return index;
}

ServedIndex::State ServedIndex::state() const {
  if (durable_) return durable_->state();
  std::lock_guard lock(mutex_);
  return fixed_;
}

ServedIndex::About ServedIndex::about() const {
  About out = about_of(*state());
  if (!durable_) return out;
  out.writable = true;
  out.log_bytes = durable_->log_bytes(), out.checkpoints = durable_->checkpoints();
  return out;
}

ServedIndex::Shape ServedIndex::shape() const {
  const auto index = state();
  return {{index->dim(), index->element_type()},
          index->lists() > 0 || index->has_graph(),
          index->has_graph()};
}

Neighbors ServedIndex::search(const State& state, AnyMatrixView queries, std::int64_t k,
                              const SearchOptions& options, KnnReport* report) {
  try {
    return state->search(queries, k, options, report);
  } catch (const NotPrepared&) {
    const std::int64_t more = calibrated_k(k);
    if (more == k) throw;
    Neighbors near = first_neighbors(state->search(queries, more, options, report), k);
    if (report) report->k = k;
    return near;
  }
}

bool ServedIndex::reload(bool discard_changes) {
  if (durable_) return durable_->reload(discard_changes);
  auto next = open(path_, go_on);
  const About before = about(), after = about_of(*next);
  if (before.dim != after.dim || before.metric != after.metric)
    throw serve::Refusal(
        409, "'{}' has {} columns and is for {}, but what is served has {} and is for {}", path_,
        after.dim, name_of(after.metric), before.dim, name_of(before.metric));
  std::lock_guard lock(mutex_);
  fixed_ = std::move(next);
  return true;
}

}  // namespace knear::cli
