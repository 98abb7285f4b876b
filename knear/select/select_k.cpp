#include "knear/select/select_k.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/threads.hpp"
#include "knear/select/family.hpp"
#include "knear/select/kernels/select_kernels.hpp"

namespace knear {
namespace {

using detail::SelectKernels;
using Key = std::uint64_t;

constexpr float infinity = std::numeric_limits<float>::infinity();

// Values read between two updates of the bound: 64 KiB of them, in the first-level caches.
constexpr std::int64_t read_at_once = 16384;
// A part of a row must not be longer than most_part, so that places in it have 32 bits; one shorter
// than `least_part` is not worth a thread.
constexpr std::int64_t most_part = (std::int64_t{1} << 31) - 2, least_part = 1 << 17;

// Selects from rows or parts of rows; one for each thread, with the memory that it needs.
class RowSelector {
 public:
  RowSelector(const SelectKernels& kernels, Extreme extreme, std::int64_t k, SelectMethod method)
      : kernels_(kernels),
        flip_(extreme == Extreme::largest ? 0x80000000u : 0),
        k_(k),
        method_(method),
        member_(detail::family_member(method)) {}

  // The k best of row[0 .. count), or all numbers if these are fewer, best first or by ascending
  // place; returns how many.
  template <class T>
  std::int64_t select(const T* row, std::int64_t count, bool sorted, float* values, Id* places) {
    if (sorted || member_ || method_for(count, sorted) != SelectMethod::partition) {
      const std::span<const Key> keys = select(row, count, sorted);
      unpack(keys, row, values, places);
      return std::ssize(keys);
    }
    const float* const floats = widened(row, count);
    std::int64_t ties = count;
    const float last = k_ < count ? nth(floats, count, &ties) : infinity;
    return kernels_.take(floats, count, flip_, last, ties, k_, values, places);
  }

  // The keys of the k best of row[0 .. count), or of all numbers if these are fewer, best first or
  // by ascending place. They are valid until the next call.
  template <class T>
  std::span<const Key> select(const T* row, std::int64_t count, bool sorted) {
    if (member_) return select_by_member(row, count, sorted);
    const SelectMethod method = method_for(count, sorted);
    std::int64_t kept = 0;
    if (method == SelectMethod::partition || k_ >= count) {
      make_room(count);
      std::int64_t ties;
      const float last = k_ < count ? nth(row, count, &ties) : infinity;
      kept = append(row, 0, count, last, 0);
    } else {
      // In a row in no order the first values are a sample; in a descending row they give a bound
      // that soon falls.
      const std::int64_t span = std::min(count, std::max(read_at_once, 8 * k_));
      make_room(limit() + std::min(read_at_once, count));
      kept = gather(row, count, span, sampled_bound(row, span), true);
      if (kept < 0) kept = gather(row, count, span, infinity, false);
    }
    const std::int64_t wanted = std::min(kept, k_);
    if (sorted)
      kernels_.sort_smallest(keys_.data(), spare_.data(), kept, wanted);
    else if (kept > k_)
      keep(kept);
    return {keys_.data(), static_cast<std::size_t>(wanted)};
  }

 private:
  SelectMethod method_for(std::int64_t count, bool sorted) const {
    if (method_ != SelectMethod::automatic) return method_;
    const std::int64_t times = sorted ? kernels_.partition_sorted : kernels_.partition_by_place;
    return count <= times * k_ ? SelectMethod::partition : SelectMethod::threshold;
  }

  // The row as floats.
  const float* widened(const float* row, std::int64_t) { return row; }
  template <class T>
  const float* widened(const T* row, std::int64_t count) {
    grow(widened_, count);
    for (std::int64_t i = 0; i < count; ++i) widened_[i] = to_float(row[i]);
    return widened_.data();
  }

  template <class T>
  float nth(const T* row, std::int64_t count, std::int64_t* ties) {
    grow(low_, count + 16), grow(above_, count + 16);
    return kernels_.nth_of_row(widened(row, count), count, flip_, k_, low_.data(), above_.data(),
                               ties);
  }

  void unpack(std::span<const Key> keys, const float* row, float* values, Id* places) {
    kernels_.unpack(keys.data(), std::ssize(keys), flip_, row, values, places);
  }
  template <class T>
  void unpack(std::span<const Key> keys, const T* row, float* values, Id* places) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::uint32_t place = detail::place_of(keys[i]);
      values[i] = to_float(row[place]), places[i] = place;
    }
  }

  template <class T>
  std::span<const Key> select_by_member(const T* row, std::int64_t count, bool sorted) {
    grow(widened_, count);
    const float sign = flip_ != 0 ? -1.0f : 1.0f;
    for (std::int64_t i = 0; i < count; ++i) widened_[i] = sign * to_float(row[i]);
    const std::int64_t k = std::max<std::int64_t>(1, std::min(k_, count));
    values_.resize(k), places_.resize(values_.size());
    const std::int64_t kept =
        member_->select(widened_.data(), count, k, values_.data(), places_.data());
    make_room(kept);
    for (std::int64_t i = 0; i < kept; ++i)
      keys_[i] =
          Key{detail::ordered_bits(values_[i])} << 32 | static_cast<std::uint32_t>(places_[i]);
    if (!sorted)
      std::sort(keys_.begin(), keys_.begin() + kept,
                [](Key a, Key b) { return detail::place_of(a) < detail::place_of(b); });
    return {keys_.data(), static_cast<std::size_t>(kept)};
  }

  template <class T>
  static void grow(std::vector<T>& memory, std::int64_t size) {
    if (std::ssize(memory) < size) memory.resize(size);
  }

  void make_room(std::int64_t count) {
    grow(keys_, count + 24), grow(spare_, count + 24), grow(work_, count + 24);
  }

  // How many values may pass before the bound is lowered: few enough that it stays tight, many
  // enough that lowering it costs little.
  std::int64_t limit() const { return 2 * k_ + 64; }

  // The keys of the values that may be among the k best of the row, by ascending place. The
  // threshold is first `bound`, then the k-th best of the first `span` values. With `estimate` it
  // is from there on an estimate of the k-th best of the whole row, by the share of the row that
  // has been read: in the end the k-th best shows whether it was right. Returns how many, or -1 if
  // a threshold was too low.
  template <class T>
  std::int64_t gather(const T* row, std::int64_t count, std::int64_t span, float bound,
                      bool estimate) {
    float estimated = infinity;
    std::int64_t kept = 0;
    for (std::int64_t begin = 0; begin < count; begin += read_at_once) {
      const std::int64_t end = std::min(count, begin + read_at_once);
      kept = append(row, begin, end, bound, kept);
      const bool seen = begin < span && end >= span;
      if (seen && kept < k_ && bound < infinity) return -1;
      if (end == count || kept <= k_ || (!seen && kept <= limit())) continue;
      kept = keep(kept);
      if (bound_ == -infinity) return kept;
      bound = std::min(bound, std::nextafter(bound_, -infinity));  // later values lose ties
      if (!seen || !estimate) continue;
      const double share = static_cast<double>(end) / static_cast<double>(count);
      const double mean = static_cast<double>(k_) * share;
      const auto rank = static_cast<std::int64_t>(mean + 3 * std::sqrt(mean * (1 - share))) + 2;
      if (4 * rank > 3 * k_) continue;
      std::copy_n(keys_.data(), kept, work_.data());
      estimated = detail::value_of(kernels_.keep_smallest(work_.data(), spare_.data(), kept, rank));
      bound = std::min(bound, estimated);
    }
    if (estimated < infinity) {
      if (kept > k_) kept = keep(kept);
      if (bound_ > estimated) return -1;
    }
    return kept;
  }

  // Appends the keys of row[begin .. end) that are at most `bound` to the `kept` ones there are.
  std::int64_t append(const float* row, std::int64_t begin, std::int64_t end, float bound,
                      std::int64_t kept) {
    return kept + kernels_.gather(row + begin, end - begin, flip_, bound,
                                  static_cast<std::uint32_t>(begin), keys_.data() + kept);
  }
  template <class T>
  std::int64_t append(const T* row, std::int64_t begin, std::int64_t end, float bound,
                      std::int64_t kept) {
    grow(widened_, read_at_once);
    for (std::int64_t i = begin; i < end; i += read_at_once) {
      const std::int64_t n = std::min(read_at_once, end - i);
      for (std::int64_t j = 0; j < n; ++j) widened_[j] = to_float(row[i + j]);
      kept += kernels_.gather(widened_.data(), n, flip_, bound, static_cast<std::uint32_t>(i),
                              keys_.data() + kept);
    }
    return kept;
  }

  // A value that hardly ever has fewer than k values of row[0 .. span) up to it: that at the rank
  // of the k-th in a sample, plus three standard deviations.
  template <class T>
  float sampled_bound(const T* row, std::int64_t span) {
    constexpr std::int64_t run = 16;  // a cache line of floats
    const std::int64_t wanted = span <= 4096 ? 128 : k_ <= 4096 ? 256 : 4096;
    const std::int64_t runs = std::min(wanted, span / 4) / run;
    if (runs < 2) return infinity;
    std::int64_t sampled = 0;
    for (std::int64_t i = 0; i < runs; ++i) {
      const std::int64_t begin = span / runs * i;
      sampled = append(row, begin, begin + run, infinity, sampled);
    }
    const double mean =
        static_cast<double>(k_) * static_cast<double>(runs * run) / static_cast<double>(span);
    const auto rank = static_cast<std::int64_t>(mean + 3 * std::sqrt(mean)) + 1;
    if (rank >= sampled) return infinity;
    return detail::value_of(kernels_.keep_smallest(keys_.data(), spare_.data(), sampled, rank));
  }

  // Cuts to the k best, which stay in the order of their places; bound_ is the value of the last.
  std::int64_t keep(std::int64_t count) {
    std::copy_n(keys_.data(), count, work_.data());
    const Key last = kernels_.keep_smallest(work_.data(), spare_.data(), count, k_);
    bound_ = detail::value_of(last);
    return kernels_.cut(keys_.data(), count, last);
  }

  const SelectKernels& kernels_;
  std::uint32_t flip_;
  std::int64_t k_;
  float bound_ = infinity;
  std::vector<Key> keys_, spare_, work_;
  SelectMethod method_;
  std::unique_ptr<detail::FamilyMember> member_;
  std::vector<float> widened_, values_, low_, above_;
  std::vector<std::int32_t> places_;
};

// Fills the rest of the k places.
void pad(std::int64_t count, std::int64_t k, Extreme extreme, float* values, Id* places) {
  std::fill(values + count, values + k, extreme == Extreme::largest ? -infinity : infinity);
  std::fill(places + count, places + k, no_id);
}

// The k best keys of one part of a row, and where the part begins.
struct Part {
  std::int64_t begin;
  std::vector<Key> keys;
};

template <class T>
void write_parts(std::span<const Part> parts, const T* row, std::int64_t k, bool sorted,
                 Extreme extreme, float* values, Id* places) {
  std::vector<std::pair<std::uint32_t, std::int64_t>> all;  // ordered bits and place
  for (const Part& part : parts)
    for (const Key key : part.keys)
      all.emplace_back(static_cast<std::uint32_t>(key >> 32), part.begin + detail::place_of(key));
  const auto count = std::min(k, std::ssize(all));
  std::nth_element(all.begin(), all.begin() + (count > 0 ? count - 1 : 0), all.end());
  all.resize(count);
  if (sorted)
    std::sort(all.begin(), all.end());
  else
    std::sort(all.begin(), all.end(), [](auto a, auto b) { return a.second < b.second; });
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t place = all[i].second;
    values[i] = to_float(row[place]), places[i] = place;
  }
  pad(count, k, extreme, values, places);
}

template <class T>
void select_rows(MatrixView<T> rows, std::int64_t k, const SelectOptions& options, Selection& out) {
  const SelectKernels& kernels = detail::select_kernels(active_isa());
  const int threads = resolve_threads(options.threads);
  const auto length = [&](std::int64_t row) {
    return options.lengths.empty() ? rows.cols() : options.lengths[row];
  };
  // A task takes several rows until it is worth a thread; long rows are cut into parts where rows
  // are too few.
  const std::int64_t part_size = std::clamp(
      rows.cols() * rows.rows() / (2 * threads) + 1,
      threads > 1 ? std::min(most_part, std::max(least_part, 8 * k)) : most_part, most_part);
  if (rows.cols() <= part_size || (rows.rows() >= 4 * threads && rows.cols() <= most_part)) {
    const std::int64_t together =
        std::max((1 << 18) / (rows.cols() + k + 1), rows.rows() / (8 * threads)) + 1;
    Reporter reporter(options.progress, "select", rows.rows());
    parallel_for(threads, (rows.rows() + together - 1) / together, [&](std::int64_t task) {
      RowSelector selector(kernels, options.extreme, k, options.method);
      const std::int64_t end = std::min(rows.rows(), (task + 1) * together);
      for (std::int64_t row = task * together; row < end; ++row) {
        float* values = out.values.row(row);
        Id* places = out.places.row(row);
        const std::int64_t kept =
            selector.select(rows.row(row), length(row), options.sorted, values, places);
        pad(kept, k, options.extreme, values, places);
      }
      reporter.add(end - task * together);
    });
    return;
  }
  const std::int64_t parts = (rows.cols() + part_size - 1) / part_size;
  std::vector<Part> found(parts);
  Reporter reporter(options.progress, "select", rows.rows() * parts);
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    parallel_for(threads, parts, [&](std::int64_t p) {
      const std::int64_t begin = p * part_size, end = std::min(length(row), begin + part_size);
      Part& part = found[p];
      part.begin = begin, part.keys.clear();
      reporter.add(1);
      if (begin >= end) return;
      RowSelector selector(kernels, options.extreme, k, options.method);
      const auto keys = selector.select(rows.row(row) + begin, end - begin, false);
      part.keys.assign(keys.begin(), keys.end());
    });
    write_parts<T>(found, rows.row(row), k, options.sorted, options.extreme, out.values.row(row),
                   out.places.row(row));
  }
}

}  // namespace

std::string_view name_of(SelectMethod method) {
  switch (method) {
    case SelectMethod::automatic:
      return "auto";
    case SelectMethod::threshold:
      return "threshold";
    case SelectMethod::partition:
      return "partition";
    case SelectMethod::list:
      return "list";
    case SelectMethod::radix:
      return "radix";
    case SelectMethod::threshold_heap:
      return "threshold-heap";
    case SelectMethod::bitonic:
      return "bitonic";
    case SelectMethod::warp_select:
      return "warp-select";
  }
  return "?";
}

SelectMethod parse_select_method(std::string_view name) {
  for (SelectMethod method : all_select_methods)
    if (name == name_of(method)) return method;
  throw InvalidArgument(
      "method must be one of auto, threshold, partition, list, radix, threshold-heap, bitonic, "
      "warp-select, but is '{}'",
      name);
}

void detail::check_lengths(std::span<const std::int64_t> lengths, std::int64_t rows,
                           std::int64_t cols) {
  if (!lengths.empty() && std::ssize(lengths) != rows)
    throw ShapeMismatch("lengths has {} values, rows has {} rows", lengths.size(), rows);
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 0 || lengths[i] > cols)
      throw InvalidArgument(
          "lengths must be between 0 and {}, the columns of rows, but lengths[{}] is {}", cols, i,
          lengths[i]);
}

void detail::check_selection(std::int64_t k, std::span<const std::int64_t> lengths,
                             std::int64_t rows, std::int64_t cols) {
  if (k < 1 || k >= std::int64_t{1} << 31)
    throw InvalidArgument("k must be between 1 and 2^31 - 1, but is {}", k);
  check_lengths(lengths, rows, cols);
}

Selection select_k(AnyMatrixView rows, std::int64_t k, const SelectOptions& options) {
  return detail::public_call([&] {
    detail::check_selection(k, options.lengths, rows.rows(), rows.cols());
    Selection out{Matrix<float>::unset(rows.rows(), k), Matrix<Id>::unset(rows.rows(), k)};
    if (rows.type() == ElementType::f64)
      throw InvalidArgument(
          "rows are of type f64, and the values of a Selection are f32: select_k of a "
          "MatrixView<double> takes them");
    visit(rows, [&](auto typed) {
      if constexpr (!std::is_same_v<decltype(typed), MatrixView<double>>)
        select_rows(typed, k, options, out);
    });
    return out;
  });
}

}  // namespace knear
