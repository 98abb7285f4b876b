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
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"
#include "knear/core/threads.hpp"
#include "knear/distance/exact.hpp"
#include "knear/scan/device/batch_answers.hpp"
#include "knear/scan/device/list_rounds.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/scan/device/query_codes.hpp"
#include "knear/scan/device/query_launches.hpp"
#include "knear/scan/device/scan_launches.hpp"
#include "knear/scan/device/self_join_steps.hpp"
#include "knear/scan/kernels/key_scale.hpp"
#include "knear/scan/packing/coding.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

struct DeviceStats {
  std::int64_t steps = 0;      // of the scan of the last batch
  std::int64_t survivors = 0;  // pairs that were measured (whole numbers: that were left)
  std::int64_t repeated = 0;   // queries that were searched again, since their lists were full
  bool once = false;           // each pair of a self-join was scored once
  bool one_launch = false;     // the last batch was searched in one launch
  // Called, if set, just before the work of a stage is enqueued, and with nullptr after the last
  // stage of a batch: for callers that measure device time. A stage named "... in" or "... out"
  // includes the processor's work.
  std::function<void(const char* stage)> at_stage = {};
};

template <class Queue>
class DeviceScan {
  template <class T>
  using Array = typename Queue::template Array<T>;

 public:
  // The largest k, so that an int counts the entries of a list (the memory of the device is the
  // limit long before); the most columns of whole numbers whose sums fit.
  static constexpr std::int64_t most_k = (std::numeric_limits<int>::max() - 2048) / 8,
                                most_integer_dim = 16384;

  // Encodes the rows, which are numbered from 0 on, and keeps the rows unless they are whole
  // numbers. coding: device_coding() for that many rows; whole numbers must have no more than
  // most_integer_dim columns. Throws MemoryBudgetError if codes do not fit the queue's budget.
  DeviceScan(Queue& queue, const Coding& coding, DeviceRowData<Queue> rows, int threads)
      : queue_(queue),
        packed_(coding),
        threads_(threads),
        codes_(encode_rows(queue, coding, rows)),
        rows_(std::move(rows)) {
    const std::int64_t all[] = {0, packed_.panels()};
    put_in_order(all);
  }
  // The same of rows by list, for searches that name lists: coding: device_coding_of_panels() for
  // the layout.
  DeviceScan(Queue& queue, const Coding& coding, DeviceRowData<Queue> rows,
             const ListLayout& layout, int threads)
      : queue_(queue),
        packed_(coding),
        threads_(threads),
        codes_(encode_rows(queue, coding, rows, layout.row_at)),
        rows_(std::move(rows)),
        first_panel_(layout.first_panel) {
    put_in_order(first_panel_);
  }
  // The same of rows that were coded already, with certified errors, and whose keys others know:
  // run_by_keys() alone searches them.
  DeviceScan(Queue& queue, const Coding& coding, DeviceCodes<Queue> codes, const ListLayout& layout,
             int threads)
      : queue_(queue),
        packed_(coding),
        threads_(threads),
        codes_(std::move(codes)),
        rows_{{}, nullptr, ElementType::f32, coding.rows, coding.dim},
        first_panel_(layout.first_panel) {
    put_in_order(first_panel_);
  }

  // The rows to which a search is limited: one bit per row, here and on the device, and their
  // number.
  struct Limited {
    std::vector<std::uint32_t> words;
    Array<std::uint32_t> bits;
    std::int64_t count = 0;
  };
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
    const StreamSyncGuard waits_at_exit{queue_};
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

  // Rows by list whose keys are not those of the vectors that were coded, but near them.
  struct RowKeys {
    // How far g, as the key has it, may be from that of the vector, for the queries of a batch: as
    // far as the keys are from one another, for l2 half as far.
    std::function<double(std::span<const std::int64_t> which)> slack;
    // Enqueues what writes the keys of all entries of lists. which: the query at each place;
    // vectors [count x dim], by place.
    std::function<void(const DeviceBaseView& base, const DeviceLists& lists,
                       std::span<const std::int64_t> which, const double* vectors)>
        measure;
  };
  // As run(), by these keys; `limited` says what may be found.
  std::vector<std::int64_t> run_by_keys(const RowKeys& keys, AnyMatrixView queries,
                                        std::span<const std::int64_t> which, std::int64_t k,
                                        ExactNeighbors& out, DeviceStats& stats, std::int64_t batch,
                                        const Progress& progress,
                                        std::span<const double> upper_bounds,
                                        const Limited& limited, MatrixView<Id> probes) {
    const StreamSyncGuard waits_at_exit{queue_};
    constexpr std::size_t any = std::numeric_limits<std::size_t>::max();
    const ValueRange found;
    Run run{queries, found, static_cast<int>(k), upper_bounds, limited, out, stats,
            nullptr, any,   usual_piece,         probes};
    run.keys = &keys;
    return search(run, which, batch, progress);
  }

  // Queries that are in device memory, and what is found for them, which stays there.
  //
  // What was found for `count` of them, from the query `first` on: keys and row numbers [count x
  // k], by place; the query at each place, from `first` on, -1 for none, or nullptr: as they come;
  // and of each place whether it was lost, as its list was full.
  struct FoundOnDevice {
    std::int64_t first, count, k;
    const double* keys;
    const std::int64_t* rows;
    const std::int32_t* order;
    const int* lost;
  };
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
    std::vector<std::int64_t> all(static_cast<std::size_t>(count));
    std::iota(all.begin(), all.end(), 0);
    Limited limited;
    const StreamSyncGuard waits_at_exit{queue_};
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
    run.there = &queries, run.known_on_device = upper_bounds, run.take = &take;
    run.self_join = self_join;
    Reporter reporter(progress, "search", count * packed_.panels());
    if (progress) run.watched = &reporter;
    std::vector<std::int64_t> left;
    for (std::int64_t first = 0, taken; first < count; first += taken) {
      taken = std::min(batch, count - first);
      try {
        run_batch(run,
                  std::span<const std::int64_t>(all).subspan(static_cast<std::size_t>(first),
                                                             static_cast<std::size_t>(taken)),
                  false);
      } catch (const MemoryBudgetError&) {
        if (taken > block_queries) {
          batch = std::max<std::int64_t>(block_queries, taken / 2), taken = 0;
          continue;
        }
        if (!std::exchange(run.usual_lists, true)) {
          taken = 0;
          continue;
        }
        left.assign(all.begin() + first, all.end());
        break;
      }
    }
    left.insert(left.end(), run.full.begin(), run.full.end());
    std::sort(left.begin(), left.end());
    return left;
  }

  // The number of queries of `count` to search at a time, in whole blocks, such that they take no
  // more than half of `free_bytes` of the device, or in one block.
  std::int64_t batch_for(std::int64_t count, std::int64_t k, std::size_t free_bytes) const {
    const std::int64_t each = bytes_for_query(k, room_for(k), sorts(k));
    const auto held = static_cast<std::int64_t>(free_bytes / 2) / each;
    return std::clamp<std::int64_t>(held / block_queries * block_queries, block_queries,
                                    std::max<std::int64_t>(block_queries, count));
  }

  // Places of panels in the lists that these queries probe.
  std::int64_t places_probed(MatrixView<Id> probes, std::span<const std::int64_t> which) const {
    std::int64_t sum = 0;
    for (const std::int64_t q : which)
      for (std::int64_t p = 0; p < probes.cols() && probes.row(q)[p] != no_id; ++p) {
        const auto list = static_cast<std::size_t>(probes.row(q)[p]);
        sum += (first_panel_[list + 1] - first_panel_[list]) * panel_rows;
      }
    return sum;
  }

  // The rows on the device, for kernels that others launch; valid as long as this object.
  DeviceBaseView base() const { return base_view(); }
  const Coding& packed() const { return packed_; }
  // The rows as they were uploaded; for whole numbers only their type and shape.
  const DeviceRowData<Queue>& rows() const { return rows_; }

  // By place: the thresholds with which the kernels start.
  std::vector<double> thresholds_for(const DeviceQueries& coded,
                                     std::span<const double> upper_bounds) const {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    std::vector<double> out(static_cast<std::size_t>(coded.count),
                            packed_.is_integer ? infinity : -infinity);
    for (std::size_t place = 0; place < out.size() && !upper_bounds.empty(); ++place) {
      const double bound = upper_bounds[static_cast<std::size_t>(coded.order[place])];
      const DeviceQuery& query = coded.heads[place];
      if (bound == infinity) continue;
      out[place] =
          packed_.is_integer
              ? bound
              : KeyScale{packed_.space.metric, query.squares, query.constant}.threshold_for(bound);
    }
    return out;
  }

  // allowed(row): whether it may be found; from several threads. Throws MemoryBudgetError.
  // `limited` must live until the queue has done the copy.
  template <class Allowed = AllowedRows>
  void limit(Limited& limited, const Allowed& allowed) {
    constexpr std::int64_t task_words = 2048;
    const std::int64_t rows = packed_.rows, words = (rows + 31) / 32;
    limited.words.resize(static_cast<std::size_t>(words));
    parallel_for(threads_, (words + task_words - 1) / task_words, [&](std::int64_t task) {
      const std::int64_t end = std::min(words, (task + 1) * task_words);
      for (std::int64_t i = task * task_words; i < end; ++i) {
        std::uint32_t word = 0;
        for (std::int64_t row = 32 * i; row < std::min(rows, 32 * i + 32); ++row)
          word |= static_cast<std::uint32_t>(allowed(row)) << row % 32;
        limited.words[static_cast<std::size_t>(i)] = word;
      }
    });
    for (const std::uint32_t word : limited.words) limited.count += std::popcount(word);
    limited.bits = upload(limited.words.data(), limited.words.size());
  }

  // Queries on the device, by place, with a threshold for each. One array holds everything, since
  // each copy and each allocation take about as long as a small kernel.
  struct Queries {
    std::vector<unsigned char> host;  // as they were sent
    Array<unsigned char> there;
    std::int64_t count = 0, blocks = 0, slices = 0;
    bool shifted = false;

    // Bytes of codes, heads, scales and thresholds.
    std::size_t bytes() const {
      return static_cast<std::size_t>(blocks * slices * block_slice_bytes) +
             static_cast<std::size_t>(count) * (sizeof(DeviceQuery) + sizeof(double)) +
             static_cast<std::size_t>(blocks) * sizeof(double);
    }
    struct Arrays {
      std::uint8_t* codes;
      DeviceQuery* heads;
      double *scales, *thresholds;
    };
    Arrays arrays() {
      unsigned char* const bytes = there.data();
      auto* const heads =
          reinterpret_cast<DeviceQuery*>(bytes + blocks * slices * block_slice_bytes);
      auto* const scales = reinterpret_cast<double*>(heads + count);
      return {bytes, heads, scales, scales + blocks};
    }
    // What went along with them.
    const double* more() { return reinterpret_cast<const double*>(there.data() + bytes()); }
    // A view of some queries, from the place `first` on, which begins a block.
    DeviceQueryView view(std::int64_t first, std::int64_t some) {
      const Arrays all = arrays();
      DeviceQueryView out = {all.codes, all.scales, all.heads, all.thresholds, 0, 0, shifted};
      const std::int64_t block = first / block_queries;
      out.codes += block * slices * block_slice_bytes, out.scales += block;
      out.heads += first, out.thresholds += first;
      out.count = some, out.blocks = (some + block_queries - 1) / block_queries;
      return out;
    }
  };
  // thresholds: [coded.count], as DeviceQueryView has them; `more` goes along. The result must live
  // until the queue has done the copy.
  Queries upload_queries(const DeviceQueries& coded, const std::vector<double>& thresholds,
                         std::span<const double> more = {}) {
    Queries out{{}, {}, coded.count, coded.blocks, coded.slices, coded.shifted};
    out.host.resize(out.bytes() + more.size_bytes());
    unsigned char* to = out.host.data();
    const auto put = [&](const auto* from, std::size_t count) {
      if (count != 0) std::memcpy(to, from, count * sizeof *from);
      to += count * sizeof *from;
    };
    put(coded.codes.data(), coded.codes.size());
    put(coded.heads.data(), coded.heads.size());
    put(coded.scales.data(), coded.scales.size());
    put(thresholds.data(), thresholds.size());
    put(more.data(), more.size());
    out.there = upload(out.host.data(), out.host.size());
    return out;
  }

  // The vectors of queries on the device, by place, by which rows are measured; not for whole
  // numbers. All of it must live until the queue has done the copies.
  struct Vectors {
    std::vector<double> widened;  // which hold every element type
    std::vector<double> added;
    Array<double> elements;  // [count x dim]
    Array<double> squares;   // [count], as the reference adds them up; cosine
  };
  void upload_vectors(Vectors& out, AnyMatrixView queries, const std::vector<std::int64_t>& order) {
    out.widened = widened(queries, order);
    out.elements = upload(out.widened.data(), out.widened.size());
    if (!traits_of(packed_.space.metric).unit_rows) return;
    out.added = squares_of(out.widened, packed_.dim);
    out.squares = upload(out.added.data(), out.added.size());
  }

  // The same of both, coded on the device: enqueued. `known` [queries]: their upper bounds, or if
  // `reached` their thresholds; empty: nothing is known. order [which]: in device memory, where
  // place p then holds query which[order[p]]; whole numbers stay as they come, and leave it
  // untouched. With a scale that is the one of all queries, and these stay as they come too.
  // `pieces` carry sent_bytes(), and must live until the queue has done the copies. `there`: where
  // queries and upper bounds are in device memory, those of `which` in this order; then nothing is
  // sent. With `places` there are so many, and `order` [places] has been written: no query at some.
  struct There {
    const void* queries = nullptr;
    const double* known = nullptr;
    std::int64_t places = 0;
  };
  void code_on_device(Queries& out, Vectors& vectors, PiecewiseUpload<Queue>& pieces,
                      AnyMatrixView queries, std::span<const std::int64_t> which,
                      const ValueRange& found, std::span<const double> known, bool reached,
                      std::int32_t* order, double scale = 0, const There& there = {}) {
    const std::int64_t queries_given = std::ssize(which), dim = packed_.dim;
    const std::int64_t count = there.places > 0 ? there.places : queries_given;
    const CodingSpace& space = packed_.space;
    out.count = count, out.blocks = (count + block_queries - 1) / block_queries;
    out.slices = slices_of(packed_.steps), out.shifted = packed_.shifts_queries(found);
    out.there = queue_.template allocate<unsigned char>(out.bytes());
    DeviceQueryCoding coding = {};
    coding.count = count, coding.dim = dim, coding.slices = static_cast<int>(out.slices);
    coding.metric = space.metric, coding.slack = space.slack, coding.reached = reached;
    coding.integer = packed_.is_integer, coding.shift = out.shifted ? 128 : 0;
    coding.scale = scale;
    coding.row_offset = packed_.is_integer ? packed_.row_offset : 128;
    const auto to = out.arrays();
    coding.codes = to.codes, coding.scales = to.scales;
    coding.heads = to.heads, coding.thresholds = to.thresholds;
    if (!packed_.is_integer) {
      vectors.elements = queue_.template allocate<double>(static_cast<std::size_t>(count * dim));
      coding.elements = vectors.elements.data();
    }
    if (traits_of(space.metric).unit_rows) {
      vectors.squares = queue_.template allocate<double>(static_cast<std::size_t>(count));
      coding.added_square = vectors.squares.data();
    }

    // What is wanted until the queries are coded: one array, and then the memory is free for lists.
    const std::int64_t row_bytes = dim * size_of(queries.type());
    const std::int64_t bounds = known.empty() ? 0 : queries_given;
    const std::int64_t sent = there.queries ? 0 : queries_given;
    const std::int64_t sized = packed_.is_integer ? 0 : queries_given;
    auto scratch = queue_.template allocate<unsigned char>(static_cast<std::size_t>(
        8 * bounds + sized * std::int64_t{sizeof(QuerySize)} +
        (sized + 1) / 2 * 2 * std::int64_t{sizeof(float)} + sent * row_bytes));
    auto* const bound = reinterpret_cast<double*>(scratch.data());
    coding.sizes = reinterpret_cast<QuerySize*>(bound + bounds);
    coding.largest = reinterpret_cast<float*>(coding.sizes + sized);
    // Behind an even number of floats, so that doubles are aligned.
    auto* const rows = reinterpret_cast<unsigned char*>(coding.largest + (sized + 1) / 2 * 2);
    const auto send_numbers = [&](double* numbers_on_device, std::int64_t numbers, auto number) {
      pieces.send(reinterpret_cast<unsigned char*>(numbers_on_device), numbers, sizeof(double),
                  [&](std::int64_t begin, std::int64_t end, unsigned char* at) {
                    for (std::int64_t i = begin; i < end; ++i, at += sizeof(double)) {
                      const double x = number(static_cast<std::size_t>(i));
                      std::memcpy(at, &x, sizeof x);
                    }
                  });
    };
    if (mean_.size() > 0)
      coding.mean = mean_.data(),
      coding.mean_squares = dot(space.mean.data(), space.mean.data(), dim);
    if (bounds > 0) {
      send_numbers(bound, bounds,
                   [&](std::size_t i) { return known[static_cast<std::size_t>(which[i])]; });
      coding.known = bound;
    }
    if (there.known) coding.known = there.known;
    pieces.send(rows, sent, row_bytes,
                [&](std::int64_t begin, std::int64_t end, unsigned char* at) {
                  for (std::int64_t i = begin; i < end; ++i, at += row_bytes)
                    std::memcpy(at, queries.row(which[static_cast<std::size_t>(i)]),
                                static_cast<std::size_t>(row_bytes));
                });
    coding.queries = there.queries ? there.queries : rows;
    if (!packed_.is_integer) {
      coding.count = queries_given;
      launch_measure_queries(queue_, coding, queries.type());
      if (scale == 0) coding.order = order;
      if (scale == 0 && there.places == 0) launch_order_queries(queue_, coding);
    }
    if (there.places > 0) coding.order = order;
    coding.count = count;
    launch_encode_queries(queue_, coding, queries.type());
    pieces.close();
  }
  // Bytes that code_on_device() sends for so many queries, at most.
  std::int64_t sent_bytes(ElementType type, std::int64_t count) const {
    return count * (packed_.dim * size_of(type) + 8);
  }

  // Entries of a list: as many as may pass between two updates of the threshold, or all rows where
  // they are fewer.
  std::int64_t room_for(std::int64_t k) const {
    return std::min(2048 + 8 * k, packed_.panels() * panel_rows);
  }
  // As room_for, for a search of so many queries, at most one block: 34 MB of lists and
  // keys in all.
  std::int64_t room_of_few(std::int64_t k, std::int64_t queries) const {
    const std::int64_t room = queries <= few_queries ? 65536 : 16384;
    return std::max(room_for(k), std::min(room, packed_.panels() * panel_rows));
  }
  // The factor by which the scanned part of the base grows. It leaves room in a list for 32 times
  // the pairs that pass exact thresholds, since loose bounds let more pass.
  static std::int64_t growth_of_few(std::int64_t k, std::int64_t room) {
    return std::clamp<std::int64_t>(room / (32 * k), usual_growth, 64);
  }
  // Bytes of device memory that a query takes in a batch, with a list of so many entries. There are
  // as many spare lists as blocks at once, which are fewer than the queries of a large batch. The
  // vector is there twice, as it came and as doubles.
  std::int64_t bytes_for_query(std::int64_t k, std::int64_t room, bool sorted) const {
    const std::int64_t lists = sorted ? 2 : 1;
    return lists * room * static_cast<std::int64_t>(sizeof(Entry) + sizeof(double)) + 16 * k +
           16 * packed_.dim + slices_of(packed_.steps) * slice_bytes + 320;
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
  // Whether lists are sorted, rather than each entry compared with all others, whose work grows
  // with the square of their length. The k from which sorting pays was not measured.
  static constexpr std::int64_t most_compared_k = 256;
  static bool sorts(std::int64_t k) { return k > most_compared_k; }
  static constexpr std::int64_t usual_growth = 4;
  // Pairs that are scored before progress is reported, at most and one step more. A guess.
  static constexpr std::int64_t most_ahead = std::int64_t{1} << 31;
  // Rows of the first step of few queries, from which their first thresholds are: so many are
  // scored in the time of a launch, and a block finds the k-th of them in a few microseconds. A
  // guess.
  static constexpr std::int64_t first_rows_of_few = 4096;

  // Panels of the first step: about 2 k + 500 allowed rows, which is enough for a threshold, and a
  // quarter of what a list holds. Where a search is limited to some rows, proportionally more
  // panels; panels are in random order, so that neighbouring rows, of one size say, are not all in
  // the first ones or the last.
  std::int64_t first_panels(std::int64_t k, const Limited& limited) const {
    const std::int64_t panels = (2 * k + 511) / panel_rows;
    if (limited.count == 0) return panels;
    return (panels * packed_.rows + limited.count - 1) / limited.count;
  }

  template <class T>
  Array<T> upload(const T* from, std::size_t count) {
    Array<T> out = queue_.template allocate<T>(count);
    queue_.upload(out.data(), from, count);
    return out;
  }

  DeviceBaseView base_view() const {
    const Metric metric = packed_.space.metric;
    return {codes_.codes.data(),
            codes_.heads.data(),
            codes_.tests.data(),
            codes_.bias.data(),
            codes_.squares.data(),
            codes_.sums.data(),
            reinterpret_cast<const std::uint32_t*>(codes_.ids.data()),
            order_.data(),
            packed_.panels(),
            static_cast<int>(slices_of(packed_.steps)),
            packed_.is_integer,
            traits_of(metric).squared,
            traits_of(metric).unit_rows,
            !packed_.is_integer && traits_of(metric).squared ? 2 * packed_.space.slack : 0.0};
  }

  // The state of one call of run().
  struct Run {
    AnyMatrixView queries;
    const ValueRange& found;
    int k;
    std::span<const double> upper_bounds;
    const Limited& limited;
    ExactNeighbors& out;
    DeviceStats& stats;
    Reporter* watched;  // nullptr: no progress is reported
    std::size_t most_bytes;
    std::int64_t piece;                   // bytes of queries copied at a time
    MatrixView<Id> probes;                // [queries x lists at most]; of rows by list
    bool usual_lists = false;             // for few queries too
    std::vector<std::int64_t> full = {};  // queries whose lists were full
    std::vector<double> reached = {};     // [queries] the thresholds that these have reached
    std::vector<double> scales = {};      // see find_scales()
    // Of queries in device memory: these, what is known of them, and who takes what is found.
    const DeviceRowData<Queue>* there = nullptr;
    const double* known_on_device = nullptr;
    const std::function<void(const FoundOnDevice&)>* take = nullptr;
    const RowKeys* keys = nullptr;  // of rows that are not measured by their vectors
    bool self_join = false;         // the queries are the rows
  };

  // All batches of a search of queries that come from the processor.
  std::vector<std::int64_t> search(Run& run, std::span<const std::int64_t> which,
                                   std::int64_t batch, const Progress& progress) {
    const std::int64_t count = std::ssize(which);
    std::vector<std::int64_t> left, sorted;
    if (by_list() && !packed_.is_integer && count > block_queries) {
      find_scales(run, which);
      sorted.assign(which.begin(), which.end());
      which = sort_by_scale(run, sorted);
    }
    Reporter reporter(progress, "search", count * work_of_query(run));
    if (progress) run.watched = &reporter;
    for (std::int64_t first = 0, taken; first < count; first += taken) {
      taken = alike(run, which.subspan(static_cast<std::size_t>(first)), batch);
      const auto some =
          which.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(taken));
      try {
        run_batch(run, some, false);
      } catch (const MemoryBudgetError&) {
        if (taken > block_queries) {  // with fewer at a time, from here on
          batch = std::max<std::int64_t>(block_queries, taken / 2), taken = 0;
          continue;
        }
        if (!std::exchange(run.usual_lists, true)) {
          taken = 0;
          continue;
        }
        left.insert(left.end(), which.begin() + first, which.end());
        break;
      }
    }
    if (!run.full.empty()) run_again(run, batch, progress, left);
    return left;
  }

  // Answers queries whose lists were full; adds to `left` those for which there is no memory.
  void run_again(Run& run, std::int64_t batch, const Progress& progress,
                 std::vector<std::int64_t>& left) {
    auto full = std::exchange(run.full, {});
    const std::span<const std::int64_t> which = sort_by_scale(run, full);
    const auto count = std::ssize(which);
    Reporter reporter(progress, "search again", 2 * count * work_of_query(run));
    if (progress) run.watched = &reporter;
    for (std::int64_t first = 0, taken; first < count; first += taken) {
      const auto rest = which.subspan(static_cast<std::size_t>(first));
      taken = alike(run, rest, batch);
      try {
        run_batch(run, rest.first(static_cast<std::size_t>(taken)), true);
      } catch (const MemoryBudgetError&) {
        if (taken == 1)
          left.push_back(which[static_cast<std::size_t>(first)]);
        else
          batch = taken / 2, taken = 0;
      }
    }
    run.stats.repeated += count;
  }

  // `again`: searches queries whose lists were full, with lists as long as necessary.
  void run_batch(Run& run, std::span<const std::int64_t> which, bool again) {
    DeviceStats& stats = run.stats;
    const int k = run.k;
    DeviceBaseView base = base_view();
    base.allowed = run.limited.bits.data();
    if (run.keys) base.key_slack = run.keys->slack(which);
    const auto stage = [&](const char* name) {
      if (stats.at_stage) stats.at_stage(name);
    };
    stage("queries in");
    std::optional<SelfJoinSteps<Queue>> pairs;
    if (!again && scores_pairs_once(run, which)) {
      pairs.emplace(queue_, base);
      base = pairs->base();
    }
    if (!again) stats.once = pairs.has_value();
    // Queries have places, of which a self-join leaves some free.
    const std::int64_t given = std::ssize(which), queries = pairs ? pairs->queries() : given;
    const auto count = static_cast<std::size_t>(queries);
    const bool there_coded = run.there || pairs || queries > block_queries;
    DeviceQueries coded;  // by the processor
    std::vector<double> reached;
    Vectors vectors;
    Queries uploaded;
    const ElementType type = run.queries.type();
    std::optional<PiecewiseUpload<Queue>> pieces;
    pieces.emplace(queue_, threads_, run.piece, sent_bytes(type, given),
                   packed_.dim * size_of(type));
    const StreamSyncGuard waits_at_exit{queue_};
    // The results to copy back, in one array too.
    const std::size_t results = count * static_cast<std::size_t>(k);
    const bool one_scale = by_list() && !packed_.is_integer;
    const std::size_t ordered =
        pairs || (there_coded && !packed_.is_integer && !one_scale) ? count : 0;
    auto found =
        queue_.template allocate<unsigned char>(BatchResults::bytes(results, count, ordered));
    const BatchResults there(found.data(), results, count);
    if (pairs) pairs->place_rows(there.order);
    if (there_coded) {
      code_on_device(uploaded, vectors, *pieces, run.queries, which, run.found,
                     again ? std::span<const double>(run.reached) : run.upper_bounds, again,
                     there.order, one_scale ? scale_of_all(run, which) : 0,
                     there_from(run, which, pairs ? queries : 0));
    } else {
      coded = device_queries(packed_, run.queries, which, run.found, threads_);
      reached = again ? std::vector<double>(count) : thresholds_for(coded, run.upper_bounds);
      for (std::size_t place = 0; again && place < count; ++place)
        reached[place] = run.reached[static_cast<std::size_t>(coded.order[place])];
      // The vectors by which rows are measured come in the same copy: each takes some microseconds.
      std::vector<double> measured;
      if (!packed_.is_integer) measured = widened(run.queries, coded.order);
      if (traits_of(packed_.space.metric).unit_rows) {
        const std::vector<double> added = squares_of(measured, packed_.dim);
        measured.insert(measured.end(), added.begin(), added.end());
      }
      uploaded = upload_queries(coded, reached, measured);
    }
    const double* const elements = there_coded ? vectors.elements.data() : uploaded.more();
    const double* const squares =
        there_coded ? vectors.squares.data() : elements + queries * packed_.dim;
    const DeviceQueryView view = uploaded.view(0, queries);
    std::optional<ListRounds<Queue>> rounds;
    if (by_list()) {
      std::vector<const Id*> probes;
      for (std::size_t place = 0; place < count; ++place)
        probes.push_back(run.probes.row(there_coded ? which[place] : coded.order[place]));
      rounds.emplace(queue_, base, view, first_panel_, std::move(probes), run.probes.cols(),
                     run.most_bytes);
    }
    const bool sorted = sorts(k) || again;
    const auto fits = [&](std::int64_t room) {
      return static_cast<std::size_t>(queries * bytes_for_query(k, room, sorted)) <= run.most_bytes;
    };
    std::int64_t room = room_for(k), growth = usual_growth;
    if (again) {
      room = std::max(room, most_passing(base, view, there.counts, rounds));
      if (!fits(room)) throw MemoryBudgetError("lists of {} entries are too long", room);
    } else if (queries <= block_queries && !run.usual_lists && fits(room_of_few(k, queries))) {
      room = room_of_few(k, queries), growth = growth_of_few(k, room);
    }
    auto entries = queue_.template allocate<Entry>(count * static_cast<std::size_t>(room));
    auto keys = queue_.template allocate<double>(count * static_cast<std::size_t>(room));
    const std::int64_t spares = sorted ? spare_lists(queue_, queries) : 0;
    auto spare_keys = queue_.template allocate<double>(static_cast<std::size_t>(spares * room));
    auto spare_entries = queue_.template allocate<Entry>(static_cast<std::size_t>(spares * room));
    // Of a scan of all rows nothing is allocated from here on.
    if (again && run.watched) run.watched->add(queries * work_of_query(run));  // what was counted
    queue_.fill_bytes(there.counts, 0, 2 * count);  // and those of `lost`

    const DeviceLists lists = {entries.data(), keys.data(), there.counts, there.lost,
                               static_cast<int>(room)};
    stats.steps = 0;
    // Work is enqueued ahead. Where progress is reported so much of it is waited for as takes some
    // milliseconds, so that it can be stopped: not each step of a few queries.
    const std::int64_t pairs_of_work =
        by_list() ? packed_.rows / (std::ssize(first_panel_) - 1) : panel_rows;
    std::int64_t ahead = 0;
    const auto report = [&](std::int64_t work) {
      if (!run.watched) return;
      ahead += given * work * pairs_of_work;
      if (ahead >= most_ahead) queue_.wait(), ahead = 0;
      run.watched->add(given * work);
    };
    const auto step = [&](std::int64_t work, auto scan) {
      stage("scan");
      scan();
      stage("thresholds");
      launch_update(queue_, base, view, lists, k);
      ++stats.steps;
      report(work);
    };
    std::int64_t first = again ? base.panels : first_panels(k, run.limited);
    // Whether all pairs of the first step are stored, which is then so short that lists hold them.
    const bool known = !run.upper_bounds.empty() || run.known_on_device;
    const bool stored = queries <= few_queries && !again && !known && !base.allowed && !rounds;
    if (stored) first = std::max(first, std::min(room / 4, first_rows_of_few) / panel_rows);
    // With thresholds from elsewhere the first step may be longer, though not all of the base:
    // these rows may be nearer than those.
    const std::int64_t first_end =
        std::min(base.panels, std::max(first, known ? base.panels / 4 : 0));
    const auto end_after = [&](std::int64_t end) { return std::min(growth * end, base.panels); };
    stats.one_launch = !again && !pairs && !rounds && !run.keys && !sorted &&
                       searches_in_one_launch(queue_, base.slices, queries);
    if (stats.one_launch) {
      stage("scan");
      launch_few_search(queue_, base, view, lists,
                        {first_end, growth, stored, k, elements, squares, rows_.data(), rows_.type,
                         packed_.dim, there.keys, there.ids});
      for (std::int64_t end = 0; end < base.panels; ++stats.steps)
        end = end > 0 ? end_after(end) : first_end;
      report(base.panels);
    } else {
      if (pairs) {
        pairs->scan(view, lists, first, growth, step);
      } else if (rounds) {
        scan_lists(*rounds, run.probes.cols(), lists, again, first, growth, step);
      } else {
        for (std::int64_t begin = 0, end = first_end; begin < base.panels;
             begin = end, end = end_after(end))
          step(end - begin, [&] {
            if (stored && begin == 0)
              launch_scan_of_all(queue_, base, view, lists, end);
            else
              launch_scan(queue_, base, view, lists, begin, end);
          });
      }

      stage("measure");
      if (run.keys) {
        run.keys->measure(base, lists, there_coded ? which : coded.order, elements);
      } else if (packed_.is_integer) {
        launch_integer_keys(queue_, base, view, lists);
      } else {
        launch_measure(queue_, base, view, lists, elements, squares, rows_.data(), rows_.type,
                       packed_.dim);
      }
      stage("rank");
      launch_rank(queue_, base, view, lists,
                  SpareLists{spare_keys.data(), spare_entries.data(), spares}, there.keys,
                  there.ids, k);
    }

    if (run.there) {
      stage("answers");
      (*run.take)({which.front(), queries, k, there.keys, there.ids,
                   ordered > 0 ? there.order : nullptr, there.lost});
      note_lost(run, which, there, count, ordered);
      return stage(nullptr);
    }
    pieces->wait();
    pieces.reset();  // whose pinned memory the answers take, while the device is at work
    stage("answers out");
    BatchAnswers<Queue> answers(queue_, run.out, k, run.piece, there, count, found.size());
    const BatchResults best = answers.wait_for_heads();
    if (std::any_of(best.lost, best.lost + count, [](int lost) { return lost != 0; })) {
      reached.resize(count);
      queue_.download(reached.data(), view.thresholds, count);
      queue_.wait();
    }
    std::vector<std::int64_t> query_at(count);  // -1: none, or to be searched again
    for (std::size_t place = 0; place < count; ++place) {
      if (ordered > 0 && best.order[place] < 0) {
        query_at[place] = -1;  // no query's place
        continue;
      }
      const std::size_t number = ordered > 0 ? static_cast<std::size_t>(best.order[place]) : place;
      const std::int64_t query = there_coded ? which[number] : coded.order[place];
      query_at[place] = best.lost[place] ? -1 : query;
      if (best.lost[place]) {
        run.reached.resize(static_cast<std::size_t>(run.queries.rows()));
        run.reached[static_cast<std::size_t>(query)] = reached[place];
        run.full.push_back(query);
        continue;
      }
      stats.survivors += best.counts[place];
    }
    answers.take(query_at, threads_);
    stage(nullptr);
  }

  // Whether a batch is a self-join of all rows, any of which may be found, that scores each pair
  // once.
  bool scores_pairs_once(const Run& run, std::span<const std::int64_t> which) const {
    for (std::size_t i = 0; run.self_join && i < which.size(); ++i)
      if (which[i] != static_cast<std::int64_t>(i)) return false;
    return run.self_join && std::ssize(which) == packed_.rows && !by_list() && !run.keys &&
           run.limited.bits.size() == 0 && run.upper_bounds.empty() && !run.known_on_device &&
           SelfJoinSteps<Queue>::fits(queue_, base_view(), packed_.dim, first_panels(run.k, {}));
  }

  // Where queries in device memory and their bounds are, from the first of `which` on; with
  // `places` they are the rows, which are there too unless they are whole numbers.
  There there_from(const Run& run, std::span<const std::int64_t> which, std::int64_t places) const {
    There out;
    out.places = places;
    if (run.there) {
      out.queries = static_cast<const unsigned char*>(run.there->data()) +
                    which.front() * run.there->dim * size_of(run.there->type);
      if (run.known_on_device) out.known = run.known_on_device + which.front();
    } else if (places > 0 && !packed_.is_integer) {
      out.queries = rows_.data();
    }
    return out;
  }
  // Of a batch of so many places in device memory which queries are lost, whose lists were full,
  // and what all had.
  void note_lost(Run& run, std::span<const std::int64_t> which, const BatchResults& there,
                 std::size_t count, std::size_t ordered) {
    std::vector<int> heads(2 * count);
    std::vector<std::int32_t> order;
    {
      const StreamSyncGuard arrived{queue_};
      queue_.download(heads.data(), there.counts, 2 * count);
      queue_.wait();
    }
    for (std::size_t place = 0; place < count; ++place) {
      if (heads[count + place] == 0) {
        run.stats.survivors += heads[place];
        continue;
      }
      if (ordered > 0 && order.empty()) {
        order.resize(count);
        const StreamSyncGuard arrived{queue_};
        queue_.download(order.data(), there.order, count);
        queue_.wait();
      }
      if (!order.empty() && order[place] < 0) continue;  // no query's place
      run.full.push_back(which[order.empty() ? place : static_cast<std::size_t>(order[place])]);
    }
  }

  // The longest list that queries would have with the present thresholds. counts: [count].
  std::int64_t most_passing(const DeviceBaseView& base, const DeviceQueryView& view, int* counts,
                            std::optional<ListRounds<Queue>>& rounds) {
    std::vector<int> passed(static_cast<std::size_t>(view.count));
    queue_.fill_bytes(counts, 0, passed.size());
    const DeviceLists none = {nullptr, nullptr, counts, nullptr, 0};
    if (!rounds)
      launch_scan(queue_, base, view, none, 0, base.panels);
    else if (rounds->choose(0, rounds->columns()) > 0)
      rounds->scan(none);
    const StreamSyncGuard arrived{queue_};
    queue_.download(passed.data(), counts, passed.size());
    queue_.wait();
    return *std::max_element(passed.begin(), passed.end());
  }

  // The steps of a search by lists. step(work, scan): scans, and updates thresholds.
  template <class Step>
  static void scan_lists(ListRounds<Queue>& rounds, std::int64_t columns, const DeviceLists& lists,
                         bool again, std::int64_t first_panels, std::int64_t growth, Step step) {
    for (std::int64_t first = 0, last; first < columns; first = last) {
      last = again ? columns : std::min(columns, std::max<std::int64_t>(1, growth * first));
      const std::int64_t longest = rounds.choose(first, last);
      // What a whole list holds may be more than the lists of queries that have no threshold.
      const std::int64_t some = again || first > 0 ? longest : std::min(longest, first_panels);
      for (std::int64_t begin = 0, end = some;;
           begin = end, end = std::min(longest, growth * end)) {
        step(end == longest ? last - first : 0, [&] { rounds.scan(lists, begin, end); });
        if (end == longest) break;
      }
    }
  }
  bool by_list() const { return !first_panel_.empty(); }
  // What a query is reported to take.
  std::int64_t work_of_query(const Run& run) const {
    return by_list() ? run.probes.cols() : packed_.panels();
  }

  // Queries that are coded for blocks of lists, in which any of them may come together, have one
  // scale. So that it suits them, those of a batch differ by a factor of 2 at most in the scale
  // that would be their own: a wide bound lets more rows pass, and is still right.
  //
  // run.scales [queries]: the scale of each of `which`; 0 of zeros, which any scale suits.
  void find_scales(Run& run, std::span<const std::int64_t> which) const {
    run.scales.resize(static_cast<std::size_t>(run.queries.rows()));
    constexpr std::int64_t together = 64;
    const std::int64_t count = std::ssize(which);
    parallel_for(threads_, (count + together - 1) / together, [&](std::int64_t task) {
      std::vector<double> u(static_cast<std::size_t>(packed_.dim));
      for (std::int64_t i = task * together; i < std::min(count, (task + 1) * together); ++i) {
        const std::int64_t query = which[static_cast<std::size_t>(i)];
        packed_.space.load(run.queries, query, u.data());
        const auto [largest, squares] = packed_.space.kernels->measure(u.data(), packed_.dim);
        run.scales[static_cast<std::size_t>(query)] =
            largest > 0 ? scale_for(format_int8, largest, std::sqrt(squares)) : 0;
      }
    });
  }
  static double scale_of(const Run& run, std::int64_t query) {
    return run.scales[static_cast<std::size_t>(query)];
  }
  // `which`, ascending by scale where that matters.
  static std::span<const std::int64_t> sort_by_scale(const Run& run,
                                                     std::vector<std::int64_t>& which) {
    if (!run.scales.empty())
      std::sort(which.begin(), which.end(), [&](std::int64_t a, std::int64_t b) {
        return std::pair(scale_of(run, a), a) < std::pair(scale_of(run, b), b);
      });
    return which;
  }
  // How many of the next queries make a batch, `most` at most.
  static std::int64_t alike(const Run& run, std::span<const std::int64_t> next, std::int64_t most) {
    most = std::min(most, std::ssize(next));
    if (run.scales.empty()) return most;
    double least = 0;
    for (std::int64_t i = 0; i < most; ++i) {
      const double scale = scale_of(run, next[static_cast<std::size_t>(i)]);
      if (least == 0) least = scale;
      if (scale > 2 * least) return i;
    }
    return most;
  }
  static double scale_of_all(const Run& run, std::span<const std::int64_t> which) {
    double most = 0;
    for (const std::int64_t query : which) most = std::max(most, scale_of(run, query));
    return most > 0 ? most : 1;
  }

  // The order in which panels are scanned: at random, within each list.
  void put_in_order(std::span<const std::int64_t> first_panel) {
    std::vector<std::uint32_t> order(static_cast<std::size_t>(packed_.panels()));
    const StreamSyncGuard waits_at_exit{queue_};
    std::iota(order.begin(), order.end(), 0u);
    Random random(0x6b6e656172);  // any seed: answers do not depend on it
    for (std::size_t list = 0; list + 1 < first_panel.size(); ++list) {
      std::uint32_t* const panels = order.data() + first_panel[list];
      const auto count = static_cast<std::uint64_t>(first_panel[list + 1] - first_panel[list]);
      for (std::uint64_t i = count; i > 1; --i) std::swap(panels[i - 1], panels[random.below(i)]);
    }
    order_ = upload(order.data(), order.size());
    if (!packed_.is_integer) mean_ = upload(packed_.space.mean.data(), packed_.space.mean.size());
    queue_.wait();
    if (packed_.is_integer) rows_.own = {};
  }

  // The queries as doubles, by place.
  static std::vector<double> widened(AnyMatrixView queries,
                                     const std::vector<std::int64_t>& order) {
    std::vector<double> out(order.size() * static_cast<std::size_t>(queries.cols()));
    visit(queries, [&](auto view) {
      double* to = out.data();
      for (const std::int64_t query : order)
        for (std::int64_t i = 0; i < view.cols(); ++i) *to++ = to_double(view.row(query)[i]);
    });
    return out;
  }
  // For each vector, sum x_i x_i as the reference adds it up: minus the key of its product with
  // itself. A sum of zeros is +0, whose sign that key does not have.
  static std::vector<double> squares_of(const std::vector<double>& vectors, std::int64_t dim) {
    const MatrixView<double> view(vectors.data(), std::ssize(vectors) / dim, dim);
    ExactDistance measure(Metric::ip, ElementType::f64);
    std::vector<double> out(static_cast<std::size_t>(view.rows()));
    for (std::int64_t i = 0; i < view.rows(); ++i) {
      measure.set_query(view, i);
      out[static_cast<std::size_t>(i)] = 0.0 - measure.key(view.row(i));
    }
    return out;
  }

  Queue& queue_;
  const Coding packed_;
  int threads_;
  DeviceCodes<Queue> codes_;
  DeviceRowData<Queue> rows_;
  const std::vector<std::int64_t> first_panel_;  // [lists + 1] of rows by list; else empty
  Array<std::uint32_t> order_;
  Array<double> mean_;  // of certified codes that are centred, as queries are then
};

}  // namespace knear::detail
