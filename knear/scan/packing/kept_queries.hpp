// knear/scan/packing/kept_queries.hpp -- the packed queries of one scan, kept for the next.
//
//   std::atomic<std::int64_t> room = 256 << 20;      // bytes, of all that is kept
//   KeptQueries kept(room);
//   const ScanJob job{.queries = rows, ..., .kept = &kept};
//   scan_nearest_row(packed, job, ...);              // packs the rows
//   scan_nearest_row(others, job, ...);              // finds them packed
//
// k-means scores the same rows against centroids that move. The codes of the rows are the same each
// time, as long as the centroids are coded in one space and format.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "knear/scan/packing/packed_base.hpp"

namespace knear::detail {

// For scans of the same queries by bases whose coding space is the same, by as many threads.
class KeptQueries {
 public:
  // Sets of queries are kept as long as there is room for them, which others may share; those for
  // which there is none are packed anew each time.
  explicit KeptQueries(std::atomic<std::int64_t>& room) : room_(room) {}
  KeptQueries(const KeptQueries&) = delete;
  KeptQueries& operator=(const KeptQueries&) = delete;
  ~KeptQueries() { drop(); }

  // Before a scan: what was kept of another format or division of the queries is dropped. As many
  // sets as before are the same ones, since the division follows from the number of queries.
  void begin_scan(Format format, int group_size, std::size_t sets) {
    if (format == format_ && group_size == group_size_ && sets == sets_.size()) return;
    drop();
    sets_.resize(sets);
    format_ = format, group_size_ = group_size;
  }
  // The queries of a set, with the thresholds that they were packed with; pack() packs them. Of one
  // set it is called by one thread at a time.
  template <class Pack>
  PackedQueries get(std::size_t set, Pack pack) {
    std::optional<PackedQueries>& kept = sets_[set];
    if (kept) return *kept;
    PackedQueries packed = pack();
    const std::int64_t bytes = bytes_of(packed);
    if (room_.fetch_sub(bytes) >= bytes)
      kept = packed;
    else
      room_ += bytes;
    return packed;
  }

 private:
  static std::int64_t bytes_of(const PackedQueries& queries) {
    return static_cast<std::int64_t>(
        queries.codes->bytes() + queries.heads.size() * sizeof(GroupHead) +
        (queries.squares.size() + queries.constant.size()) * sizeof(double));
  }
  void drop() {
    for (const std::optional<PackedQueries>& kept : sets_)
      if (kept) room_ += bytes_of(*kept);
    sets_.clear();
  }

  std::atomic<std::int64_t>& room_;
  Format format_ = {};
  int group_size_ = 0;
  std::vector<std::optional<PackedQueries>> sets_;
};

}  // namespace knear::detail
