#include "knear/index/form/coded_segments.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear::detail {

std::optional<ElementType> CodedSegments::type_of_rows() const {
  if (shape_.keeps_vectors()) return {};
  return shape_.refine && shape_.refine->rounded ? *shape_.refine->rounded : ElementType::f32;
}

void CodedSegments::append_some(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                                const ValueRange& found, const ChangeOptions& options,
                                std::int64_t first) {
  if (shape_.refine && shape_.refine->rounded)
    check_kept_by_halves(*shape_.refine->rounded, vectors, metric_, next.segments.empty(),
                         options.threads, first);
  keep(next, vectors, own_ids, {}, found, options, first);
}

std::vector<Id> CodedSegments::take_ids(State& next, std::span<const Id> own_ids, std::int64_t n) {
  std::vector<Id> ids(own_ids.begin(), own_ids.end());
  if (ids.empty()) {
    ids.resize(static_cast<std::size_t>(n));
    std::iota(ids.begin(), ids.end(), next.next_id);
  }
  const Id last = *std::max_element(ids.begin(), ids.end());
  next.next_id = std::max(next.next_id, last == std::numeric_limits<Id>::max() ? last : last + 1);
  return ids;
}

void CodedSegments::append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                                   std::span<const std::uint32_t>, const ValueRange&,
                                   const Change& change) {
  next.changed_rows += vectors.rows();
  const std::vector<Id> ids = take_ids(next, own_ids, vectors.rows());
  next.segments.push_back(coded_segment(vectors, ids, change));
  if (next.known) next.known = next.known->with(vectors, ids, change.options.threads);
}

Segment CodedSegments::coded_segment(AnyMatrixView vectors, std::span<const Id> ids,
                                     const Change& change) const {
  const ChangeOptions& options = change.options;
  const std::int64_t n = vectors.rows();
  std::vector<std::uint32_t> list_of(static_cast<std::size_t>(n));
  Matrix<float> own;
  if (change.transform) own = change.transform->apply(vectors, options.threads);
  const AnyMatrixView inner = change.transform ? AnyMatrixView(own.view()) : vectors;
  if (change.coarse)
    list_of = change.coarse->assign(inner, options.threads, options.progress).list_of;
  const RowCoder::Codes coded =
      change.coder->encode(inner, list_of, options.threads, options.progress, change.first);
  AnyMatrix halves;
  Matrix<std::uint8_t> refining;
  if (!shape_.refine) {
    vectors = {};
  } else if (change.refiner) {
    refining = change.refiner->encode(vectors, {}, options.threads, options.progress).codes;
    vectors = refining.view();
  } else if (shape_.refine->rounded) {
    halves = rounded_to(*shape_.refine->rounded, vectors, options.threads, change.first);
    vectors = halves;
  }
  return sorted_codes(coded, list_of, ids, vectors, change);
}

void CodedSegments::append_kept(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
                                std::span<const std::uint32_t> list_of, AnyMatrixView finer,
                                const ChangeOptions& options) {
  const std::int64_t n = rows.rows();
  if (n == 0) return;
  const Id most = std::numeric_limits<Id>::max();
  if (own_ids.empty() && next.next_id > most - n)
    throw InvalidArgument("rows are {}, but ids are left for {} only", n, most - next.next_id);
  if (!next.type) next.type = type_of_rows().value_or(ElementType::f32);
  next.changed_rows += n;
  const std::vector<Id> ids = take_ids(next, own_ids, n);
  const std::vector<std::uint32_t> one_list(list_of.empty() ? static_cast<std::size_t>(n) : 0);
  if (list_of.empty()) list_of = one_list;
  RowCoder::Codes coded{Matrix<std::uint8_t>(n, rows.cols()), {}};
  copy_exactly(rows, ElementType::u8, coded.codes.data());
  next.coder->add_scalars(list_of, options.threads, coded);
  next.segments.push_back(sorted_codes(coded, list_of, ids, finer, change_of(next, options)));
  settle(next, options);
}

Segment CodedSegments::sorted_codes(const RowCoder::Codes& coded,
                                    std::span<const std::uint32_t> list_of, std::span<const Id> ids,
                                    AnyMatrixView vectors, const Change& change) const {
  const std::int64_t n = coded.codes.rows();
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(list_of[a], ids[a]) < std::pair(list_of[b], ids[b]);
  });
  std::vector<std::uint32_t> lists;
  for (const std::uint32_t row : order) lists.push_back(list_of[row]);
  auto codes =
      std::make_shared<CodedLists>(lists, change.coder->code_size(), change.coder->has_scalars());
  CodedRows rows{codes, AlignedArray<Id>(static_cast<std::size_t>(n))};
  std::shared_ptr<RowBuffer> buffer;
  if (vectors.rows() > 0) {
    buffer = std::make_shared<RowBuffer>(vectors.type(), n, vectors.cols());
    buffer->used = n;
    rows.vectors = buffer->rows, rows.keeper = buffer;
  }
  for (std::int64_t row = 0; row < n; ++row) {
    const std::uint32_t from = order[static_cast<std::size_t>(row)];
    codes->put(row, coded.codes.row(from), coded.scalars.empty() ? 0 : coded.scalars[from]);
    rows.ids[static_cast<std::size_t>(row)] = ids[from];
    if (buffer) copy_exactly(vectors.rows(from, from + 1), vectors.type(), buffer->row(row));
  }
  codes->finish();
  return {SegmentRows::of_codes(std::move(rows)), RowSet(n)};
}

Segment CodedSegments::rewritten(std::span<const Segment> segments, const Change& change,
                                 bool) const {
  // The lists that have live rows, and where those of each begin.
  std::map<std::uint32_t, std::int64_t> counts;
  for (const Segment& segment : segments) {
    const CodedLists& lists = *segment.rows->coded().lists;
    for (std::size_t l = 0; l < lists.lists().size(); ++l)
      if (const std::int64_t live = segment.live.count(lists.begin()[l], lists.begin()[l + 1]))
        counts[lists.lists()[l]] += live;
  }
  std::vector<std::uint32_t> numbers, list_of;
  std::vector<std::int64_t> begin;
  for (const auto& [list, count] : counts) {
    numbers.push_back(list), begin.push_back(std::ssize(list_of));
    list_of.resize(list_of.size() + static_cast<std::size_t>(count), list);
  }
  const std::int64_t n = std::ssize(list_of);
  auto codes =
      std::make_shared<CodedLists>(list_of, change.coder->code_size(), change.coder->has_scalars());
  CodedRows rows{codes, AlignedArray<Id>(static_cast<std::size_t>(n))};
  std::shared_ptr<RowBuffer> buffer;
  if (shape_.refine) {
    const AnyMatrixView& like = segments[0].rows->coded().vectors;
    buffer = std::make_shared<RowBuffer>(like.type(), n, like.cols());
    buffer->used = n;
    rows.vectors = buffer->rows, rows.keeper = buffer;
  }
  constexpr std::int64_t together = 64;  // lists
  parallel_for(change.options.threads, (std::ssize(numbers) + together - 1) / together,
               [&](std::int64_t task) {
                 std::vector<RowPlace> live;
                 std::vector<std::uint8_t> code(static_cast<std::size_t>(codes->width()));
                 const auto last =
                     std::min<std::int64_t>(std::ssize(numbers), (task + 1) * together);
                 for (auto l = static_cast<std::size_t>(task * together);
                      l < static_cast<std::size_t>(last); ++l) {
                   live.clear();
                   for (std::uint32_t s = 0; s < segments.size(); ++s) {
                     const CodedRows& from = segments[s].rows->coded();
                     const auto [first, end] = from.lists->rows_of(numbers[l]);
                     for (std::int64_t row = first; row < end; ++row)
                       if (segments[s].live.contains(row))
                         live.push_back({from.ids[static_cast<std::size_t>(row)], s,
                                         static_cast<std::uint32_t>(row)});
                   }
                   std::sort(live.begin(), live.end(),
                             [](const RowPlace& a, const RowPlace& b) { return a.id < b.id; });
                   std::int64_t to = begin[l];
                   for (const RowPlace& one : live) {
                     const CodedRows& from = segments[one.segment].rows->coded();
                     const CodedLists::Place place = from.lists->place(one.row);
                     for (std::size_t b = 0; b < code.size(); ++b)
                       code[b] = place.code[static_cast<std::int64_t>(b) * place.stride];
                     codes->put(to, code.data(),
                                from.lists->has_scalars() ? from.lists->scalars()[one.row] : 0);
                     rows.ids[static_cast<std::size_t>(to)] = one.id;
                     if (buffer) {
                       const BaseRows vectors(from.vectors, from.guard.get());
                       std::memcpy(buffer->row(to), vectors.row(one.row, nullptr),
                                   static_cast<std::size_t>(vectors.row_bytes()));
                     }
                     ++to;
                   }
                 }
               });
  codes->finish();
  return {SegmentRows::of_codes(std::move(rows)), RowSet(n)};
}

void CodedSegments::settle(State& next, const ChangeOptions& options, bool) const {
  merge_by_size(next.segments, change_of(next, options));
}

}  // namespace knear::detail
