// knear/scan/device/device_code_scan.hpp -- search of codes on a GPU: scan_codes() for lists that
// lie on a device, with the same answer to the bit.
//
//   const DeviceCodeBook<Queue> book(queue, code_book);
//   const DeviceCodedLists<Queue> there(queue, coded_lists, ids, threads);
//   const DeviceCodeSegment<Queue> segments[] = {{&there, {&coded_lists, ids, {}}}};
//   DeviceCodeScan<Queue>(queue, book, segments, job).run(probes, found, progress);
//
// The processor writes the vectors that tables are made with, and says which lists a query probes
// and with which terms; the rest is the device's. Two ways, of which code_scan_way() takes one: the
// fused scan keeps the k best in registers, up to k = 1,024; the form in several passes writes all
// keys and selects from them, any k. Filters and removed rows go there as a bit for each row.
//
// Queries are searched in the order of their first lists, so that those at work at a time read the
// same codes from the device's second cache, and as many at a time as half of what is free holds.
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/scan/device/code_scan_launches.hpp"
#include "knear/scan/device/packing.hpp"
#include "knear/scan/methods/code_scan.hpp"
#include "knear/scan/packing/code_book.hpp"
#include "knear/scan/packing/coded_lists.hpp"
#include "knear/scan/work_table.hpp"
#include "knear/select/warp/device_select.hpp"

namespace knear::detail {

// What tables are made with, in device memory.
template <class Queue>
class DeviceCodeBook {
 public:
  // Returns when all is there. Throws MemoryBudgetError.
  DeviceCodeBook(Queue& queue, const CodeBook& book)
      : parts_(static_cast<int>(book.parts())),
        bits_(book.bits()),
        width_(static_cast<int>(book.width())) {
    std::vector<float> by_column(book.dim() * book.count());
    for (std::int64_t j = 0; j < book.dim(); ++j)
      for (std::int64_t c = 0; c < book.count(); ++c)
        by_column[j * book.count() + c] = book.part(j / width_).row(c)[j % width_];
    by_column_ = queue.template allocate<float>(by_column.size());
    by_centroid_ = queue.template allocate<float>(by_column.size());
    const StreamSyncGuard waits_at_exit{queue};
    queue.upload(by_column_.data(), by_column.data(), by_column.size());
    queue.upload(by_centroid_.data(), book.centroids().data(), by_column.size());
    queue.wait();
  }

  DeviceCodeBookView view() const { return {by_column_.data(), parts_, bits_, width_}; }
  // [parts x 2^bits x width]
  const float* by_centroid() const { return by_centroid_.data(); }

 private:
  int parts_, bits_, width_;
  typename Queue::template Array<float> by_column_, by_centroid_;
};

// Codes by list with their scalars and ids, in device memory.
template <class Queue>
class DeviceCodedLists {
 public:
  // Returns when all is there. Throws InvalidArgument unless the ids of each list ascend, as those
  // of an index do; MemoryBudgetError; CorruptFile; Cancelled.
  DeviceCodedLists(Queue& queue, const CodedLists& lists, RowIds ids, int threads,
                   std::int64_t piece = usual_piece) {
    const std::int64_t rows = lists.rows(), width = lists.width();
    set_begins(lists);
    check_order(ids);
    codes_ = queue.template allocate<std::uint8_t>(rows * width);
    ids_ = queue.template allocate<std::int64_t>(rows);
    if (lists.has_scalars()) scalars_ = queue.template allocate<float>(rows);
    device_begins_ = queue.template allocate<std::int64_t>(begins_.size());
    PiecewiseUpload<Queue> pieces(queue, threads, piece, rows * (width + 12),
                                  std::max<std::int64_t>(8, width));
    const StreamSyncGuard waits_at_exit{queue};
    if (rows > 0) {
      const std::uint8_t* const codes = lists.codes().data();
      pieces.send(codes_.data(), rows, width,
                  [&](std::int64_t begin, std::int64_t end, unsigned char* to) {
                    std::memcpy(to, codes + begin * width, (end - begin) * width);
                  });
      pieces.send(reinterpret_cast<unsigned char*>(ids_.data()), rows, 8,
                  [&](std::int64_t begin, std::int64_t end, unsigned char* to) {
                    for (std::int64_t row = begin; row < end; ++row, to += 8) {
                      const Id id = ids(row);
                      std::memcpy(to, &id, 8);
                    }
                  });
      if (lists.has_scalars())
        pieces.send(reinterpret_cast<unsigned char*>(scalars_.data()), rows, 4,
                    [&](std::int64_t begin, std::int64_t end, unsigned char* to) {
                      std::memcpy(to, lists.scalars() + begin, (end - begin) * 4);
                    });
    }
    queue.upload(device_begins_.data(), begins_.data(), begins_.size());
    queue.wait();
  }

  std::int64_t rows() const { return begins_.back(); }
  std::int64_t rows_of(std::int64_t list) const {
    if (list < 0 || list + 1 >= std::ssize(begins_)) return 0;
    return begin_of(list + 1) - begin_of(list);
  }
  // Where the rows of each list begin, and where the last one ends [lists + 1]; lists beyond are
  // empty.
  std::span<const std::int64_t> begins() const { return begins_; }
  // Requires a list that has rows.
  std::int64_t begin_of(std::int64_t list) const { return begins_[list]; }
  // Of all rows.
  DeviceCodedView view() const {
    return {codes_.data(),         scalars_.data(),         ids_.data(),
            device_begins_.data(), std::ssize(begins_) - 1, nullptr};
  }

 private:
  template <class T>
  using Array = typename Queue::template Array<T>;

  // Of each list up to the last one, those without rows too.
  void set_begins(const CodedLists& lists) {
    const std::vector<std::uint32_t>& there = lists.lists();
    const std::size_t count = there.empty() ? 0 : std::size_t{there.back()} + 1;
    std::size_t at = 0;
    for (std::size_t list = 0; list <= count; ++list) {
      while (at < there.size() && there[at] < list) ++at;
      begins_.push_back(lists.begin()[at]);
    }
  }
  void check_order(const RowIds& ids) const {
    for (std::size_t list = 0; list + 1 < begins_.size(); ++list)
      for (std::int64_t row = begins_[list] + 1; row < begins_[list + 1]; ++row)
        if (ids(row - 1) >= ids(row))
          throw InvalidArgument("ids of a list must ascend, but rows {} and {} have {} and {}",
                                row - 1, row, ids(row - 1), ids(row));
  }

  std::vector<std::int64_t> begins_;
  Array<std::uint8_t> codes_;
  Array<float> scalars_;
  Array<std::int64_t> ids_, device_begins_;
};

// Codes on the device, and the same here: what may be found of them is said by the latter.
template <class Queue>
struct DeviceCodeSegment {
  const DeviceCodedLists<Queue>* there;
  CodeSegment here;
};

enum class CodeScanWay { fused, several_passes };

// The fused scan needs the tables of a query in shared memory and k places in registers.
constexpr CodeScanWay code_scan_way(const DeviceCodeBookView& book, std::int64_t k) {
  return k <= warp_select_max_k && tables_are_shared(book) ? CodeScanWay::fused
                                                           : CodeScanWay::several_passes;
}

template <class Queue>
class DeviceCodeScan {
 public:
  // All must stay. Requires what scan_codes() does; job.memory and job.upper_bounds have no say.
  DeviceCodeScan(Queue& queue, const DeviceCodeBook<Queue>& book,
                 std::span<const DeviceCodeSegment<Queue>> segments, const CodeScanJob& job)
      : queue_(queue), segments_(segments), job_(job), book_(book.view()) {
    std::vector<DeviceCodedView> views;
    const StreamSyncGuard waits_at_exit{queue_};
    for (const DeviceCodeSegment<Queue>& segment : segments) {
      rows_ += segment.there->rows();
      views.push_back(segment.there->view());
      if (segment.here.filtered() || segment.here.allowed.live)
        views.back().allowed = send_allowed(segment.here, segment.there->rows());
    }
    views_ = queue_.template allocate<DeviceCodedView>(views.size());
    queue_.upload(views_.data(), views.data(), views.size());
    queue_.wait();
  }

  // Fills `out` [queries x job.k] as scan_codes() does. Throws MemoryBudgetError where the device
  // has no memory for a single query, Cancelled.
  void run(const CodeProbes& probes, CodedNeighbors& out, const Progress& progress) {
    run(probes, out, progress, code_scan_way(book_, std::min(job_.k, rows_)));
  }
  // One way. Requires that it takes the k and the tables.
  void run(const CodeProbes& probes, CodedNeighbors& out, const Progress& progress,
           CodeScanWay way) {
    const std::int64_t queries = probes.lists.rows();
    std::fill(out.rows.begin(), out.rows.end(), CodedNeighbors::Row{});
    if (job_.k == 0 || rows_ == 0 || probes.lists.cols() == 0) return;
    const std::vector<std::int64_t> order = by_first_list(probes.lists);
    Run run{probes, out, way, std::min(job_.k, rows_), rows_probed(probes), 0};
    for (const std::int64_t rows : run.rows) run.most_rows = std::max(run.most_rows, rows);
    if (run.most_rows == 0) return;
    run.k = std::min(run.k, run.most_rows);
    std::int64_t together = batch_for(run, queries);
    Reporter reporter(progress, "scan", queries);
    for (std::int64_t first = 0; first < queries;) {
      stop_if_asked();
      const std::int64_t some = std::min(together, queries - first);
      try {
        run_batch(run, std::span(order).subspan(first, some));
      } catch (const MemoryBudgetError&) {
        if (some == 1) throw;
        together = some / 2;
        continue;
      }
      first += some;
      reporter.add(some);
    }
  }

 private:
  template <class T>
  using Array = typename Queue::template Array<T>;
  template <class T>
  using HostArray = typename Queue::template HostArray<T>;
  using Row = CodedNeighbors::Row;

  struct Run {
    const CodeProbes& probes;
    CodedNeighbors& out;
    CodeScanWay way;
    std::int64_t k;                  // no more than a query can find
    std::vector<std::int64_t> rows;  // in the lists of each query
    std::int64_t most_rows;
  };
  // Of the queries of a batch, there.
  struct Batch {
    Array<double> queries;
    Array<std::int32_t> lists;
    Array<float> terms;
    DeviceCodeJob job;
  };

  // Guesses: lists that a merge reads at a time; blocks for each multiprocessor where few queries
  // are shared by several, each of which makes their tables again; pinned memory for the vectors
  // and answers of the queries at a time; what is taken without asking how much is free.
  static constexpr int merged_together = 16, blocks_each = 2;
  static constexpr std::int64_t most_pinned = 256 << 20, small_bytes = 64 << 20;

  const std::uint32_t* send_allowed(const CodeSegment& segment, std::int64_t rows) {
    std::vector<std::uint32_t> words((rows + 31) / 32);
    constexpr std::int64_t task_words = 2048;
    parallel_for(
        job_.threads, (std::ssize(words) + task_words - 1) / task_words, [&](std::int64_t task) {
          const std::int64_t end = std::min(std::ssize(words), (task + 1) * task_words);
          for (std::int64_t i = task * task_words; i < end; ++i)
            for (std::int64_t row = 32 * i; row < std::min(rows, 32 * i + 32); ++row)
              words[i] |= static_cast<std::uint32_t>(may_be_found(segment, row)) << row % 32;
        });
    const StreamSyncGuard waits_at_exit{queue_};
    allowed_.push_back(queue_.template allocate<std::uint32_t>(words.size()));
    queue_.upload(allowed_.back().data(), words.data(), words.size());
    return allowed_.back().data();
  }
  static bool may_be_found(const CodeSegment& segment, std::int64_t row) {
    return segment.allowed(row) &&
           (!segment.allowed_ids || segment.allowed_ids->holds(segment.ids(row)));
  }

  std::vector<std::int64_t> rows_probed(const CodeProbes& probes) const {
    std::vector<std::int64_t> out(probes.lists.rows());
    for (std::int64_t q = 0; q < probes.lists.rows(); ++q)
      for (std::int64_t p = 0; p < probes.lists.cols() && probes.lists.row(q)[p] != no_id; ++p)
        for (const DeviceCodeSegment<Queue>& segment : segments_)
          out[q] += segment.there->rows_of(probes.lists.row(q)[p]);
    return out;
  }

  // Blocks that share each of so many queries.
  int splits_for(std::int64_t count, std::int64_t most_rows) const {
    const std::int64_t wanted =
        (std::int64_t{queue_.multiprocessors()} * blocks_each + count - 1) / count;
    const std::int64_t groups = (most_rows + 63) / 64;
    return static_cast<int>(std::clamp<std::int64_t>(
        wanted, 1, std::max<std::int64_t>(1, groups / code_lists_of_block)));
  }

  // Bytes of what is sent of a query, and of the device that it takes.
  std::int64_t bytes_of_sent(const Run& run) const {
    return std::int64_t{book_.dim()} * 8 + run.probes.lists.cols() * 8;
  }
  std::int64_t bytes_of_query(const Run& run, std::int64_t count) const {
    const std::int64_t sent = bytes_of_sent(run);
    if (run.way == CodeScanWay::fused) {
      const std::int64_t lists = splits_for(count, run.most_rows) * code_lists_of_block;
      return sent + run.k * (24 + 12 * (lists + (lists + merged_together - 1) / merged_together));
    }
    return sent + (tables_are_shared(book_) ? 0 : std::int64_t{book_.entries()} * 4) +
           stride_of(run.most_rows) * 4 + run.k * 16 + 4;
  }
  static std::int64_t stride_of(std::int64_t rows) { return (rows + 3) / 4 * 4; }

  std::int64_t batch_for(const Run& run, std::int64_t queries) const {
    const std::int64_t pinned = bytes_of_sent(run) + run.k * 24,
                       most = std::clamp<std::int64_t>(most_pinned / pinned, 1, queries),
                       each = bytes_of_query(run, most);
    if (most * each <= small_bytes) return most;
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(queue_.free_bytes() / 2) / each, 1,
                                    most);
  }

  void run_batch(const Run& run, std::span<const std::int64_t> which) {
    const auto count = which.size(), probes = static_cast<std::size_t>(run.probes.lists.cols()),
               dim = static_cast<std::size_t>(book_.dim());
    auto queries = queue_.template allocate_host<double>(count * dim);
    auto lists = queue_.template allocate_host<std::int32_t>(count * probes);
    auto terms = queue_.template allocate_host<float>(count * probes);
    const StreamSyncGuard waits_at_exit{queue_};
    constexpr std::int64_t each = 32;  // queries of a task
    parallel_for(job_.threads, (std::ssize(which) + each - 1) / each, [&](std::int64_t task) {
      const auto end = std::min(count, static_cast<std::size_t>((task + 1) * each));
      for (auto i = static_cast<std::size_t>(task * each); i < end; ++i) {
        job_.prepare(which[i], queries.data() + i * dim);
        const Id* const from = run.probes.lists.row(which[i]);
        for (std::size_t p = 0; p < probes; ++p)
          lists.data()[i * probes + p] = static_cast<std::int32_t>(from[p]);
        std::copy_n(run.probes.terms.row(which[i]), probes, terms.data() + i * probes);
      }
    });
    Batch batch;
    batch.queries = sent(queries), batch.lists = sent(lists), batch.terms = sent(terms);
    batch.job = {book_,
                 views_.data(),
                 static_cast<int>(segments_.size()),
                 static_cast<int>(probes),
                 batch.queries.data(),
                 batch.lists.data(),
                 batch.terms.data(),
                 std::ssize(which),
                 splits_for(std::ssize(which), run.most_rows),
                 job_.metric,
                 job_.squared};
    if (run.way == CodeScanWay::fused)
      scan_fused(run, which, batch.job);
    else
      scan_in_passes(run, which, batch.job);
  }
  template <class T>
  Array<T> sent(const HostArray<T>& from) {
    auto out = queue_.template allocate<T>(from.size());
    queue_.upload(out.data(), from.data(), from.size());
    return out;
  }

  void scan_fused(const Run& run, std::span<const std::int64_t> which, const DeviceCodeJob& job) {
    const int k = static_cast<int>(run.k);
    int lists = job.splits * code_lists_of_block;
    const auto places = which.size() * static_cast<std::size_t>(k);
    auto keys = queue_.template allocate<float>(places * static_cast<std::size_t>(lists));
    auto ids = queue_.template allocate<std::int64_t>(keys.size());
    launch_scan_codes(queue_, job, k, keys.data(), ids.data());
    while (lists > 1) {
      const int left = (lists + merged_together - 1) / merged_together;
      auto fewer = queue_.template allocate<float>(places * static_cast<std::size_t>(left));
      auto fewer_ids = queue_.template allocate<std::int64_t>(fewer.size());
      launch_merge_code_lists(queue_, job.count, lists, merged_together, k, keys.data(), ids.data(),
                              fewer.data(), fewer_ids.data());
      keys = std::move(fewer), ids = std::move(fewer_ids), lists = left;
    }
    auto numbers = queue_.template allocate<std::int32_t>(places);
    auto rows = queue_.template allocate<std::int64_t>(places);
    launch_locate_rows(queue_, job, k, ids.data(), numbers.data(), rows.data());
    auto found_keys = queue_.template allocate_host<float>(places);
    auto found_ids = queue_.template allocate_host<std::int64_t>(places);
    auto found_numbers = queue_.template allocate_host<std::int32_t>(places);
    auto found_rows = queue_.template allocate_host<std::int64_t>(places);
    const StreamSyncGuard waits_at_exit{queue_};
    queue_.download(found_keys.data(), keys.data(), places);
    queue_.download(found_ids.data(), ids.data(), places);
    queue_.download(found_numbers.data(), numbers.data(), places);
    queue_.download(found_rows.data(), rows.data(), places);
    queue_.wait();
    for_each_query(
        which,
        [&](std::size_t i, std::span<Row> to) {
          for (int j = 0; j < k; ++j) {
            const std::size_t at = i * static_cast<std::size_t>(k) + static_cast<std::size_t>(j);
            if (found_ids.data()[at] < 0) break;
            to[j] = {found_keys.data()[at], static_cast<std::uint32_t>(found_numbers.data()[at]),
                     found_rows.data()[at], found_ids.data()[at]};
          }
        },
        run.out);
  }

  void scan_in_passes(const Run& run, std::span<const std::int64_t> which,
                      const DeviceCodeJob& job) {
    constexpr std::int64_t most = std::numeric_limits<int>::max() - 4;
    if (run.most_rows > most)
      throw MemoryBudgetError("the lists of a query have {} rows, more than {} at a time",
                              run.most_rows, most);
    const int k = static_cast<int>(run.k);
    const std::int64_t stride = stride_of(run.most_rows);
    const std::size_t count = which.size() * static_cast<std::size_t>(k);
    auto found_keys = queue_.template allocate_host<float>(count);
    auto found_places = queue_.template allocate_host<int>(count);
    auto lengths = queue_.template allocate_host<int>(which.size());
    for (std::size_t i = 0; i < which.size(); ++i)
      lengths.data()[i] = static_cast<int>(run.rows[which[i]]);
    const StreamSyncGuard waits_at_exit{queue_};
    const auto lengths_on_device = sent(lengths);
    Array<float> tables;
    if (!tables_are_shared(book_)) {
      tables =
          queue_.template allocate<float>(which.size() * static_cast<std::size_t>(book_.entries()));
      launch_make_code_tables(queue_, job, tables.data());
    }
    auto keys = queue_.template allocate<float>(which.size() * static_cast<std::size_t>(stride));
    launch_write_code_keys(queue_, job, tables.size() > 0 ? tables.data() : nullptr, keys.data(),
                           stride);
    auto values = queue_.template allocate<float>(count);
    auto places = queue_.template allocate<int>(count);
    select_rows(queue_,
                DeviceRows{keys.data(), job.count, run.most_rows, stride, lengths_on_device.data()},
                k, DeviceSelectOptions{}, values.data(), places.data());
    launch_resolve_ties(queue_, job, k, keys.data(), stride, values.data(), places.data());
    queue_.download(found_keys.data(), values.data(), count);
    queue_.download(found_places.data(), places.data(), count);
    queue_.wait();
    for_each_query(
        which,
        [&](std::size_t i, std::span<Row> to) {
          const std::size_t first = i * static_cast<std::size_t>(k);
          put_places(run.probes.lists.row(which[i]), run.probes.lists.cols(),
                     {found_keys.data() + first, static_cast<std::size_t>(k)},
                     found_places.data() + first, to);
        },
        run.out);
  }

  // The rows at places in the row of keys of a query, in order: those of equal keys by id, which
  // select_k does not know.
  void put_places(const Id* lists, std::int64_t probes, std::span<const float> keys,
                  const int* places, std::span<Row> to) const {
    struct Range {
      std::int64_t before, begin;
      std::uint32_t segment;
    };
    std::vector<Range> ranges;
    std::int64_t before = 0;
    for (std::int64_t p = 0; p < probes && lists[p] != no_id; ++p)
      for (std::uint32_t s = 0; s < segments_.size(); ++s) {
        const std::int64_t rows = segments_[s].there->rows_of(lists[p]);
        if (rows == 0) continue;
        ranges.push_back({before, segments_[s].there->begin_of(lists[p]), s});
        before += rows;
      }
    std::size_t found = 0;
    for (; found < keys.size() && places[found] >= 0; ++found) {
      const auto next = std::upper_bound(
          ranges.begin(), ranges.end(), places[found],
          [](std::int64_t place, const Range& range) { return place < range.before; });
      const Range& range = *(next - 1);
      const std::int64_t row = range.begin + places[found] - range.before;
      to[found] = {keys[found], range.segment, row, segments_[range.segment].here.ids(row)};
    }
    for (std::size_t first = 0, end; first < found; first = end) {
      for (end = first + 1; end < found && to[end].key == to[first].key;) ++end;
      if (end - first > 1)
        std::sort(to.begin() + static_cast<std::ptrdiff_t>(first),
                  to.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }

  // Calls f(number in the batch, places of the answer) for its queries.
  template <class F>
  void for_each_query(std::span<const std::int64_t> which, F f, CodedNeighbors& out) const {
    constexpr std::int64_t each = 32;
    parallel_for(job_.threads, (std::ssize(which) + each - 1) / each, [&](std::int64_t task) {
      const auto end = std::min(which.size(), static_cast<std::size_t>((task + 1) * each));
      for (auto i = static_cast<std::size_t>(task * each); i < end; ++i) f(i, out.of(which[i]));
    });
  }

  Queue& queue_;
  const std::span<const DeviceCodeSegment<Queue>> segments_;
  const CodeScanJob& job_;
  const DeviceCodeBookView book_;
  std::int64_t rows_ = 0;  // of all segments
  std::vector<Array<std::uint32_t>> allowed_;
  Array<DeviceCodedView> views_;
};

}  // namespace knear::detail
