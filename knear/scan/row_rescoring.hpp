// knear/scan/row_rescoring.hpp -- measuring what the queries of a task have left, row by row.
//
//   RowRescoring together(duplicates, job, refiner);
//   if (together.pays(waiting)) together.finish(unfinished, out, stats);   // else refiner.finish()
//
// Where there are many neighbours and not so many rows, the queries of a task want the same rows
// again and again, and each fetches them from memory. Here the pairs of all are put in the order of
// rows; a row is fetched and widened once and measured from all queries that want it, whose own
// vectors stay in cache. A distance is the same to the bit from either side.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/candidate_refiner.hpp"

namespace knear::detail {

// A query whose candidates are all known. What it has pending is used up.
struct Unfinished {
  QueryCandidates* candidates;
  std::int64_t query;
  KeyScale scale;
};

// One thread's.
class RowRescoring {
 public:
  RowRescoring(const Duplicates& duplicates, const ScanJob& job, CandidateRefiner& refiner)
      : duplicates_(duplicates),
        job_(job),
        refiner_(refiner),
        measure_(job.metric, job.queries.type(), job.isa),
        scratch_(job.base.scratch_bytes()) {}

  // Whether to, where so many candidates wait together: rows must be wanted several times each, and
  // have to come from memory. (From the third level of cache 2 to 10 % would be lost, else 7 to 27
  // % are won.)
  bool pays(std::int64_t waiting) const {
    const std::int64_t cache = cache_bytes(3) > 0 ? cache_bytes(3) : 32 << 20;
    return job_.by_rows && job_.k > LargestK::longest && job_.base.row_bytes() >= 1024 &&
           job_.base.rows() * job_.base.row_bytes() > cache &&
           std::min(waiting, most_pairs) >= 2 * job_.base.rows();
  }
  // Rows of a query that certainly are measured, for pays().
  std::int64_t waiting(const QueryCandidates& c) const {
    return std::min<std::int64_t>(std::ssize(c.pending), job_.k);
  }

  // Writes the k best of each query, as CandidateRefiner::finish does.
  void finish(std::span<const Unfinished> queries, ExactNeighbors& out, ScanStats& stats) {
    for (std::size_t begin = 0; begin < queries.size();) {
      std::size_t end = begin;
      for (std::int64_t pairs = 0; end < queries.size(); ++end) {
        pairs += waiting(*queries[end].candidates);
        if (end > begin && pairs > most_pairs) break;
      }
      finish_some(queries.subspan(begin, end - begin), out, stats);
      begin = end;
    }
  }
  // The memory that finish() took, beside that of pending candidates.
  std::int64_t bytes() const {
    return static_cast<std::int64_t>(pairs_.capacity() * sizeof(Pair) + keys_.capacity() * 8 +
                                     (by_row_.capacity() + begin_.capacity()) * 4) +
           best_bytes_;
  }

 private:
  struct Pair {
    std::uint32_t row, query;  // query: its place among those at hand
  };
  static constexpr std::int64_t most_pairs = 1 << 18;

  void finish_some(std::span<const Unfinished> queries, ExactNeighbors& out, ScanStats& stats) {
    const std::size_t k = job_.k;
    std::vector<TopK> best(queries.size(), TopK(job_.k));
    // First the k of each query that look best.
    pairs_.clear();
    for (std::size_t q = 0; q < queries.size(); ++q) {
      QueryCandidates& c = *queries[q].candidates;
      refiner_.settle(c, queries[q].query, stats);
      for (const TopK::Item& item : c.exact.items()) best[q].push(item.first, item.second);
      const std::size_t first = refiner_.best_first(c.pending, k);
      for (std::size_t i = 0; i < first; ++i)
        pairs_.push_back({c.pending[i].row, static_cast<std::uint32_t>(q)});
      c.pending.erase(c.pending.begin(), c.pending.begin() + static_cast<std::ptrdiff_t>(first));
    }
    measure(queries, best, stats);
    // Then those of the others that may still come before the k-th.
    pairs_.clear();
    for (std::size_t q = 0; q < queries.size(); ++q) {
      best[q].cut();
      const double last = best[q].bound();
      for (const ScoreInterval& x : queries[q].candidates->pending)
        if (!(queries[q].scale.key_at_least(x.upper) > last))
          pairs_.push_back({x.row, static_cast<std::uint32_t>(q)});
    }
    measure(queries, best, stats);
    best_bytes_ = 0;
    for (std::size_t q = 0; q < queries.size(); ++q) {
      best_bytes_ += static_cast<std::int64_t>(best[q].items().capacity() * sizeof(TopK::Item));
      best[q].finish();
      const std::int64_t query = queries[q].query;
      write_list(best[q], job_.k, out.keys.row(query), out.ids.row(query));
    }
  }

  // Measures the pairs, which are in the order of queries, and gives each query what it asked for.
  void measure(std::span<const Unfinished> queries, std::vector<TopK>& best, ScanStats& stats) {
    const std::size_t rows = job_.base.rows();
    begin_.assign(rows + 1, 0);
    for (const Pair& pair : pairs_) ++begin_[pair.row + 1];
    for (std::size_t row = 0; row < rows; ++row) begin_[row + 1] += begin_[row];
    by_row_.resize(pairs_.size()), keys_.resize(pairs_.size());
    for (std::size_t i = pairs_.size(); i-- > 0;)  // leaves begin_[row + 1] at the row's first
      by_row_[--begin_[pairs_[i].row + 1]] = static_cast<std::uint32_t>(i);
    for (std::size_t i = 0; i < by_row_.size();) {
      const std::uint32_t row = pairs_[by_row_[i]].row;
      measure_.set_query(job_.base.row_view(row, scratch_.data()), 0);
      for (; i < by_row_.size() && pairs_[by_row_[i]].row == row;) {
        const void* vectors[ExactDistance::most_rows];
        double keys[ExactDistance::most_rows];
        int count = 0;
        for (; count < ExactDistance::most_rows && i + count < by_row_.size(); ++count) {
          const Pair& pair = pairs_[by_row_[i + count]];
          if (pair.row != row) break;
          vectors[count] = job_.queries.row(queries[pair.query].query);
        }
        measure_.keys(vectors, count, keys);
        for (int j = 0; j < count; ++j) keys_[by_row_[i + j]] = keys[j];
        i += count;
      }
    }
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const std::uint32_t row = pairs_[i].row;
      TopK& list = best[pairs_[i].query];
      const auto take = [&](std::uint32_t each) {
        const Id id = job_.base.number(each);
        if (!list.admits(keys_[i], id)) return false;  // nor is any copy that follows
        list.push(keys_[i], id);
        return true;
      };
      each_copy(duplicates_, job_.allowed, row, take);
    }
    stats.survivors += std::ssize(pairs_);
  }

  const Duplicates& duplicates_;
  const ScanJob& job_;
  CandidateRefiner& refiner_;
  ExactDistance measure_;  // its query is the row
  std::vector<std::byte> scratch_;
  std::vector<Pair> pairs_;
  std::vector<double> keys_;                   // of pairs_
  std::vector<std::uint32_t> by_row_, begin_;  // numbers of pairs_, in the order of rows
  std::int64_t best_bytes_ = 0;
};

}  // namespace knear::detail
