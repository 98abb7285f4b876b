#include "knear/index/shards/index_in_shards.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search_position.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

namespace {

// A copy of a shard, in its place, which may be changed.
IndexImpl& own(Shard& shard) {
  shard.index = with_state(*shard.index, *shard.state());
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
  find_value_range(vectors, next.any().index->shape.metric, "vectors", options.threads);
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
    shard.index = with_state(*shard.index, std::move(state));
    const auto ids = own_ids.empty() ? own_ids : own_ids.subspan(begin, counts[s]);
    const auto add = [&] { shard.index->append(vectors.rows(begin, end), ids, options, begin); };
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
    out[holder - shards.all.data()].push_back(static_cast<std::int64_t>(i));
  }
  return out;
}

std::vector<Id> at_places(std::span<const Id> ids, const std::vector<std::int64_t>& places) {
  std::vector<Id> out;
  for (const std::int64_t place : places) out.push_back(ids[place]);
  return out;
}

// Takes over the rows of indexes that have no id twice between them.
void take_over_all(Shards& next, std::span<const std::shared_ptr<const IndexImpl>> others,
                   MergeIds ids) {
  const Id first = next.next_id;
  for (const auto& other : others) {
    if (ids == MergeIds::keep)
      for (const Id id : other->ids())
        if (next.find(id))
          throw InvalidArgument("other holds id {}, which the index holds already", id);
    Shard& shard =
        *std::min_element(next.all.begin(), next.all.end(),
                          [](const Shard& a, const Shard& b) { return a.rows < b.rows; });
    State state = *shard.state();
    state.next_id = first;  // ids of all others are raised by the same, also within one shard
    shard.index = with_state(*shard.index, std::move(state));
    shard.index->take_over(*other, ids);
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
  if (value < 1 || value > most_shards)
    throw InvalidArgument("{} must be between 1 and {}, but is {}", name, most_shards, value);
}

Shards shards_like(const IndexImpl& like, const ShardingOptions& options) {
  check_number("shards", options.shards), check_number("replicas", options.replicas);
  const auto state = like.state();
  if (state->size > 0 && options.shards > 1)
    throw InvalidArgument("shards is {}, but the index has {} rows, which are added to shards",
                          options.shards, state->size);
  Shards out{.replicas = options.replicas,
             .next_id = state->next_id,
             .version = state->version,
             .size = state->size};
  for (int s = 0; s < options.shards; ++s)
    out.all.push_back({.index = independent_copy(like.shape, *state),
                       .name = fmt::format("{} of {}", s + 1, options.shards),
                       .rows = state->size});
  if (!like.shape.has_graph())
    for (const Shard& shard : out.all) shard.index->keep_audits(out.any().state()->audits);
  return out;
}

Shards opened(const std::string& path, const LoadOptions& options) {
  if (options.replicas != 0) check_number("replicas", options.replicas);
  Shards out = load_shards(path, options.allow_partial, options.progress);
  if (options.replicas != 0) out.replicas = options.replicas;
  return out;
}

void check_whole(const Shards& shards, std::string_view what) {
  for (const Shard& shard : shards.all)
    if (!shard.index)
      throw InvalidArgument("shard {} is missing, and what is left cannot be {}: {}", shard.name,
                            what, shard.why_missing);
}

// Has every shard know the ids and the element type of the whole, and counts rows.
void agree(Shards& next) {
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
    shard.index = with_state(*shard.index, std::move(known));
  }
}

}  // namespace

std::shared_ptr<IndexImpl> shard_of(const IndexImpl& like, AnyMatrixView rows, Id first, Id next_id,
                                    std::optional<ElementType> type, const ChangeOptions& options) {
  State state = *like.state();
  if (type) state.type = type;
  state.next_id = first;
  const auto shard = independent_copy(like.shape, std::move(state));
  shard->check_columns("vectors", rows);
  find_value_range(rows, like.shape.metric, "vectors", options.threads, first);
  if (rows.rows() > 0) shard->append(rows, {}, options, first);
  State all = *shard->state();
  all.next_id = next_id;
  return with_state(*shard, std::move(all));
}

std::vector<std::int64_t> even_parts(std::int64_t n, std::int64_t shards) {
  Shards empty;
  empty.all.resize(shards);
  return spread(empty, n);
}

IndexInShards::IndexInShards(Shards from)
    : IndexBody(from.any().index->shape), speeds_(std::make_shared<ReplicaSpeeds>(from.replicas)) {
  put_together(from);
  state_ = std::make_shared<const Shards>(std::move(from));
}
IndexInShards::IndexInShards(const IndexImpl& like, const ShardingOptions& options)
    : IndexInShards(shards_like(like, options)) {}
IndexInShards::IndexInShards(const std::string& path, const LoadOptions& options)
    : IndexInShards(opened(path, options)) {}
IndexInShards::IndexInShards(const IndexInShards& other)
    : IndexBody(other.shape), speeds_(other.speeds_), state_(other.state()) {}

template <class F>
auto IndexInShards::change(F f) {
  std::lock_guard lock(writer_);
  Shards next = *state();
  check_whole(next, "changed");
  auto out = f(next);
  publish(std::move(next));
  return out;
}

void IndexInShards::publish(Shards next) {
  agree(next);
  put_together(next);
  ++next.version;
  auto made = std::make_shared<const Shards>(std::move(next));
  std::lock_guard lock(state_mutex_);
  state_.swap(made);  // the old one goes after the lock, if no search has it
}

IndexCounts IndexInShards::counts() const {
  const auto now = state();
  IndexCounts out = now->any().index->counts();
  out.size = now->size, out.next_id = now->next_id, out.version = now->version;
  return out;
}

std::vector<ShardCounts> IndexInShards::shards() const {
  const auto now = state();
  std::vector<ShardCounts> out;
  for (const Shard& shard : now->all)
    out.push_back({shard.name, shard.rows, shard.index == nullptr});
  return out;
}

const IndexImpl& IndexInShards::one() const {
  throw InvalidArgument(
      "index {} is in {} shards with {} replicas, but this call is for one index: as_one() makes "
      "one",
      shape.description(), state()->all.size(), replicas());
}
IndexImpl& IndexInShards::one() { return const_cast<IndexImpl&>(std::as_const(*this).one()); }

std::unique_ptr<IndexBody> IndexInShards::next() const {
  return std::make_unique<IndexInShards>(*this);
}

std::vector<Id> IndexInShards::ids() const {
  const auto now = state();
  std::vector<Id> out;
  for (const Shard& shard : now->all)
    if (shard.index) {
      const std::vector<Id> some = shard.index->ids();
      out.insert(out.end(), some.begin(), some.end());
    }
  std::sort(out.begin(), out.end());
  return out;
}

std::int64_t IndexInShards::memory_bytes() const {
  const auto now = state();
  std::int64_t sum = 0;
  std::set<const void*> seen;  // what several shards share
  for (const Shard& shard : now->all) {
    if (!shard.index) continue;
    const auto state = shard.state();
    sum += shard.index->memory_bytes();
    if (state->audits && !seen.insert(state->audits.get()).second) sum -= state->audits->bytes();
    if (state->coarse && !seen.insert(state->coarse.get()).second) sum -= state->coarse->bytes();
    if (state->known && !seen.insert(state->known.get()).second) sum -= state->known->bytes();
    for (const auto& coder : {state->coder, state->refiner})
      if (coder && !seen.insert(coder.get()).second) sum -= coder->bytes();
  }
  return sum;
}

std::vector<std::int64_t> IndexInShards::list_sizes() const {
  const auto now = state();
  std::vector<std::int64_t> out(shape.lists);
  for (const Shard& shard : now->all) {
    if (!shard.index) continue;
    const std::vector<std::int64_t> some = shard.index->list_sizes();
    for (std::size_t l = 0; l < out.size(); ++l) out[l] += some[l];
  }
  return out;
}

std::vector<std::int64_t> IndexInShards::lists_of(std::span<const Id> ids) const {
  if (shape.lists == 0)
    throw InvalidArgument("index {} has no inverted lists", shape.description());
  const auto now = state();
  const auto places = places_in(*now, ids);
  std::vector<std::int64_t> out(ids.size());
  for (std::size_t s = 0; s < places.size(); ++s) {
    if (places[s].empty()) continue;
    const std::vector<std::int64_t> some = now->all[s].index->lists_of(at_places(ids, places[s]));
    for (std::size_t i = 0; i < some.size(); ++i) out[places[s][i]] = some[i];
  }
  return out;
}

void IndexInShards::train(AnyMatrixView vectors, const TrainOptions& options) {
  check_columns("vectors", vectors);
  change([&](Shards& next) {
    if (shape.learns() && next.size > 0)
      throw InvalidArgument("index {} holds {} rows, and is trained before any are added",
                            shape.description(), next.size);
    IndexImpl& trained = own(next.all[0]);
    trained.train(vectors, options);
    if (!shape.learns()) return 0;
    for (std::size_t s = 1; s < next.all.size(); ++s) {
      next.all[s].index = trained.as_one();
      if (!shape.has_graph()) next.all[s].index->keep_audits(trained.state()->audits);
    }
    return 0;
  });
}

void IndexInShards::check_not_too_far(AnyMatrixView vectors) const {
  state()->any().index->check_not_too_far(vectors);
}

void IndexInShards::add(AnyMatrixView vectors, const ChangeOptions& options) {
  check_columns("vectors", vectors);
  if (vectors.rows() == 0) return;
  change([&](Shards& next) {
    next.any().index->check_trained(*next.any().state(), "adding vectors");
    const Id most = std::numeric_limits<Id>::max();
    if (next.next_id > most - vectors.rows())
      throw InvalidArgument("vectors are {}, but ids are left for {} only", vectors.rows(),
                            most - next.next_id);
    append(next, vectors, {}, options);
    return 0;
  });
}

void IndexInShards::add_with_any_ids(AnyMatrixView vectors, std::span<const Id> ids,
                                     const ChangeOptions& options) {
  check_columns("vectors", vectors);
  check_one_a_row(ids, vectors);
  if (vectors.rows() == 0) return;
  change([&](Shards& next) {
    check_own_ids(ids);
    next.any().index->check_trained(*next.any().state(), "adding vectors");
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (next.find(ids[i]))
        throw InvalidArgument("ids hold {} in place {}, which the index holds already", ids[i], i);
    append(next, vectors, ids, options);
    return 0;
  });
}

void IndexInShards::reserve(std::int64_t rows) {
  if (rows < 0) throw InvalidArgument("rows must not be negative, but is {}", rows);
  std::lock_guard lock(writer_);
  const auto now = state();
  check_whole(*now, "changed");
  const std::int64_t row_bytes = shape.dim * size_of(now->any().index->element_type());
  if (rows > machine_memory() / row_bytes)
    throw MemoryBudgetError("rows is {}, of {} bytes each, but this machine has {}", rows,
                            row_bytes, machine_memory());
  const std::int64_t count = std::ssize(now->all);
  for (const Shard& shard : now->all) shard.index->reserve((rows + count - 1) / count);
}

void IndexInShards::remove(std::span<const Id> ids, const ChangeOptions& options) {
  if (ids.empty()) return;
  change([&](Shards& next) {
    check_each_once(ids);
    const auto places = places_in(next, ids);
    for (std::size_t s = 0; s < places.size(); ++s)
      if (!places[s].empty()) own(next.all[s]).remove(at_places(ids, places[s]), options);
    return 0;
  });
}

void IndexInShards::replace(std::span<const Id> ids, AnyMatrixView vectors,
                            const ChangeOptions& options) {
  check_columns("vectors", vectors);
  check_one_a_row(ids, vectors);
  if (ids.empty()) return;
  change([&](Shards& next) {
    check_each_once(ids);
    const auto places = places_in(next, ids);
    // What is wrong with a row is found here, where it has the number that the caller knows.
    find_value_range(vectors, shape.metric, "vectors", options.threads);
    const ElementType type = next.any().index->element_type();
    AnyMatrix converted;
    AnyMatrixView rows = vectors;
    if (shape.keeps_vectors() && vectors.type() != type) {
      converted = AnyMatrix(type, vectors.rows(), vectors.cols());
      if (const std::int64_t bad = copy_exactly(vectors, type, converted.row(0)); bad >= 0)
        throw InvalidArgument(
            "vectors of type {} hold a value in row {} that the index, of type {} since its first "
            "vectors, cannot hold exactly",
            name_of(vectors.type()), bad, name_of(type));
      rows = converted;
    }
    for (std::size_t s = 0; s < places.size(); ++s)
      if (!places[s].empty())
        own(next.all[s]).replace(at_places(ids, places[s]), copies_of(rows, places[s]), options);
    return 0;
  });
}

void IndexInShards::merge(const IndexBody& other, MergeIds ids) {
  if (&other == this) throw InvalidArgument("other is the index itself: copy it first");
  const auto from = other.parts();
  change([&](Shards& next) {
    take_over_all(next, from, ids);
    return 0;
  });
}

void IndexInShards::compact(const ChangeOptions& options) {
  change([&](Shards& next) {
    for (Shard& shard : next.all) own(shard).compact(options);
    return 0;
  });
}

std::int64_t IndexInShards::optimize(const ChangeOptions& options) {
  return change([&](Shards& next) {
    std::int64_t rows = 0;
    for (Shard& shard : next.all) rows += own(shard).optimize(options);
    return rows;
  });
}

std::vector<OperatingPoint> IndexInShards::tune(std::int64_t k, AnyMatrixView queries,
                                                const ChangeOptions& options) {
  return change([&](Shards& next) {
    if (next.one && shape.learns()) {
      const auto one = next.one->get(resolve_threads(options.threads)).as_one();
      const auto points = one->tune(k, queries, options);
      const auto curve = one->state()->recall->find(k);
      for (const Shard& shard : next.all) {
        shard.state()->recall->set(*curve);
        if (const auto audits = shard.state()->audits) audits->forget(k);
      }
      return points;
    }
    std::vector<std::vector<OperatingPoint>> points;
    for (Shard& shard : next.all) points.push_back(own(shard).tune(k, queries, options));
    return points_of_all(next, points);
  });
}

std::vector<OperatingPoint> IndexInShards::tune(std::int64_t k, AnyMatrixView queries,
                                                AnyMatrixView base, std::span<const Id> ids,
                                                const ChangeOptions& options) {
  return change([&](Shards& next) {
    if (!next.one) return own(next.all[0]).tune(k, queries, base, ids, options);
    const auto one = next.one->get(resolve_threads(options.threads)).as_one();
    const auto points = one->tune(k, queries, base, ids, options);
    // Every shard knows the neighbours among all rows; of these its own count (ShardsAsOne::get()).
    const auto tuned = one->state();
    for (Shard& shard : next.all) {
      State state = *shard.state();
      state.known = tuned->known, state.changed_rows = 0;
      if (state.audits) state.audits->forget(k);
      state.recall = std::make_shared<RecallCurves>(state.size);
      for (const auto& curve : tuned->recall->all()) state.recall->set(*curve);
      state.recall->take_learned(*tuned->recall);
      shard.index = with_state(*shard.index, std::move(state));
    }
    return points;
  });
}

void IndexInShards::set_audit(double share) {
  check_audit(share);
  std::lock_guard lock(writer_);
  Shards next = *state();
  if (share > 0) check_whole(next, "audited");
  // All shards are searched as one index and have one log; those with a graph each have their own.
  std::shared_ptr<AuditLog> log = next.any().state()->audits;
  if (!log && share == 0) return;
  if (!log) log = std::make_shared<AuditLog>(share);
  for (Shard& shard : next.all) {
    if (!shard.index) continue;
    const auto known = shard.state()->audits;
    if (known) known->set_share(share);
    if (!known) own(shard).keep_audits(shape.has_graph() ? std::make_shared<AuditLog>(share) : log);
  }
  put_together(next);
  auto made = std::make_shared<const Shards>(std::move(next));
  std::lock_guard publishing(state_mutex_);
  state_.swap(made);
}

double IndexInShards::audit() const { return state()->any().index->audit(); }

std::vector<AuditReport> IndexInShards::audits() const {
  const auto now = state();
  if (!shape.has_graph()) return now->any().index->audits();
  std::vector<AuditReport> out;
  for (const Shard& shard : now->all)
    if (shard.index) {
      const std::vector<AuditReport> some = shard.index->audits();
      out.insert(out.end(), some.begin(), some.end());
    }
  return out;
}

void IndexInShards::save(const std::string& path, const SaveOptions& options) const {
  save_shards(*state(), path, options);
}

std::unique_ptr<IndexImpl> IndexInShards::as_one() const {
  const auto now = state();
  check_whole(*now, "put together");
  auto one = now->all.front().index->as_one();
  for (std::size_t s = 1; s < now->all.size(); ++s)
    one->take_over(*now->all[s].index, MergeIds::keep);
  return one;
}

std::vector<std::shared_ptr<const IndexImpl>> IndexInShards::parts() const {
  const auto now = state();
  check_whole(*now, "merged");
  std::vector<std::shared_ptr<const IndexImpl>> out;
  for (const Shard& shard : now->all) out.push_back(shard.index);
  return out;
}

AnyMatrix IndexInShards::reconstruct(std::span<const Id> ids) const {
  const auto now = state();
  const auto places = places_in(*now, ids);
  AnyMatrix out = now->any().index->reconstruct({});
  out = AnyMatrix(out.type(), std::ssize(ids), out.cols());
  for (std::size_t s = 0; s < places.size(); ++s) {
    if (places[s].empty()) continue;
    const AnyMatrix some = now->all[s].index->reconstruct(at_places(ids, places[s]));
    for (std::size_t i = 0; i < places[s].size(); ++i)
      copy_exactly(some.view().rows(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1),
                   out.type(), out.row(places[s][i]));
  }
  return out;
}

ExactNeighbors IndexInShards::nearest(AnyMatrixView queries, std::int64_t k,
                                      const SearchOptions& options, KnnReport* report) const {
  const auto now = state();
  check_answer(queries.rows(), k);
  if (options.method.partial_reduce.aggregate)
    check_padding(queries.rows(), k, now->size, options.memory);
  return detail::nearest(*now, queries, k, options, *speeds_, report);
}

RangeNeighbors IndexInShards::within(AnyMatrixView queries, double radius,
                                     const SearchOptions& options, KnnReport* report) const {
  return detail::within(*state(), queries, radius, options, *speeds_, report);
}

}  // namespace knear::detail
