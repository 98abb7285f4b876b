// knear/scan/device/batch_answers.hpp -- how the answers of a batch of a search on a GPU come back:
//
//   const BatchResults there(found.data(), results, count);       // in one array of the device
//   BatchAnswers answers(queue, out, k, piece, there, count, bytes);
//   const BatchResults best = answers.wait_for_heads();           // which queries are lost
//   answers.take(query_at, threads);                              // the others, into rows of `out`
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

// The results of a batch, one after another: keys and ids [results], entries of each list and
// whether any were lost [count], and where the device has put queries in order which one is at
// each place [ordered].
struct BatchResults {
  double* keys;
  std::int64_t* ids;
  int *counts, *lost;
  std::int32_t* order;

  static constexpr std::size_t bytes_each = sizeof(double) + sizeof(std::int64_t);
  static std::size_t bytes(std::size_t results, std::size_t count, std::size_t ordered) {
    return results * bytes_each + 2 * count * sizeof(int) + ordered * sizeof(std::int32_t);
  }
  BatchResults(unsigned char* at, std::size_t results, std::size_t count)
      : keys(reinterpret_cast<double*>(at)),
        ids(reinterpret_cast<std::int64_t*>(keys + results)),
        counts(reinterpret_cast<int*>(ids + results)),
        lost(counts + count),
        order(lost + count) {}
};

// Copies the results of a batch through pinned memory: first its heads, the numbers for each
// query, then keys and ids in pieces, of which some are put where they belong while others come.
template <class Queue>
class BatchAnswers {
 public:
  // Enqueues the copies of the heads and of the first two pieces; or of all of `there`, of so
  // many bytes with the heads, if that is little. Throws MemoryBudgetError where the system has
  // no pinned memory; take() allocates nothing, so that no answers are put before that is known.
  BatchAnswers(Queue& queue, ExactNeighbors& out, std::int64_t k, std::int64_t piece,
               const BatchResults& there, std::size_t count, std::size_t bytes)
      : queue_(queue),
        out_(out),
        k_(k),
        piece_(piece),
        there_(there),
        count_(static_cast<std::int64_t>(count)),
        each_(k * static_cast<std::int64_t>(BatchResults::bytes_each)),
        together_(std::clamp<std::int64_t>(piece / each_, 1, count_)),
        waits_at_exit_{queue} {
    const bool little = bytes <= unit;
    before_heads_ = little ? static_cast<std::size_t>(count_ * each_) : 0;
    const auto* const from = reinterpret_cast<const unsigned char*>(there.keys);
    const std::size_t skipped = static_cast<std::size_t>(count_ * each_) - before_heads_;
    // A size that the next search may use, too.
    heads_ =
        queue.template allocate_host<unsigned char>((bytes - skipped + unit - 1) / unit * unit);
    queue.download(heads_.data(), from + skipped, bytes - skipped);
    heads_arrived_ = queue.mark();
    if (!little) fetch(0), fetch(together_);
  }
  // With keys and ids only if they are few.
  BatchResults wait_for_heads() {
    heads_arrived_.wait();
    return BatchResults(heads_.data(), before_heads_ / BatchResults::bytes_each, count_);
  }
  // query_at: [count], the row of `out` of each place; -1: none.
  void take(const std::vector<std::int64_t>& query_at, int threads) {
    if (before_heads_ > 0) {
      const BatchResults all = wait_for_heads();
      return put(query_at, 0, count_, all.keys, all.ids);
    }
    for (std::int64_t first = 0; first < count_; first += together_) {
      Piece& piece = pieces_[first / together_ % 2];
      piece.arrived.wait();
      const std::int64_t some = std::min(together_, count_ - first);
      const auto* const keys = reinterpret_cast<const double*>(piece.memory.data());
      const auto* const ids = reinterpret_cast<const std::int64_t*>(keys + some * k_);
      const std::int64_t task_places = std::clamp<std::int64_t>((64 << 10) / each_, 1, some);
      parallel_for(threads, (some + task_places - 1) / task_places, [&](std::int64_t task) {
        put(query_at, first + task * task_places, std::min(task_places, some - task * task_places),
            keys + task * task_places * k_, ids + task * task_places * k_);
      });
      fetch(first + 2 * together_);
    }
  }

 private:
  static constexpr std::size_t unit = 64 << 10;

  // Those of the places from `first` on.
  void put(const std::vector<std::int64_t>& query_at, std::int64_t first, std::int64_t some,
           const double* keys, const std::int64_t* ids) {
    for (std::int64_t i = 0; i < some; ++i) {
      const std::int64_t query = query_at[first + i];
      if (query < 0) continue;
      std::copy_n(keys + i * k_, k_, out_.keys.row(query));
      std::copy_n(ids + i * k_, k_, out_.ids.row(query));
    }
  }
  void fetch(std::int64_t first) {
    if (first >= count_) return;
    Piece& piece = pieces_[first / together_ % 2];
    if (piece.memory.size() == 0)
      piece.memory = queue_.template allocate_host<unsigned char>(
          PiecewiseUpload<Queue>::size_of_buffer(piece_, count_ * each_, each_));
    const std::int64_t some = std::min(together_, count_ - first);
    auto* const keys = reinterpret_cast<double*>(piece.memory.data());
    auto* const ids = reinterpret_cast<std::int64_t*>(keys + some * k_);
    queue_.download(keys, there_.keys + first * k_, some * k_);
    queue_.download(ids, there_.ids + first * k_, some * k_);
    piece.arrived = queue_.mark();
  }

  struct Piece {
    typename Queue::template HostArray<unsigned char> memory;
    typename Queue::Mark arrived;
  };
  Queue& queue_;
  ExactNeighbors& out_;
  const std::int64_t k_, piece_;  // neighbours; bytes copied at a time
  const BatchResults there_;
  const std::int64_t count_, each_, together_;  // queries; bytes of one; queries of a piece
  typename Queue::template HostArray<unsigned char> heads_;
  std::size_t before_heads_ = 0;  // bytes of keys and ids there
  typename Queue::Mark heads_arrived_;
  Piece pieces_[2];
  const StreamSyncGuard<Queue> waits_at_exit_;
};

}  // namespace knear::detail
