#include "knear/index/flat.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/threads.hpp"
#include "knear/index/flat_state.hpp"

namespace knear {

using detail::BaseRows;
using detail::PackedBase;
using detail::RowBuffer;
using detail::SearchSegment;
using detail::Segment;
using detail::SegmentRows;
using detail::State;

namespace {

constexpr std::int64_t max_segment_rows = std::int64_t{1} << 30;
constexpr std::size_t most_matrices = 24;
constexpr std::int64_t max_spare_bytes = std::int64_t{1} << 30;  // of a buffer beyond what is asked

template <class T>
T from_double(double x) {
  if constexpr (std::is_same_v<T, f16>) {
    return to_f16(static_cast<float>(x));
  } else if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(x);
  } else {
    // Out of range is undefined in the plain conversion; the caller sees that the value changed.
    using Limits = std::numeric_limits<T>;
    return x >= Limits::min() && x <= Limits::max() ? static_cast<T>(x) : T{0};
  }
}

// Copies finite rows into `out` [rows x cols], contiguous; returns the first row with a value that
// does not fit, or -1.
template <class From, class To>
std::int64_t copy_exactly(MatrixView<From> in, To* out) {
  for (std::int64_t i = 0; i < in.rows(); ++i) {
    const From* row = in.row(i);
    To* to = out + i * in.cols();
    if constexpr (std::is_same_v<From, To>) {
      std::memcpy(to, row, static_cast<std::size_t>(in.cols()) * sizeof(To));
    } else {
      bool exact = true;
      for (std::int64_t j = 0; j < in.cols(); ++j) {
        const double x = to_double(row[j]);
        to[j] = from_double<To>(x);
        exact &= to_double(to[j]) == x;
      }
      if (!exact) return i;
    }
  }
  return -1;
}

std::int64_t copy_exactly(AnyMatrixView in, ElementType type, void* out) {
  return visit(in, [&](auto from) {
    return visit(AnyMatrixView(type, out, in.rows(), in.cols(), in.cols()), [&](auto to) {
      using To = std::remove_cvref_t<decltype(*to.row(0))>;
      return copy_exactly(from, static_cast<To*>(out));
    });
  });
}

void copy_in_parallel(AnyMatrixView in, std::byte* out, int threads) {
  const std::int64_t row_bytes = in.cols() * size_of(in.type());
  const std::int64_t block = std::max<std::int64_t>(1, (1 << 20) / row_bytes);
  parallel_for(threads, (in.rows() + block - 1) / block, [&](std::int64_t b) {
    const std::int64_t begin = b * block, end = std::min(in.rows(), begin + block);
    copy_exactly(in.rows(begin, end), in.type(), out + begin * row_bytes);
  });
}

}  // namespace

class FlatIndex::Impl {
 public:
  Impl(std::int64_t columns, Metric how, State from = {})
      : dim(columns), metric(how), state_(std::make_shared<const State>(std::move(from))) {}

  const std::int64_t dim;
  const Metric metric;
  std::mutex writer;  // held by a change from begin to end

  std::shared_ptr<const State> state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }
  void publish(State next) {
    next.version = state_->version + 1, next.size = 0;
    for (const Segment& segment : next.segments) next.size += segment.size();
    auto made = std::make_shared<const State>(std::move(next));
    std::lock_guard lock(state_mutex_);
    state_.swap(made);  // the old one goes after the lock, if no search has it
  }

  void check_columns(std::string_view argument, AnyMatrixView vectors) const {
    if (vectors.cols() != dim)
      throw ShapeMismatch("{} have {} columns, index has {}", argument, vectors.cols(), dim);
  }

  // Adds rows to a state to come, under ids that are not in use.
  void append(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
              const ChangeOptions& options) {
    const ValueRange found = find_value_range(vectors, metric, "vectors", options.threads);
    if (!next.type) next.type = vectors.type();
    AnyMatrix converted;
    if (vectors.type() != *next.type) {
      converted = AnyMatrix(*next.type, vectors.rows(), dim);
      const std::int64_t bad = copy_exactly(vectors, *next.type, converted.row(0));
      if (bad >= 0)
        throw InvalidArgument(
            "vectors of type {} hold a value in row {} that the index, of type {} since its first "
            "vectors, cannot hold exactly",
            name_of(vectors.type()), bad, name_of(*next.type));
      vectors = converted;
    }
    if (own_ids.empty()) {
      const Id most = std::numeric_limits<Id>::max();
      if (next.next_id > most - vectors.rows())
        throw InvalidArgument("vectors are {}, but ids are left for {} only", vectors.rows(),
                              most - next.next_id);
    }
    for (std::int64_t begin = 0; begin < vectors.rows(); begin += max_segment_rows) {
      const std::int64_t end = std::min(vectors.rows(), begin + max_segment_rows);
      const auto ids = own_ids.empty() ? own_ids : own_ids.subspan(begin, end - begin);
      append_segment(next, vectors.rows(begin, end), ids, found, options);
      settle(next, options);
    }
  }

  // Rows as a segment of their own, those that are not live left out and their memory with them.
  Segment compacted(const Segment& segment, const ChangeOptions& options) const {
    return rewritten({&segment, 1}, options);
  }

  // Merges segments until of each kind, from the last on, every one is at least twice as long as
  // the next, so that there are few. Matrices of more than a few rows merge only where they lie
  // next to one another, without being copied; unless `copying`, or there are too many of them
  // after a long history.
  void settle(State& next, const ChangeOptions& options, bool copying = false) const {
    std::vector<Segment> bytes, chars, matrices;  // panels of u8, of i8, which may not unite
    std::swap(matrices, next.segments);
    take_panels(matrices, bytes, chars);
    // In the order of their making, so that neighbours meet.
    while (matrices.size() >= 2 && merge_last(matrices, options, copying))
      take_panels(matrices, bytes, chars);
    if (matrices.size() > most_matrices) merge_by_size(matrices, options);
    take_panels(matrices, bytes, chars);
    merge_by_size(bytes, options);
    merge_by_size(chars, options);
    for (std::vector<Segment>* kind : {&bytes, &chars, &matrices})
      std::move(kind->begin(), kind->end(), std::back_inserter(next.segments));
  }

  std::shared_ptr<RowBuffer> tail;  // the buffer that is being filled; for the writer
  std::int64_t reserved = 0;        // rows

 private:
  void append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                      const ValueRange& found, const ChangeOptions& options) {
    const std::int64_t n = vectors.rows();
    AlignedArray<std::uint32_t> order;
    AlignedArray<Id> ids;
    Id first = next.next_id, last = first + n - 1;
    if (!own_ids.empty()) {
      if (!std::is_sorted(own_ids.begin(), own_ids.end())) {
        order = AlignedArray<std::uint32_t>(static_cast<std::size_t>(n));
        std::iota(order.begin(), order.end(), 0u);
        std::sort(order.begin(), order.end(),
                  [&](std::uint32_t a, std::uint32_t b) { return own_ids[a] < own_ids[b]; });
      }
      const auto id_of = [&](std::int64_t i) {
        return own_ids[order.size() ? order[static_cast<std::size_t>(i)] : i];
      };
      first = id_of(0), last = id_of(n - 1);
      if (last - first != n - 1) {
        ids = AlignedArray<Id>(static_cast<std::size_t>(n));
        for (std::int64_t i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = id_of(i);
      }
    }
    next.next_id = std::max(next.next_id, last == std::numeric_limits<Id>::max() ? last : last + 1);
    detail::MatrixRows rows{vectors, nullptr, found, first, std::move(ids), std::move(order)};
    const bool panels = detail::keeps_as_panels(metric, found);
    std::shared_ptr<RowBuffer> buffer;
    if (!panels || n < detail::least_packed_rows) {
      buffer = room_for(next, n, panels);
      copy_in_parallel(vectors, buffer->row(buffer->used), options.threads);
      rows.matrix = buffer->rows.rows(buffer->used, buffer->used + n), rows.keeper = buffer;
    }
    next.segments.push_back(segment_of(std::move(rows), n, options));
    if (buffer) buffer->used += n;
  }

  // `n` rows with their ids as a segment of live rows: packed, if they are many.
  Segment segment_of(detail::MatrixRows rows, std::int64_t n, const ChangeOptions& options) const {
    const bool packs = n >= detail::least_packed_rows;
    if (packs && detail::keeps_as_panels(metric, rows.found))
      return {panels_of(rows.base(), std::move(rows.ids), rows.first, rows.found, options),
              RowSet(n)};
    const auto made = SegmentRows::of_matrix(std::move(rows), metric);
    if (packs) detail::prepare(made->prepared(), options.threads, options.progress);
    return {made, RowSet(n)};
  }

  std::shared_ptr<SegmentRows> panels_of(const BaseRows& rows, AlignedArray<Id> ids, Id first,
                                         const ValueRange& found,
                                         const ChangeOptions& options) const {
    auto panels = std::make_shared<const PackedBase>(PackedBase::integer(
        rows, {}, metric, active_isa(), found, options.threads, options.progress));
    return SegmentRows::of_panels(std::move(panels), {}, std::move(ids), first, metric);
  }

  // A buffer with room for n rows more. The first one takes what it needs; later ones leave room,
  // so that many small adds make few buffers. Rows that will soon be kept as panels need little.
  std::shared_ptr<RowBuffer> room_for(const State& next, std::int64_t n, bool soon_panels) {
    if (tail && tail->rows.type() == *next.type && tail->used + n <= tail->rows.rows()) return tail;
    std::int64_t total = 0;
    for (const Segment& segment : next.segments) total += segment.size();
    std::int64_t capacity = std::max(n, reserved - total);
    if (total > 0 || n < detail::least_packed_rows) {
      const std::int64_t row_bytes = dim * size_of(*next.type);
      const std::int64_t spare =
          soon_panels ? 0
                      : std::min(total / 2, std::max<std::int64_t>(1, max_spare_bytes / row_bytes));
      capacity = std::max({capacity, spare, 4 * detail::least_packed_rows});
    }
    try {
      return tail = std::make_shared<RowBuffer>(*next.type, capacity, dim);
    } catch (const MemoryBudgetError&) {
      if (capacity == n) throw;
      return tail = std::make_shared<RowBuffer>(*next.type, n, dim);  // without room to spare, then
    }
  }

  // What is kept as panels goes to those.
  static void take_panels(std::vector<Segment>& from, std::vector<Segment>& bytes,
                          std::vector<Segment>& chars) {
    std::erase_if(from, [&](Segment& segment) {
      if (!segment.rows->is_panels()) return false;
      (segment.rows->base().type() == ElementType::u8 ? bytes : chars).push_back(segment);
      return true;
    });
  }

  // As settle() says, whatever the order of their making, by copying.
  void merge_by_size(std::vector<Segment>& segments, const ChangeOptions& options) const {
    do {
      std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
        return a.rows->rows() > b.rows->rows();
      });
    } while (segments.size() >= 2 && merge_last(segments, options, true));
  }

  // Makes one of the last two segments if that is due and can be done.
  bool merge_last(std::vector<Segment>& segments, const ChangeOptions& options,
                  bool copying) const {
    const Segment &a = segments[segments.size() - 2], &b = segments.back();
    const std::int64_t a_rows = a.rows->rows(), b_rows = b.rows->rows();
    const bool both_small = std::max(a_rows, b_rows) < detail::least_packed_rows;
    if ((!both_small && a_rows >= 2 * b_rows) || a_rows + b_rows > max_segment_rows) return false;
    const ValueRange found = detail::united(a.rows->found(), b.rows->found());
    if (a.size() + b.size() == 0 ||
        (a.rows->is_panels() && !detail::keeps_as_panels(metric, found)))
      return false;
    Segment merged;
    if (are_neighbours(*a.rows, *b.rows))
      merged = joined(a, b, found, options);
    else if (a.rows->is_panels() || both_small || copying)
      merged = rewritten({&a, 2}, options);
    else
      return false;
    segments.pop_back();
    segments.back() = std::move(merged);
    return true;
  }

  static bool are_neighbours(const SegmentRows& a, const SegmentRows& b) {
    return !a.is_panels() && !b.is_panels() && a.keeper() == b.keeper() && !a.guard() &&
           a.matrix().row(a.matrix().rows()) == b.matrix().data();
  }

  // Live rows of some segments, ascending by id.
  struct Live {
    Id id;
    std::uint32_t segment, row;
  };
  static std::vector<Live> live_rows(std::span<const Segment> segments) {
    std::vector<Live> out;
    for (std::uint32_t s = 0; s < segments.size(); ++s) {
      const SegmentRows& rows = *segments[s].rows;
      const auto ids = rows.ids();
      for (std::int64_t r = 0; r < rows.rows(); ++r)
        if (segments[s].live.contains(r)) out.push_back({ids(r), s, static_cast<std::uint32_t>(r)});
    }
    const auto by_id = [](const Live& a, const Live& b) { return a.id < b.id; };
    if (!std::is_sorted(out.begin(), out.end(), by_id)) std::sort(out.begin(), out.end(), by_id);
    return out;
  }
  // Their ids; none where they follow one another without a gap.
  static AlignedArray<Id> ids_of(const std::vector<Live>& live) {
    AlignedArray<Id> ids;
    if (live.back().id - live.front().id == std::ssize(live) - 1) return ids;
    ids = AlignedArray<Id>(live.size());
    for (std::size_t i = 0; i < live.size(); ++i) ids[i] = live[i].id;
    return ids;
  }

  // Two matrices that lie next to one another as one segment, of their live rows.
  Segment joined(const Segment& a, const Segment& b, const ValueRange& found,
                 const ChangeOptions& options) const {
    const AnyMatrixView &top = a.rows->matrix(), &bottom = b.rows->matrix();
    const AnyMatrixView both(top.type(), top.data(), top.rows() + bottom.rows(), top.cols(),
                             top.stride());
    const Segment pair[2] = {a, b};
    const std::vector<Live> live = live_rows(pair);
    AlignedArray<std::uint32_t> order(live.size());
    bool as_they_lie = std::ssize(live) == both.rows();
    for (std::size_t i = 0; i < live.size(); ++i) {
      const SegmentRows& rows = *pair[live[i].segment].rows;
      const std::uint32_t place = rows.order().empty() ? live[i].row : rows.order()[live[i].row];
      order[i] = place + (live[i].segment ? static_cast<std::uint32_t>(top.rows()) : 0);
      as_they_lie &= order[i] == i;
    }
    if (as_they_lie) order = {};
    return segment_of(
        {both, a.rows->keeper(), found, live.front().id, ids_of(live), std::move(order)},
        std::ssize(live), options);
  }

  // The live rows of some segments of one kind, copied. Requires that there are some.
  Segment rewritten(std::span<const Segment> segments, const ChangeOptions& options) const {
    const std::vector<Live> live = live_rows(segments);
    ValueRange found = segments[0].rows->found();
    for (const Segment& segment : segments) found = detail::united(found, segment.rows->found());
    const bool panels = segments[0].rows->is_panels();
    const ElementType type = !panels         ? segments[0].rows->base().type()
                             : found.low < 0 ? ElementType::i8
                                             : ElementType::u8;
    const std::int64_t n = std::ssize(live);
    const auto buffer = std::make_shared<RowBuffer>(type, n, dim);
    constexpr std::int64_t block = 1024;
    parallel_for(options.threads, (n + block - 1) / block, [&](std::int64_t b) {
      std::vector<std::byte> scratch(std::max(segments.front().rows->base().scratch_bytes(),
                                              segments.back().rows->base().scratch_bytes()));
      for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i) {
        const Live& one = live[static_cast<std::size_t>(i)];
        const BaseRows& base = segments[one.segment].rows->base();
        copy_exactly(base.row_view(one.row, scratch.data()), type, buffer->row(i));
      }
    });
    buffer->used = n;
    if (panels)
      return {panels_of(buffer->rows, ids_of(live), live.front().id, found, options), RowSet(n)};
    return segment_of({buffer->rows, buffer, found, live.front().id, ids_of(live)}, n, options);
  }

  mutable std::mutex state_mutex_;  // held for the time of copying a pointer
  std::shared_ptr<const State> state_;
};

namespace {

// Throws for the first id that occurs twice; returns the ids' places in their order.
void check_each_once(std::span<const Id> ids) {
  std::vector<std::size_t> order(ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(ids[a], a) < std::pair(ids[b], b);
  });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (ids[order[i]] == ids[order[i - 1]])
      throw InvalidArgument("ids hold {} twice, in places {} and {}", ids[order[i]], order[i - 1],
                            order[i]);
}

void check_one_a_row(std::span<const Id> ids, AnyMatrixView vectors) {
  if (std::ssize(ids) != vectors.rows())
    throw ShapeMismatch("ids are {}, vectors are {} rows", ids.size(), vectors.rows());
}

// Takes rows out of a state to come.
void take_out(State& next, std::span<const Id> ids) {
  check_each_once(ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const State::Place place = next.find(ids[i]);
    if (place.row < 0)
      throw InvalidArgument("ids hold {} in place {}, which the index does not hold", ids[i], i);
    next.segments[place.segment].live.remove(place.row);
  }
}

// Gives back the memory of segments of which at least a share of the rows is not live.
void tidy(FlatIndex::Impl& impl, State& next, double share, const ChangeOptions& options) {
  std::erase_if(next.segments, [](const Segment& segment) { return segment.size() == 0; });
  for (Segment& segment : next.segments) {
    const std::int64_t kept = segment.rows->rows_kept(), dead = kept - segment.size();
    if (dead > 0 && static_cast<double>(dead) >= share * static_cast<double>(kept))
      segment = impl.compacted(segment, options);
  }
  // A buffer stays as long as one segment lies in it: those that have most of it for nothing move.
  std::map<const RowBuffer*, std::int64_t> kept;
  for (const Segment& segment : next.segments)
    if (const RowBuffer* buffer = segment.rows->buffer()) kept[buffer] += segment.rows->rows_kept();
  for (Segment& segment : next.segments) {
    const RowBuffer* buffer = segment.rows->buffer();
    if (buffer && buffer->used > 2 * kept[buffer] && buffer->used > 4 * detail::least_packed_rows)
      segment = impl.compacted(segment, options);
  }
  // A buffer that no segment of the state needs goes with the last search that does.
  const auto in_tail = [&](const Segment& segment) {
    return segment.rows->keeper() == std::static_pointer_cast<const void>(impl.tail);
  };
  if (impl.tail && std::none_of(next.segments.begin(), next.segments.end(), in_tail))
    impl.tail = nullptr;
}

// The rows of a segment that a filter lets through, or nothing if that is all or none that are
// live. `named` counts those of a list that were found.
SearchSegment search_segment_of(const Segment& segment, const IdFilter& filter,
                                std::int64_t& named) {
  const SegmentRows& rows = *segment.rows;
  const std::int64_t n = rows.rows();
  SearchSegment out{.rows = &rows.prepared(), .ids = rows.ids()};
  if (filter.everything()) {
    if (!segment.live.all()) out.live = &segment.live;
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
  std::vector<std::uint8_t> own(static_cast<std::size_t>((n + 7) / 8), 0);
  for (std::int64_t row = 0; row < n; ++row) {
    const Id id = out.ids(row);
    if (id < bits.rows() && bits.allows(id) && segment.live.contains(row))
      own[static_cast<std::size_t>(row / 8)] |= static_cast<std::uint8_t>(1 << row % 8);
  }
  out.filter = RowFilter::of_bits(own, n);
  return out;
}

std::vector<SearchSegment> search_segments_of(const State& state, const IdFilter& filter) {
  std::vector<SearchSegment> segments;
  std::int64_t named = 0;
  for (const Segment& segment : state.segments)
    segments.push_back(search_segment_of(segment, filter, named));
  if (const std::vector<Id>* list = filter.list(); list && named < std::ssize(*list))
    for (const Id id : *list)
      if (state.find(id).row < 0)
        throw InvalidArgument("filter holds id {}, which the index does not hold", id);
  if (!filter.bits().everything() && filter.bits().rows() > state.next_id)
    throw ShapeMismatch("filter is for the ids below {}, but those of the index are below {}",
                        filter.bits().rows(), state.next_id);
  return segments;
}

}  // namespace

FlatIndex::FlatIndex(std::int64_t dim, Metric metric) {
  if (dim < 1 || dim > 65536)
    throw InvalidArgument("dim must be between 1 and 65536, but is {}", dim);
  impl_ = detail::public_call([&] { return std::make_unique<Impl>(dim, metric); });
}
FlatIndex::~FlatIndex() = default;
FlatIndex::FlatIndex(FlatIndex&&) noexcept = default;
FlatIndex& FlatIndex::operator=(FlatIndex&&) noexcept = default;

std::int64_t FlatIndex::dim() const { return impl_->dim; }
Metric FlatIndex::metric() const { return impl_->metric; }
std::int64_t FlatIndex::size() const { return impl_->state()->size; }
ElementType FlatIndex::element_type() const {
  return impl_->state()->type.value_or(ElementType::f32);
}
Id FlatIndex::next_id() const { return impl_->state()->next_id; }
std::int64_t FlatIndex::version() const { return impl_->state()->version; }
bool FlatIndex::contains(Id id) const { return impl_->state()->find(id).row >= 0; }

std::vector<Id> FlatIndex::ids() const {
  return detail::public_call([&] {
    const auto state = impl_->state();
    std::vector<Id> out;
    out.reserve(static_cast<std::size_t>(state->size));
    for (const Segment& segment : state->segments)
      for (std::int64_t row = 0; row < segment.rows->rows(); ++row)
        if (segment.live.contains(row)) out.push_back(segment.rows->ids()(row));
    std::sort(out.begin(), out.end());
    return out;
  });
}

std::int64_t FlatIndex::memory_bytes() const {
  return detail::public_call([&] {
    const auto state = impl_->state();
    std::int64_t sum = 0;
    for (const Segment& segment : state->segments)
      sum += segment.rows->bytes() + segment.live.bytes();
    std::set<const RowBuffer*> buffers;
    for (const Segment& segment : state->segments)
      if (const RowBuffer* buffer = segment.rows->buffer(); buffer && buffers.insert(buffer).second)
        sum += buffer->used_bytes();
    return sum;
  });
}

void FlatIndex::add(AnyMatrixView vectors, const ChangeOptions& options) {
  detail::public_call([&] {
    impl_->check_columns("vectors", vectors);
    if (vectors.rows() == 0) return;
    std::lock_guard lock(impl_->writer);
    State next = *impl_->state();
    impl_->append(next, vectors, {}, options);
    impl_->publish(std::move(next));
  });
}

void FlatIndex::add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options) {
  detail::public_call([&] {
    impl_->check_columns("vectors", vectors);
    check_one_a_row(ids, vectors);
    if (vectors.rows() == 0) return;
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (ids[i] < 0)
        throw InvalidArgument("ids must not be negative, but hold {} in place {}", ids[i], i);
    check_each_once(ids);
    std::lock_guard lock(impl_->writer);
    State next = *impl_->state();
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (next.find(ids[i]).row >= 0)
        throw InvalidArgument("ids hold {} in place {}, which the index holds already", ids[i], i);
    impl_->append(next, vectors, ids, options);
    impl_->publish(std::move(next));
  });
}

void FlatIndex::reserve(std::int64_t rows) {
  if (rows < 0) throw InvalidArgument("rows must not be negative, but is {}", rows);
  const std::int64_t row_bytes = dim() * size_of(element_type());
  if (rows > machine_memory() / row_bytes)
    throw MemoryBudgetError("rows is {}, of {} bytes each, but this machine has {}", rows,
                            row_bytes, machine_memory());
  std::lock_guard lock(impl_->writer);
  impl_->reserved = std::max(impl_->reserved, rows);
}

void FlatIndex::remove(std::span<const Id> ids, const ChangeOptions& options) {
  detail::public_call([&] {
    if (ids.empty()) return;
    std::lock_guard lock(impl_->writer);
    State next = *impl_->state();
    take_out(next, ids);
    tidy(*impl_, next, 0.5, options);
    impl_->settle(next, options);
    impl_->publish(std::move(next));
  });
}

void FlatIndex::replace(std::span<const Id> ids, AnyMatrixView vectors,
                        const ChangeOptions& options) {
  detail::public_call([&] {
    impl_->check_columns("vectors", vectors);
    check_one_a_row(ids, vectors);
    if (ids.empty()) return;
    std::lock_guard lock(impl_->writer);
    State next = *impl_->state();
    take_out(next, ids);
    impl_->append(next, vectors, ids, options);
    tidy(*impl_, next, 0.5, options);
    impl_->settle(next, options);
    impl_->publish(std::move(next));
  });
}

void FlatIndex::merge(const FlatIndex& other, MergeIds ids) {
  detail::public_call([&] {
    const auto from = other.impl_->state();
    if (other.dim() != dim())
      throw ShapeMismatch("other has {} columns, index has {}", other.dim(), dim());
    if (other.metric() != metric())
      throw InvalidArgument("other has metric {}, index has {}", name_of(other.metric()),
                            name_of(metric()));
    std::lock_guard lock(impl_->writer);
    State next = *impl_->state();
    if (from->size == 0) return;
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
    for (const Segment& segment : from->segments) {
      Segment taken = segment;
      if (ids == MergeIds::shifted && next.next_id > 0)
        taken.rows = SegmentRows::shifted(segment.rows, next.next_id);
      next.segments.push_back(std::move(taken));
    }
    if (ids == MergeIds::shifted) next.next_id += from->next_id;
    impl_->settle(next, {});
    impl_->publish(std::move(next));
  });
}

void FlatIndex::compact(const ChangeOptions& options) {
  detail::public_call([&] {
    std::lock_guard lock(impl_->writer);
    State next = *impl_->state();
    tidy(*impl_, next, 0, options);
    impl_->settle(next, options, true);
    impl_->publish(std::move(next));
  });
}

std::int64_t FlatIndex::optimize(const ChangeOptions& options) {
  return detail::public_call([&] {
    std::lock_guard lock(impl_->writer);
    const auto state = impl_->state();
    std::int64_t rows = 0;
    for (const Segment& segment : state->segments)
      if (detail::optimize(segment.rows->prepared(), options.threads, options.progress))
        rows += segment.size();
    return rows;
  });
}

FlatIndex::FlatIndex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

void FlatIndex::save(const std::string& path, const Progress& progress) const {
  detail::public_call([&] { save_flat(*impl_->state(), dim(), metric(), path, progress); });
}

FlatIndex FlatIndex::load(const std::string& path) {
  return detail::public_call([&] {
    detail::SavedFlat saved = detail::load_flat(path);
    return FlatIndex(std::make_unique<Impl>(saved.dim, saved.metric, std::move(saved.state)));
  });
}

AnyMatrix FlatIndex::reconstruct(std::span<const Id> ids) const {
  return detail::public_call([&] {
    const auto state = impl_->state();
    const ElementType type = state->type.value_or(ElementType::f32);
    AnyMatrix out(type, std::ssize(ids), dim());
    std::vector<std::byte> scratch(static_cast<std::size_t>(dim()) + 3);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const State::Place place = state->find(ids[i]);
      if (place.row < 0)
        throw InvalidArgument("ids hold {} in place {}, which the index does not hold", ids[i], i);
      const BaseRows& base = state->segments[place.segment].rows->base();
      copy_exactly(base.row_view(place.row, scratch.data()), type,
                   out.row(static_cast<std::int64_t>(i)));
    }
    return out;
  });
}

Neighbors FlatIndex::search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options,
                            KnnReport* report) const {
  return detail::public_call([&] {
    detail::check_k(k);
    impl_->check_columns("queries", queries);
    const auto state = impl_->state();
    const detail::SearchRequest request(
        detail::SearchKind::nearest, search_segments_of(*state, options.filter), queries, k,
        options.with(metric(), RowFilter{}), detail::Reuse::expected);
    Neighbors near = detail::search_segments(request, report);
    if (report) report->rows = state->size, report->version = state->version;
    return near;
  });
}

RangeNeighbors FlatIndex::range_search(AnyMatrixView queries, double radius,
                                       const SearchOptions& options, KnnReport* report) const {
  return detail::public_call([&] {
    detail::check_radius(radius);
    impl_->check_columns("queries", queries);
    const auto state = impl_->state();
    const detail::SearchRequest request(
        detail::SearchKind::range, search_segments_of(*state, options.filter), queries,
        detail::usual_k, options.with(metric(), RowFilter{}), detail::Reuse::expected);
    RangeNeighbors near = detail::range_search_segments(request, radius, report);
    if (report) report->rows = state->size, report->version = state->version;
    return near;
  });
}

}  // namespace knear
