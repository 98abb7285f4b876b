#include "knear/index/sharded.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/file/index_file.hpp"
#include "knear/index/shards/shards.hpp"
#include "knear/io/archive.hpp"
#include "knear/knn/search/range_search.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search_position.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {

using detail::Shard;
using detail::Shards;
using detail::State;

class ShardedIndex::Impl {
 public:
  explicit Impl(Shards from) : speeds(std::make_shared<detail::ReplicaSpeeds>(from.replicas)) {
    detail::put_together(from);
    state_ = std::make_shared<const Shards>(std::move(from));
  }
  Impl(const Impl& other) : speeds(other.speeds), state_(other.state()) {}

  mutable detail::ChangeLock writer;
  const std::shared_ptr<detail::ReplicaSpeeds> speeds;

  std::shared_ptr<const Shards> state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }

  // Calls f(next) with a copy of the present state, of which it may replace shards, and publishes
  // that. Nothing has changed where it throws.
  template <class F>
  auto change(F f) {
    return detail::public_call([&] {
      std::lock_guard lock(writer);
      Shards next = *state();
      check_whole(next, "changed");
      auto out = f(next);
      publish(std::move(next));
      return out;
    });
  }

  static void check_whole(const Shards& shards, std::string_view what) {
    for (const Shard& shard : shards.all)
      if (!shard.index)
        throw InvalidArgument("shard {} is missing, and what is left cannot be {}: {}", shard.name,
                              what, shard.why_missing);
  }

  // Has every shard know the ids and the element type of the whole, and counts rows.
  static void agree(Shards& next) {
    std::optional<ElementType> type;
    next.size = 0;
    for (Shard& shard : next.all) {
      const auto state = shard.state();
      if (!type) type = state->type;
      next.next_id = std::max(next.next_id, state->next_id);
      shard.rows = state->size, next.size += shard.rows;
    }
    for (Shard& shard : next.all) {
      const auto state = shard.state();
      if (state->type == type && state->next_id == next.next_id) continue;
      State known = *state;
      known.type = type, known.next_id = next.next_id;
      shard.index = detail::with_state(*shard.index, std::move(known));
    }
  }

 private:
  void publish(Shards next) {
    agree(next);
    detail::put_together(next);
    ++next.version;
    auto made = std::make_shared<const Shards>(std::move(next));
    std::lock_guard lock(state_mutex_);
    state_.swap(made);  // the old one goes after the lock, if no search has it
  }

  mutable detail::ProcessMutex state_mutex_;  // held for the time of copying a pointer
  std::shared_ptr<const Shards> state_;
};

namespace {

// A copy of a shard, in its place, which may be changed.
Index& own(Shard& shard) {
  shard.index = detail::with_state(*shard.index, *shard.state());
  return *shard.index;
}

// How many of n new rows go to each shard: those that have fewest are filled up first.
std::vector<std::int64_t> spread(const Shards& shards, std::int64_t n) {
  const auto filled = [&](std::int64_t level) {
    std::int64_t sum = 0;
    for (const Shard& shard : shards.all) sum += std::max<std::int64_t>(0, level - shard.rows);
    return sum;
  };
  // The highest level to which n rows fill all shards.
  std::int64_t low = 0, high = shards.size + n;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (filled(middle) <= n)
      low = middle;
    else
      high = middle - 1;
  }
  std::int64_t left = n - filled(low);
  std::vector<std::int64_t> out;
  for (const Shard& shard : shards.all) {
    out.push_back(std::max<std::int64_t>(0, low - shard.rows));
    if (left > 0 && shard.rows <= low) ++out.back(), --left;
  }
  return out;
}

// Adds rows to all shards; own_ids: empty, or of each row.
void append(Shards& next, AnyMatrixView vectors, std::span<const Id> own_ids,
            const ChangeOptions& options) {
  const std::int64_t n = vectors.rows();
  find_value_range(vectors, next.any().index->metric(), "vectors", options.threads);
  const std::vector<std::int64_t> counts = spread(next, n);
  const std::vector<CpuSet> groups = counts.size() > 1 ? cpu_groups() : std::vector<CpuSet>{};
  std::optional<ElementType> type = next.any().state()->type;
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    const std::int64_t end = begin + counts[s];
    Shard& shard = next.all[s];
    State state = *shard.state();
    state.type = type;
    if (own_ids.empty()) state.next_id = next.next_id + begin;
    shard.index = detail::with_state(*shard.index, std::move(state));
    const auto ids = own_ids.empty() ? own_ids
                                     : own_ids.subspan(static_cast<std::size_t>(begin),
                                                       static_cast<std::size_t>(counts[s]));
    const auto add = [&] {
      impl_of(*shard.index).append(vectors.rows(begin, end), ids, options, begin);
    };
    // Memory is that of the group that will search it (core/cpu_groups.hpp).
    if (groups.size() > 1)
      run_on(cpus_of_part(groups, static_cast<std::int64_t>(s), std::ssize(counts)), add);
    else
      add();
    type = shard.state()->type;
    begin = end;
  }
}

// The places of ids in each shard that holds them [shards]. Throws InvalidArgument for one that
// none holds.
std::vector<std::vector<std::int64_t>> places_in(const Shards& shards, std::span<const Id> ids) {
  std::vector<std::vector<std::int64_t>> out(shards.all.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Shard* holder = shards.find(ids[i]);
    if (!holder)
      throw InvalidArgument("ids hold {} in place {}, which the index does not hold", ids[i], i);
    out[static_cast<std::size_t>(holder - shards.all.data())].push_back(
        static_cast<std::int64_t>(i));
  }
  return out;
}

std::vector<Id> at_places(std::span<const Id> ids, const std::vector<std::int64_t>& places) {
  std::vector<Id> out;
  for (const std::int64_t place : places) out.push_back(ids[static_cast<std::size_t>(place)]);
  return out;
}

// Takes over the rows of indexes that have no id twice between them.
void take_over(Shards& next, std::span<const Index* const> others, MergeIds ids) {
  const Id first = next.next_id;
  for (const Index* other : others) {
    if (ids == MergeIds::keep)
      for (const Id id : other->ids())
        if (next.find(id))
          throw InvalidArgument("other holds id {}, which the index holds already", id);
    Shard& shard =
        *std::min_element(next.all.begin(), next.all.end(),
                          [](const Shard& a, const Shard& b) { return a.rows < b.rows; });
    State state = *shard.state();
    state.next_id = first;  // ids of all others are raised by the same, also within one shard
    shard.index = detail::with_state(*shard.index, std::move(state));
    shard.index->merge(*other, ids);
    shard.rows = shard.state()->size;
  }
}

// What a recall costs in all shards, of which each has points of its own.
std::vector<OperatingPoint> points_of_all(const Shards& shards,
                                          const std::vector<std::vector<OperatingPoint>>& points) {
  std::set<double> recalls;
  for (const auto& some : points)
    for (const OperatingPoint& point : some) recalls.insert(point.promised_recall);
  std::vector<OperatingPoint> out;
  for (const double recall : recalls) {
    OperatingPoint all{1, 1, 0, 0};
    bool reached = true;
    for (std::size_t s = 0; s < points.size() && reached; ++s) {
      const auto first = std::find_if(
          points[s].begin(), points[s].end(),
          [&](const OperatingPoint& point) { return point.promised_recall >= recall; });
      reached = first != points[s].end();
      if (!reached) break;
      all.promised_recall = std::min(all.promised_recall, first->promised_recall);
      all.expected_recall = std::min(all.expected_recall, first->expected_recall);
      all.probes += first->probes / static_cast<double>(shards.all.size());
      all.rows += first->rows;
    }
    if (reached) out.push_back(all);
  }
  return out;
}

void check_number(std::string_view name, std::int64_t value) {
  if (value < 1 || value > detail::most_shards)
    throw InvalidArgument("{} must be between 1 and {}, but is {}", name, detail::most_shards,
                          value);
}

Shards shards_like(const Index& like, const ShardingOptions& options) {
  check_number("shards", options.shards), check_number("replicas", options.replicas);
  const auto state = impl_of(like).state();
  if (state->size > 0 && options.shards > 1)
    throw InvalidArgument("shards is {}, but the index has {} rows, which are added to shards",
                          options.shards, state->size);
  Shards out{.replicas = options.replicas,
             .next_id = state->next_id,
             .version = state->version,
             .size = state->size};
  // Of the one state: another thread may change the index meanwhile.
  for (int s = 0; s < options.shards; ++s)
    out.all.push_back({.index = detail::independent_copy(impl_of(like).shape, *state),
                       .name = fmt::format("{} of {}", s + 1, options.shards),
                       .rows = state->size});
  return out;
}

}  // namespace

std::shared_ptr<Index> detail::shard_of(const Index& like, AnyMatrixView rows, Id first, Id next_id,
                                        std::optional<ElementType> type,
                                        const ChangeOptions& options) {
  State state = *impl_of(like).state();
  if (type) state.type = type;
  state.next_id = first;
  const std::shared_ptr<Index> shard = independent_copy(impl_of(like).shape, std::move(state));
  impl_of(*shard).check_columns("vectors", rows);
  find_value_range(rows, like.metric(), "vectors", options.threads, first);
  if (rows.rows() > 0) impl_of(*shard).append(rows, {}, options, first);
  State all = *impl_of(*shard).state();
  all.next_id = next_id;
  return with_state(*shard, std::move(all));
}

std::vector<std::int64_t> detail::even_parts(std::int64_t n, std::int64_t shards) {
  Shards empty;
  empty.all.resize(static_cast<std::size_t>(shards));
  return spread(empty, n);
}

ShardedIndex::ShardedIndex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardedIndex::ShardedIndex(const Index& like, const ShardingOptions& options)
    : impl_(std::make_unique<Impl>(shards_like(like, options))) {}
ShardedIndex::ShardedIndex(ShardedIndex&&) noexcept = default;
ShardedIndex& ShardedIndex::operator=(ShardedIndex&&) noexcept = default;
ShardedIndex::~ShardedIndex() = default;

std::int64_t ShardedIndex::shards() const { return std::ssize(impl_->state()->all); }
std::int64_t ShardedIndex::replicas() const { return impl_->speeds->replicas(); }

std::vector<std::int64_t> ShardedIndex::shard_sizes() const {
  return detail::public_call([&] {
    std::vector<std::int64_t> out;
    for (const Shard& shard : impl_->state()->all) out.push_back(shard.rows);
    return out;
  });
}

std::vector<std::string> ShardedIndex::shard_names() const {
  return detail::public_call([&] {
    std::vector<std::string> out;
    for (const Shard& shard : impl_->state()->all) out.push_back(shard.name);
    return out;
  });
}

std::vector<std::string> ShardedIndex::missing_shards() const {
  return detail::public_call([&] {
    std::vector<std::string> out;
    for (const Shard& shard : impl_->state()->all)
      if (!shard.index) out.push_back(shard.name);
    return out;
  });
}

std::string ShardedIndex::description() const { return impl_->state()->any().index->description(); }
std::int64_t ShardedIndex::dim() const { return impl_->state()->any().index->dim(); }
Metric ShardedIndex::metric() const { return impl_->state()->any().index->metric(); }
std::int64_t ShardedIndex::size() const { return impl_->state()->size; }
ElementType ShardedIndex::element_type() const {
  return impl_->state()->any().index->element_type();
}
Id ShardedIndex::next_id() const { return impl_->state()->next_id; }
std::int64_t ShardedIndex::version() const { return impl_->state()->version; }
bool ShardedIndex::contains(Id id) const { return impl_->state()->find(id) != nullptr; }
bool ShardedIndex::keeps_vectors() const { return impl_->state()->any().index->keeps_vectors(); }
bool ShardedIndex::has_codes() const { return impl_->state()->any().index->has_codes(); }
bool ShardedIndex::has_graph() const { return impl_->state()->any().index->has_graph(); }
bool ShardedIndex::is_trained() const { return impl_->state()->any().index->is_trained(); }
std::int64_t ShardedIndex::lists() const { return impl_->state()->any().index->lists(); }
Matrix<float> ShardedIndex::centroids() const { return impl_->state()->any().index->centroids(); }

std::vector<Id> ShardedIndex::ids() const {
  return detail::public_call([&] {
    std::vector<Id> out;
    for (const Shard& shard : impl_->state()->all)
      if (shard.index) {
        const std::vector<Id> some = shard.index->ids();
        out.insert(out.end(), some.begin(), some.end());
      }
    std::sort(out.begin(), out.end());
    return out;
  });
}

std::int64_t ShardedIndex::memory_bytes() const {
  return detail::public_call([&] {
    std::int64_t sum = 0;
    std::set<const void*> seen;  // what several shards share
    for (const Shard& shard : impl_->state()->all) {
      if (!shard.index) continue;
      const auto state = shard.state();
      sum += shard.index->memory_bytes();
      if (state->coarse && !seen.insert(state->coarse.get()).second) sum -= state->coarse->bytes();
      if (state->known && !seen.insert(state->known.get()).second) sum -= state->known->bytes();
      for (const auto& coder : {state->coder, state->refiner})
        if (coder && !seen.insert(coder.get()).second) sum -= coder->bytes();
    }
    return sum;
  });
}

std::vector<std::int64_t> ShardedIndex::list_sizes() const {
  return detail::public_call([&] {
    std::vector<std::int64_t> out(static_cast<std::size_t>(lists()));
    for (const Shard& shard : impl_->state()->all) {
      if (!shard.index) continue;
      const std::vector<std::int64_t> some = shard.index->list_sizes();
      for (std::size_t l = 0; l < out.size(); ++l) out[l] += some[l];
    }
    return out;
  });
}

std::vector<std::int64_t> ShardedIndex::lists_of(std::span<const Id> ids) const {
  return detail::public_call([&] {
    const auto state = impl_->state();
    if (lists() == 0) throw InvalidArgument("index {} has no inverted lists", description());
    const auto places = places_in(*state, ids);
    std::vector<std::int64_t> out(ids.size());
    for (std::size_t s = 0; s < places.size(); ++s) {
      if (places[s].empty()) continue;
      const std::vector<std::int64_t> some =
          state->all[s].index->lists_of(at_places(ids, places[s]));
      for (std::size_t i = 0; i < some.size(); ++i)
        out[static_cast<std::size_t>(places[s][i])] = some[i];
    }
    return out;
  });
}

void ShardedIndex::train(AnyMatrixView vectors, const TrainOptions& options) {
  impl_->change([&](Shards& next) {
    const Index& first = *next.any().index;
    if (impl_of(first).shape.learns() && next.size > 0)
      throw InvalidArgument("index {} holds {} rows, and is trained before any are added",
                            first.description(), next.size);
    Index& trained = own(next.all[0]);
    trained.train(vectors, options);
    if (!impl_of(trained).shape.learns()) return 0;
    for (std::size_t s = 1; s < next.all.size(); ++s)
      next.all[s].index = detail::independent_copy(trained);
    return 0;
  });
}

void ShardedIndex::add(AnyMatrixView vectors, const ChangeOptions& options) {
  impl_of(*impl_->state()->any().index).check_columns("vectors", vectors);
  if (vectors.rows() == 0) return;
  impl_->change([&](Shards& next) {
    next.any().impl().check_trained(*next.any().state(), "adding vectors");
    const Id most = std::numeric_limits<Id>::max();
    if (next.next_id > most - vectors.rows())
      throw InvalidArgument("vectors are {}, but ids are left for {} only", vectors.rows(),
                            most - next.next_id);
    next.any().impl().check_not_too_far(vectors);
    append(next, vectors, {}, options);
    return 0;
  });
}

void ShardedIndex::add(AnyMatrixView vectors, std::span<const Id> ids,
                       const ChangeOptions& options) {
  detail::check_given_ids(ids);
  impl_of(*impl_->state()->any().index).check_not_too_far(vectors);
  detail::ShardsOf::add_with_any_ids(*this, vectors, ids, options);
}

void detail::ShardsOf::add_with_any_ids(ShardedIndex& index, AnyMatrixView vectors,
                                        std::span<const Id> ids, const ChangeOptions& options) {
  impl_of(*index.impl_->state()->any().index).check_columns("vectors", vectors);
  detail::check_one_a_row(ids, vectors);
  if (vectors.rows() == 0) return;
  index.impl_->change([&](Shards& next) {
    detail::check_own_ids(ids);
    next.any().impl().check_trained(*next.any().state(), "adding vectors");
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (next.find(ids[i]))
        throw InvalidArgument("ids hold {} in place {}, which the index holds already", ids[i], i);
    append(next, vectors, ids, options);
    return 0;
  });
}

void ShardedIndex::reserve(std::int64_t rows) {
  detail::public_call([&] {
    if (rows < 0) throw InvalidArgument("rows must not be negative, but is {}", rows);
    std::lock_guard lock(impl_->writer);
    const auto state = impl_->state();
    Impl::check_whole(*state, "changed");
    const std::int64_t row_bytes = dim() * size_of(element_type());
    if (rows > machine_memory() / row_bytes)
      throw MemoryBudgetError("rows is {}, of {} bytes each, but this machine has {}", rows,
                              row_bytes, machine_memory());
    const std::int64_t count = std::ssize(state->all);
    for (const Shard& shard : state->all) shard.index->reserve((rows + count - 1) / count);
  });
}

void ShardedIndex::remove(std::span<const Id> ids, const ChangeOptions& options) {
  if (ids.empty()) return;
  impl_->change([&](Shards& next) {
    detail::check_each_once(ids);
    const auto places = places_in(next, ids);
    for (std::size_t s = 0; s < places.size(); ++s)
      if (!places[s].empty()) own(next.all[s]).remove(at_places(ids, places[s]), options);
    return 0;
  });
}

void ShardedIndex::replace(std::span<const Id> ids, AnyMatrixView vectors,
                           const ChangeOptions& options) {
  impl_of(*impl_->state()->any().index).check_columns("vectors", vectors);
  detail::check_one_a_row(ids, vectors);
  if (ids.empty()) return;
  impl_->change([&](Shards& next) {
    detail::check_each_once(ids);
    const auto places = places_in(next, ids);
    // What is wrong with a row is found here, where it has the number that the caller knows.
    find_value_range(vectors, metric(), "vectors", options.threads);
    next.any().impl().check_not_too_far(vectors);
    const ElementType type = element_type();
    AnyMatrix converted;
    AnyMatrixView rows = vectors;
    if (keeps_vectors() && vectors.type() != type) {
      converted = AnyMatrix(type, vectors.rows(), vectors.cols());
      if (const std::int64_t bad = detail::copy_exactly(vectors, type, converted.row(0)); bad >= 0)
        throw InvalidArgument(
            "vectors of type {} hold a value in row {} that the index, of type {} since its first "
            "vectors, cannot hold exactly",
            name_of(vectors.type()), bad, name_of(type));
      rows = converted;
    }
    for (std::size_t s = 0; s < places.size(); ++s)
      if (!places[s].empty())
        own(next.all[s])
            .replace(at_places(ids, places[s]), detail::copies_of(rows, places[s]), options);
    return 0;
  });
}

void ShardedIndex::merge(const ShardedIndex& other, MergeIds ids) {
  if (&other == this) throw InvalidArgument("other is the index itself: copy it first");
  const auto from = other.impl_->state();
  impl_->change([&](Shards& next) {
    Impl::check_whole(*from, "merged");
    std::vector<const Index*> all;
    for (const Shard& shard : from->all) all.push_back(shard.index.get());
    take_over(next, all, ids);
    return 0;
  });
}

void ShardedIndex::merge(const Index& other, MergeIds ids) {
  impl_->change([&](Shards& next) {
    // Whose ids are compared with all shards, and which then goes to one.
    const auto frozen = detail::independent_copy(other);
    const Index* const all[] = {frozen.get()};
    take_over(next, all, ids);
    return 0;
  });
}

void ShardedIndex::compact(const ChangeOptions& options) {
  impl_->change([&](Shards& next) {
    for (Shard& shard : next.all) own(shard).compact(options);
    return 0;
  });
}

std::int64_t ShardedIndex::optimize(const ChangeOptions& options) {
  return impl_->change([&](Shards& next) {
    std::int64_t rows = 0;
    for (Shard& shard : next.all) rows += own(shard).optimize(options);
    return rows;
  });
}

std::vector<OperatingPoint> ShardedIndex::tune(std::int64_t k, AnyMatrixView queries,
                                               const ChangeOptions& options) {
  return impl_->change([&](Shards& next) {
    if (next.one && impl_of(*next.any().index).shape.learns()) {
      const auto one = detail::independent_copy(next.one->get(resolve_threads(options.threads)));
      const auto points = one->tune(k, queries, options);
      const auto curve = impl_of(*one).state()->recall->find(k);
      for (const Shard& shard : next.all) shard.state()->recall->set(*curve);
      return points;
    }
    std::vector<std::vector<OperatingPoint>> points;
    for (Shard& shard : next.all) points.push_back(own(shard).tune(k, queries, options));
    return points_of_all(next, points);
  });
}

std::vector<OperatingPoint> ShardedIndex::tune(std::int64_t k, AnyMatrixView queries,
                                               AnyMatrixView base, std::span<const Id> ids,
                                               const ChangeOptions& options) {
  return impl_->change([&](Shards& next) {
    if (!next.one) return own(next.all[0]).tune(k, queries, base, ids, options);
    const auto one = detail::independent_copy(next.one->get(resolve_threads(options.threads)));
    const auto points = one->tune(k, queries, base, ids, options);
    // Every shard knows the neighbours among all rows; of these its own count (ShardsAsOne::get()).
    const auto tuned = impl_of(*one).state();
    for (Shard& shard : next.all) {
      State state = *shard.state();
      state.known = tuned->known, state.changed_rows = 0;
      state.recall = std::make_shared<detail::RecallCurves>(state.size);
      for (const auto& curve : tuned->recall->all()) state.recall->set(*curve);
      shard.index = detail::with_state(*shard.index, std::move(state));
    }
    return points;
  });
}

void ShardedIndex::save(const std::string& path, const Progress& progress) const {
  detail::public_call([&] { detail::save_shards(*impl_->state(), path, {.progress = progress}); });
}

std::shared_ptr<const Shards> detail::ShardsOf::state(const ShardedIndex& index) {
  return index.impl_->state();
}

ShardedIndex detail::ShardsOf::next(const ShardedIndex& index) {
  return ShardedIndex(std::make_unique<ShardedIndex::Impl>(*index.impl_));
}

ShardedIndex ShardedIndex::load(const std::string& path, const ShardedLoadOptions& options) {
  return detail::public_call([&] {
    if (options.replicas != 0) check_number("replicas", options.replicas);
    Shards shards = detail::load_shards(path, options.allow_partial, options.progress);
    if (options.replicas != 0) shards.replicas = options.replicas;
    return ShardedIndex(std::make_unique<Impl>(std::move(shards)));
  });
}

Index ShardedIndex::as_one() const {
  return detail::public_call([&] {
    const auto state = impl_->state();
    Impl::check_whole(*state, "put together");
    const auto one = detail::independent_copy(*state->all.front().index);
    for (std::size_t s = 1; s < state->all.size(); ++s) one->merge(*state->all[s].index);
    return std::move(*one);
  });
}

AnyMatrix ShardedIndex::reconstruct(std::span<const Id> ids) const {
  return detail::public_call([&] {
    const auto state = impl_->state();
    const auto places = places_in(*state, ids);
    AnyMatrix out = state->any().index->reconstruct({});
    out = AnyMatrix(out.type(), std::ssize(ids), out.cols());
    for (std::size_t s = 0; s < places.size(); ++s) {
      if (places[s].empty()) continue;
      const AnyMatrix some = state->all[s].index->reconstruct(at_places(ids, places[s]));
      for (std::size_t i = 0; i < places[s].size(); ++i)
        detail::copy_exactly(
            some.view().rows(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1),
            out.type(), out.row(places[s][i]));
    }
    return out;
  });
}

Neighbors ShardedIndex::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                               KnnReport* report) const {
  return detail::public_call([&] {
    const detail::Stopwatch time;
    const bool aggregate = options.method.partial_reduce.aggregate;
    const auto state = impl_->state();
    detail::check_answer(queries.rows(), k);
    if (aggregate) detail::check_padding(queries.rows(), k, state->size, options.memory);
    const ExactNeighbors near =
        detail::nearest(*state, queries, k, options, *impl_->speeds, report);
    Neighbors out = rounded(near, metric(), queries.rows(), aggregate ? k : near.columns(),
                            resolve_threads(options.threads));
    if (report) detail::set_seconds(*report, time);
    return out;
  });
}

RangeNeighbors ShardedIndex::range_search(AnyMatrixView queries, double radius,
                                          const SearchOptions& options, KnnReport* report) const {
  return detail::public_call([&] {
    const detail::Stopwatch time;
    RangeNeighbors out =
        detail::within(*impl_->state(), queries, radius, options, *impl_->speeds, report);
    if (report) detail::set_seconds(*report, time);
    return out;
  });
}

bool is_sharded_file(const std::string& path) {
  return io::kind_of_archive(path) == detail::kind_of_shards;
}

}  // namespace knear
