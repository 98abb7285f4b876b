#include "cli/serve/served_index.hpp"

#include <utility>

#include "knear/serve/refusal.hpp"

namespace knear::cli {
namespace {

template <class AnyIndex>
ServedIndex::About about_of(const AnyIndex& index) {
  return {.kind = index.description(),
          .dim = index.dim(),
          .rows = index.size(),
          .next_id = index.next_id(),
          .version = index.version(),
          .memory_bytes = index.memory_bytes(),
          .metric = index.metric(),
          .type = index.element_type()};
}

template <class AnyIndex>
ServedIndex::Shape shape_of(const AnyIndex& index) {
  return {{index.dim(), index.element_type()}, index.lists() > 0 || index.has_graph()};
}

}  // namespace

ServedIndex::ServedIndex(std::string name, std::string path, bool read_only,
                         serve::DurableOptions options)
    : name_(std::move(name)), path_(std::move(path)) {
  if (read_only || is_sharded_file(path_)) {
    fixed_ = open(path_);
    return;
  }
  options.name = name_;
  durable_ = std::make_unique<serve::DurableIndex>(path_, std::move(options));
}

std::shared_ptr<const ServedIndex::Fixed> ServedIndex::open(const std::string& path) {
  if (is_sharded_file(path))
    return std::make_shared<const Fixed>(std::in_place_type<ShardedIndex>,
                                         ShardedIndex::load(path));
  return std::make_shared<const Fixed>(std::in_place_type<Index>, Index::load(path));
}

std::shared_ptr<const ServedIndex::Fixed> ServedIndex::fixed() const {
  std::lock_guard lock(mutex_);
  return fixed_;
}

ServedIndex::About ServedIndex::about() const {
  if (!durable_) return std::visit([](const auto& index) { return about_of(index); }, *fixed());
  About out = about_of(*durable_->state());
  out.writable = true;
  out.log_bytes = durable_->log_bytes(), out.checkpoints = durable_->checkpoints();
  return out;
}

ServedIndex::Shape ServedIndex::shape() const {
  if (durable_) return shape_of(*durable_->state());
  return std::visit([](const auto& index) { return shape_of(index); }, *fixed());
}

Neighbors ServedIndex::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                              KnnReport* report) const {
  if (durable_) return durable_->state()->search(queries, k, options, report);
  return std::visit([&](const auto& index) { return index.search(queries, k, options, report); },
                    *fixed());
}

bool ServedIndex::reload(bool discard_changes) {
  if (durable_) return durable_->reload(discard_changes);
  auto next = open(path_);
  const About before = about(),
              after = std::visit([](const auto&index) { return about_of(index); }, *next);
  if (before.dim != after.dim || before.metric != after.metric)
    throw serve::Refusal(
        409, "'{}' has {} columns and is for {}, but what is served has {} and is for {}", path_,
        after.dim, name_of(after.metric), before.dim, name_of(before.metric));
  std::lock_guard lock(mutex_);
  fixed_ = std::move(next);
  return true;
}

}  // namespace knear::cli
