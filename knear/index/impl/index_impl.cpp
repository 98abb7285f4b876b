#include "knear/index/impl/index_impl.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/far_rows.hpp"
#include "knear/core/system.hpp"
#include "knear/core/threads.hpp"
#include "knear/index/impl/index_training.hpp"
#include "knear/knn/search/few_rows_search.hpp"
#include "knear/knn/search/range_search.hpp"
#include "knear/knn/search/report_builder.hpp"

namespace knear::detail {

void check_index_dim(std::int64_t dim) {
  if (dim < 1 || dim > 65536)
    throw InvalidArgument("dim must be between 1 and 65536, but is {}", dim);
}

void check_lists(std::int64_t lists) {
  if (lists < 1 || lists > most_lists)
    throw InvalidArgument("lists must be between 1 and {}, but is {}", most_lists, lists);
}

std::vector<Id> first_ids(std::int64_t n) {
  std::vector<Id> out(n);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

IndexImpl::IndexImpl(const IndexShape& of, State from)
    : IndexBody(of), form(form_of(shape)), store(form->make_store()) {
  if (!shape.is_plain())
    check_by_products(shape.metric, fmt::format("index {}", shape.description()));
  form->begin(from);
  state_ = std::make_shared<const State>(std::move(from));
}

IndexImpl::IndexImpl(const IndexImpl& older, State from) : IndexImpl(older.shape, std::move(from)) {
  store->share(*older.store);
}

void IndexImpl::publish(State next, std::span<const Id> added) {
  next.version = state_->version + 1, next.size = 0;
  for (const Segment& segment : next.segments) next.size += segment.size();
  form->follow(next, *state_, added);
  auto made = std::make_shared<const State>(std::move(next));
  std::lock_guard lock(state_mutex_);
  state_.swap(made);  // the old one goes after the lock, if no search has it
}

std::int64_t IndexImpl::bytes_of_rows() const {
  const auto now = state();
  return now->size * shape.inner_dim() * size_of(now->type.value_or(ElementType::f32));
}

void IndexImpl::note_work(std::int64_t bytes) {
  // Far less time goes into giving it back than into coding or packing this many bytes.
  constexpr std::int64_t many = 8 << 20;
  work_ += bytes;
  if (work_ < many) return;
  work_ = 0;
  give_back_freed_memory();
}

void IndexImpl::check_trained(const State& state, std::string_view what) const {
  if (!is_trained(state))
    throw InvalidArgument("index {} is not trained, which comes before {}", shape.description(),
                          what);
}

void check_one_a_row(std::span<const Id> ids, AnyMatrixView vectors) {
  if (std::ssize(ids) != vectors.rows())
    throw ShapeMismatch("ids are {}, vectors are {} rows", ids.size(), vectors.rows());
}

void check_own_ids(std::span<const Id> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0)
      throw InvalidArgument("ids must not be negative, but hold {} in place {}", ids[i], i);
  check_each_once(ids);
}

void check_given_ids(std::span<const Id> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] > last_given_id)
      throw InvalidArgument("ids must be from 0 to 2^62 ({}), but hold {} in place {}",
                            last_given_id, ids[i], i);
}

void check_bits(const IdFilter& filter, Id next_id) {
  if (!filter.bits().everything() && filter.bits().rows() > next_id)
    throw ShapeMismatch("filter is for the ids below {}, but those of the index are below {}",
                        filter.bits().rows(), next_id);
}

IdFilter quick_filter(std::int64_t size, Id next_id, const IdFilter& filter) {
  const std::vector<Id>* const list = filter.list();
  const bool dense = size == next_id && next_id <= std::int64_t{1} << 31;
  if (!list || list->empty() || !dense || std::ssize(*list) < size / 1024 ||
      list->back() >= next_id)
    return filter;
  return filter.as_bits(next_id);
}

namespace {

// The rows of a segment that a filter lets through, or nothing if that is all or none that are
// live. `named` counts those of a list that were found. by_ids: bits are left as they are.
SearchSegment search_segment_of(const Segment& segment, const IdFilter& filter, bool by_ids,
                                std::int64_t& named) {
  const SegmentRows& rows = *segment.rows;
  const std::int64_t n = rows.rows();
  SearchSegment out{.rows = rows.is_codes() ? nullptr : &rows.prepared(),
                    .ids = rows.ids(),
                    .lists = rows.lists(),
                    .shard = segment.shard};
  if (filter.everything() || by_ids) {
    if (!segment.live.all()) out.live = &segment.live;
    if (by_ids) out.allowed_ids = &filter.bits();
    return out;
  }
  if (const std::vector<Id>* list = filter.list()) {
    std::vector<Id> allowed;
    for (auto id = std::lower_bound(list->begin(), list->end(), rows.first_id());
         id != list->end() && *id <= rows.last_id(); ++id) {
      const std::int64_t row = rows.find(*id);
      if (row >= 0 && segment.live.contains(row)) allowed.push_back(row);
    }
    named += std::ssize(allowed);
    out.filter = RowFilter::of_ids(allowed, n);
    return out;
  }
  const RowFilter& bits = filter.bits();
  if (!rows.has_own_ids() && segment.live.all() && rows.last_id() < bits.rows()) {
    out.filter = bits, out.filter_offset = rows.first_id();
    return out;
  }
  // Without branches on single rows, which nothing could foretell.
  std::vector<std::uint8_t> own((n + 7) / 8, 0);
  const bool all_live = segment.live.all();
  for (std::int64_t row = 0; row < n; row += 8) {
    unsigned byte = 0;
    for (std::int64_t i = 0; i < std::min<std::int64_t>(8, n - row); ++i)
      byte |= static_cast<unsigned>(bits.holds(out.ids(row + i))) << i;
    if (!all_live)
      for (std::int64_t i = 0; byte != 0 && i < std::min<std::int64_t>(8, n - row); ++i)
        if (!segment.live.contains(row + i)) byte &= ~(1u << i);
    own[row / 8] = static_cast<std::uint8_t>(byte);
  }
  out.filter = RowFilter::of_bits(own, n);
  return out;
}

// Throws InvalidArgument for the name of a traffic that this search cannot use.
void check_traffic(const State& state, std::int64_t k, const SearchMethod& method) {
  const std::string traffic(method.traffic.text());
  if (traffic.empty()) return;
  if (!state.audits)
    throw InvalidArgument(
        "traffic is '{}', but audit is 0: only an index that audits itself tells "
        "the recall of traffics apart",
        traffic);
  if (method.kind == Method::exact || !method.recall || *method.recall >= 1)
    throw InvalidArgument("traffic is '{}', but goes only with a recall below 1", traffic);
  if (state.audits->share() == 0 && !state.audits->find({traffic, k}).curve)
    throw InvalidArgument(
        "traffic is '{}', but audit is 0 now and nothing is known of this traffic for k = {}",
        traffic, k);
}

}  // namespace

std::vector<SearchSegment> search_segments_of(const State& state, const IdFilter& filter,
                                              bool by_ids) {
  std::vector<SearchSegment> segments;
  std::int64_t named = 0;
  for (const Segment& segment : state.segments)
    segments.push_back(search_segment_of(segment, filter, by_ids, named)),
        segments.back().shards = state.shards;
  if (const std::vector<Id>* list = filter.list(); list && named < std::ssize(*list))
    for (const Id id : *list)
      if (state.find(id).row < 0)
        throw InvalidArgument("filter holds id {}, which the index does not hold", id);
  check_bits(filter, state.next_id);
  return segments;
}

std::unique_ptr<IndexImpl> independent_copy(const IndexShape& shape, State state) {
  state.flat_lists = nullptr;
  // Without rows nothing is kept of graphs, nor of audits of them.
  if (state.audits)
    state.audits =
        state.size > 0 ? state.audits->copy() : std::make_shared<AuditLog>(state.audits->share());
  if (state.size == 0) state.graph = nullptr;
  if (const auto shared = std::exchange(state.recall, nullptr)) {
    state.recall = std::make_shared<RecallCurves>(shared->rows());
    for (const auto& curve : shared->all()) state.recall->set(*curve);
    state.recall->take_learned(*shared);
  }
  return std::make_unique<IndexImpl>(shape, std::move(state));
}

std::unique_ptr<IndexImpl> IndexImpl::as_one() const { return independent_copy(shape, *state()); }

std::vector<std::shared_ptr<const IndexImpl>> IndexImpl::parts() const { return {as_one()}; }

std::unique_ptr<IndexBody> IndexImpl::next() const {
  return std::make_unique<IndexImpl>(*this, *state());
}

IndexCounts IndexImpl::counts() const {
  const auto now = state();
  return {now->size, now->next_id, now->version, now->type.value_or(ElementType::f32),
          is_trained(*now)};
}

std::vector<Id> IndexImpl::ids() const {
  const auto now = state();
  std::vector<Id> out;
  out.reserve(now->size);
  for (const Segment& segment : now->segments)
    for (std::int64_t row = 0; row < segment.rows->rows(); ++row)
      if (segment.live.contains(row)) out.push_back(segment.rows->ids()(row));
  std::sort(out.begin(), out.end());
  return out;
}

std::int64_t IndexImpl::memory_bytes() const {
  const auto now = state();
  std::int64_t sum = form->bytes(*now);
  if (now->audits) sum += now->audits->bytes();
  for (const Segment& segment : now->segments) sum += segment.rows->bytes() + segment.live.bytes();
  std::set<const RowBuffer*> buffers;
  for (const Segment& segment : now->segments)
    if (const RowBuffer* buffer = segment.rows->buffer(); buffer && buffers.insert(buffer).second)
      sum += buffer->used_bytes();
  return sum;
}

Matrix<float> IndexImpl::centroids() const {
  const auto now = state();
  if (!now->coarse) return Matrix<float>(0, shape.dim);
  const MatrixView<float> from = now->coarse->centroids();
  Matrix<float> out(from.rows(), from.cols());
  std::copy_n(from.data(), from.rows() * from.cols(), out.data());
  return out;
}

std::vector<std::int64_t> IndexImpl::list_sizes() const {
  std::vector<std::int64_t> out(shape.lists);
  if (out.empty()) return out;  // codes without lists are all in one
  const auto now = state();     // which stays as long as it is read
  for (const Segment& segment : now->segments) {
    const std::vector<std::uint32_t> of = segment.rows->list_of();
    for (std::size_t row = 0; row < of.size(); ++row)
      out[of[row]] += segment.live.contains(static_cast<std::int64_t>(row));
  }
  return out;
}

std::vector<std::int64_t> IndexImpl::lists_of(std::span<const Id> ids) const {
  if (shape.lists == 0)
    throw InvalidArgument("index {} has no inverted lists", shape.description());
  const auto now = state();
  std::vector<std::vector<std::uint32_t>> of(now->segments.size());
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const State::Place place = now->find(ids[i]);
    if (place.row < 0)
      throw InvalidArgument("ids hold {} in place {}, which the index does not hold", ids[i], i);
    auto& lists = of[place.segment];
    if (lists.empty()) lists = now->segments[place.segment].rows->list_of();
    out.push_back(lists[place.row]);
  }
  return out;
}

void IndexImpl::train(AnyMatrixView vectors, const TrainOptions& options,
                      TrainCentroidIndex index) {
  check_columns("vectors", vectors);
  if (options.rows < 0) throw InvalidArgument("rows must not be negative, but is {}", options.rows);
  if (!shape.learns()) {
    const TrainOptions usual;
    const auto refuse = [&](std::string_view option, auto value, auto as_usual) {
      if (value != as_usual)
        throw InvalidArgument("{} is {}, but index {} learns nothing from vectors", option, value,
                              shape.description());
    };
    refuse("iterations", options.iterations, usual.iterations);
    refuse("rows", options.rows, usual.rows);
    refuse("hold_out", options.hold_out, usual.hold_out);
    refuse("seed", options.seed, usual.seed);
    find_value_range(vectors, shape.metric, "vectors", options.threads);
    return;
  }
  if (shape.lists == 0 && options.iterations != TrainOptions().iterations)
    throw InvalidArgument(
        "iterations is {}, but index {} has no inverted lists, whose centroids they are for",
        options.iterations, shape.description());
  std::lock_guard lock(writer);
  State next = *state();
  if (next.size > 0)
    throw InvalidArgument("index {} holds {} rows, and is trained before any are added",
                          shape.description(), next.size);
  detail::train(next, shape, vectors, options, index);
  next.segments.clear();
  publish(std::move(next));
  note_work(vectors.bytes());
}

void IndexImpl::check_not_too_far(AnyMatrixView vectors) const {
  // As for rows to train on: subtracting the mean would change products and directions.
  if (vectors.type() != ElementType::f64 || !traits_of(shape.metric).squared) return;
  const auto now = state();
  if (vectors.cols() != shape.dim || !is_trained(*now) || (!now->coder && !now->transform)) return;
  // PCA subtracts the mean of the rows that it was trained on before it rounds.
  std::vector<Transform::Step> steps;
  if (now->transform) steps = now->transform->steps();
  const bool shifts = !steps.empty() && steps.front().kind == Transform::Kind::shift;
  // Without codes nothing says how far apart rows usually are: that takes a sample of them.
  constexpr std::int64_t sample = 100;
  if (!now->coder && vectors.rows() < sample) return;
  check_float32_tells_apart(vectors, "vectors", "codes and transformed vectors",
                            now->coder ? now->coder->variance() : 0,
                            shifts ? steps.front().offset : std::span<const float>());
}

void IndexImpl::append(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options,
                       std::int64_t first) {
  std::lock_guard lock(writer);
  State next = *state();
  check_trained(next, "adding vectors");
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (next.find(ids[i]).row >= 0)
      throw InvalidArgument("ids hold {} in place {}, which the index holds already", ids[i], i);
  std::vector<Id> added(ids.begin(), ids.end());
  if (ids.empty() && form->follows_ids()) {
    added.resize(vectors.rows());
    std::iota(added.begin(), added.end(), next.next_id);
  }
  store->append(next, vectors, ids, options, first);
  publish(std::move(next), added);
  note_work(vectors.bytes());
}

void IndexImpl::add(AnyMatrixView vectors, const ChangeOptions& options) {
  check_columns("vectors", vectors);
  if (vectors.rows() > 0) append(vectors, {}, options);
}

void IndexImpl::add_with_any_ids(AnyMatrixView vectors, std::span<const Id> ids,
                                 const ChangeOptions& options) {
  check_columns("vectors", vectors);
  check_one_a_row(ids, vectors);
  if (vectors.rows() == 0) return;
  check_own_ids(ids);
  append(vectors, ids, options);
}

void IndexImpl::reserve(std::int64_t rows) {
  if (rows < 0) throw InvalidArgument("rows must not be negative, but is {}", rows);
  const std::int64_t row_bytes = shape.dim * size_of(element_type());
  if (rows > machine_memory() / row_bytes)
    throw MemoryBudgetError("rows is {}, of {} bytes each, but this machine has {}", rows,
                            row_bytes, machine_memory());
  std::lock_guard lock(writer);
  store->reserve(rows);
}

void IndexImpl::remove(std::span<const Id> ids, const ChangeOptions& options) {
  if (ids.empty()) return;
  std::lock_guard lock(writer);
  State next = *state();
  store->take_out(next, ids);
  store->tidy(next, 0.5, options);
  store->settle(next, options);
  publish(std::move(next));
}

void IndexImpl::replace(std::span<const Id> ids, AnyMatrixView vectors,
                        const ChangeOptions& options) {
  check_columns("vectors", vectors);
  check_one_a_row(ids, vectors);
  if (ids.empty()) return;
  std::lock_guard lock(writer);
  State next = *state();
  store->take_out(next, ids);
  store->append(next, vectors, ids, options);
  store->tidy(next, 0.5, options);
  store->settle(next, options);
  publish(std::move(next), ids);
  note_work(vectors.bytes());
}

void IndexImpl::merge(const IndexBody& other, MergeIds ids) {
  if (&other == this) throw InvalidArgument("other is the index itself: copy it first");
  take_over(*other.as_one(), ids);
}

void IndexImpl::take_over(const IndexImpl& other, MergeIds ids) {
  const auto from = other.state();
  const IndexShape &theirs = other.shape, &ours = shape;
  if (theirs.kind() != ours.kind() || theirs.codes != ours.codes || theirs.refine != ours.refine ||
      theirs.rounded != ours.rounded || theirs.transforms != ours.transforms)
    throw InvalidArgument("other is an index {}, this one is {}", other.shape.description(),
                          shape.description());
  if (other.shape.dim != shape.dim)
    throw ShapeMismatch("other has {} columns, index has {}", other.shape.dim, shape.dim);
  if (other.shape.metric != shape.metric)
    throw InvalidArgument("other has metric {}, index has {}", name_of(other.shape.metric),
                          name_of(shape.metric));
  std::lock_guard lock(writer);
  State next = *state();
  check_trained(next, "merging");
  if (from->size == 0) return;
  next.known = nullptr;  // what it knew does not know these rows
  next.changed_rows += from->size;
  if (next.type && *next.type != *from->type)
    throw InvalidArgument("other has element type {}, index has {}", name_of(*from->type),
                          name_of(*next.type));
  next.type = from->type;
  if (ids == MergeIds::keep) {
    for (const Segment& segment : from->segments)
      for (std::int64_t row = 0; row < segment.rows->rows(); ++row)
        if (segment.live.contains(row) && next.find(segment.rows->ids()(row)).row >= 0)
          throw InvalidArgument("other holds id {}, which the index holds already",
                                segment.rows->ids()(row));
    next.next_id = std::max(next.next_id, from->next_id);
  } else if (next.next_id > std::numeric_limits<Id>::max() - from->next_id) {
    throw InvalidArgument("other has ids below {}, which cannot be raised by {}", from->next_id,
                          next.next_id);
  }
  form->check_same_codes(next, *from);
  if (next.transform && !equal(*next.transform, *from->transform))
    throw InvalidArgument(
        "other is an index {} that was trained to another transform than this one: add its "
        "vectors",
        other.shape.description());
  const bool other_lists = next.coarse && !next.coarse->equals(*from->coarse);
  if (next.coarse && !other_lists) from->coarse->share_centres(*next.coarse);
  for (const Segment& segment : from->segments) {
    Segment taken = segment;
    if (other_lists) taken = store->in_lists_of(*next.coarse, segment, *next.type, {});
    if (ids == MergeIds::shifted && next.next_id > 0)
      taken.rows = SegmentRows::shifted(taken.rows, next.next_id);
    next.segments.push_back(std::move(taken));
  }
  std::vector<Id> added;
  if (form->follows_ids())
    for (const Segment& segment : from->segments)
      for (std::int64_t row = 0; row < segment.rows->rows(); ++row)
        if (segment.live.contains(row))
          added.push_back(segment.rows->ids()(row) + (ids == MergeIds::shifted ? next.next_id : 0));
  if (ids == MergeIds::shifted) next.next_id += from->next_id;
  store->settle(next, {});
  publish(std::move(next), added);
}

void IndexImpl::compact(const ChangeOptions& options) {
  std::lock_guard lock(writer);
  State next = *state();
  store->tidy(next, 0, options);
  store->settle(next, options, true);
  publish(std::move(next));
  note_work(bytes_of_rows());
}

std::int64_t IndexImpl::optimize(const ChangeOptions& options) {
  resolve_threads(options.threads);
  const auto ready = [&] {
    if (form->is_made_beside_changes()) return form->make_ready(*state(), options);
    std::lock_guard lock(writer);
    const auto rows = form->make_ready(*state(), options);
    if (rows) note_work(bytes_of_rows());
    return rows;
  }();
  if (ready) return *ready;
  compact(options);
  return state()->size;
}

std::vector<OperatingPoint> IndexImpl::tune(std::int64_t k, AnyMatrixView queries,
                                            const ChangeOptions& options) {
  check_k(k);
  form->check_tuned_by(queries);
  if (queries.rows() > 0) check_columns("queries", queries);
  std::lock_guard lock(writer);
  const auto now = state();
  check_trained(*now, "tuning");
  if (now->audits) now->audits->forget(k);
  return form->tune(*now, k, queries, options);
}

std::vector<OperatingPoint> IndexImpl::tune(std::int64_t k, AnyMatrixView queries,
                                            AnyMatrixView base, std::span<const Id> ids,
                                            const ChangeOptions& options) {
  check_k(k);
  form->check_tuned_with(base);
  check_columns("base", base);
  if (queries.rows() > 0) check_columns("queries", queries);
  std::vector<Id> numbers;
  if (ids.empty()) ids = numbers = first_ids(base.rows());
  if (std::ssize(ids) != base.rows())
    throw ShapeMismatch("ids are {}, base is {} rows", ids.size(), base.rows());
  check_each_once(ids);
  std::lock_guard lock(writer);
  State next = *state();
  check_trained(next, "tuning");
  if (next.audits) next.audits->forget(k);
  const auto out = form->tune_with(next, k, queries, base, ids, options);
  publish(std::move(next));
  return out;
}

void IndexImpl::keep_audits(std::shared_ptr<AuditLog> audits) {
  std::lock_guard lock(writer);
  publish_audits(std::move(audits));
}

void IndexImpl::publish_audits(std::shared_ptr<AuditLog> audits) {
  State next = *state();
  next.audits = std::move(audits);
  auto made = std::make_shared<const State>(std::move(next));
  std::lock_guard publishing(state_mutex_);
  state_.swap(made);
}

void IndexImpl::set_audit(double share) {
  check_audit(share);
  std::lock_guard lock(writer);
  if (const auto log = state()->audits)
    log->set_share(share);
  else if (share > 0)
    publish_audits(std::make_shared<AuditLog>(share));
}

double IndexImpl::audit() const {
  const auto now = state();
  return now->audits ? now->audits->share() : 0;
}

std::vector<AuditReport> IndexImpl::audits() const {
  const auto now = state();
  return now->audits ? now->audits->reports() : std::vector<AuditReport>{};
}

AnyMatrix IndexImpl::reconstruct(std::span<const Id> ids) const {
  const auto now = state();
  const ElementType type = now->type.value_or(ElementType::f32);
  const bool inverted = now->transform && !form->reads_as_given();
  AnyMatrix out(type, std::ssize(ids), inverted ? shape.inner_dim() : shape.dim);
  std::vector<std::byte> scratch;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const State::Place place = now->find(ids[i]);
    if (place.row < 0)
      throw InvalidArgument("ids hold {} in place {}, which the index does not hold", ids[i], i);
    form->read(*now, place, scratch, out, static_cast<std::int64_t>(i));
  }
  if (!inverted) return out;
  const Matrix<float> back = now->transform->inverse(out);
  AnyMatrix whole(ElementType::f32, back.rows(), back.cols());
  copy_exactly(back.view(), ElementType::f32, whole.row(0));
  return whole;
}

bool IndexImpl::nearest_at_once(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                                FewRowsSearch& search) const {
  constexpr std::int64_t most_k = 4096;
  if (k < 1 || k > most_k || queries.cols() != shape.dim) return false;
  const auto now = state();
  if (!form->nearest_at_once(*now, queries, k, options, search)) return false;
  search.facts.rows = now->size, search.facts.version = now->version;
  return true;
}

ExactNeighbors IndexImpl::nearest(const State& now, AnyMatrixView queries, std::int64_t k,
                                  const SearchOptions& options, KnnReport* report) const {
  check_columns("queries", queries);
  check_trained(now, "searching");
  check_traffic(now, k, options.method);
  const IdFilter filter = quick_filter(now.size, now.next_id, options.filter);
  const bool looked_up = form->looks_up_ids(now, queries.rows(), k, filter.bits(), options);
  const std::vector<SearchSegment> segments = search_segments_of(now, filter, looked_up);
  const TransformedQueries inner(now, shape.metric, queries, options.threads);
  return form->nearest({now, segments, inner.view(), queries, options}, k, report);
}

ExactNeighbors IndexImpl::nearest(AnyMatrixView queries, std::int64_t k,
                                  const SearchOptions& options, KnnReport* report) const {
  const auto now = state();
  check_answer(queries.rows(), k);
  if (options.method.partial_reduce.aggregate)
    check_padding(queries.rows(), k, now->size, options.memory);
  ExactNeighbors near = nearest(*now, queries, k, options, report);
  if (report) set_state_of(*report, *now);
  return near;
}

RangeLists IndexImpl::within(const State& now, AnyMatrixView queries, double radius,
                             const SearchOptions& options, KnnReport* report) const {
  radius = checked_radius(radius);
  check_columns("queries", queries);
  check_trained(now, "searching");
  if (!options.method.traffic.empty())
    throw InvalidArgument("traffic is '{}', but a range search has no recall to audit",
                          options.method.traffic.text());
  const IdFilter filter = quick_filter(now.size, now.next_id, options.filter);
  const std::vector<SearchSegment> segments = search_segments_of(now, filter);
  const TransformedQueries inner(now, shape.metric, queries, options.threads);
  return form->within({now, segments, inner.view(), queries, options}, radius, report);
}

RangeNeighbors IndexImpl::within(AnyMatrixView queries, double radius, const SearchOptions& options,
                                 KnnReport* report) const {
  const auto now = state();
  RangeLists near = within(*now, queries, radius, options, report);
  if (report) set_state_of(*report, *now);
  return sorted_neighbors(near, shape.metric, resolve_threads(options.threads));
}

void IndexImpl::set_state_of(KnnReport& report, const State& now) const {
  set_rows(report, now.size, shape.dim), report.version = now.version;
}

void IndexImpl::set_call_of(KnnReport& report, const State& now, const Stopwatch& time) const {
  set_state_of(report, now), set_seconds(report, time);
}

}  // namespace knear::detail
