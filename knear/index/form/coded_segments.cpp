#include "knear/index/form/coded_segments.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"
#include "knear/index/form/block_progress.hpp"

namespace knear::detail {
namespace {

// Neighbours of the vectors of the training are searched among rows that are this many bytes as
// packed codes: each search has costs of its own.
constexpr std::int64_t bytes_searched_together = 64 << 20;

// Calls f(begin, end) for blocks of the numbers from 0 to before n.
template <class F>
void each_block(std::int64_t n, std::int64_t together, F f) {
  for (std::int64_t begin = 0; begin < n; begin += together)
    f(begin, std::min(n, begin + together));
}

// Codes that come in the order of the vectors, and what refines them, put in the order of their
// lists and ids.
class OrderedCodes {
 public:
  // list_of [n]: the list of each row. type, cols: of what refines codes, or no columns.
  OrderedCodes(std::span<const std::uint32_t> list_of, const RowIds& ids, const RowCoder& coder,
               ElementType type, std::int64_t cols) {
    const auto n = list_of.size();
    const auto rows = static_cast<std::int64_t>(n);
    const bool one_list = std::all_of(list_of.begin(), list_of.end(),
                                      [&](std::uint32_t list) { return list == list_of[0]; });
    if (one_list) {
      codes_ = std::make_shared<CodedLists>(list_of, coder.code_size(), coder.has_scalars());
    } else {
      std::vector<std::uint32_t> sorted(list_of.begin(), list_of.end());
      std::sort(sorted.begin(), sorted.end());
      codes_ = std::make_shared<CodedLists>(sorted, coder.code_size(), coder.has_scalars());
    }
    bool ascending = true;
    for (std::int64_t i = 1; i < rows; ++i) ascending &= ids(i - 1) < ids(i);
    if (!ascending) {
      std::vector<std::uint32_t> order(n);
      std::iota(order.begin(), order.end(), 0u);
      std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return std::pair(list_of[a], ids(a)) < std::pair(list_of[b], ids(b));
      });
      places_.resize(n);
      for (std::size_t i = 0; i < n; ++i) places_[order[i]] = static_cast<std::uint32_t>(i);
    } else if (!one_list) {
      const std::vector<std::uint32_t>& lists = codes_->lists();
      std::vector<std::uint32_t> next(std::size_t{lists.back()} + 1);
      for (std::size_t l = 0; l < lists.size(); ++l)
        next[lists[l]] = static_cast<std::uint32_t>(codes_->begin()[l]);
      places_.resize(n);
      for (std::size_t i = 0; i < n; ++i) places_[i] = next[list_of[i]]++;
    }
    rows_.ids = AlignedArray<Id>::unset(n);
    for (std::int64_t i = 0; i < rows; ++i) rows_.ids[place(i)] = ids(i);
    if (cols == 0) return;
    buffer_ = std::make_shared<RowBuffer>(type, rows, cols);
    buffer_->used = rows;
    rows_.vectors = buffer_->rows, rows_.keeper = buffer_;
  }

  // Takes the codes of rows first, first + 1, ... and what refines them.
  void put(std::int64_t first, const RowCoder::Codes& coded, AnyMatrixView finer) {
    for (std::int64_t i = 0; i < coded.codes.rows(); ++i) {
      const std::int64_t to = place(first + i);
      codes_->put(to, coded.codes.row(i), coded.scalars.empty() ? 0 : coded.scalars[i]);
      if (buffer_) copy_exactly(finer.rows(i, i + 1), finer.type(), buffer_->row(to));
    }
  }
  // Call once, after all rows.
  Segment segment() {
    codes_->finish();
    const std::int64_t n = codes_->rows();
    rows_.lists = std::move(codes_);
    return {SegmentRows::of_codes(std::move(rows_)), RowSet(n)};
  }

 private:
  std::int64_t place(std::int64_t i) const {
    return places_.empty() ? i : std::int64_t{places_[i]};
  }

  std::shared_ptr<CodedLists> codes_;
  CodedRows rows_;
  std::shared_ptr<RowBuffer> buffer_;
  std::vector<std::uint32_t> places_;  // of the rows; empty: in their order
};

}  // namespace

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

RowIds CodedSegments::take_ids(State& next, std::span<const Id> own_ids, std::int64_t n) {
  const RowIds ids{next.next_id, own_ids.empty() ? nullptr : own_ids.data()};
  const Id last =
      own_ids.empty() ? next.next_id + n - 1 : *std::max_element(own_ids.begin(), own_ids.end());
  next.next_id = std::max(next.next_id, last == std::numeric_limits<Id>::max() ? last : last + 1);
  return ids;
}

void CodedSegments::append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                                   std::span<const std::uint32_t>, const ValueRange&,
                                   const Change& change) {
  next.changed_rows += vectors.rows();
  const RowIds ids = take_ids(next, own_ids, vectors.rows());
  next.segments.push_back(coded_segment(vectors, ids, change));
  if (!next.known) return;
  const std::int64_t together = std::max<std::int64_t>(1, bytes_searched_together / vectors.cols());
  each_block(vectors.rows(), together, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Id> some;
    for (std::int64_t i = begin; i < end; ++i) some.push_back(ids(i));
    next.known = next.known->with(vectors.rows(begin, end), some, change.options.threads);
  });
}

Segment CodedSegments::coded_segment(AnyMatrixView vectors, const RowIds& ids,
                                     const Change& change) const {
  const ChangeOptions& options = change.options;
  const std::int64_t n = vectors.rows(), together = rows_together(options.threads);
  Matrix<float> own;
  const auto transformed = [&](std::int64_t begin, std::int64_t end) -> AnyMatrixView {
    if (!change.transform) return vectors.rows(begin, end);
    own = change.transform->apply(vectors.rows(begin, end), options.threads, {},
                                  change.first + begin);
    return own.view();
  };
  std::vector<std::uint32_t> list_of(n);
  // Rows are encoded once, or twice with a refiner: its progress follows that of the first time,
  // block by block unless the codes of all blocks wait.
  const bool refines = change.refiner != nullptr, waits = change.coarse && change.transform;
  const auto progress_of = [&](std::int64_t begin, std::int64_t end, bool again) {
    if (!refines) return progress_of_block(options.progress, begin, end, n);
    const std::int64_t from =
        waits ? begin + (again ? n : 0) : 2 * begin + (again ? end - begin : 0);
    return progress_of_block(options.progress, from, from + end - begin, 2 * n);
  };
  const auto coded = [&](AnyMatrixView inner, std::int64_t begin, std::int64_t end) {
    return change.coder->encode(inner, std::span(list_of).subspan(begin, end - begin),
                                options.threads, progress_of(begin, end, false),
                                change.first + begin);
  };
  // Lists decide where codes go. Vectors are not transformed twice: their codes wait, as bytes.
  std::vector<RowCoder::Codes> waiting;
  if (change.coarse)
    each_block(n, together, [&](std::int64_t begin, std::int64_t end) {
      const AnyMatrixView inner = transformed(begin, end);
      const ListAssignment lists = change.coarse->assign(
          inner, options.threads, progress_of_block(options.progress, begin, end, n));
      std::copy(lists.list_of.begin(), lists.list_of.end(), list_of.begin() + begin);
      if (change.transform) waiting.push_back(coded(inner, begin, end));
    });
  ElementType type = ElementType::u8;
  std::int64_t cols = 0;
  if (shape_.refine) {
    cols = change.refiner ? change.refiner->code_size() : vectors.cols();
    if (!change.refiner) type = shape_.refine->rounded.value_or(vectors.type());
  }
  OrderedCodes out(list_of, ids, *change.coder, type, cols);
  each_block(n, together, [&](std::int64_t begin, std::int64_t end) {
    const AnyMatrixView some = vectors.rows(begin, end);
    RowCoder::Codes codes;
    if (waiting.empty())
      codes = coded(transformed(begin, end), begin, end);
    else
      codes = std::exchange(waiting[begin / together], {});
    AnyMatrix halves;
    Matrix<std::uint8_t> refining;
    AnyMatrixView finer = some;
    if (change.refiner) {
      refining = change.refiner
                     ->encode(some, {}, options.threads, progress_of(begin, end, true),
                              change.first + begin)
                     .codes;
      finer = refining.view();
    } else if (cols > 0 && shape_.refine->rounded) {
      halves = rounded_to(*shape_.refine->rounded, some, options.threads, change.first + begin);
      finer = halves;
    }
    out.put(begin, codes, finer);
  });
  return out.segment();
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
  const RowIds ids = take_ids(next, own_ids, n);
  const std::vector<std::uint32_t> one_list(list_of.empty() ? static_cast<std::size_t>(n) : 0);
  if (list_of.empty()) list_of = one_list;
  RowCoder::Codes coded{Matrix<std::uint8_t>(n, rows.cols()), {}};
  copy_exactly(rows, ElementType::u8, coded.codes.data());
  next.coder->add_scalars(list_of, options.threads, coded);
  OrderedCodes out(list_of, ids, *next.coder, finer.type(), finer.rows() > 0 ? finer.cols() : 0);
  out.put(0, coded, finer);
  next.segments.push_back(out.segment());
  settle(next, options);
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
  CodedRows rows{codes, AlignedArray<Id>(n)};
  std::shared_ptr<RowBuffer> buffer;
  if (shape_.refine) {
    const AnyMatrixView& like = segments[0].rows->coded().vectors;
    buffer = std::make_shared<RowBuffer>(like.type(), n, like.cols());
    buffer->used = n;
    rows.vectors = buffer->rows, rows.keeper = buffer;
  }
  constexpr std::int64_t together = 64;  // lists
  parallel_for(
      change.options.threads, (std::ssize(numbers) + together - 1) / together,
      [&](std::int64_t task) {
        std::vector<RowPlace> live;
        std::vector<std::uint8_t> code(codes->width());
        const auto last = std::min<std::int64_t>(std::ssize(numbers), (task + 1) * together);
        for (auto l = static_cast<std::size_t>(task * together); l < static_cast<std::size_t>(last);
             ++l) {
          live.clear();
          for (std::uint32_t s = 0; s < segments.size(); ++s) {
            const CodedRows& from = segments[s].rows->coded();
            const auto [first, end] = from.lists->rows_of(numbers[l]);
            for (std::int64_t row = first; row < end; ++row)
              if (segments[s].live.contains(row))
                live.push_back({from.ids[row], s, static_cast<std::uint32_t>(row)});
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
            rows.ids[to] = one.id;
            if (buffer) {
              const BaseRows vectors(from.vectors, from.guard.get());
              std::memcpy(buffer->row(to), vectors.row(one.row, nullptr), vectors.row_bytes());
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
