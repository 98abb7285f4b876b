// Rows of an index come and go: appended, taken out, merged. A segment that merges with another of
// its size is written log(n) times in all.
#include "knear/index/life/segment_store.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/threads.hpp"

namespace knear::detail {
namespace {

constexpr std::int64_t max_segment_rows = std::int64_t{1} << 30;

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
    std::vector<float> row(vectors.cols());
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

// The largest magnitude of each row.
std::vector<double> largest_numbers(AnyMatrixView vectors, int threads) {
  std::vector<double> largest(vectors.rows());
  parallel_for(threads, (vectors.rows() + 1023) / 1024, [&](std::int64_t task) {
    visit(vectors, [&](auto rows) {
      for (std::int64_t i = task * 1024; i < std::min(rows.rows(), (task + 1) * 1024); ++i)
        for (std::int64_t j = 0; j < rows.cols(); ++j) {
          double& most = largest[i];
          most = std::max(most, std::abs(to_double(rows.row(i)[j])));
        }
    });
  });
  return largest;
}

// Halves keep five bits of this number.
double least_kept_by_halves(ElementType type) {
  return type == ElementType::f16 ? 0x1p-19 : 0x1p-131;
}

std::string advice_for_halves(ElementType type, double most) {
  return fmt::format(
      "{:.3g}, of which {} keeps next to nothing: multiply vectors and queries "
      "by a power of two, such as 2^{}",
      most, name_of(type), -std::ilogb(most));
}

}  // namespace

double largest_number(AnyMatrixView vectors, int threads) {
  const std::vector<double> largest = largest_numbers(vectors, threads);
  return largest.empty() ? 0 : *std::max_element(largest.begin(), largest.end());
}

void check_kept_by_halves(ElementType type, double most) {
  if (most > 0 && most < least_kept_by_halves(type))
    throw InvalidArgument("vectors have no number larger than {}", advice_for_halves(type, most));
}

void check_kept_by_halves(ElementType type, AnyMatrixView vectors, Metric metric, bool first_ones,
                          int threads, std::int64_t first) {
  if (!traits_of(metric).unit_rows) {
    if (first_ones) check_kept_by_halves(type, largest_number(vectors, threads));
    return;
  }
  const std::vector<double> largest = largest_numbers(vectors, threads);
  const auto small = std::find_if(largest.begin(), largest.end(), [&](double most) {
    return most > 0 && most < least_kept_by_halves(type);
  });
  if (small != largest.end())
    throw InvalidArgument("vectors hold a row {} whose largest number is {}",
                          first + (small - largest.begin()), advice_for_halves(type, *small));
}

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

void SegmentStore::append(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                          const ChangeOptions& options, std::int64_t first) {
  const ValueRange found = find_value_range(vectors, metric_, "vectors", options.threads);
  append_some(next, vectors, own_ids, found, options, first);
}

void SegmentStore::keep(State& next, AnyMatrixView vectors, std::span<const Id> own_ids,
                        std::span<const std::uint32_t> list_of, const ValueRange& found,
                        const ChangeOptions& options, std::int64_t first) {
  const std::optional<ElementType> own_type = type_of_rows();
  if (!next.type) next.type = own_type.value_or(vectors.type());
  AnyMatrix converted;
  if (!own_type && vectors.type() != *next.type) {
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

std::int64_t SegmentStore::rows_together(int threads) const {
  constexpr std::int64_t bytes = 8 << 20, rows_of_thread = 2048;
  return std::max(bytes / (4 * std::max(shape_.dim, dim_)),
                  rows_of_thread * resolve_threads(threads));
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
  give_back_buffers(next, change);
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
  const bool both_small = are_few(std::max(a_rows, b_rows), change);
  if ((!both_small && a_rows >= 2 * b_rows) || a_rows + b_rows > max_segment_rows ||
      a.size() + b.size() == 0)
    return false;
  std::optional<Segment> merged = united(a, b, change, both_small || copying);
  if (!merged) return false;
  segments.pop_back();
  segments.back() = std::move(*merged);
  return true;
}

Segment SegmentStore::in_lists_of(const CoarseQuantizer& coarse, const Segment& segment,
                                  ElementType type, const ChangeOptions& options) const {
  return rewritten({&segment, 1}, {options, &coarse, type}, true);
}

}  // namespace knear::detail
