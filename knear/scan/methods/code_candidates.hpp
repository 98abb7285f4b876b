// knear/scan/methods/code_candidates.hpp -- the rows of codes that may be among the k nearest to a
// query, while its lists are scanned (code_scan.hpp).
//
//   Candidates candidates;
//   candidates.begin(k, upper_bound, keys);
//   candidates.push(key, segment, row, segments);   // if key <= candidates.bound()
//   candidates.settle(limit);                       // between two steps: k rows do not exceed
//   limit candidates.finish(segments, ordered, out);
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "knear/scan/methods/code_scan.hpp"

namespace knear::detail {

// The k-th smallest of some keys, 1 <= k <= size, which are no NaN; overwrites them. Counts the
// keys below a number that is moved between the smallest and the largest one: no branch depends on
// a single key.
inline float kth_smallest(std::span<float> keys, std::size_t k) {
  // As whole numbers in the same order.
  const auto ordered = [](std::int32_t bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; };
  std::int32_t low = std::numeric_limits<std::int32_t>::max(), high = -low - 1;
  const std::size_t size = keys.size();
  const auto bits_of = [](float key) { return std::bit_cast<std::int32_t>(key); };
  for (float& key : keys) {
    const std::int32_t bits = ordered(bits_of(key));
    low = std::min(low, bits), high = std::max(high, bits);
    key = std::bit_cast<float>(bits);
  }
  // No fewer than k are at most `high`; fewer are at most low - 1.
  while (low < high) {
    const auto middle = static_cast<std::int32_t>((std::int64_t{low} + high) >> 1);
    std::int32_t count = 0;
    for (std::size_t i = 0; i < size; ++i) count += bits_of(keys[i]) <= middle;
    if (static_cast<std::size_t>(count) < k) {
      low = middle + 1;
    } else {
      high = middle;
      if (static_cast<std::size_t>(count) == k) break;
    }
  }
  std::int32_t found = low;
  for (std::size_t i = 0; i < size; ++i)
    found = bits_of(keys[i]) <= high ? std::max(found, bits_of(keys[i])) : found;
  return std::bit_cast<float>(ordered(found));
}

// What is left of the rows of a query: those up to the k-th key so far.
class Candidates {
 public:
  using Item = CodedNeighbors::Row;  // without an id yet

  // keys: for keys while they are cut, of any number of candidates of one thread.
  void begin(std::int64_t k, double upper_bound, std::vector<float>& keys) {
    k_ = static_cast<std::size_t>(k), keys_ = &keys;
    items_.clear();
    items_.reserve(std::min<std::size_t>(most(), 1024));
    bound_ = upper_bound < std::numeric_limits<float>::max()
                 ? static_cast<float>(upper_bound)
                 : std::numeric_limits<float>::infinity();
    tied_key_ = std::numeric_limits<float>::infinity();
    tied_id_ = std::numeric_limits<Id>::max();
  }
  float bound() const { return bound_; }

  void push(float key, std::uint32_t segment, std::int64_t row,
            std::span<const CodeSegment> segments) {
    if (key > bound_ || (key >= tied_key_ && segments[segment].ids(row) > tied_id_)) return;
    items_.push_back({key, segment, row, no_id});
    if (items_.size() >= most()) cut(segments);
  }
  // Told between two steps of a number that k rows do not exceed, or
  // std::numeric_limits<float>::infinity(). If enough has come since the last time, finds a lower
  // one, or nearly the lowest: rows are counted rather than sorted, since no branch could be
  // foretold.
  void settle(float limit) {
    bound_ = std::min(bound_, limit);
    const std::size_t size = items_.size(), enough = k_ + k_ / 8;
    if (size < k_ + std::max<std::size_t>(8, k_ / 2)) return;
    std::vector<float>& keys = *keys_;
    keys.resize(size);
    for (std::size_t i = 0; i < size; ++i) keys[i] = items_[i].key;
    float low = keys[0], high = keys[0];
    for (const float key : keys) low = std::min(low, key), high = std::max(high, key);
    for (int round = 0; round < 16 && high < std::numeric_limits<float>::infinity(); ++round) {
      const float middle = low + (high - low) / 2;
      if (!(middle < high)) break;  // many equal keys
      std::int32_t count = 0;
      for (std::size_t i = 0; i < size; ++i) count += keys[i] <= middle;
      if (static_cast<std::size_t>(count) < k_) {
        low = middle;
      } else {
        high = middle;
        if (static_cast<std::size_t>(count) <= enough) break;
      }
    }
    bound_ = std::min(bound_, high);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < size; ++i) {
      items_[kept] = items_[i];
      kept += keys[i] <= bound_;
    }
    items_.resize(kept);
  }
  // The k nearest, in order or, which costs less, in none; uses them up.
  void finish(std::span<const CodeSegment> segments, bool ordered, std::span<Item> out) {
    cut(segments);
    if (ordered || items_.size() > k_)
      sort(segments);
    else
      find_ids(segments);
    const std::size_t count = std::min(k_, items_.size());
    std::copy_n(items_.begin(), count, out.begin());
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(count), out.end(), Item{});
    items_ = {};
  }

 private:
  std::size_t most() const { return 2 * k_ + 64; }
  void find_ids(std::span<const CodeSegment> segments) {
    for (Item& item : items_) item.id = segments[item.segment].ids(item.row);
  }
  void sort(std::span<const CodeSegment> segments) {
    find_ids(segments);
    std::sort(items_.begin(), items_.end());
  }
  void cut(std::span<const CodeSegment> segments) {
    if (items_.size() <= k_) return;
    keys_->clear();
    for (const Item& item : items_) keys_->push_back(item.key);
    bound_ = std::min(bound_, kth_smallest(*keys_, k_));
    std::erase_if(items_, [&](const Item& item) { return item.key > bound_; });
    if (items_.size() < most() - most() / 4) return;
    // So many rows at the very k-th key: their ids decide.
    sort(segments);
    items_.resize(k_);
    tied_key_ = items_.back().key, tied_id_ = items_.back().id;
  }

  std::size_t k_ = 0;
  float bound_ = std::numeric_limits<float>::infinity();
  // k rows do not exceed this key and, where they have it, this id.
  float tied_key_ = std::numeric_limits<float>::infinity();
  Id tied_id_ = std::numeric_limits<Id>::max();
  std::vector<Item> items_;
  std::vector<float>* keys_ = nullptr;
};

}  // namespace knear::detail
