// knear/scan/device/answer_kernels.hpp -- kernels for answers that stay in device memory.
//
//   FindZeroRows   which queries are all zeros, to which rows may be equally near
//   MergeAnswers   what was found in one segment, into what others have
//   RoundAnswers   distances as float32, and padding
//   RoundOthers    the same of a self-join, without the rows themselves
//
// The order of answers is that of ExactNeighbors: by key, then by id, and what is padded with last.
#pragma once
#include <cstdint>
#include <limits>

#include "knear/core/element_type.hpp"
#include "knear/scan/device/packing_kernels.hpp"
#include "knear/simt/thread.hpp"

namespace knear::detail {

// One warp per row. flags: 1 of a row of zeros, else 0; zeros: how many there are, 0 before.
template <class Thread, class Element>
struct FindZeroRows {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  const Element* rows;  // [count x dim]
  std::int64_t count, dim;
  unsigned char* flags;  // [count]
  int* zeros;

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size;
    for (std::int64_t row = t.block() * warps + t.index() / warp_size; row < count;
         row += t.blocks() * warps) {
      bool found = false;
      for (std::int64_t i = lane; i < dim; i += warp_size)
        found = found || widened(rows[row * dim + i]) != 0;
      const bool zero = !t.any(found);
      if (lane != 0) continue;
      flags[row] = zero;
      if (zero) t.atomic_add(zeros, 1);
    }
  }
};

// All pointers are to device memory. Keys and ids are ascending, with ids of -1 behind all others.
struct AnswerMerge {
  // What there is so far [queries x had], by query; nullptr: nothing.
  const double* had_keys;
  const std::int64_t* had_ids;
  std::int64_t had;
  // What was found now for `count` queries from `first` on [count x k], by place: numbers of rows.
  const double* keys;
  const std::int64_t* rows;
  // The query at each place, from `first` on, -1 for none; nullptr: as they come.
  const std::int32_t* order;
  const int* lost;  // [count], by place: not 0 where it is not to be used
  std::int64_t first, count, k;
  // Ids of these rows; nullptr: that of row 0, and those after it.
  const std::int64_t* ids;
  std::int64_t first_id;
  // Of both the best [queries x columns], and the key that stands last there, which is infinite
  // where there are fewer.
  double* out_keys;
  std::int64_t* out_ids;
  double* bounds;  // [queries]
  std::int64_t columns;
};

// One warp per place. Each entry finds its place in the answer by a search for it in the other
// list.
template <class Thread>
struct MergeAnswers {
  static constexpr int threads = 256, resident_blocks = 4;
  static constexpr int warps = threads / warp_size;
  AnswerMerge p;

  KNEAR_KERNEL void operator()(Thread t) const {
    for (std::int64_t place = t.block() * warps + t.index() / warp_size; place < p.count;
         place += t.blocks() * warps)
      merge(t.index() % warp_size, place);
  }

 private:
  KNEAR_DEVICE std::int64_t id_of(std::int64_t row) const {
    return p.ids ? p.ids[row] : p.first_id + row;
  }
  // Entries before the first that is padding.
  KNEAR_DEVICE static std::int64_t length(const std::int64_t* ids, std::int64_t most) {
    std::int64_t low = 0, high = most;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (ids[middle] >= 0)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
  // How many entries come before (key, id). id_at: of an entry.
  template <class IdAt>
  KNEAR_DEVICE static std::int64_t before(const double* keys, std::int64_t size, IdAt id_at,
                                          double key, std::int64_t id) {
    std::int64_t low = 0, high = size;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (keys[middle] < key || (keys[middle] == key && id_at(middle) < id))
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  KNEAR_DEVICE void merge(int lane, std::int64_t place) const {
    if (p.order && p.order[place] < 0) return;
    const std::int64_t query = p.first + (p.order ? p.order[place] : place);
    const double* const had_keys = p.had_keys + query * p.had;
    const std::int64_t* const had_ids = p.had_ids + query * p.had;
    const double* const keys = p.keys + place * p.k;
    const std::int64_t* const rows = p.rows + place * p.k;
    const std::int64_t had = p.had_keys ? length(had_ids, p.had) : 0,
                       found = p.lost[place] ? 0 : length(rows, p.k);
    double* const out_keys = p.out_keys + query * p.columns;
    std::int64_t* const out_ids = p.out_ids + query * p.columns;
    const auto put = [&](std::int64_t at, double key, std::int64_t id) {
      if (at >= p.columns) return;
      out_keys[at] = key, out_ids[at] = id;
      if (at + 1 == p.columns) p.bounds[query] = key;
    };
    for (std::int64_t i = lane; i < had; i += warp_size)
      put(i + before(
                  keys, found, [&](std::int64_t j) { return id_of(rows[j]); }, had_keys[i],
                  had_ids[i]),
          had_keys[i], had_ids[i]);
    for (std::int64_t j = lane; j < found; j += warp_size) {
      const std::int64_t id = id_of(rows[j]);
      put(j + before(
                  had_keys, had, [&](std::int64_t i) { return had_ids[i]; }, keys[j], id),
          keys[j], id);
    }
    for (std::int64_t at = had + found + lane; at < p.columns; at += warp_size)
      put(at, std::numeric_limits<double>::infinity(), -1);
  }
};

// Writes [queries x k] of [queries x columns].
template <class Thread>
struct RoundAnswers {
  static constexpr int threads = 256, resident_blocks = 8;
  const double* keys;
  const std::int64_t* ids;
  std::int64_t columns, queries, k;
  bool negated;  // a key is minus the distance
  std::int64_t* out_ids;
  float* out_distances;

  KNEAR_KERNEL void operator()(Thread t) const {
    const float none =
        negated ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
    for (std::int64_t i = t.block() * threads + t.index(); i < queries * k;
         i += t.blocks() * threads) {
      const std::int64_t from = i / k * columns + i % k;
      const bool there = i % k < columns && ids[from] >= 0;
      out_ids[i] = there ? ids[from] : -1;
      out_distances[i] = there ? static_cast<float>(negated ? 0.0 - keys[from] : keys[from]) : none;
    }
  }
};

// Writes [queries x k] of [queries x columns], where query q is row q: it is left out of its own
// answer, wherever it stands. One warp per query.
template <class Thread>
struct RoundOthers {
  static constexpr int threads = 256, resident_blocks = 8;
  static constexpr int warps = threads / warp_size;
  const double* keys;
  const std::int64_t* ids;
  std::int64_t columns, queries, k;
  bool negated;  // a key is minus the distance
  std::int64_t* out_ids;
  float* out_distances;

  KNEAR_KERNEL void operator()(Thread t) const {
    const int lane = t.index() % warp_size;
    const float none =
        negated ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
    for (std::int64_t q = t.block() * warps + t.index() / warp_size; q < queries;
         q += t.blocks() * warps) {
      const std::int64_t* const from_ids = ids + q * columns;
      const double* const from_keys = keys + q * columns;
      bool passed = false;  // the row itself
      for (std::int64_t first = 0; first < columns; first += warp_size) {
        const std::int64_t at = first + lane;
        const bool here = at < columns && from_ids[at] == q;
        const unsigned found = t.ballot(here);
        if (at < columns && !here) {
          const std::int64_t to = at - (passed || (found & ((1u << lane) - 1)) != 0);
          if (to < k) {
            const bool there = from_ids[at] >= 0;
            out_ids[q * k + to] = there ? from_ids[at] : -1;
            out_distances[q * k + to] =
                there ? static_cast<float>(negated ? 0.0 - from_keys[at] : from_keys[at]) : none;
          }
        }
        passed = passed || found != 0;
      }
      for (std::int64_t to = columns - passed + lane; to < k; to += warp_size)
        out_ids[q * k + to] = -1, out_distances[q * k + to] = none;
    }
  }
};

}  // namespace knear::detail
