#include "knear/index/form/vector_segments.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/index/form/block_progress.hpp"

namespace knear::detail {
namespace {

constexpr std::size_t most_matrices = 24;
constexpr std::int64_t max_spare_bytes = std::int64_t{1} << 30;  // of a buffer beyond what is asked

bool are_packed(const CoarseQuantizer* coarse, std::int64_t rows) {
  return coarse ? packs_lists(rows, coarse->lists()) : rows >= least_packed_rows;
}

void copy_in_parallel(AnyMatrixView in, std::byte* out, int threads) {
  const std::int64_t row_bytes = in.cols() * size_of(in.type());
  const std::int64_t block = std::max<std::int64_t>(1, (1 << 20) / row_bytes);
  parallel_for(threads, (in.rows() + block - 1) / block, [&](std::int64_t b) {
    const std::int64_t begin = b * block, end = std::min(in.rows(), begin + block);
    copy_exactly(in.rows(begin, end), in.type(), out + begin * row_bytes);
  });
}

bool are_neighbours(const SegmentRows& a, const SegmentRows& b) {
  return !a.is_panels() && !b.is_panels() && a.keeper() == b.keeper() && !a.guard() &&
         a.matrix().row(a.matrix().rows()) == b.matrix().data();
}

// The space in which rows in lists are coded: that of the centroids, which is one for all segments,
// so that they are scanned as one (knn/lists/list_search.hpp). Unless rows lie far from its middle,
// as such do that are unlike those of the training: they would be long in it, and their codes
// coarse.
CodingSpace space_of_lists(const CoarseQuantizer& coarse, PreparedRows& rows) {
  CodingSpace own = rows.coding_space();
  CodingSpace shared = CodingSpace::choose(coarse.centroids(), rows.metric, active_isa());
  const AnyMatrix some = rows.base.sample(std::min<std::int64_t>(512, rows.base.rows()));
  constexpr double worthwhile = 1.25;  // of squared lengths, as for the rows of k-means
  return shared.squares_of(some.view()) <= worthwhile * own.squares_of(some.view()) ? shared : own;
}

}  // namespace

bool VectorSegments::are_few(std::int64_t rows, const Change& change) const {
  return !are_packed(change.coarse, rows);
}

void VectorSegments::append_some(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                                 const ValueRange& found, const ChangeOptions& options,
                                 std::int64_t first) {
  if (!next.transform && !shape_.rounded) {
    keep(next, vectors, own_ids, {}, found, options, first);
    return;
  }
  if (shape_.rounded && !next.transform)
    check_kept_by_halves(*shape_.rounded, vectors, metric_, next.segments.empty(), options.threads,
                         first);
  const ElementType made = shape_.rounded.value_or(ElementType::f32);
  if (next.type.value_or(made) != made)
    throw CorruptFile("the file of index {} says that rows are {}, but they are {}",
                      shape_.description(), name_of(*next.type), name_of(made));
  next.type = made;
  const auto tail = tail_;
  try {
    const AnyMatrixView rows = altered_rows(next, vectors, options, first);
    keep(next, rows, own_ids, {}, find_value_range(rows, metric_, "vectors", options.threads),
         options, first);
  } catch (...) {
    tail_ = tail;
    throw;
  }
  // Whole numbers have gone to panels, and nothing else to this buffer.
  if (tail_ && tail_->used == 0) tail_ = nullptr;
}

AnyMatrixView VectorSegments::altered_rows(const State& next, AnyMatrixView vectors,
                                           const ChangeOptions& options, std::int64_t first) {
  const std::int64_t n = vectors.rows(), together = rows_together(options.threads);
  double most = 0;
  const std::shared_ptr<RowBuffer> buffer = room_for(next, n, false);
  for (std::int64_t begin = 0; begin < n; begin += together) {
    const std::int64_t end = std::min(n, begin + together);
    const Progress progress = progress_of_block(options.progress, begin, end, n);
    AnyMatrixView some = vectors.rows(begin, end);
    Matrix<float> inner;
    AnyMatrix halves;
    if (next.transform) {
      inner = next.transform->apply(some, options.threads, progress, first + begin);
      some = inner.view();
      if (shape_.rounded && traits_of(metric_).unit_rows)
        check_kept_by_halves(*shape_.rounded, some, metric_, false, options.threads, first + begin);
      else if (shape_.rounded && next.segments.empty())
        most = std::max(most, largest_number(some, options.threads));
    }
    if (shape_.rounded)
      some = halves = rounded_to(*shape_.rounded, some, options.threads, first + begin);
    copy_in_parallel(some, buffer->row(buffer->used + begin), options.threads);
  }
  if (shape_.rounded) check_kept_by_halves(*shape_.rounded, most);
  return buffer->rows.rows(buffer->used, buffer->used + n);
}

void VectorSegments::append_kept(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
                                 std::span<const std::uint32_t> list_of, AnyMatrixView,
                                 const ChangeOptions& options) {
  if (rows.rows() == 0) return;
  const ValueRange found = find_value_range(rows, metric_, "vectors", options.threads);
  keep(next, rows, own_ids, list_of, found, options, 0);
}

void VectorSegments::append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                                    std::span<const std::uint32_t> list_of, const ValueRange& found,
                                    const Change& change) {
  const std::int64_t n = vectors.rows();
  next.changed_rows += n;
  AlignedArray<std::uint32_t> order;
  AlignedArray<Id> ids;
  Id first = next.next_id, last = first + n - 1;
  if (!own_ids.empty()) {
    if (!std::is_sorted(own_ids.begin(), own_ids.end())) {
      order = AlignedArray<std::uint32_t>(n);
      std::iota(order.begin(), order.end(), 0u);
      std::sort(order.begin(), order.end(),
                [&](std::uint32_t a, std::uint32_t b) { return own_ids[a] < own_ids[b]; });
    }
    const auto id_of = [&](std::int64_t i) { return own_ids[order.size() ? order[i] : i]; };
    first = id_of(0), last = id_of(n - 1);
    if (last - first != n - 1) {
      ids = AlignedArray<Id>(n);
      for (std::int64_t i = 0; i < n; ++i) ids[i] = id_of(i);
    }
  }
  next.next_id = std::max(next.next_id, last == std::numeric_limits<Id>::max() ? last : last + 1);
  ListAssignment lists;
  if (change.coarse) {
    lists = assigned(vectors, list_of, change);
    for (std::vector<std::uint32_t>* of : {&lists.list_of, &lists.second_of}) {
      if (order.size() == 0 || of->empty()) continue;
      std::vector<std::uint32_t> by_id(of->size());
      for (std::size_t i = 0; i < by_id.size(); ++i) by_id[i] = (*of)[order[i]];
      *of = std::move(by_id);
    }
  }
  MatrixRows rows{vectors, nullptr, found, first, std::move(ids), std::move(order)};
  const bool panels = keeps_as_panels(metric_, found);
  std::shared_ptr<RowBuffer> buffer;
  if (!panels || !are_packed(change.coarse, n)) {
    buffer = room_for(next, n, panels);
    // Altered rows are written to their place at once.
    if (vectors.data() != buffer->row(buffer->used))
      copy_in_parallel(vectors, buffer->row(buffer->used), change.options.threads);
    rows.matrix = buffer->rows.rows(buffer->used, buffer->used + n), rows.keeper = buffer;
  }
  next.segments.push_back(segment_of(std::move(rows), std::move(lists), change));
  if (buffer) buffer->used += n;
}

ListAssignment VectorSegments::assigned(AnyMatrixView rows, std::span<const std::uint32_t> list_of,
                                        const Change& change) const {
  const ChangeOptions& options = change.options;
  ListAssignment out = list_of.empty()
                           ? change.coarse->assign(rows, options.threads, options.progress)
                           : change.coarse->as_given(rows, list_of, options.threads);
  if (shape_.in_two_lists)
    out.second_of = change.coarse->second_lists(rows, out.list_of, options.threads);
  return out;
}

Segment VectorSegments::segment_of(MatrixRows rows, ListAssignment lists, const Change& change,
                                   bool as_panels) const {
  const ChangeOptions& options = change.options;
  const CoarseQuantizer* coarse = change.coarse;
  const BaseRows base = rows.base();
  const std::int64_t n = base.rows();
  const bool packs = as_panels || are_packed(change.coarse, n),
             panels = as_panels || (packs && keeps_as_panels(metric_, rows.found));
  if (!coarse) {
    if (panels) {
      auto packed = std::make_shared<const PackedBase>(PackedBase::integer(
          base, {}, metric_, active_isa(), rows.found, options.threads, options.progress));
      return {
          SegmentRows::of_panels(std::move(packed), {}, std::move(rows.ids), rows.first, metric_),
          RowSet(n)};
    }
    const auto made = SegmentRows::of_matrix(std::move(rows), metric_);
    if (packs) prepare(made->prepared(), options.threads, options.progress);
    return {made, RowSet(n)};
  }
  const bool in_two = !lists.second_of.empty();
  if (panels) {
    const auto packed = [&](std::span<const std::uint32_t> list_of) {
      return std::make_shared<const PackedLists>(
          PackedLists::integer(base, list_of, coarse->lists(), metric_, active_isa(), rows.found,
                               options.threads, options.progress));
    };
    std::shared_ptr<ListedRows> second;
    if (in_two) second = std::make_shared<ListedRows>(packed(lists.second_of));
    const auto made = SegmentRows::of_listed_panels(packed(lists.list_of), std::move(lists.radii),
                                                    {}, std::move(rows.ids), rows.first, metric_);
    if (second) made->lists()->set_second(std::move(second));
    return {made, RowSet(n)};
  }
  const auto made = SegmentRows::of_matrix(std::move(rows), metric_);
  std::shared_ptr<ListedRows> listed;
  if (packs) {
    const CodingSpace space = space_of_lists(*coarse, made->prepared());
    const ListCentres centres =
        centres_that_pay(made->base(), lists.list_of, space, coarse->centres());
    const auto packed = [&](std::span<const std::uint32_t> list_of) {
      return std::make_shared<ListedRows>(std::make_shared<const PackedLists>(
          PackedLists::certified(made->base(), list_of, coarse->lists(), format_int8, space,
                                 options.threads, options.progress, centres)));
    };
    listed = packed(lists.list_of);
    if (in_two) listed->set_second(packed(lists.second_of));
  } else {
    listed = std::make_shared<ListedRows>(RowLists(lists.list_of, coarse->lists()));
    if (in_two)
      listed->set_second(std::make_shared<ListedRows>(RowLists(lists.second_of, coarse->lists())));
  }
  made->set_lists(std::move(listed), std::move(lists.radii));
  return {made, RowSet(n)};
}

std::shared_ptr<RowBuffer> VectorSegments::room_for(const State& next, std::int64_t n,
                                                    bool soon_panels) {
  if (tail_ && tail_->rows.type() == *next.type && tail_->used + n <= tail_->rows.rows())
    return tail_;
  std::int64_t total = 0;
  for (const Segment& segment : next.segments) total += segment.size();
  std::int64_t capacity = std::max(n, reserved_ - total);
  if (total > 0 || n < least_packed_rows) {
    const std::int64_t row_bytes = dim_ * size_of(*next.type);
    const std::int64_t spare =
        soon_panels ? 0
                    : std::min(total / 2, std::max<std::int64_t>(1, max_spare_bytes / row_bytes));
    capacity = std::max({capacity, spare, 4 * least_packed_rows});
  }
  try {
    return tail_ = std::make_shared<RowBuffer>(*next.type, capacity, dim_);
  } catch (const MemoryBudgetError&) {
    if (capacity == n) throw;
    return tail_ = std::make_shared<RowBuffer>(*next.type, n, dim_);  // without room to spare, then
  }
}

void VectorSegments::give_back_buffers(State& next, const Change& change) {
  // A buffer stays as long as one segment lies in it: those that have most of it for nothing move.
  std::map<const RowBuffer*, std::int64_t> kept;
  for (const Segment& segment : next.segments)
    if (const RowBuffer* buffer = segment.rows->buffer()) kept[buffer] += segment.rows->rows_kept();
  for (Segment& segment : next.segments) {
    const RowBuffer* buffer = segment.rows->buffer();
    if (buffer && buffer->used > 2 * kept[buffer] && buffer->used > 4 * least_packed_rows)
      segment = rewritten({&segment, 1}, change);
  }
  // A buffer that no segment of the state needs goes with the last search that does.
  const auto in_tail = [&](const Segment& segment) {
    return segment.rows->keeper() == std::static_pointer_cast<const void>(tail_);
  };
  if (tail_ && std::none_of(next.segments.begin(), next.segments.end(), in_tail)) tail_ = nullptr;
}

void VectorSegments::settle(State& next, const ChangeOptions& options, bool copying) const {
  const Change change = change_of(next, options);
  std::vector<Segment> bytes, chars, matrices;  // panels of u8, of i8, which may not unite
  std::swap(matrices, next.segments);
  take_panels(matrices, bytes, chars);
  // In the order of their making, so that neighbours meet.
  while (matrices.size() >= 2 && merge_last(matrices, change, copying))
    take_panels(matrices, bytes, chars);
  if (matrices.size() > most_matrices) merge_by_size(matrices, change);
  take_panels(matrices, bytes, chars);
  merge_by_size(bytes, change);
  merge_by_size(chars, change);
  for (std::vector<Segment>* kind : {&bytes, &chars, &matrices})
    std::move(kind->begin(), kind->end(), std::back_inserter(next.segments));
}

void VectorSegments::take_panels(std::vector<Segment>& from, std::vector<Segment>& bytes,
                                 std::vector<Segment>& chars) {
  std::erase_if(from, [&](Segment& segment) {
    if (!segment.rows->is_panels()) return false;
    (segment.rows->base().type() == ElementType::u8 ? bytes : chars).push_back(segment);
    return true;
  });
}

std::optional<Segment> VectorSegments::united(const Segment& a, const Segment& b,
                                              const Change& change, bool copying) const {
  const ValueRange found = detail::united(a.rows->found(), b.rows->found());
  if (a.rows->is_panels() && !keeps_as_panels(metric_, found)) return {};
  if (are_neighbours(*a.rows, *b.rows)) return joined(a, b, found, change);
  if (!a.rows->is_panels() && !copying) return {};
  const Segment both[] = {a, b};
  return rewritten(both, change);
}

std::vector<RowPlace> VectorSegments::live_rows(std::span<const Segment> segments) {
  std::vector<RowPlace> out;
  for (std::uint32_t s = 0; s < segments.size(); ++s) {
    const SegmentRows& rows = *segments[s].rows;
    const auto ids = rows.ids();
    for (std::int64_t r = 0; r < rows.rows(); ++r)
      if (segments[s].live.contains(r)) out.push_back({ids(r), s, static_cast<std::uint32_t>(r)});
  }
  const auto by_id = [](const RowPlace& a, const RowPlace& b) { return a.id < b.id; };
  if (!std::is_sorted(out.begin(), out.end(), by_id)) std::sort(out.begin(), out.end(), by_id);
  return out;
}

AlignedArray<Id> VectorSegments::ids_of(const std::vector<RowPlace>& live) {
  AlignedArray<Id> ids;
  if (live.back().id - live.front().id == std::ssize(live) - 1) return ids;
  ids = AlignedArray<Id>(live.size());
  for (std::size_t i = 0; i < live.size(); ++i) ids[i] = live[i].id;
  return ids;
}

ListAssignment VectorSegments::lists_of(std::span<const Segment> segments,
                                        const std::vector<RowPlace>& live, const Change& change) {
  ListAssignment out;
  if (!change.coarse) return out;
  std::vector<std::vector<std::uint32_t>> of, second;
  out.radii.assign(change.coarse->lists(), 0);
  for (const Segment& segment : segments) {
    const ListedRows& lists = *segment.rows->lists();
    of.push_back(lists.list_of());
    if (lists.second()) second.push_back(lists.second()->list_of());
    const std::span<const float> radii = segment.rows->radii();
    for (std::size_t l = 0; l < radii.size(); ++l) out.radii[l] = std::max(out.radii[l], radii[l]);
  }
  for (const RowPlace& row : live) out.list_of.push_back(of[row.segment][row.row]);
  if (!second.empty())
    for (const RowPlace& row : live) out.second_of.push_back(second[row.segment][row.row]);
  return out;
}

Segment VectorSegments::joined(const Segment& a, const Segment& b, const ValueRange& found,
                               const Change& change) const {
  const AnyMatrixView &top = a.rows->matrix(), &bottom = b.rows->matrix();
  const AnyMatrixView both(top.type(), top.data(), top.rows() + bottom.rows(), top.cols(),
                           top.stride());
  const Segment pair[2] = {a, b};
  const std::vector<RowPlace> live = live_rows(pair);
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
      lists_of(pair, live, change), change);
}

Segment VectorSegments::rewritten(std::span<const Segment> segments, const Change& change,
                                  bool again) const {
  const std::vector<RowPlace> live = live_rows(segments);
  ValueRange found = segments[0].rows->found();
  for (const Segment& segment : segments) found = detail::united(found, segment.rows->found());
  const std::int64_t n = std::ssize(live);
  // A few rows would leave panels of lists empty.
  const bool panels =
      segments[0].rows->is_panels() && (!change.coarse || are_packed(change.coarse, n));
  const ElementType type = !panels         ? change.type
                           : found.low < 0 ? ElementType::i8
                                           : ElementType::u8;
  const auto buffer = std::make_shared<RowBuffer>(type, n, dim_);
  constexpr std::int64_t block = 1024;
  parallel_for(change.options.threads, (n + block - 1) / block, [&](std::int64_t b) {
    std::vector<std::byte> scratch(std::max(segments.front().rows->base().scratch_bytes(),
                                            segments.back().rows->base().scratch_bytes()));
    for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i) {
      const RowPlace& one = live[i];
      const BaseRows& base = segments[one.segment].rows->base();
      copy_exactly(base.row_view(one.row, scratch.data()), type, buffer->row(i));
    }
  });
  buffer->used = n;
  ListAssignment lists =
      again ? assigned(buffer->rows, {}, change) : lists_of(segments, live, change);
  return segment_of({buffer->rows, buffer, found, live.front().id, ids_of(live)}, std::move(lists),
                    change, panels);
}

}  // namespace knear::detail
