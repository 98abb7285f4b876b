// Segments of an index: appended, joined, rewritten. A segment that merges with another of its size
// is written log(n) times in all.
#include "knear/index/life/segment_store.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <type_traits>
#include <utility>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear::detail {
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

// As copy_exactly() of matrices of any type.
template <class From, class To>
std::int64_t copy_rows(MatrixView<From> in, To* out) {
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

}  // namespace

std::int64_t copy_exactly(AnyMatrixView in, ElementType type, void* out) {
  return visit(in, [&](auto from) {
    return visit(AnyMatrixView(type, out, in.rows(), in.cols(), in.cols()), [&](auto to) {
      using To = std::remove_cvref_t<decltype(*to.row(0))>;
      return copy_rows(from, static_cast<To*>(out));
    });
  });
}

AnyMatrix rounded_to(ElementType type, AnyMatrixView vectors, int threads, std::int64_t first) {
  AnyMatrix out(type, vectors.rows(), vectors.cols());
  std::atomic<std::int64_t> bad = vectors.rows();
  parallel_for(threads, (vectors.rows() + 1023) / 1024, [&](std::int64_t task) {
    std::vector<float> row(static_cast<std::size_t>(vectors.cols()));
    visit(vectors, [&](auto from) {
      for (std::int64_t i = task * 1024; i < std::min(vectors.rows(), (task + 1) * 1024); ++i) {
        std::transform(from.row(i), from.row(i) + vectors.cols(), row.begin(),
                       [](auto x) { return static_cast<float>(widened(x)); });
        static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2);
        if (to_halves(type, row.data(), vectors.cols(), static_cast<std::uint16_t*>(out.row(i))))
          continue;
        for (std::int64_t least = bad; i < least && !bad.compare_exchange_weak(least, i);) {
        }
      }
    });
  });
  if (bad < vectors.rows())
    throw InvalidArgument("vectors hold a value in row {} that is beyond {}", first + bad.load(),
                          name_of(type));
  return out;
}

namespace {

// Throws InvalidArgument for vectors so small that halves keep fewer than five bits of their
// largest number. By cosine each row counts by itself. By other metrics small rows may stand among
// larger ones, so that only the first vectors of an index are looked at, together.
void check_kept_by_halves(ElementType type, AnyMatrixView vectors, Metric metric, bool first_ones,
                          int threads, std::int64_t first) {
  const bool by_row = traits_of(metric).unit_rows;
  if (!by_row && !first_ones) return;
  const double least = type == ElementType::f16 ? 0x1p-19 : 0x1p-131;
  std::vector<double> largest(static_cast<std::size_t>(vectors.rows()));
  parallel_for(threads, (vectors.rows() + 1023) / 1024, [&](std::int64_t task) {
    visit(vectors, [&](auto rows) {
      for (std::int64_t i = task * 1024; i < std::min(rows.rows(), (task + 1) * 1024); ++i)
        for (std::int64_t j = 0; j < rows.cols(); ++j) {
          double& most = largest[static_cast<std::size_t>(i)];
          most = std::max(most, std::abs(to_double(rows.row(i)[j])));
        }
    });
  });
  const auto advice = [&](double most) {
    return fmt::format(
        "{:.3g}, of which {} keeps next to nothing: multiply vectors and queries "
        "by a power of two, such as 2^{}",
        most, name_of(type), -std::ilogb(most));
  };
  if (by_row) {
    const auto small = std::find_if(largest.begin(), largest.end(),
                                    [&](double most) { return most > 0 && most < least; });
    if (small != largest.end())
      throw InvalidArgument("vectors hold a row {} whose largest number is {}",
                            first + (small - largest.begin()), advice(*small));
  } else if (!largest.empty()) {
    const double most = *std::max_element(largest.begin(), largest.end());
    if (most > 0 && most < least)
      throw InvalidArgument("vectors have no number larger than {}", advice(most));
  }
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

bool SegmentStore::Change::packs(std::int64_t rows) const {
  return coarse ? packs_lists(rows, coarse->lists()) : rows >= least_packed_rows;
}

void SegmentStore::append(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                          const ChangeOptions& options, std::int64_t first) {
  const ValueRange found = find_value_range(vectors, metric_, "vectors", options.threads);
  // Blocks of what is made of them on the way; rows that are kept as they are need none.
  if (const std::int64_t most = std::int64_t{1} << 20;
      shape_.learns() && (shape_.codes || next.transform) && vectors.rows() > most) {
    for (std::int64_t begin = 0; begin < vectors.rows(); begin += most) {
      const std::int64_t end = std::min(vectors.rows(), begin + most);
      append(next, vectors.rows(begin, end),
             own_ids.empty() ? own_ids
                             : own_ids.subspan(static_cast<std::size_t>(begin),
                                               static_cast<std::size_t>(end - begin)),
             options, first + begin);
    }
    return;
  }
  const bool first_ones = next.segments.empty();
  if (shape_.refine && shape_.refine->rounded)
    check_kept_by_halves(*shape_.refine->rounded, vectors, metric_, first_ones, options.threads,
                         first);
  Matrix<float> inner;
  AnyMatrix halves;
  ValueRange found_inner = found;
  if (next.transform && !shape_.codes) {
    inner = next.transform->apply(vectors, options.threads, options.progress);
    vectors = inner.view();
    found_inner = find_value_range(vectors, metric_, "vectors", options.threads);
  }
  if (shape_.rounded) {
    check_kept_by_halves(*shape_.rounded, vectors, metric_, first_ones, options.threads, first);
    halves = rounded_to(*shape_.rounded, vectors, options.threads, first);
    vectors = halves;
    found_inner = find_value_range(vectors, metric_, "vectors", options.threads);
  }
  keep(next, vectors, own_ids, {}, found_inner, options, first);
}

void SegmentStore::append_kept(State& next, AnyMatrixView rows, std::span<const Id> own_ids,
                               std::span<const std::uint32_t> list_of,
                               const ChangeOptions& options) {
  if (rows.rows() == 0) return;
  const ValueRange found = find_value_range(rows, metric_, "vectors", options.threads);
  keep(next, rows, own_ids, list_of, found, options, 0);
}

void SegmentStore::keep(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                        std::span<const std::uint32_t> list_of, const ValueRange& found,
                        const ChangeOptions& options, std::int64_t first) {
  const bool keeps_vectors = !shape_.codes || shape_.keeps_vectors();
  if (!next.type)
    next.type = keeps_vectors                             ? vectors.type()
                : shape_.refine && shape_.refine->rounded ? *shape_.refine->rounded
                                                          : ElementType::f32;
  AnyMatrix converted;
  if (keeps_vectors && vectors.type() != *next.type) {
    converted = AnyMatrix(*next.type, vectors.rows(), vectors.cols());
    const std::int64_t bad = copy_exactly(vectors, *next.type, converted.row(0));
    if (bad >= 0)
      throw InvalidArgument(
          "vectors of type {} hold a value in row {} that the index, of type {} since its first "
          "vectors, cannot hold exactly",
          name_of(vectors.type()), first + bad, name_of(*next.type));
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
    const auto part = [&](auto all) { return all.empty() ? all : all.subspan(begin, end - begin); };
    Change change = change_of(next, options);
    change.first = first + begin;
    append_segment(next, vectors.rows(begin, end), part(own_ids), part(list_of), found, change);
    settle(next, options);
  }
}

void SegmentStore::append_segment(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                                  std::span<const std::uint32_t> list_of, const ValueRange& found,
                                  const Change& change) {
  const std::int64_t n = vectors.rows();
  next.changed_rows += n;
  if (change.coder) {
    std::vector<Id> ids(own_ids.begin(), own_ids.end());
    if (ids.empty()) {
      ids.resize(static_cast<std::size_t>(n));
      std::iota(ids.begin(), ids.end(), next.next_id);
    }
    const Id last = *std::max_element(ids.begin(), ids.end());
    next.next_id = std::max(next.next_id, last == std::numeric_limits<Id>::max() ? last : last + 1);
    next.segments.push_back(coded_segment(vectors, ids, change));
    if (next.known) next.known = next.known->with(vectors, ids, change.options.threads);
    return;
  }
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
  ListAssignment lists;
  if (change.coarse) {
    const ChangeOptions& options = change.options;
    lists = list_of.empty() ? change.coarse->assign(vectors, options.threads, options.progress)
                            : change.coarse->as_given(vectors, list_of, options.threads);
    if (order.size()) {
      std::vector<std::uint32_t> by_id(lists.list_of.size());
      for (std::size_t i = 0; i < by_id.size(); ++i) by_id[i] = lists.list_of[order[i]];
      lists.list_of = std::move(by_id);
    }
  }
  MatrixRows rows{vectors, nullptr, found, first, std::move(ids), std::move(order)};
  const bool panels = keeps_as_panels(metric_, found);
  std::shared_ptr<RowBuffer> buffer;
  if (!panels || !change.packs(n)) {
    buffer = room_for(next, n, panels);
    copy_in_parallel(vectors, buffer->row(buffer->used), change.options.threads);
    rows.matrix = buffer->rows.rows(buffer->used, buffer->used + n), rows.keeper = buffer;
  }
  next.segments.push_back(segment_of(std::move(rows), std::move(lists), change));
  if (buffer) buffer->used += n;
}

Segment SegmentStore::coded_segment(AnyMatrixView vectors, std::span<const Id> ids,
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

Segment SegmentStore::segment_of_codes(const State& state, MatrixView<std::uint8_t> codes,
                                       std::span<const std::uint32_t> list_of,
                                       std::span<const Id> ids, AnyMatrixView vectors,
                                       const ChangeOptions& options) const {
  const std::vector<std::uint32_t> one_list(list_of.empty() ? static_cast<std::size_t>(codes.rows())
                                                            : 0);
  if (list_of.empty()) list_of = one_list;
  RowCoder::Codes coded{Matrix<std::uint8_t>(codes.rows(), codes.cols()), {}};
  for (std::int64_t i = 0; i < codes.rows(); ++i)
    std::copy_n(codes.row(i), codes.cols(), coded.codes.row(i));
  state.coder->add_scalars(list_of, options.threads, coded);
  return sorted_codes(coded, list_of, ids, vectors, change_of(state, options));
}

Segment SegmentStore::sorted_codes(const RowCoder::Codes& coded,
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

Segment SegmentStore::rewritten_codes(std::span<const Segment> segments,
                                      const Change& change) const {
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
                 std::vector<Live> live;
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
                             [](const Live& a, const Live& b) { return a.id < b.id; });
                   std::int64_t to = begin[l];
                   for (const Live& one : live) {
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

Segment SegmentStore::segment_of(MatrixRows rows, ListAssignment lists, const Change& change,
                                 bool as_panels) const {
  const ChangeOptions& options = change.options;
  const CoarseQuantizer* coarse = change.coarse;
  const BaseRows base = rows.base();
  const std::int64_t n = base.rows();
  const bool packs = as_panels || change.packs(n),
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
  if (panels) {
    auto packed = std::make_shared<const PackedLists>(
        PackedLists::integer(base, lists.list_of, coarse->lists(), metric_, active_isa(),
                             rows.found, options.threads, options.progress));
    return {SegmentRows::of_listed_panels(std::move(packed), std::move(lists.radii), {},
                                          std::move(rows.ids), rows.first, metric_),
            RowSet(n)};
  }
  const auto made = SegmentRows::of_matrix(std::move(rows), metric_);
  std::shared_ptr<ListedRows> listed;
  if (packs) {
    CodingSpace space = space_of_lists(*coarse, made->prepared());
    ListCentres centres = centres_that_pay(made->base(), lists.list_of, space, coarse->centres());
    listed =
        std::make_shared<ListedRows>(std::make_shared<const PackedLists>(PackedLists::certified(
            made->base(), lists.list_of, coarse->lists(), format_int8, std::move(space),
            options.threads, options.progress, std::move(centres))));
  } else {
    listed = std::make_shared<ListedRows>(RowLists(lists.list_of, coarse->lists()));
  }
  made->set_lists(std::move(listed), std::move(lists.radii));
  return {made, RowSet(n)};
}

std::shared_ptr<RowBuffer> SegmentStore::room_for(const State& next, std::int64_t n,
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

void SegmentStore::take_out(State& next, std::span<const Id> ids) const {
  check_each_once(ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const State::Place place = next.find(ids[i]);
    if (place.row < 0)
      throw InvalidArgument("ids hold {} in place {}, which the index does not hold", ids[i], i);
    next.segments[place.segment].live.remove(place.row);
  }
  if (next.known) next.known = next.known->without(ids);
  next.changed_rows += std::ssize(ids);
}

void SegmentStore::tidy(State& next, double share, const ChangeOptions& options) {
  const Change change = change_of(next, options);
  const auto rewrite = [&](Segment& segment) { segment = rewritten({&segment, 1}, change); };
  std::erase_if(next.segments, [](const Segment& segment) { return segment.size() == 0; });
  for (Segment& segment : next.segments) {
    const std::int64_t kept = segment.rows->rows_kept(), dead = kept - segment.size();
    if (dead > 0 && static_cast<double>(dead) >= share * static_cast<double>(kept))
      rewrite(segment);
  }
  // A buffer stays as long as one segment lies in it: those that have most of it for nothing move.
  std::map<const RowBuffer*, std::int64_t> kept;
  for (const Segment& segment : next.segments)
    if (const RowBuffer* buffer = segment.rows->buffer()) kept[buffer] += segment.rows->rows_kept();
  for (Segment& segment : next.segments) {
    const RowBuffer* buffer = segment.rows->buffer();
    if (buffer && buffer->used > 2 * kept[buffer] && buffer->used > 4 * least_packed_rows)
      rewrite(segment);
  }
  // A buffer that no segment of the state needs goes with the last search that does.
  const auto in_tail = [&](const Segment& segment) {
    return segment.rows->keeper() == std::static_pointer_cast<const void>(tail_);
  };
  if (tail_ && std::none_of(next.segments.begin(), next.segments.end(), in_tail)) tail_ = nullptr;
}

void SegmentStore::settle(State& next, const ChangeOptions& options, bool copying) const {
  const Change change = change_of(next, options);
  if (change.coder) return merge_by_size(next.segments, change);
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

void SegmentStore::take_panels(std::vector<Segment>& from, std::vector<Segment>& bytes,
                               std::vector<Segment>& chars) {
  std::erase_if(from, [&](Segment& segment) {
    if (!segment.rows->is_panels()) return false;
    (segment.rows->base().type() == ElementType::u8 ? bytes : chars).push_back(segment);
    return true;
  });
}

void SegmentStore::merge_by_size(std::vector<Segment>& segments, const Change& change) const {
  do {
    std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
      return a.rows->rows() > b.rows->rows();
    });
  } while (segments.size() >= 2 && merge_last(segments, change, true));
}

bool SegmentStore::merge_last(std::vector<Segment>& segments, const Change& change,
                              bool copying) const {
  const Segment &a = segments[segments.size() - 2], &b = segments.back();
  const std::int64_t a_rows = a.rows->rows(), b_rows = b.rows->rows();
  const bool both_small = !change.coder && !change.packs(std::max(a_rows, b_rows));
  if ((!both_small && a_rows >= 2 * b_rows) || a_rows + b_rows > max_segment_rows) return false;
  if (change.coder) {
    if (a.size() + b.size() == 0) return false;
    Segment merged = rewritten_codes({&a, 2}, change);
    segments.pop_back();
    segments.back() = std::move(merged);
    return true;
  }
  const ValueRange found = united(a.rows->found(), b.rows->found());
  if (a.size() + b.size() == 0 || (a.rows->is_panels() && !keeps_as_panels(metric_, found)))
    return false;
  Segment merged;
  if (are_neighbours(*a.rows, *b.rows))
    merged = joined(a, b, found, change);
  else if (a.rows->is_panels() || both_small || copying)
    merged = rewritten({&a, 2}, change);
  else
    return false;
  segments.pop_back();
  segments.back() = std::move(merged);
  return true;
}

std::vector<SegmentStore::Live> SegmentStore::live_rows(std::span<const Segment> segments) {
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

AlignedArray<Id> SegmentStore::ids_of(const std::vector<Live>& live) {
  AlignedArray<Id> ids;
  if (live.back().id - live.front().id == std::ssize(live) - 1) return ids;
  ids = AlignedArray<Id>(live.size());
  for (std::size_t i = 0; i < live.size(); ++i) ids[i] = live[i].id;
  return ids;
}

ListAssignment SegmentStore::lists_of(std::span<const Segment> segments,
                                      const std::vector<Live>& live, const Change& change) {
  ListAssignment out;
  if (!change.coarse) return out;
  std::vector<std::vector<std::uint32_t>> of;
  out.radii.assign(static_cast<std::size_t>(change.coarse->lists()), 0);
  for (const Segment& segment : segments) {
    of.push_back(segment.rows->lists()->list_of());
    const std::span<const float> radii = segment.rows->radii();
    for (std::size_t l = 0; l < radii.size(); ++l) out.radii[l] = std::max(out.radii[l], radii[l]);
  }
  for (const Live& row : live) out.list_of.push_back(of[row.segment][row.row]);
  return out;
}

Segment SegmentStore::joined(const Segment& a, const Segment& b, const ValueRange& found,
                             const Change& change) const {
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
      lists_of(pair, live, change), change);
}

Segment SegmentStore::rewritten(std::span<const Segment> segments, const Change& change,
                                bool again) const {
  if (change.coder) return rewritten_codes(segments, change);
  const std::vector<Live> live = live_rows(segments);
  ValueRange found = segments[0].rows->found();
  for (const Segment& segment : segments) found = united(found, segment.rows->found());
  const std::int64_t n = std::ssize(live);
  // A few rows would leave panels of lists empty.
  const bool panels = segments[0].rows->is_panels() && (!change.coarse || change.packs(n));
  const ElementType type = !panels         ? change.type
                           : found.low < 0 ? ElementType::i8
                                           : ElementType::u8;
  const auto buffer = std::make_shared<RowBuffer>(type, n, dim_);
  constexpr std::int64_t block = 1024;
  parallel_for(change.options.threads, (n + block - 1) / block, [&](std::int64_t b) {
    std::vector<std::byte> scratch(std::max(segments.front().rows->base().scratch_bytes(),
                                            segments.back().rows->base().scratch_bytes()));
    for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i) {
      const Live& one = live[static_cast<std::size_t>(i)];
      const BaseRows& base = segments[one.segment].rows->base();
      copy_exactly(base.row_view(one.row, scratch.data()), type, buffer->row(i));
    }
  });
  buffer->used = n;
  ListAssignment lists =
      again ? change.coarse->assign(buffer->rows, change.options.threads, change.options.progress)
            : lists_of(segments, live, change);
  return segment_of({buffer->rows, buffer, found, live.front().id, ids_of(live)}, std::move(lists),
                    change, panels);
}

Segment SegmentStore::in_lists_of(const CoarseQuantizer& coarse, const Segment& segment,
                                  ElementType type, const ChangeOptions& options) const {
  return rewritten({&segment, 1}, {options, &coarse, type}, true);
}

}  // namespace knear::detail
