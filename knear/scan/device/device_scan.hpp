// knear/scan/device/device_scan.hpp -- exact search on a GPU: runs the kernels of scan_kernels.hpp
// and list_kernels.hpp in order.
//
//   DeviceScan<Queue> scan(queue, coding, upload_rows(queue, base, {}, threads), threads);
//   auto left = scan.run(queries, which, found, k, out, stats, batch, progress);
//
// Panels are scanned in a random order, so that the first ones are a sample of the base: all their
// pairs pass, unless upper bounds are known from other rows; the k-th best of each query is its
// first threshold, and the next step scans three times as much as was scanned so far. After each
// step thresholds are updated. A query whose list overflows is searched again: the pairs that pass
// its last threshold are counted, and then kept in a list of that length.
//
// With few queries each step takes about as long as its launch, so there are fewer steps, which
// longer lists and a larger first step allow: of up to 32 queries of which nothing is known all
// pairs of the first step are stored as they come. All of that may also be one launch
// (few_search.hpp). A block of queries is coded by the processor while launches would take as long;
// more are coded on the device, and nothing comes back from it before the answers.
//
// A search may be limited to some of the rows: one bit per row is copied to the device and tested
// for the few pairs that pass, so that lists hold allowed rows only and the resident codes serve
// every filter. Bits of rows, not ids of slots: these are 32 times less to copy, and the host need
// not know the order of the rows.
//
// Rows may be packed by inverted list, and each query then goes to some of these alone
// (list_rounds.hpp): to the first panels of its nearest list, which give it a threshold, to the
// rest of it, and then to three times as many lists as before. All else is the same.
//
// In a self-join, whose queries are all of the rows, each pair is scored once for both where the
// device has memory for the lists of all rows at once (self_join_steps.hpp).
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/threads.hpp"
#include "knear/scan/device/coded_base.hpp"
#include "knear/scan/device/scan_batch.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

template <class Queue>
class DeviceScan : public CodedBase<Queue> {
  using Base = CodedBase<Queue>;
  using Batch = ScanBatch<Queue>;
  using Run = SearchRun<Queue>;

 public:
  using Base::by_list, Base::first_panel, Base::limit, Base::packed, Base::queue, Base::threads;
  using typename Base::Limited;

  // The largest k, so that an int counts the entries of a list (the memory of the device is the
  // limit long before); the most columns of whole numbers whose sums fit.
  static constexpr std::int64_t most_k = (std::numeric_limits<int>::max() - 2048) / 8,
                                most_integer_dim = 16384;

  // As CodedBase; whole numbers must have no more than most_integer_dim columns. Rows that were
  // coded already are searched by run_by_keys() alone.
  using Base::Base;

  // Fills rows `which` of `out` (shapes [queries x k]); returns the queries that it could not
  // answer, whose rows are untouched: those for whose survivors the device has no memory, and all
  // remaining ones where it has none for a block of queries. Requires 1 <= k <= most_k, finite
  // queries; `found` is the range of all queries. `batch`: queries at a time, at least 1.
  // upper_bounds [queries]: keys that the k-th of each query is known not to exceed, from rows
  // elsewhere; then fewer than k may be found. Empty: nothing is known. Only `allowed` rows are
  // found, which requires that all rows are packed. Long lists take no more than
  // `most_bytes` of the device; queries are copied there in pieces of `piece` bytes. Of rows by
  // list only those in the lists that a query probes are found, probes [queries x lists at most]:
  // none of them twice, nearest first; no_id for none, behind the others. self_join: the queries
  // are the rows. Throws Cancelled.
  std::vector<std::int64_t> run(AnyMatrixView queries, std::span<const std::int64_t> which,
                                const ValueRange& found, std::int64_t k, ExactNeighbors& out,
                                DeviceStats& stats, std::int64_t batch, const Progress& progress,
                                std::span<const double> upper_bounds = {},
                                const AllowedRows& allowed = {},
                                std::size_t most_bytes = std::numeric_limits<std::size_t>::max(),
                                std::int64_t piece = usual_piece, MatrixView<Id> probes = {},
                                bool self_join = false) {
    Limited limited;
    const StreamSyncGuard waits_at_exit{queue()};
    try {
      if (!allowed.all()) limit(limited, allowed);
    } catch (const MemoryBudgetError&) {
      return {which.begin(), which.end()};
    }
    Run run{queries, found,   static_cast<int>(k), upper_bounds, limited, out,
            stats,   nullptr, most_bytes,          piece,        probes};
    run.self_join = self_join;
    return search(run, which, batch, progress);
  }

  // As run(), by these keys; `limited` says what may be found.
  std::vector<std::int64_t> run_by_keys(const RowKeys& keys, AnyMatrixView queries,
                                        std::span<const std::int64_t> which, std::int64_t k,
                                        ExactNeighbors& out, DeviceStats& stats, std::int64_t batch,
                                        const Progress& progress,
                                        std::span<const double> upper_bounds,
                                        const Limited& limited, MatrixView<Id> probes) {
    const StreamSyncGuard waits_at_exit{queue()};
    constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
    const ValueRange found;
    Run run{queries, found, static_cast<int>(k), upper_bounds, limited, out, stats,
            nullptr, any,   usual_piece,         probes};
    run.keys = &keys;
    return search(run, which, batch, progress);
  }

  // As run() of all `queries`, of rows that are not in lists: calls take(FoundOnDevice) for some
  // after others, which enqueues what is done with them. upper_bounds [queries]: in device memory;
  // nullptr: nothing is known. Returns the queries, ascending, that have to be answered otherwise.
  // Back come 8 bytes for each query, and to the device goes what `allowed` says.
  std::vector<std::int64_t> run_on_device(const DeviceRowData<Queue>& queries,
                                          const ValueRange& found, std::int64_t k,
                                          DeviceStats& stats, std::int64_t batch,
                                          const Progress& progress, const double* upper_bounds,
                                          const AllowedRows& allowed, std::size_t most_bytes,
                                          const std::function<void(const FoundOnDevice&)>& take,
                                          bool self_join = false) {
    const std::int64_t count = queries.count;
    std::vector<std::int64_t> all(count);
    std::iota(all.begin(), all.end(), 0);
    Limited limited;
    const StreamSyncGuard waits_at_exit{queue()};
    try {
      if (!allowed.all()) limit(limited, allowed);
    } catch (const MemoryBudgetError&) {
      return all;
    }
    ExactNeighbors none;
    // Its shape and type are looked at, and nothing of its memory.
    Run run{AnyMatrixView(queries.type, queries.data(), count, queries.dim, queries.dim),
            found,
            static_cast<int>(k),
            {},
            limited,
            none,
            stats,
            nullptr,
            most_bytes,
            usual_piece,
            {}};
    run.device_queries = &queries, run.known_on_device = upper_bounds, run.take = &take;
    run.self_join = self_join;
    Reporter reporter(progress, "search", count * packed().panels());
    if (progress) run.watched = &reporter;
    std::vector<std::int64_t> left = search_batches(run, all, batch);
    left.insert(left.end(), run.full.begin(), run.full.end());
    std::sort(left.begin(), left.end());
    return left;
  }

  // The number of queries of `count` to search at a time, in whole blocks, such that they take no
  // more than half of `free_bytes` of the device, or in one block.
  std::int64_t batch_for(std::int64_t count, std::int64_t k, std::size_t free_bytes) const {
    const std::int64_t each = bytes_for_query(k, room_for(k), Batch::sorts(k));
    const auto held = static_cast<std::int64_t>(free_bytes / 2) / each;
    return std::clamp<std::int64_t>(held / block_queries * block_queries, block_queries,
                                    std::max<std::int64_t>(block_queries, count));
  }

  // Places of panels in the lists that these queries probe.
  std::int64_t places_probed(MatrixView<Id> probes, std::span<const std::int64_t> which) const {
    std::int64_t sum = 0;
    for (const std::int64_t q : which)
      for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
        const std::size_t list = probes.row(q)[p];
        sum += (first_panel()[list + 1] - first_panel()[list]) * panel_rows;
      }
    return sum;
  }
  // Entries of a list, and bytes of device memory that a query takes in a batch.
  std::int64_t room_for(std::int64_t k) const { return Batch::room_for(packed(), k); }
  std::int64_t bytes_for_query(std::int64_t k, std::int64_t room, bool sorted) const {
    return Batch::bytes_for_query(packed(), k, room, sorted);
  }
  // Bytes of the processor's memory per query, beside the answer, and per thread, where the
  // processor codes queries. Those that the device codes take less, and two pieces that carry them.
  static std::int64_t host_bytes_for_query(std::int64_t k, std::int64_t dim, std::int64_t slices) {
    return slices * slice_bytes + 8 * dim + 16 * k + 160;
  }
  static std::int64_t host_bytes_for_thread(std::int64_t dim) {
    return block_queries * (9 * dim + 64);
  }

 private:
  // All batches of a search of queries that come from the processor.
  std::vector<std::int64_t> search(Run& run, std::span<const std::int64_t> which,
                                   std::int64_t batch, const Progress& progress) {
    const std::int64_t count = std::ssize(which);
    std::vector<std::int64_t> sorted;
    if (by_list() && !packed().is_integer && count > block_queries) {
      find_scales(run, which);
      sorted.assign(which.begin(), which.end());
      which = sort_by_scale(run, sorted);
    }
    Reporter reporter(progress, "search", count * Batch::work_of_query(*this, run));
    if (progress) run.watched = &reporter;
    std::vector<std::int64_t> left = search_batches(run, which, batch);
    if (!run.full.empty()) run_again(run, batch, progress, left);
    return left;
  }

  // Searches some queries at a time, with fewer from where the device has no memory for so many on.
  // Returns those for which it has none.
  std::vector<std::int64_t> search_batches(Run& run, std::span<const std::int64_t> which,
                                           std::int64_t& batch) {
    for (std::int64_t first = 0, taken; first < std::ssize(which); first += taken) {
      taken = alike(run, which.subspan(first), batch);
      try {
        Batch(*this, run, which.subspan(first, taken), false).answer();
      } catch (const MemoryBudgetError&) {
        if (taken > block_queries)
          batch = std::max<std::int64_t>(block_queries, taken / 2);
        else if (std::exchange(run.usual_lists, true))
          return {which.begin() + first, which.end()};
        taken = 0;
      }
    }
    return {};
  }

  // Answers queries whose lists were full; adds to `left` those for which there is no memory.
  void run_again(Run& run, std::int64_t batch, const Progress& progress,
                 std::vector<std::int64_t>& left) {
    auto full = std::exchange(run.full, {});
    const std::span<const std::int64_t> which = sort_by_scale(run, full);
    const auto count = std::ssize(which);
    Reporter reporter(progress, "search again", 2 * count * Batch::work_of_query(*this, run));
    if (progress) run.watched = &reporter;
    for (std::int64_t first = 0, taken; first < count; first += taken) {
      const auto rest = which.subspan(first);
      taken = alike(run, rest, batch);
      try {
        Batch(*this, run, rest.first(taken), true).answer();
      } catch (const MemoryBudgetError&) {
        if (taken == 1)
          left.push_back(which[first]);
        else
          batch = taken / 2, taken = 0;
      }
    }
    run.stats.repeated += count;
  }

  // Queries that are coded for blocks of lists, in which any of them may come together, have one
  // scale. So that it suits them, those of a batch differ by a factor of 2 at most in the scale
  // that would be their own: a wide bound lets more rows pass, and is still right.
  //
  // run.scales [queries]: the scale of each of `which`; 0 of zeros, which any scale suits.
  void find_scales(Run& run, std::span<const std::int64_t> which) const {
    run.scales.resize(run.queries.rows());
    constexpr std::int64_t together = 64;
    const std::int64_t count = std::ssize(which);
    parallel_for(threads(), (count + together - 1) / together, [&](std::int64_t task) {
      std::vector<double> u(packed().dim);
      for (std::int64_t i = task * together; i < std::min(count, (task + 1) * together); ++i) {
        const std::int64_t query = which[i];
        packed().space.load(run.queries, query, u.data());
        const auto [largest, squares] = packed().space.kernels->measure(u.data(), packed().dim);
        run.scales[query] = largest > 0 ? scale_for(format_int8, largest, std::sqrt(squares)) : 0;
      }
    });
  }
  // `which`, ascending by scale where that matters.
  static std::span<const std::int64_t> sort_by_scale(const Run& run,
                                                     std::vector<std::int64_t>& which) {
    if (!run.scales.empty())
      std::sort(which.begin(), which.end(), [&](std::int64_t a, std::int64_t b) {
        return std::pair(run.scale_of(a), a) < std::pair(run.scale_of(b), b);
      });
    return which;
  }
  // How many of the next queries make a batch, `most` at most.
  static std::int64_t alike(const Run& run, std::span<const std::int64_t> next, std::int64_t most) {
    most = std::min(most, std::ssize(next));
    if (run.scales.empty()) return most;
    double least = 0;
    for (std::int64_t i = 0; i < most; ++i) {
      const double scale = run.scale_of(next[i]);
      if (least == 0) least = scale;
      if (scale > 2 * least) return i;
    }
    return most;
  }
};

}  // namespace knear::detail
