// knear/knn/device/device_list_search.hpp -- search of inverted lists by a GPU: the rows of lists
// are scanned there.
//
// Which lists a query probes is found by the processor, as for a search there, so that the answers
// are the same to the bit. Rows go to the device as they are and are coded there by list; those
// that are searched again stay. Where the device has no memory for all of them the lists that are
// probed come in chunks, each on its way while the one before is searched, and go again: no other
// row is sent. So do the rows that a filter leaves, where these are few. What comes back (queries
// whose lists of candidates the device has no memory for) the processor answers.
//
// Queue: cuda::Queue, or the emulated one of the tests. One search at a time.
#pragma once
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/knn/device/rows_on_device.hpp"
#include "knear/knn/lists/list_search.hpp"
#include "knear/knn/lists/listed_rows.hpp"

namespace knear::detail {

template <class Queue>
class DeviceListSearch final : public ProbedSearch {
 public:
  // open: makes the queue, where a search needs one; rows that stayed on the device have theirs.
  // Otherwise as ListSearch.
  DeviceListSearch(const SearchRequest& request, std::function<Queue()> open,
                   std::int64_t more_bytes = 0)
      : request_(request),
        open_(std::move(open)),
        at_(request, nullptr),
        processor_(request,
                   more_bytes + (request.limited() ? least_host_bytes<Queue>(request) : 0)) {
    report_.learns = false, report_.method = "inverted-lists", report_.on_device = true;
  }

  void nearest(MatrixView<Id> probes, ExactNeighbors& found,
               std::span<const std::int64_t> which = {}) override {
    if (found.columns() == 0) found = nothing_found(request_.queries.rows(), request_.k);
    if (request_.k == 0) return;
    const std::int64_t count = probes.rows();
    const auto number = [&](std::int64_t q) { return which.empty() ? q : which[q]; };
    const AnyMatrix some = which.empty() ? AnyMatrix() : copies_of(request_.queries, which);
    Asked asked{which.empty() ? request_.queries : some.view(), probes, {}, {}, {}};
    asked.best = nothing_found(count, request_.k);
    for (std::int64_t q = 0; q < count; ++q) copy_row(found, number(q), asked.best, q);
    std::vector<std::int64_t> left;  // for the processor
    for (std::int64_t q = 0; q < count; ++q) {
      // Every row is as near to a zero query, so that none is ruled out.
      const bool zero = !traits_of(request_.options.metric).squared && is_zero(asked.queries, q);
      (zero ? left : asked.todo).push_back(q);
    }
    const auto zeros = std::ssize(left);
    if (request_.k > DeviceScan<Queue>::most_k) give_up(asked, left);
    for (const SearchRequest::Segment& segment : request_.segments) {
      at_.enter(segment, 0, segment.given.rows->base.rows());
      report_.note_probed(rows_probed(*segment.given.lists, probes));
      search_segment(asked, left);
    }
    for (const std::int64_t q : asked.todo) copy_row(asked.best, q, found, number(q));
    report_.note_fallback(std::ssize(left) - zeros);
    if (left.empty()) return;
    std::sort(left.begin(), left.end());
    Matrix<Id> theirs(std::ssize(left), probes.cols());
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 0; i < left.size(); ++i) {
      std::copy_n(probes.row(left[i]), probes.cols(), theirs.row(static_cast<std::int64_t>(i)));
      numbers.push_back(number(left[i]));
    }
    processor_.nearest(theirs.view(), found, numbers);
  }

  void within(MatrixView<Id>, double, RangeLists&) override {
    check_processor(request_.options.device, "a range search of some inverted lists");
  }

  KnnReport report() override {
    ReportBuilder all = report_;
    all.note_search(processor_.done());
    return all.report(at_);
  }

 private:
  // What a call was asked for, and its answers so far.
  struct Asked {
    AnyMatrixView queries;
    MatrixView<Id> probes;           // [queries x lists at most]
    std::vector<std::int64_t> todo;  // queries that the device answers
    ExactNeighbors best;             // [queries x k]
    std::vector<double> bounds;      // [queries]: the k-th keys
  };
  // Rows of some panels of a layout, and the lists that these make.
  struct Chunk {
    ListLayout layout;
    std::vector<std::uint32_t> numbers;  // of the rows in the segment, ascending
    DeviceRowData<Queue> rows;           // once sent
    BackgroundTask sending{BackgroundTask::TakenBy::own_thread};
  };

  static void copy_row(const ExactNeighbors& from, std::int64_t at, ExactNeighbors& to,
                       std::int64_t row) {
    std::copy_n(from.keys.row(at), from.columns(), to.keys.row(row));
    std::copy_n(from.ids.row(at), from.columns(), to.ids.row(row));
  }

  // Searches the segment at hand; moves queries that it can't answer to `left`.
  void search_segment(Asked& asked, std::vector<std::int64_t>& left) {
    if (asked.todo.empty()) return;
    try {
      // What stays was made without a limit; it takes nothing more of one that has.
      if (request_.reuses() && found_by_bits(at_.count, at_.rows.rows()))
        if (const std::shared_ptr<RowsOnDevice<Queue>> rows = kept())
          return search(*rows, asked, at_.allowed(), {}, left);
      search_chunks(asked, left);
    } catch (const MemoryBudgetError&) {
      give_up(asked, left);
    }
  }
  static void give_up(Asked& asked, std::vector<std::int64_t>& left) {
    left.insert(left.end(), asked.todo.begin(), asked.todo.end());
    asked.todo.clear();
  }

  // All rows of the segment on the device: kept, or sent now to be kept. Nothing where the device
  // has no memory for them beside queries and lists.
  std::shared_ptr<RowsOnDevice<Queue>> kept() {
    ListedRows& listed = *at_.segment->given.lists;
    const std::string name = fmt::format("{} {}", parse_device(request_.options.device).index,
                                         name_of(at_.device_pass()));
    std::shared_ptr<void> there = listed.device_copies.kept(name);
    if (!there && !request_.limited()) {
      const Stopwatch time;
      const ListLayout layout = layout_of([](Id, std::uint32_t) { return true; });
      if (!fits(layout)) return nullptr;
      there = listed.device_copies.form(name, [&]() -> std::shared_ptr<void> {
        const auto made =
            code(layout, upload_rows(*queue(), at_.rows, {}, request_.threads, piece_of(request_)));
        queue_ = nullptr;  // which is theirs now: another thread may be searching them
        return made;
      });
      // With the time for which it waited until others had theirs.
      report_.prepare_seconds += time.seconds();
    }
    return std::static_pointer_cast<RowsOnDevice<Queue>>(there);
  }

  // Sends the rows that may be found, for this search alone.
  void search_chunks(Asked& asked, std::vector<std::int64_t>& left) {
    std::vector<char> wanted(at_.segment->given.lists->lists());
    for (const std::int64_t q : asked.todo)
      for (std::int64_t p = 0; p < asked.probes.cols() && asked.probes.row(q)[p] != no_id; ++p)
        wanted[asked.probes.row(q)[p]] = 1;
    const AllowedRows allowed = at_.allowed();
    const ListLayout layout = layout_of([&](Id list, std::uint32_t row) {
      return wanted[list] && (allowed.all() || allowed(row));
    });
    const std::vector<std::int64_t> ends = ends_of_chunks(layout);
    std::unique_ptr<Chunk> now, next;
    for (std::size_t i = 0; i < ends.size() && !asked.todo.empty(); ++i) {
      const Stopwatch time;
      now = next ? std::move(next) : chunk_of(layout, i > 0 ? ends[i - 1] : 0, ends[i]);
      // What had no room beside the lists of the chunk before may have it now.
      try {
        now->sending.wait();
      } catch (const MemoryBudgetError&) {
      }
      if (now->rows.count == 0) now->rows = sent(*queue(), *now);
      const auto rows = code(now->layout, std::move(now->rows));
      if (i + 1 < ends.size()) {
        next = chunk_of(layout, ends[i], ends[i + 1]);
        send_ahead(*next);
      }
      report_.prepare_seconds += time.seconds();
      ++at_.chunks;
      search(*rows, asked, {}, now->numbers, left);
    }
  }

  template <class Keep>
  ListLayout layout_of(Keep keep) const {
    const ListedRows& listed = *at_.segment->given.lists;
    if (const RowLists* numbers = listed.numbers()) return ListLayout::of(*numbers, keep);
    return ListLayout::of(*listed.first_form(), keep);
  }

  // Bytes that a panel takes on the device, and a row beside it.
  std::int64_t panel_bytes() const {
    return panel_rows * (device_code_bytes(at_.rows.cols()) + 8);  // and heads
  }
  bool fits(const ListLayout& layout) {
    const auto room = static_cast<std::int64_t>(room_on(*queue(), request_) / 2);
    return layout.panels() * panel_bytes() + layout.rows * at_.rows.row_bytes() <= room;
  }
  // The panels at which chunks end: at ends of lists, but within one that is larger than a chunk.
  std::vector<std::int64_t> ends_of_chunks(const ListLayout& layout) {
    if (layout.panels() == 0) return {};
    if (fits(layout)) return {layout.panels()};
    // Beside those that are searched there are the rows of the next.
    const auto room = static_cast<std::int64_t>(room_on(*queue(), request_) / 2);
    const std::int64_t most = std::max<std::int64_t>(
        least_panels, room / (panel_bytes() + 2 * panel_rows * at_.rows.row_bytes()));
    std::vector<std::int64_t> out;
    for (std::int64_t begin = 0; begin < layout.panels(); begin = out.back()) {
      const auto after =
          std::upper_bound(layout.first_panel.begin(), layout.first_panel.end(), begin + most);
      const std::int64_t end = *(after - 1);  // of the last list that has room
      out.push_back(end > begin ? end : std::min(begin + most, layout.panels()));
    }
    return out;
  }
  static std::unique_ptr<Chunk> chunk_of(const ListLayout& layout, std::int64_t from,
                                         std::int64_t to) {
    auto out = std::make_unique<Chunk>();
    out->layout = layout.part(from, to, out->numbers);
    return out;
  }
  DeviceRowData<Queue> sent(Queue& queue, const Chunk& chunk) const {
    return upload_rows(queue, at_.rows, chunk.numbers, request_.threads, piece_of(request_));
  }
  void send_ahead(Chunk& chunk) {
    // What can't be sent ahead is sent in its turn.
    try {
      if (!sender_) sender_ = std::make_shared<Queue>(queue()->beside());
      chunk.sending.run([this, &chunk] { chunk.rows = sent(*sender_, chunk); });
    } catch (const MemoryBudgetError&) {
    }
  }
  std::shared_ptr<RowsOnDevice<Queue>> code(const ListLayout& layout, DeviceRowData<Queue> rows) {
    auto out = std::make_shared<RowsOnDevice<Queue>>();
    out->queue = queue();
    out->coding =
        device_coding_of_panels(coding_on_device(request_, at_.prepared(), at_.device_pass()),
                                layout.rows, at_.rows.cols(), layout.panels());
    out->scan.emplace(*out->queue, out->coding, std::move(rows), layout, request_.threads);
    return out;
  }

  // Searches these rows. numbers: of the rows in the segment, where they are not all of it.
  void search(RowsOnDevice<Queue>& rows, Asked& asked, const AllowedRows& allowed,
              std::span<const std::uint32_t> numbers, std::vector<std::int64_t>& left) {
    const std::lock_guard lock(rows.mutex);
    const std::int64_t count = asked.queries.rows(), many = std::ssize(asked.todo),
                       k = std::min({request_.k, at_.count, rows.coding.rows});
    asked.bounds.resize(count);
    for (const std::int64_t q : asked.todo)
      asked.bounds[q] = asked.best.keys.row(q)[request_.k - 1];
    const bool some_known = std::any_of(asked.todo.begin(), asked.todo.end(), [&](std::int64_t q) {
      return asked.best.ids.row(q)[request_.k - 1] != no_id;
    });
    const bool small = many <= block_queries && k <= warp_select_max_k;
    const std::size_t room = small && !request_.limited() ? 0 : room_on(*rows.queue, request_);
    const std::int64_t batch =
        fitting_batch<Queue>(request_, rows.scan->batch_for(many, k, room),
                             request_.options.memory - processor_.least_bytes() +
                                 host_bytes_of<Queue>(request_, block_queries));
    ExactNeighbors out = nothing_found(count, k);
    DeviceStats stats;
    const std::vector<std::int64_t> back = rows.scan->run(
        asked.queries, asked.todo, request_.query_range, k, out, stats, batch,
        request_.options.progress,
        some_known ? std::span<const double>(asked.bounds) : std::span<const double>(), allowed,
        request_.limited() ? room : std::numeric_limits<std::size_t>::max(), piece_of(request_),
        asked.probes);
    const RowIds ids = at_.ids();
    for (Id* id = out.ids.data(); id != out.ids.data() + count * k; ++id)
      if (*id != no_id) *id = ids(numbers.empty() ? *id : Id{numbers[*id]});
    merge(asked.best, out, request_.k, request_.threads);
    note(rows, asked, stats, batch);
    if (back.empty()) return;
    left.insert(left.end(), back.begin(), back.end());
    std::vector<char> gone(count);
    for (const std::int64_t q : back) gone[q] = 1;
    std::erase_if(asked.todo, [&](std::int64_t q) { return gone[q]; });
  }
  void note(const RowsOnDevice<Queue>& rows, const Asked& asked, const DeviceStats& stats,
            std::int64_t batch) {
    const std::int64_t scored = rows.scan->places_probed(asked.probes, asked.todo);
    report_.note_pass(at_.device_pass(), 1, scored);
    report_.note_listed(rows.coding, scored);
    report_.stats.repeated += stats.repeated, report_.stats.survivors += stats.survivors;
    report_.stats.buffer_bytes =
        std::max(report_.stats.buffer_bytes,
                 host_bytes_of<Queue>(request_, std::min(batch, asked.queries.rows())));
    report_.note_device(rows.queue->most_bytes_in_use(), 2 * piece_of(request_));
  }

  const std::shared_ptr<Queue>& queue() {
    if (!queue_) queue_ = std::make_shared<Queue>(open_());
    return queue_;
  }

  static constexpr std::int64_t least_panels = 32;  // of a chunk

  const SearchRequest& request_;
  const std::function<Queue()> open_;
  std::shared_ptr<Queue> queue_;   // see queue()
  std::shared_ptr<Queue> sender_;  // of rows that come next
  SearchPosition at_;
  ReportBuilder report_;
  ListSearch processor_;
};

}  // namespace knear::detail
