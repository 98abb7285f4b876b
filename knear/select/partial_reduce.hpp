// knear/select/partial_reduce.hpp -- the plain reference of partial reduction: the best few of each
// bin, and the best pair that was ever dropped.
//
//   PartialReduce reduce(bins, kept);
//   for (place = 0; place < rows; ++place) reduce.offer(place % bins, values[place], ids[place]);
//   auto nearest = reduce.smallest(10);            // ExactRescoring, where the values are exact
//   if (reduce.certified(10)) ...                  // then no row that was dropped belongs there
//
// After Chern et al., "TPU-KNN" (2022), section 5, keeping one or more of each bin (bins.hpp says
// how many bins it takes), with a certificate. Everything is in the total order of (value, id), so
// the outcome does not depend on the order of the offers. NaN is never kept and never counts as
// dropped; +infinity may be.
//
// The certificate. An answer of k results is the true one iff nothing dropped precedes its last.
// One pair is remembered for that, the smallest dropped. Nothing else is needed with ties: of
// equal values the smaller id precedes. (To keep one more of each bin instead, and to ask that no
// bin has all its kept + 1 before the k-th result, certifies the same queries: the best that such
// a bin may have dropped lies behind its last. See warp_partial_reduce.hpp for the costs.)
//
// Scores that are known only to lie in [lower, upper] are offered by their lower end, the
// candidates are rescored, and the answer is certified against their exact values:
//
//   reduce.offer(bin, lower, id);
//   std::vector<KeyedId> exact = ...;              // candidates(), rescored, sorted, cut to k
//   if (certified(exact, k, reduce.best_dropped())) ...
//
// A dropped row has (exact, id) no smaller than (lower, id), and that is no smaller than the best
// dropped pair: the same rule is sound, ties included, and an equal lower end with a larger id does
// no harm. Any other order would drop smaller lower ends and so certify less; the upper end is not
// needed. A lower end must be proven to be no larger than the exact value as it is compared; an
// unknown one is -infinity, not NaN.
//
// Cost: a comparison for an offer that is not kept, kept moves for one that is; 16 bytes a place.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/select/sort/sort_pairs.hpp"

namespace knear {

// Whether `results`, the k smallest candidates by exact value, sorted, are the k smallest of all
// that was offered. With fewer than k, only if nothing was dropped. Requires k >= 1, and no more
// than k results.
inline bool certified(const std::vector<KeyedId>& results, std::int64_t k,
                      const std::optional<KeyedId>& best_dropped) {
  if (!best_dropped) return true;
  if (static_cast<std::int64_t>(results.size()) < k) return false;
  return !(*best_dropped < results.back());
}

class PartialReduce {
 public:
  // Throws InvalidArgument unless both are 1 or more.
  PartialReduce(std::int64_t bins, int kept) : bins_(bins), kept_(static_cast<std::size_t>(kept)) {
    if (bins < 1) throw InvalidArgument("bins must be at least 1, but are {}", bins);
    if (kept < 1) throw InvalidArgument("kept must be at least 1, but is {}", kept);
    used_.resize(static_cast<std::size_t>(bins));
    places_.resize(static_cast<std::size_t>(bins) * kept_);
  }

  // Ids must be distinct. Throws InvalidArgument unless 0 <= bin < bins.
  void offer(std::int64_t bin, double value, std::int64_t id) {
    if (bin < 0 || bin >= bins_)
      throw InvalidArgument("bin must be at least 0 and below {}, but is {}", bins_, bin);
    if (value != value) return;
    KeyedId* const best = places_.data() + static_cast<std::size_t>(bin) * kept_;
    std::size_t& used = used_[static_cast<std::size_t>(bin)];
    const KeyedId item(value, id);
    if (used == kept_) {
      if (!(item < best[kept_ - 1])) return drop(item);
      drop(best[kept_ - 1]);
    } else {
      ++used;
    }
    std::size_t place = used - 1;
    for (; place > 0 && item < best[place - 1]; --place) best[place] = best[place - 1];
    best[place] = item;
  }

  // All that is kept, bin by bin, each bin ascending.
  std::vector<KeyedId> candidates() const {
    std::vector<KeyedId> all;
    for (std::size_t bin = 0; bin < used_.size(); ++bin) {
      const auto first = places_.begin() + static_cast<std::ptrdiff_t>(bin * kept_);
      all.insert(all.end(), first, first + static_cast<std::ptrdiff_t>(used_[bin]));
    }
    return all;
  }

  // The k smallest that are kept, ascending; fewer if fewer are. Throws InvalidArgument for k < 1.
  std::vector<KeyedId> smallest(std::int64_t k) const {
    if (k < 1) throw InvalidArgument("k must be at least 1, but is {}", k);
    std::vector<KeyedId> all = candidates();
    const auto wanted = std::min(all.size(), static_cast<std::size_t>(k));
    std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(wanted), all.end());
    all.resize(wanted);
    return all;
  }

  // The smallest pair that was offered and is not kept.
  const std::optional<KeyedId>& best_dropped() const { return best_dropped_; }

  // Whether smallest(k) are the k smallest of all that was offered, for exact values; then it is
  // true whenever they are.
  bool certified(std::int64_t k) const { return knear::certified(smallest(k), k, best_dropped_); }

 private:
  void drop(const KeyedId& item) {
    if (!best_dropped_ || item < *best_dropped_) best_dropped_ = item;
  }

  std::int64_t bins_;
  std::size_t kept_;
  std::vector<std::size_t> used_;  // [bins] places filled
  std::vector<KeyedId> places_;    // [bins x kept], each row ascending
  std::optional<KeyedId> best_dropped_;
};

}  // namespace knear
