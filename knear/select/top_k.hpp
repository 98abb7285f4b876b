// knear/select/top_k.hpp -- the k smallest (key, id) pairs of a stream, in the total order.
//
//   TopK best(10);
//   for (...) if (best.admits(key, id)) best.push(key, id);
//   best.finish();                       // now best.items() is sorted, at most k long
//
// Small k: a sorted list, so that the bound which new pairs must beat is always the k-th best.
// Larger k: a buffer of a little over 2k pairs, cut back to k by partition when full: constant
// amortised work per push, and a bound that lags by at most a buffer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "knear/select/sort/sort_pairs.hpp"

namespace knear {

class TopK {
 public:
  using Item = KeyedId;  // compared by key, then id

  // Requires k >= 1. Nothing is allocated before the first push.
  explicit TopK(std::int64_t k = 1) : k_(k) {}
  // As a new one, in the memory that it has.
  void restart(std::int64_t k) {
    k_ = static_cast<std::size_t>(k), bound_ = unbounded, items_.clear();
  }

  // Whether the pair could still be among the k smallest.
  bool admits(double key, std::int64_t id) const { return Item(key, id) < bound_; }
  // The key that a new pair must not exceed: +infinity until k pairs have been seen and cut.
  double bound() const { return bound_.first; }
  // The id below which a new pair with exactly that key is admitted.
  std::int64_t bound_id() const { return bound_.second; }

  // A pair that is not admitted changes nothing. Keys are never NaN. A pair that comes twice takes
  // two places (drop_copies()).
  void push(double key, std::int64_t id) {
    if (k_ > longest_sorted) {
      items_.emplace_back(key, id);
      if (items_.size() >= 2 * k_ + 24) cut();
      return;
    }
    const Item item(key, id);
    if (!(item < bound_)) return;
    if (items_.size() == k_) items_.pop_back();
    items_.push_back(item);
    std::size_t place = items_.size() - 1;
    for (; place > 0 && item < items_[place - 1]; --place) items_[place] = items_[place - 1];
    items_[place] = item;
    if (items_.size() == k_) bound_ = items_.back();
  }

  // Cuts to the k smallest and tightens the bound.
  void cut() {
    if (k_ <= longest_sorted || items_.size() < k_) return;
    keep_smallest(items_, k_);
    bound_ = items_[k_ - 1];
  }

  // Sorts what is kept, ascending, at most k pairs.
  void finish() {
    cut();
    if (k_ > longest_sorted) sort_pairs(items_);
  }

  // Leaves each pair once, and the k smallest of these. Requires finish().
  void drop_copies(std::int64_t k) {
    items_.erase(std::unique(items_.begin(), items_.end()), items_.end());
    if (items_.size() > static_cast<std::size_t>(k)) items_.resize(k);
  }

  const std::vector<Item>& items() const { return items_; }

 private:
  static constexpr std::size_t longest_sorted = 32;  // moving up to 512 bytes beats a partition

  static constexpr Item unbounded{std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<std::int64_t>::max()};

  std::size_t k_;
  Item bound_ = unbounded;
  std::vector<Item> items_;
};

}  // namespace knear
