// knear/knn/device/device_search.hpp -- searches by a GPU: rows are scanned there.
//
// Rows go to the device as they are, and it does the rest (scan/device/packing.hpp,
// scan/device/device_scan.hpp). Rows that are searched again stay there, for searches that may find
// all of them or one in sixteen at least: filters, and rows that were removed from an index, go
// there as a bit a row. Where the device has no memory for all rows they come in chunks, each on
// its way while the one before is searched. Queries that come back are answered by the processor.
//
// Range searches and threshold-heap go by the same rows, one tile after another: the device prunes
// and measures or compresses, the processor keeps and sorts. Their lists there have room for every
// row of a tile, so only what the device has no memory for comes back.
//
// Queue: cuda::Queue, or the emulated one of the tests. One search at a time.
#pragma once
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/knn/device/rows_on_device.hpp"
#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search_position.hpp"
#include "knear/scan/device/range_by_tiles.hpp"
#include "knear/scan/device/threshold_heap_by_tiles.hpp"

namespace knear::detail {

template <class Queue>
class DeviceSearch final : public DeviceEngine {
  static_assert(DeviceScan<Queue>::most_integer_dim == most_device_integer_dim);

 public:
  // open: makes the queue, where a search needs one. Rows that stayed on the device have theirs.
  explicit DeviceSearch(std::function<Queue()> open) : open_(std::move(open)) {}
  explicit DeviceSearch(Queue queue)
      : DeviceSearch(std::function<Queue()>([queue = std::move(queue)] { return queue; })) {}

  std::int64_t host_bytes(const SearchRequest& request, std::int64_t batch) const override {
    return host_bytes_of<Queue>(request, batch);
  }

  std::int64_t reserved_bytes(const SearchRequest& request) const override {
    return least_host_bytes<Queue>(request) +
           (request.kind == SearchKind::range ? 2 * most_pairs(request) * pair_bytes : 0);
  }

  bool holds(const SearchPosition& at) const override {
    return all_rows(at, at.segment->allowed) && at.prepared().device_copies.kept(name(at));
  }

  // What half of the device's free memory holds: the other half is for queries and lists. Where
  // that is not all rows, those that come next are on their way meanwhile.
  std::int64_t most_chunk_rows(const SearchPosition& at) override {
    if (holds(at)) return most_rows;
    // A device that has no memory for a queue has none for rows: the processor's way, then.
    try {
      queue();
    } catch (const MemoryBudgetError&) {
      return most_rows;
    }
    const std::int64_t row_bytes = at.prepared().on_device ? 0 : at.base().row_bytes();
    const std::int64_t code_bytes = device_code_bytes(at.base().cols()) + 8;  // and sizes, heads
    const auto room = static_cast<std::int64_t>(queue()->free_bytes() / 2);
    if (at.base().rows() <= room / (code_bytes + row_bytes)) return most_rows;
    return std::clamp<std::int64_t>(room / (code_bytes + 2 * row_bytes), 1024, most_rows);
  }

  std::vector<std::int64_t> nearest(SearchPosition& at, ReportBuilder& report,
                                    std::vector<std::int64_t> todo, ExactNeighbors& out) override {
    if (out.columns() > DeviceScan<Queue>::most_k) return todo;
    const auto allowed = allowed_on_device(at);
    if (!allowed) return todo;
    at.answer_zero_queries(todo, *allowed, out);
    if (const auto rows = rows_on_device(at, report))
      return nearest_of(*rows, at, report, *allowed, todo, out);
    return todo;
  }

  // Of queries in the memory of the device, which the request has the shape of: calls take(rows,
  // found) for some after others, with what was found among the rows at hand, in the work of
  // *rows.queue, k of each query. bounds [queries]: upper bounds of their k-th keys, in device
  // memory; nullptr: none are known. Returns the queries, ascending, that are to be answered in
  // another way: all of them where the rows do not stay on the device, or few of them are allowed.
  template <class Take>
  std::vector<std::int64_t> nearest_on_device(SearchPosition& at, ReportBuilder& report,
                                              const DeviceRowData<Queue>& queries, std::int64_t k,
                                              const double* bounds, Take take) {
    std::vector<std::int64_t> all = at.all_queries();
    if (at.request.limited() || k > DeviceScan<Queue>::most_k || !by_bits(at) ||
        most_chunk_rows(at) < at.base().rows())
      return all;
    const std::shared_ptr<RowsOnDevice> rows = rows_on_device(at, report);
    if (!rows) return all;
    std::lock_guard lock(rows->mutex);
    DeviceStats stats;
    std::vector<std::int64_t> left = rows->scan->run_on_device(
        queries, at.request.query_range, k, stats,
        rows->scan->batch_for(queries.count, k, rows->queue->free_bytes()),
        at.request.options.progress, bounds, at.allowed(), std::numeric_limits<std::size_t>::max(),
        [&](const FoundOnDevice& found) { take(*rows, found); },
        at.request.kind == SearchKind::self_join);
    note_scored(*rows, report, queries.count, stats);
    report.stats.survivors += stats.survivors;
    note_answered(*rows, at, report, queries.count - std::ssize(left));
    return left;
  }

  std::vector<std::int64_t> range(SearchPosition& at, ReportBuilder& report, double limit,
                                  std::vector<std::int64_t> todo, RangeSink& sink) override {
    const auto allowed = allowed_on_device(at);
    const auto rows = allowed ? rows_on_device(at, report) : nullptr;
    if (!rows) return todo;
    const SearchRequest& request = at.request;
    std::lock_guard lock(rows->mutex);
    const std::vector<double> upper_bounds(request.queries.rows(), limit);
    ScanJob job = at.job(request.queries, request.k);
    job.upper_bounds = upper_bounds.data(), job.allowed = *allowed;
    DeviceTileSizes sizes = range_sizes(at, room_on(*rows->queue, request));
    ScanStats these;
    std::vector<std::int64_t> left =
        scan_range_on(*rows->queue, *rows->scan, job, limit, sizes, todo, at.subset, sink, these,
                      request.options.progress);
    ScanStats& stats = report.stats;
    stats.add(these);
    stats.buffer_bytes = std::max(
        stats.buffer_bytes,
        these.buffer_bytes + host_bytes(request, std::min(sizes.together, request.queries.rows())));
    note_tiles(*rows, at, report, std::ssize(todo) - std::ssize(left), sizes);
    return left;
  }

  std::vector<std::int64_t> threshold_heap(SearchPosition& at, ReportBuilder& report,
                                           const ThresholdHeapJob& heap,
                                           std::vector<std::int64_t> todo,
                                           ExactNeighbors& out) override {
    const SearchRequest& request = at.request;
    ScanJob job = at.job(request.queries, out.columns());
    job.pending = at.most_pending();
    job.upper_bounds = heap.thresholds.data(), job.allowed = at.allowed();
    at.answer_zero_queries(todo, job.allowed, out);
    const auto rows = rows_on_device(at, report);
    if (!rows) return todo;
    std::lock_guard lock(rows->mutex);
    DeviceTileSizes sizes = heap_sizes(request, heap.batch, room_on(*rows->queue, request));
    std::vector<std::int64_t> left =
        scan_threshold_heap_on(*rows->queue, *rows->scan, job, sizes, heap.batch, todo, out,
                               report.stats, heap.stats, request.options.progress);
    note_tiles(*rows, at, report, std::ssize(todo) - std::ssize(left), sizes);
    return left;
  }

 private:
  using RowsOnDevice = detail::RowsOnDevice<Queue>;
  // Rows of a segment from `begin` on, on their way to the device.
  struct Coming {
    const PreparedRows* segment = nullptr;
    std::int64_t begin = 0;
    DeviceRowData<Queue> rows;  // once sent
    BackgroundTask sending{BackgroundTask::TakenBy::own_thread};
  };

  // Guesses: rows enough that a launch is short beside what it does, queries of a range search as
  // many as an exact search with lists of its own would take, copies that are short beside the
  // tile, queries coded at once.
  static constexpr std::int64_t usual_tile_rows = 16384, usual_group = 2048,
                                usual_pairs = 256 << 10, most_together = 64 << 10;
  // Without a limit, of the processor's memory for compressed rows of threshold-heap.
  static constexpr std::int64_t usual_heap_bytes = std::int64_t{1} << 30;
  static constexpr auto pair_bytes = static_cast<std::int64_t>(sizeof(PrunedPair));
  static constexpr std::int64_t most_rows = std::int64_t{1} << 30;

  // Which of the rows at hand may be found of those that are sent: all of them where the others
  // are not sent. Nothing where few rows of those that are on the device alone may be: the
  // processor has a copy made.
  std::optional<AllowedRows> allowed_on_device(SearchPosition& at) const {
    if (by_bits(at)) return at.allowed();
    at.list_allowed();
    if (at.prepared().on_device && !at.subset.empty()) return {};
    return AllowedRows{};
  }
  // The rows at hand on the device, and the next ones on their way. Nothing where the device has no
  // memory for them.
  std::shared_ptr<RowsOnDevice> rows_on_device(SearchPosition& at, ReportBuilder& report) {
    std::shared_ptr<RowsOnDevice> rows;
    try {
      rows = sent(at, report);
    } catch (const MemoryBudgetError&) {
    }
    send_next(at);
    return rows;
  }

  std::int64_t batch_of(const SearchPosition& at, std::int64_t batch) const {
    const SearchRequest& request = at.request;
    return fitting_batch<Queue>(
        request, batch,
        request.options.memory - at.other_bytes() + host_bytes(request, block_queries));
  }
  // What was scored for so many queries. Lists that were full were counted, and then made again.
  static void note_scored(const RowsOnDevice& rows, ReportBuilder& report, std::int64_t queries,
                          const DeviceStats& stats) {
    report.note_scored(rows.coding,
                       (stats.once ? (queries + 1) / 2 : queries) + 2 * stats.repeated);
    if (stats.once) report.self_joined = true;
  }
  // That so many queries were answered there.
  void note_answered(const RowsOnDevice& rows, const SearchPosition& at, ReportBuilder& report,
                     std::int64_t queries) const {
    report.note_pass(at.device_pass(), queries, at.count);
    report.note_device(rows.queue->most_bytes_in_use(), 2 * piece_of(at.request));
  }
  void note_tiles(const RowsOnDevice& rows, const SearchPosition& at, ReportBuilder& report,
                  std::int64_t answered, const DeviceTileSizes& sizes) const {
    report.note_scored(rows.coding, answered, (answered + sizes.group - 1) / sizes.group);
    note_answered(rows, at, report, answered);
  }

  // Returns those of `todo` that it has not answered.
  std::vector<std::int64_t> nearest_of(RowsOnDevice& rows, SearchPosition& at,
                                       ReportBuilder& report, const AllowedRows& allowed,
                                       const std::vector<std::int64_t>& todo, ExactNeighbors& out) {
    std::lock_guard lock(rows.mutex);
    const SearchRequest& request = at.request;
    const std::int64_t k = out.columns(), asked = std::ssize(todo),
                       queries = request.queries.rows();
    // To ask what is free takes as long as a search of few queries, whose lists are small.
    const bool small = asked <= block_queries && k <= warp_select_max_k;
    const std::size_t room = small && !request.limited() ? 0 : room_on(*rows.queue, request);
    const std::int64_t batch = batch_of(at, rows.scan->batch_for(asked, k, room));
    DeviceStats stats;
    std::vector<std::int64_t> left = rows.scan->run(
        request.queries, todo, request.query_range, k, out, stats, batch, request.options.progress,
        at.upper_bounds, allowed,
        request.limited() ? room : std::numeric_limits<std::size_t>::max(), piece_of(request), {},
        request.kind == SearchKind::self_join && at.whole && at.subset.empty());
    if (!at.subset.empty()) number_rows(at, todo, left, out);
    note_scored(rows, report, asked, stats);
    report.stats.repeated += stats.repeated;
    report.stats.survivors += stats.survivors;
    report.stats.buffer_bytes =
        std::max(report.stats.buffer_bytes, host_bytes(request, std::min(batch, queries)));
    note_answered(rows, at, report, asked - std::ssize(left));
    return left;
  }

  // Rows that were sent alone are numbered by themselves: their numbers among the rows at hand, in
  // the answers of those of `todo` that are not left.
  static void number_rows(const SearchPosition& at, const std::vector<std::int64_t>& todo,
                          const std::vector<std::int64_t>& left, ExactNeighbors& out) {
    std::vector<bool> answered(out.ids.rows());
    for (const std::int64_t q : todo) answered[q] = true;
    for (const std::int64_t q : left) answered[q] = false;
    for (const std::int64_t q : todo)
      for (std::int64_t j = 0; answered[q] && j < out.columns(); ++j)
        if (Id& id = out.ids.row(q)[j]; id != no_id) id = at.subset[id];
  }

  // Pairs that are copied at once, to each of two buffers: an eighth of the memory for both.
  static std::int64_t most_pairs(const SearchRequest& request) {
    if (!request.limited()) return usual_pairs;
    return std::clamp<std::int64_t>(request.options.memory / 16 / pair_bytes, 1, usual_pairs);
  }
  static std::int64_t whole_blocks(std::int64_t queries) {
    return (queries + block_queries - 1) / block_queries * block_queries;
  }
  // Rows of a tile and pairs of it, for what half of the device's free memory holds.
  static void set_tile(DeviceTileSizes& sizes, std::int64_t queries, std::size_t free_bytes,
                       std::int64_t tile_rows) {
    const std::int64_t at_once = std::clamp<std::int64_t>(queries, 1, sizes.group);
    const auto half = static_cast<std::int64_t>(free_bytes / 2);
    sizes.tile_rows = std::clamp(half / (at_once * DeviceTileSizes::bytes_for_pair),
                                 std::int64_t{128}, tile_rows);
    sizes.pairs = DeviceTileSizes::usual_pairs(at_once, sizes.tile_rows);
  }
  DeviceTileSizes range_sizes(const SearchPosition& at, std::size_t free_bytes) const {
    const SearchRequest& request = at.request;
    const std::int64_t queries = request.queries.rows();
    DeviceTileSizes sizes{};
    sizes.group = batch_of(at, std::min(usual_group, whole_blocks(queries)));
    // With a limit the codes of queries are within it.
    sizes.together = request.limited() ? sizes.group : most_together / sizes.group * sizes.group;
    set_tile(sizes, queries, free_bytes, usual_tile_rows);
    sizes.pairs = std::min(most_pairs(request), sizes.pairs);
    return sizes;
  }
  static DeviceTileSizes heap_sizes(const SearchRequest& request, std::int64_t batch,
                                    std::size_t free_bytes) {
    const std::int64_t queries = request.queries.rows();
    DeviceTileSizes sizes{};
    if (request.limited()) {
      // As many at once as threads of the processor would take, and what arrives of a tile in the
      // memory of theirs.
      sizes.together = sizes.group = batch * request.threads;
    } else {
      const std::int64_t each = threshold_heap_bytes(request.allowed_rows, request.k);
      sizes.group = whole_blocks(std::min(std::max(batch, usual_heap_bytes / each), queries));
      sizes.together = std::max<std::int64_t>(1, most_together / sizes.group) * sizes.group;
    }
    set_tile(sizes, queries, free_bytes, request.limited() ? 2048 : usual_tile_rows);
    return sizes;
  }

  // By which the rows are kept: "cuda" and "cuda:0" are the same device.
  static std::string name(const SearchPosition& at) {
    return fmt::format("{} {}", parse_device(at.request.options.device).index,
                       name_of(at.device_pass()));
  }

  // Whether the search goes by all rows of a chunk, and takes from them those that it may find: by
  // a whole segment that is kept for later searches, or rows that are on the device anyway.
  static bool all_rows(const SearchPosition& at, std::int64_t allowed) {
    return at.request.reuses() && found_by_bits(allowed, at.base().rows());
  }
  static bool by_bits(const SearchPosition& at) {
    return at.prepared().on_device ? found_by_bits(at.count, at.rows.rows())
                                   : at.whole && all_rows(at, at.count);
  }

  // The rows at hand, those allowed where they do not stay: kept, or sent now.
  std::shared_ptr<RowsOnDevice> sent(const SearchPosition& at, ReportBuilder& report) {
    PreparedRows& prepared = at.prepared();
    const bool stays = at.request.reuses() && at.whole && at.subset.empty();
    if (stays)
      if (auto kept = prepared.device_copies.kept(name(at)))
        return std::static_pointer_cast<RowsOnDevice>(kept);
    const Stopwatch time;
    const auto make = [&] {
      auto out = std::make_shared<RowsOnDevice>();
      out->queue = queue();
      out->coding =
          device_coding(coding_on_device(at.request, prepared, at.device_pass()),
                        at.subset.empty() ? at.rows.rows() : std::ssize(at.subset), at.rows.cols());
      out->scan.emplace(*out->queue, out->coding, rows_of(at), at.request.threads);
      return out;
    };
    std::shared_ptr<RowsOnDevice> out;
    // What stays was made without a limit; it takes nothing more of one that has.
    if (stays && !at.request.limited())
      out = std::static_pointer_cast<RowsOnDevice>(prepared.device_copies.form(name(at), [&] {
        auto made = make();
        queue_ = nullptr;  // which is theirs now: another thread may be searching them
        return made;
      }));
    else
      out = make();
    // With the time for which it waited until others had theirs.
    report.prepare_seconds += time.seconds();
    return out;
  }

  // The rows at hand on the device: those that were sent ahead, if they are these.
  DeviceRowData<Queue> rows_of(const SearchPosition& at) {
    if (const auto& there = at.prepared().on_device) {
      DeviceRowData<Queue> out;
      out.borrowed =
          static_cast<const unsigned char*>(there->data) + at.begin * at.rows.row_bytes();
      out.type = at.rows.type(), out.count = at.rows.rows(), out.dim = at.rows.cols();
      return out;
    }
    if (coming_ && coming_->segment == &at.prepared() && coming_->begin == at.begin &&
        at.subset.empty()) {
      // What had no room beside the lists of the chunk before may have it now.
      try {
        coming_->sending.wait();
        DeviceRowData<Queue> out = std::move(coming_->rows);
        coming_.reset();
        if (out.count == at.rows.rows()) return out;
      } catch (const MemoryBudgetError&) {
      }
    }
    coming_.reset();  // waits for it
    return upload_rows(*queue(), at.rows, at.subset, at.request.threads, piece_of(at.request));
  }

  // Sends the next chunk of the segment on its way, while this one is searched.
  void send_next(const SearchPosition& at) {
    const std::int64_t next = at.begin + at.rows.rows(),
                       end = std::min(at.base().rows(), next + at.rows.rows());
    if (at.whole || next >= end || at.prepared().on_device) return;
    if (at.segment->given.allowed_between(next, end) != end - next) return;
    const BaseRows following = at.base().part(next, end);
    const int threads = at.request.threads;
    const std::int64_t bytes = piece_of(at.request);
    // What can't be sent ahead is sent in its turn.
    try {
      if (!sender_) sender_ = std::make_shared<Queue>(queue()->beside());
      Coming& coming = coming_.emplace();
      coming.segment = &at.prepared(), coming.begin = next;
      coming.sending.run([this, following, threads, bytes, &coming] {
        coming.rows = upload_rows(*sender_, following, {}, threads, bytes);
      });
    } catch (const MemoryBudgetError&) {
    }
  }

  const std::shared_ptr<Queue>& queue() {
    if (!queue_) queue_ = std::make_shared<Queue>(open_());
    return queue_;
  }

  const std::function<Queue()> open_;
  std::shared_ptr<Queue> queue_;   // see queue()
  std::shared_ptr<Queue> sender_;  // of rows that come next
  std::optional<Coming> coming_;
};

}  // namespace knear::detail
