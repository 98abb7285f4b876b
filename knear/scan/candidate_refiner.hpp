// knear/scan/candidate_refiner.hpp -- what a certified scan keeps of each query: the rows that may
// still be among its k, and what is known of the k-th.
//
//   CandidateRefiner refiner(duplicates, job);
//   QueryCandidates c;                              // one a query
//   c.add(x);                                       // a row whose interval reaches c.threshold
//   if (c.full()) refiner.prune(c, query, scale, stats);
//   refiner.finish(c, query, scale, keys, ids, stats);
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "knear/cost/plan.hpp"
#include "knear/scan/packing/per_row_codes.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/scan/scores.hpp"
#include "knear/select/sort/nth_value.hpp"
#include "knear/select/sort/sort_pairs.hpp"
#include "knear/select/top_k.hpp"

namespace knear::detail {

// The k largest of a stream of numbers, each rounded down to a float, for k small enough that a
// sorted list is cheap: keeps the threshold of a query at the k-th best lower end all the time.
class LargestK {
 public:
  static constexpr std::int64_t longest = 32;
  // `size`: about how large the numbers are. They are kept in units near it, so that no scale of
  // the data is beyond the range of floats.
  explicit LargestK(std::int64_t k = 1, double size = 1) { restart(k, size); }
  // As a new one. Nothing is written before the first number: most never get one.
  void restart(std::int64_t k, double size) {
    k_ = k <= longest ? static_cast<int>(k) : 0, unit_ = size, empty_ = true;
  }
  bool begun() const { return !empty_; }
  // The k-th largest so far, or -infinity. Requires that x is no NaN.
  double push(double x) {
    if (k_ == 0) return -std::numeric_limits<double>::infinity();
    if (empty_) begin();
    double scaled = std::min(x * scale_, 1e30);
    if (scaled < -1e30) scaled = -infinity;  // beyond floats: down, as all rounding here
    const float near = static_cast<float>(scaled);
    const float low = near - std::fabs(near) * 0x1p-23f - 0x1p-120f;
    // Every place takes the larger of its value and what the place before it gives up, at most x.
    // No branch, which would be predicted badly. From the end, so that old values are read.
    const Four all = Four{} + low;
    for (int i = (k_ - 1) / 4 * 4; i >= 0; i -= 4) {
      Four here, before;
      std::memcpy(&here, values_ + i + 1, sizeof here);
      std::memcpy(&before, values_ + i, sizeof before);
      const Four given = before < all ? before : all;
      here = here > given ? here : given;
      std::memcpy(values_ + i + 1, &here, sizeof here);
    }
    return values_[k_] * unit_;
  }

 private:
  using Four __attribute__((vector_size(16))) = float;
  static constexpr float float_infinity = std::numeric_limits<float>::infinity();

  void begin() {
    const int exponent = unit_ > 1e-200 && unit_ < 1e200 ? std::ilogb(unit_) : 0;
    scale_ = std::ldexp(1.0, -exponent), unit_ = std::ldexp(1.0, exponent);
    std::fill(values_, values_ + 1 + longest, -float_infinity);
    values_[0] = float_infinity, empty_ = false;
  }

  int k_;
  bool empty_;  // then unit_ is the size that was given
  double scale_, unit_;
  float values_[1 + longest];  // descending after a first that is never given up
};

// Drops those that cannot reach the threshold, without a branch for each.
inline void keep_reaching(std::vector<ScoreInterval>& pending, double threshold) {
  std::size_t kept = 0;
  for (const ScoreInterval& x : pending) {
    const bool reaches = !(x.upper < threshold);
    pending[kept] = x, kept += reaches;
  }
  pending.resize(kept);
}

// A finished selection as a row of the answer, padded.
inline void write_list(const TopK& best, std::int64_t k, double* keys, Id* ids) {
  for (std::int64_t j = 0; j < k; ++j) {
    const bool has = j < static_cast<std::int64_t>(best.items().size());
    keys[j] = has ? best.items()[j].first : infinity;
    ids[j] = has ? best.items()[j].second : no_id;
  }
}

// What is known of a query so far, in a scan of certified codes.
struct QueryCandidates {
  std::vector<ScoreInterval> pending;
  double threshold = -infinity;  // G: the k-th best row certainly has at least this g
  double estimated = -infinity;  // the part of it that is only estimated
  std::size_t room = 0;          // pending is cut down when it holds this many
  TopK exact;                    // rows measured early, when too many were pending
  LargestK lowers;               // of the rows so far, which raise the threshold

  static constexpr std::size_t few = 32;

  // Takes a row whose interval reaches the threshold.
  void add(const ScoreInterval& x) {
    // A few, since most tasks that know a threshold find no more; then exactly what was counted on,
    // where a list that grows by itself would double.
    if (pending.size() == pending.capacity())
      pending.reserve(pending.empty() ? std::min(room, few) : room);
    pending.push_back(x);
    threshold = std::max(threshold, lowers.push(x.lower));
  }
  bool full() const { return pending.size() >= room; }
  bool has_rows() const { return !pending.empty() || !exact.items().empty(); }
  // As a new one for a query of another task, in the memory that it has.
  void restart(std::int64_t k, std::size_t most) {
    pending.clear(), threshold = estimated = -infinity, room = most, exact.restart(k);
  }
  // Takes over what another task found for the same query in the same base. Few rows are copied, so
  // that the task after it has memory for its own.
  void merge(QueryCandidates&& more) {
    threshold = std::max(threshold, more.threshold);
    estimated = std::max(estimated, more.estimated);
    if (pending.empty() && more.pending.size() > few)
      pending.swap(more.pending);
    else
      pending.insert(pending.end(), more.pending.begin(), more.pending.end());
    for (const TopK::Item& item : more.exact.items()) exact.push(item.first, item.second);
  }
  // Takes all rows from one that other tasks have left, whose threshold stays.
  void take_rows(QueryCandidates& from) {
    pending.swap(from.pending), std::swap(exact, from.exact);
    from.lowers.restart(0, 1);
  }
  // As merge(), where the k-th best of both is better than that of each. Requires that both ask for
  // as many rows, and that `more` counts all that it has or none.
  void merge_counting(QueryCandidates&& more) {
    const bool counted = !lowers.begun() && more.lowers.begun();
    if (!lowers.begun()) lowers = more.lowers;
    if (!counted)
      for (const ScoreInterval& x : more.pending)
        threshold = std::max(threshold, lowers.push(x.lower));
    merge(std::move(more));
  }
};

// Cuts down the pending candidates of one query and raises its threshold.
class CandidateRefiner {
 public:
  CandidateRefiner(const Duplicates& duplicates, const ScanJob& job)
      : duplicates_(duplicates),
        job_(job),
        measurer_(job),
        most_(job.most_pending()),
        few_rows_(!job.must_refine &&
                  looks_at_all_scores(job.base.rows(), job.base.cols(), job.k)) {
    const MachinePeaks& peaks = *job.peaks;
    // Rows of the first tile are in cache still.
    worth_measuring_ = direct_row_seconds(job.base.cols(), peaks) * 3;
    worth_measuring_ /= 0.5 * hit_seconds(job.k, false, peaks);
    if (job.per_row_codes && job.may_refine) {
      refined_scratch_.resize(job.base.cols());
      refined_codes_.resize(2 * plane_bytes(job.base.cols()));
      peaks_ = peaks;
    }
  }

  void prune(QueryCandidates& c, std::int64_t query, const KeyScale& scale, ScanStats& stats) {
    raise(c);
    if (c.pending.size() > most_) {
      // Ties, near-duplicates or a useless bound: measure now, so that memory stays bounded and
      // the order (key, id) decides what the intervals can't.
      measurer_.set_query(query);
      measure_early(c, c.pending.size(), stats);
      c.exact.cut();
      c.threshold = std::max(c.threshold, scale.threshold_for(c.exact.bound()));
    }
    c.room = std::max(first_room(), c.pending.size() + c.pending.size() / 2 + 24);
  }

  // Measures the k rows that look best and sets the threshold by them, which then lacks the width
  // of their intervals; unless what that is expected to save, when `times` as many rows are still
  // to be scored as were, is less than it costs.
  void tighten(QueryCandidates& c, std::int64_t query, const KeyScale& scale, double times,
               ScanStats& stats) {
    const std::size_t k = job_.k;
    keep_reaching(c.pending, c.threshold);
    // Beside the k, the rows that only the width lets through: half of them would go, and as many
    // come with every e-fold of the rows.
    const double excess = static_cast<double>(c.pending.size()) - static_cast<double>(k);
    if (excess * std::log(times) < worth_measuring_ * static_cast<double>(k)) return;
    const std::size_t count = std::min(k, c.pending.size());
    std::partial_sort(
        c.pending.begin(), c.pending.begin() + count, c.pending.end(),
        [](const ScoreInterval& a, const ScoreInterval& b) { return a.upper > b.upper; });
    measurer_.set_query(query);
    measure_early(c, count, stats);
    c.exact.cut();
    c.threshold = std::max(c.threshold, scale.threshold_for(c.exact.bound()));
  }

  // The threshold from what is pending, of which then only that remains which may pass it.
  void raise(QueryCandidates& c) {
    const std::size_t k = job_.k;
    if (job_.k > LargestK::longest && c.pending.size() >= k)
      c.threshold = std::max(c.threshold, largest(c.pending, &ScoreInterval::lower, k));
    keep_reaching(c.pending, c.threshold);
  }

  // Estimates the threshold by the assumption that at most `rank` of the k best were seen so far.
  void estimate(QueryCandidates& c, std::size_t rank) {
    keep_reaching(c.pending, c.threshold);
    if (c.pending.size() < rank) return;
    c.estimated = std::max(c.estimated, largest(c.pending, &ScoreInterval::lower, rank));
    c.threshold = std::max(c.threshold, c.estimated);
  }

  // Leaves of what is pending only that which may be among the k, by codes of rows where those are
  // expected to spare more than they cost.
  void settle(QueryCandidates& c, std::int64_t query, ScanStats& stats) {
    raise(c);
    const std::size_t k = job_.k, count = c.pending.size();
    if (refined_codes_.empty() || count <= k) return;
    const std::size_t likely = likely_first(c.pending);
    if (!job_.must_refine &&
        !(spared_by_refining(static_cast<double>(likely), static_cast<double>(k), job_.base.cols(),
                             peaks_) > 0))
      return;
    refine({c.pending.data(), likely}, query);
    stats.refined += static_cast<std::int64_t>(likely);
    c.threshold = std::max(c.threshold, largest(c.pending, &ScoreInterval::lower, k));
    keep_reaching(c.pending, c.threshold);
  }

  // Measures what is left, best first; writes the k best.
  void finish(QueryCandidates& c, std::int64_t query, const KeyScale& scale, double* keys, Id* ids,
              ScanStats& stats) {
    // Of few rows, which are in cache, so few that ruling some of them out would take longer.
    const std::size_t wanted = job_.k;
    if (few_rows_ && c.exact.items().empty() && c.pending.size() <= wanted + wanted / 2 + 8) {
      finish_all(c, query, keys, ids, stats);
      return;
    }
    settle(c, query, stats);
    if (job_.k > LargestK::longest) {
      finish_many(c, query, scale, keys, ids, stats);
      return;
    }
    const auto better = [](const ScoreInterval& a, const ScoreInterval& b) {
      return a.upper != b.upper ? a.upper > b.upper : a.row < b.row;
    };
    // Most of many are never looked at.
    const std::size_t k = job_.k;
    std::size_t sorted = c.pending.size() > 2 * k + 16 ? likely_first(c.pending) : c.pending.size();
    std::sort(c.pending.begin(), c.pending.begin() + static_cast<std::ptrdiff_t>(sorted), better);
    c.exact.finish();
    heap_.assign(c.exact.items().begin(), c.exact.items().end());  // sorted, so a heap reversed
    std::reverse(heap_.begin(), heap_.end());
    std::make_heap(heap_.begin(), heap_.end());
    measurer_.set_query(query);
    const auto take = [&](double key, Id number) {
      const TopK::Item item(key, number);
      if (heap_.size() == k) {
        if (!(item < heap_.front())) return false;
        std::pop_heap(heap_.begin(), heap_.end());
        heap_.pop_back();
      }
      heap_.push_back(item);
      std::push_heap(heap_.begin(), heap_.end());
      return true;
    };
    for (std::size_t i = 0; i < c.pending.size();) {
      if (i == sorted) {
        const auto rest = c.pending.begin() + static_cast<std::ptrdiff_t>(i);
        c.pending.erase(std::remove_if(rest, c.pending.end(),
                                       [&](const ScoreInterval& x) {
                                         return heap_.size() == k &&
                                                scale.key_at_least(x.upper) > heap_.front().first;
                                       }),
                        c.pending.end());
        std::sort(c.pending.begin() + static_cast<std::ptrdiff_t>(i), c.pending.end(), better);
        sorted = c.pending.size();
      }
      std::size_t count = 0;  // those of the next few that may still be among the k
      while (count < ExactDistance::most_rows && i + count < sorted &&
             !(heap_.size() == k &&
               scale.key_at_least(c.pending[i + count].upper) > heap_.front().first))
        ++count;
      if (count == 0) break;
      measure(&c.pending[i], count, sorted - i, take);
      stats.survivors += static_cast<std::int64_t>(count);
      i += count;
    }
    std::sort_heap(heap_.begin(), heap_.end());
    for (std::size_t j = 0; j < k; ++j) {
      keys[j] = j < heap_.size() ? heap_[j].first : infinity;
      ids[j] = j < heap_.size() ? heap_[j].second : no_id;
    }
  }

  // Brings those that look best to the front: all, or k and those as good as the k-th of them.
  // Returns how many.
  std::size_t best_first(std::vector<ScoreInterval>& pending, std::size_t k) {
    if (pending.size() <= k) return pending.size();
    const double last = largest(pending, &ScoreInterval::upper, k);
    return std::partition(pending.begin(), pending.end(),
                          [&](const ScoreInterval& x) { return x.upper >= last; }) -
           pending.begin();
  }

  // Brings those to the front that would be measured if the middles of all intervals were right,
  // and returns how many. Requires k pending.
  std::size_t likely_first(std::vector<ScoreInterval>& pending) {
    const std::size_t count = pending.size();
    numbers_.resize(2 * count);
    for (std::size_t i = 0; i < count; ++i)
      numbers_[i] = 0.5 * (pending[i].lower + pending[i].upper);
    const double middle = nth_value(numbers_.data(), numbers_.data() + count, count,
                                    count - static_cast<std::size_t>(job_.k));
    return std::partition(pending.begin(), pending.end(),
                          [&](const ScoreInterval& x) { return !(x.upper < middle); }) -
           pending.begin();
  }

  std::size_t first_room() const {
    return std::min(static_cast<std::size_t>(2 * job_.k + 80), most_ + 1);
  }

 private:
  // Cuts intervals down to what the codes of their rows say too.
  void refine(std::span<ScoreInterval> pending, std::int64_t query) {
    const PerRowCodes& rows = *job_.per_row_codes;
    std::int8_t* codes = refined_codes_.data();
    const CodedQuery coded =
        code_query(rows, job_.queries, query, job_.query_range, refined_scratch_.data(), codes);
    constexpr std::size_t some = 16;
    const auto fetch = [&](std::size_t begin) {
      for (std::size_t i = begin; i < std::min(begin + some, pending.size()); ++i) {
        const std::uint8_t* row =
            rows.codes.data() + static_cast<std::int64_t>(pending[i].row) * rows.stride;
        for (std::int64_t c = 0; c < rows.stride; c += 64) __builtin_prefetch(row + c);
        __builtin_prefetch(&rows.heads[pending[i].row]);
      }
    };
    fetch(0);
    std::uint32_t slots[some];
    std::int32_t products[some], fine[some];
    for (std::size_t begin = 0; begin < pending.size(); begin += some) {
      const std::size_t count = std::min(some, pending.size() - begin);
      fetch(begin + some);
      for (std::size_t i = 0; i < count; ++i) slots[i] = pending[begin + i].row;
      const auto score = [&](const std::int8_t* plane, std::int32_t* out) {
        rows.space.kernels->row_products(rows.codes.data(), rows.stride, slots,
                                         static_cast<std::int64_t>(count), plane, rows.dim, out);
      };
      score(codes, products);
      score(codes + plane_bytes(rows.dim), fine);
      for (std::size_t i = 0; i < count; ++i) {
        ScoreInterval& x = pending[begin + i];
        const ScoreInterval y = interval_of(rows, x.row, x.row, products[i], fine[i], coded);
        // What is known stands first: y may be no number, where a row is longer than any float.
        x.upper = std::min(x.upper, y.upper), x.lower = std::max(x.lower, y.lower);
      }
    }
  }

  // finish() by measuring all.
  void finish_all(QueryCandidates& c, std::int64_t query, double* keys, Id* ids, ScanStats& stats) {
    heap_.clear();
    measurer_.set_query(query);
    const std::size_t count = c.pending.size();
    measure(c.pending.data(), count, count, [&](double key, Id number) {
      heap_.emplace_back(key, number);
      return true;
    });
    stats.survivors += static_cast<std::int64_t>(count);
    sort_pairs(heap_);
    for (std::size_t j = 0; j < static_cast<std::size_t>(job_.k); ++j) {
      keys[j] = j < heap_.size() ? heap_[j].first : infinity;
      ids[j] = j < heap_.size() ? heap_[j].second : no_id;
    }
  }

  // finish() without order among the candidates, which would cost more than measuring a few rows:
  // first the k that look best, then of the others those that may still come before the k-th.
  void finish_many(QueryCandidates& c, std::int64_t query, const KeyScale& scale, double* keys,
                   Id* ids, ScanStats& stats) {
    const std::size_t k = job_.k;
    heap_.assign(c.exact.items().begin(), c.exact.items().end());
    measurer_.set_query(query);
    TopK::Item bound(infinity, std::numeric_limits<std::int64_t>::max());
    const auto cut = [&] {
      if (heap_.size() < k) return;
      keep_smallest(heap_, k);
      bound = heap_.back();
    };
    const auto take_all = [&](const ScoreInterval* first, std::size_t count) {
      measure(first, count, count, [&](double key, Id number) {
        const TopK::Item item(key, number);
        if (!(item < bound)) return false;  // nor is any copy that follows
        heap_.push_back(item);
        if (heap_.size() >= 2 * k + 24) cut();
        return true;
      });
      stats.survivors += static_cast<std::int64_t>(count);
      cut();
    };
    const std::size_t first = best_first(c.pending, k);
    take_all(c.pending.data(), first);
    if (first < c.pending.size()) {  // so k rows were measured at least
      const double last = bound.first;
      c.pending.erase(c.pending.begin(), c.pending.begin() + static_cast<std::ptrdiff_t>(first));
      std::erase_if(c.pending,
                    [&](const ScoreInterval& x) { return scale.key_at_least(x.upper) > last; });
      take_all(c.pending.data(), c.pending.size());
    }
    sort_pairs(heap_);
    for (std::size_t j = 0; j < k; ++j) {
      keys[j] = j < heap_.size() ? heap_[j].first : infinity;
      ids[j] = j < heap_.size() ? heap_[j].second : no_id;
    }
  }

  // The rank-th largest, from 1, of one of the numbers of candidates.
  double largest(const std::vector<ScoreInterval>& list, double ScoreInterval::*number,
                 std::size_t rank) {
    const std::size_t count = list.size();
    numbers_.resize(2 * count);
    for (std::size_t i = 0; i < count; ++i) numbers_[i] = list[i].*number;
    return nth_value(numbers_.data(), numbers_.data() + count, count, count - rank);
  }

  // Measures the first `count` pending rows.
  void measure_early(QueryCandidates& c, std::size_t count, ScanStats& stats) {
    measure(c.pending.data(), count, count, [&](double key, Id number) {
      const bool admitted = c.exact.admits(key, number);
      if (admitted) c.exact.push(key, number);
      return admitted;
    });
    stats.survivors += static_cast<std::int64_t>(count);
    c.pending.erase(c.pending.begin(), c.pending.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // Calls take(key, number) for each of `count` candidates and the copies that it stands for, until
  // one is not taken. Those up to `known` are likely to be measured soon.
  template <class Take>
  void measure(const ScoreInterval* candidates, std::size_t count, std::size_t known, Take take) {
    measurer_.measure(
        static_cast<std::int64_t>(count), [&](std::int64_t i) { return candidates[i].row; },
        [&](std::int64_t i, double key) {
          each_copy(duplicates_, job_.allowed, candidates[i].row,
                    [&](std::uint32_t row) { return take(key, job_.base.number(row)); });
        },
        static_cast<std::int64_t>(known));
  }

  const Duplicates& duplicates_;
  const ScanJob& job_;
  RowMeasurer measurer_;
  std::size_t most_;
  bool few_rows_;
  double worth_measuring_;  // rows that pass for nothing and take as long as measuring one
  MachinePeaks peaks_;
  std::vector<double> refined_scratch_;
  std::vector<std::int8_t> refined_codes_;  // of a query; empty: no codes of rows
  std::vector<double> numbers_;
  std::vector<TopK::Item> heap_;
};

}  // namespace knear::detail
