// knear/knn/device/device_search.hpp -- the k nearest by a GPU: a Search whose rows are scanned
// there.
//
// Rows go to the device as they are, and it does the rest (scan/device/packing.hpp,
// scan/device/device_scan.hpp). Rows that are searched again stay there, for searches that may find
// all of them or one in sixteen at least: filters, and rows that were removed from an index, go
// there as a bit a row. Where the device has no memory for all rows they come in chunks, each on
// its way while the one before is searched. Queries that come back are answered by the processor.
// Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/knn/search/search.hpp"
#include "knear/scan/device/device_scan.hpp"

namespace knear::detail {

// Where a search runs.
struct Device {
  bool cuda = false;
  int index = 0;
};
// "cpu", "cuda", "cuda:N". Throws InvalidArgument for any other word.
Device parse_device(std::string_view text);

// The search of options.device, which has `already` keys of rows elsewhere. Throws
// DeviceUnavailable where that is a GPU that is not there, or knear was built without CUDA.
std::unique_ptr<Search> make_search(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                    std::int64_t k, const KnnOptions& options, Reuse reuse,
                                    std::int64_t already = 0);

template <class Queue>
class DeviceSearch : public Search {
 public:
  // open: makes the queue, where this search needs one. Rows that stayed on the device have theirs.
  DeviceSearch(std::function<Queue()> open, std::span<const SearchSegment> segments,
               AnyMatrixView queries, std::int64_t k, const KnnOptions& options, Reuse reuse,
               std::int64_t already)
      : Search(segments, queries, k, options, reuse, already), open_(std::move(open)) {
    const FirstPass pass = options.first_pass;
    if (pass != FirstPass::automatic && pass != FirstPass::integer && pass != FirstPass::int8)
      throw InvalidArgument("first_pass is {}, but device is {}, which has auto, integer and int8",
                            name_of(pass), options.device);
    const TuningOverrides& choices = options.tuning;
    const auto refuse = [&](std::string_view choice) {
      throw InvalidArgument("choices say {}, but device is {}, which makes none", choice,
                            options.device);
    };
    if (choices.group > 0) refuse(fmt::format("group={}", choices.group));
    if (choices.parts > 0) refuse(fmt::format("parts={}", choices.parts));
    if (choices.tile > 0) refuse(fmt::format("tile={}", choices.tile));
    if (!choices.guess) refuse("guess=off");
    if (choices.refine) refuse(*choices.refine ? "refine=on" : "refine=off");
    if (pass == FirstPass::integer && queries.cols() > DeviceScan<Queue>::most_integer_dim)
      throw InvalidArgument(
          "first_pass is integer, but device is {}, which has it up to {} columns", options.device,
          DeviceScan<Queue>::most_integer_dim);
    learns_ = false;
    if (options.memory > 0) {
      piece_ = std::clamp<std::int64_t>(options.memory / 16, 64 << 10, piece_);
      more_bytes_ = host_bytes(std::min<std::int64_t>(queries.rows(), block_queries)) + 4 * piece_;
    }
  }

  DeviceSearch(Queue queue, std::span<const SearchSegment> segments, AnyMatrixView queries,
               std::int64_t k, const KnnOptions& options, Reuse reuse, std::int64_t already)
      : DeviceSearch([queue = std::move(queue)] { return queue; }, segments, queries, k, options,
                     reuse, already) {}

 protected:
  // Rows on the device. One search at a time.
  struct Representation {
    std::shared_ptr<Queue> queue;
    Coding coding;
    std::optional<DeviceScan<Queue>> scan;
    std::mutex mutex;
  };
  // Rows of the part at hand from `begin` on, on their way to the device.
  struct Coming {
    const void* segment = nullptr;
    std::int64_t begin = 0;
    DeviceRowData<Queue> rows;  // once sent
    BackgroundTask sending{BackgroundTask::TakenBy::own_thread};
  };

  void search_rows(const BaseRows& rows, std::int64_t begin, ExactNeighbors& out) override {
    const std::int64_t k = out.keys.cols();
    std::vector<std::int64_t> todo = all_queries();
    if (k <= DeviceScan<Queue>::most_k) {
      if (const auto allowed = allowed_there(rows, begin)) {
        if (options_.metric != Metric::l2) answer_zero_queries(todo, *allowed, out);
        if (const auto form = form_there(rows, begin))
          search_on_device(*form, k, *allowed, todo, out);
      }
    }
    note_fallback(todo);
    if (todo.empty()) return;
    if (prepared().on_device)
      search_copy(rows, begin, todo, out);
    else
      search_queries(rows, begin, std::move(todo), out);
  }

  // Which rows of the form of a chunk may be found: all of them where the form is of the rows that
  // subset_ lists. Nothing where few rows of those that are on the device alone may be: the
  // processor has a copy made.
  std::optional<AllowedRows> allowed_there(const BaseRows& rows, std::int64_t begin) {
    ScanJob job = job_for(queries_, rows, k_);
    job.allowed = allowed_rows(rows, begin);
    if (by_bits(rows)) return job.allowed;
    list_allowed(job);
    if (prepared().on_device && !subset_.empty()) return {};
    return AllowedRows{};
  }
  // The rows of a chunk on the device, and the next ones on their way. Nothing where the device has
  // no memory for them.
  std::shared_ptr<Representation> form_there(const BaseRows& rows, std::int64_t begin) {
    std::shared_ptr<Representation> form;
    try {
      form = form_of(rows, begin);
    } catch (const MemoryBudgetError&) {
    }
    send_next(rows, begin);
    return form;
  }
  void note_fallback(const std::vector<std::int64_t>& left) {
    fallback_queries_ = std::max(fallback_queries_, std::ssize(left));
  }

  std::int64_t packing_bytes(std::int64_t rows, FirstPass pass) const override {
    if (pass != FirstPass::integer && pass != FirstPass::int8)
      return Search::packing_bytes(rows, pass);
    if (is_there()) return 0;
    return packed_bytes(rows, integer() ? FirstPass::integer : FirstPass::int8);
  }

  // What half of the device's free memory holds: the other half is for queries and lists. Where
  // that is not all rows, those that come next are on their way meanwhile.
  std::int64_t most_chunk_rows() const override {
    if (is_there()) return Search::most_chunk_rows();
    // A device that has no memory for a queue has none for rows: the processor's way, then.
    try {
      queue();
    } catch (const MemoryBudgetError&) {
      return Search::most_chunk_rows();
    }
    const std::int64_t dim = base().cols();
    const std::int64_t row_bytes = prepared().on_device ? 0 : base().row_bytes();
    const std::int64_t code_bytes = device_code_bytes(dim) + 8;  // and sizes, and heads
    const auto room = static_cast<std::int64_t>(queue()->free_bytes() / 2);
    if (base().rows() <= room / (code_bytes + row_bytes)) return Search::most_chunk_rows();
    return std::clamp<std::int64_t>(room / (code_bytes + 2 * row_bytes), 1024,
                                    Search::most_chunk_rows());
  }

  void fill(KnnReport& r, double seconds) const override {
    Search::fill(r, seconds);
    r.device = options_.device;
    r.device_bytes = static_cast<std::int64_t>(device_bytes_);
  }

  // Of the processor's memory for a batch of so many queries.
  std::int64_t host_bytes(std::int64_t batch) const {
    const std::int64_t dim = queries_.cols();
    return batch * DeviceScan<Queue>::host_bytes_for_query(k_, dim, slices_of((dim + 3) / 4)) +
           threads_ * DeviceScan<Queue>::host_bytes_for_thread(dim);
  }

  // Of the device's memory, what this search may take now.
  std::size_t room_on(const Representation& form) const {
    const std::size_t room = form.queue->free_bytes();
    return options_.memory > 0 ? std::min(room, static_cast<std::size_t>(options_.memory)) : room;
  }
  // Queries at a time, `batch` or with a memory limit as many as the processor has room for.
  std::int64_t fitting_batch(std::int64_t batch) const {
    if (options_.memory <= 0) return batch;
    const std::int64_t left = options_.memory - other_bytes();
    while (batch > block_queries && host_bytes(batch) - host_bytes(block_queries) > left)
      batch = std::max<std::int64_t>(block_queries, batch / 2);
    return batch;
  }
  // That so many queries were answered there.
  void note_on_device(const Representation& form, std::int64_t queries) {
    packed_bytes_ = std::max(packed_bytes_, 2 * piece_);
    note_pass(integer() ? FirstPass::integer : FirstPass::int8,
              static_cast<std::size_t>(queries * count_));
    device_bytes_ = std::max(device_bytes_, form.queue->most_bytes_in_use());
  }

  // Answers what it can of `todo`, and leaves the others there.
  void search_on_device(Representation& form, std::int64_t k, const AllowedRows& allowed,
                        std::vector<std::int64_t>& todo, ExactNeighbors& out) {
    std::lock_guard lock(form.mutex);
    const std::size_t before = todo.size();
    // To ask what is free takes as long as a search of few queries, whose lists are small.
    const bool limited = options_.memory > 0;
    const bool small = std::ssize(todo) <= block_queries && k <= warp_select_max_k;
    const std::size_t room = small && !limited ? 0 : room_on(form);
    const std::int64_t batch = fitting_batch(form.scan->batch_for(std::ssize(todo), k, room));
    DeviceStats stats;
    std::vector<bool> answered(static_cast<std::size_t>(queries_.rows()));
    for (const std::int64_t q : todo) answered[static_cast<std::size_t>(q)] = true;
    todo = form.scan->run(queries_, todo, found_, k, out, stats, batch, options_.progress,
                          upper_bounds_, allowed,
                          limited ? room : std::numeric_limits<std::size_t>::max());
    // Rows that were sent alone are numbered by themselves.
    for (const std::int64_t q : todo) answered[static_cast<std::size_t>(q)] = false;
    for (std::int64_t q = 0; q < queries_.rows() && !subset_.empty(); ++q)
      for (std::int64_t j = 0; answered[static_cast<std::size_t>(q)] && j < k; ++j)
        if (Id& id = out.ids.row(q)[j]; id != no_id) id = subset_[static_cast<std::size_t>(id)];
    // Lists that were full were counted, and then made again.
    note_scored(form.coding, static_cast<std::int64_t>(before) + 2 * stats.repeated);
    stats_.repeated += stats.repeated;
    note_on_device(form, static_cast<std::int64_t>(before - todo.size()));
    stats_.survivors += stats.survivors;
    stats_.buffer_bytes =
        std::max(stats_.buffer_bytes, host_bytes(std::min<std::int64_t>(batch, queries_.rows())));
  }

  // Answers queries by copies of the rows of a chunk.
  void search_copy(const BaseRows& rows, std::int64_t begin, const std::vector<std::int64_t>& todo,
                   ExactNeighbors& out) {
    const std::int64_t k = out.keys.cols();
    ExactNeighbors found;
    each_copy(rows, begin, todo,
              [&](const SearchSegment& segment, AnyMatrixView queries, const KnnOptions& options) {
                Search search({&segment, 1}, queries, k, options, Reuse::none, found.keys.cols());
                search.run_from(found, nullptr);
                this->note_search(search);
              });
    for (std::size_t i = 0; i < todo.size(); ++i) {
      const auto from = static_cast<std::int64_t>(i);
      std::copy_n(found.keys.row(from), found.keys.cols(), out.keys.row(todo[i]));
      std::copy_n(found.ids.row(from), found.ids.cols(), out.ids.row(todo[i]));
    }
  }

  // Calls f(part, queries, options) for copies of the rows of a chunk, which are on the device
  // alone, some at a time: for a search of the processor. part.ids are rows of the chunk; queries:
  // those of `todo`, in this order.
  static constexpr std::int64_t copied_bytes = 256 << 20;
  template <class F>
  void each_copy(const BaseRows& rows, std::int64_t begin, const std::vector<std::int64_t>& todo,
                 F f) {
    const AnyMatrix some = queries_of(todo);
    KnnOptions options = options_;
    options.device = "cpu", options.progress = {}, options.first_pass = FirstPass::automatic;
    std::int64_t piece = copied_bytes;
    if (options.memory > 0) {
      piece = std::min(piece, options.memory / 4);
      options.memory -= piece;
    }
    const std::int64_t together = std::max<std::int64_t>(1, piece / rows.row_bytes());
    Reporter reporter(options_.progress, "search copy", (rows.rows() + together - 1) / together);
    for (std::int64_t from = 0; from < rows.rows(); from += together) {
      const std::int64_t count = std::min(together, rows.rows() - from);
      const AnyMatrix copy = prepared().on_device->copy(begin + from, count);
      PreparedRows here(copy.view(), options_.metric, prepared().found);
      SearchSegment segment = segment_->given;
      segment.rows = &here, segment.ids = {from, nullptr}, segment.filter_offset += begin + from;
      f(segment, some.view(), options);
      reporter.add(1);
    }
  }
  // Copies of some queries.
  AnyMatrix queries_of(const std::vector<std::int64_t>& which) const {
    AnyMatrix out(queries_.type(), std::ssize(which), queries_.cols());
    const auto bytes = static_cast<std::size_t>(queries_.cols() * size_of(queries_.type()));
    for (std::size_t i = 0; i < which.size(); ++i)
      std::memcpy(out.row(static_cast<std::int64_t>(i)), queries_.row(which[i]), bytes);
    return out;
  }

  bool integer() const {
    return segment_->integer && options_.first_pass != FirstPass::int8 &&
           base().cols() <= DeviceScan<Queue>::most_integer_dim;
  }
  // Of a form: "cuda" and "cuda:0" are the same device.
  std::string name() const {
    return fmt::format("{} {}", parse_device(options_.device).index,
                       integer() ? "integer" : "int8");
  }

  // Whether the search goes by all rows of a chunk, and takes from them those that it may find: by
  // the form of a whole part that is kept for later searches, or of rows that are on the device
  // anyway. Where it may find few of them, those are sent and coded by themselves, for this search
  // alone, so that what it costs falls with their number. From where on that pays was not measured.
  static constexpr std::int64_t rows_for_one = 16;
  bool all_rows(std::int64_t allowed) const {
    return reuse_ == Reuse::expected && allowed * rows_for_one >= base().rows();
  }
  bool stays() const { return whole_ && all_rows(count_); }
  bool by_bits(const BaseRows& rows) const {
    return prepared().on_device ? count_ * rows_for_one >= rows.rows() : stays();
  }
  bool is_there() const {
    return all_rows(segment_->allowed) && prepared().kept_device_form(name());
  }

  // Of the rows of a chunk, those allowed where it does not stay.
  std::shared_ptr<Representation> form_of(const BaseRows& rows, std::int64_t begin) {
    const auto make = [&] {
      const auto start = Clock::now();
      auto form = std::make_shared<Representation>();
      form->queue = queue();
      form->coding = device_coding(
          integer() ? Coding::whole_numbers(options_.metric, isa_, prepared().found)
                    : certified_coding(prepared().on_device ? prepared().on_device->space
                                                            : prepared().coding_space()),
          subset_.empty() ? rows.rows() : std::ssize(subset_), rows.cols());
      form->scan.emplace(*form->queue, form->coding, rows_of(rows, begin), threads_);
      prepare_seconds_ += seconds_since(start);
      return form;
    };
    if (reuse_ == Reuse::none || !whole_ || !subset_.empty()) return make();
    // What stays was made without a limit; it takes nothing more of one that has.
    if (options_.memory > 0) {
      if (auto kept = prepared().kept_device_form(name()))
        return std::static_pointer_cast<Representation>(kept);
      return make();
    }
    return std::static_pointer_cast<Representation>(prepared().device_form(name(), make));
  }

  // The rows of a chunk on the device: those that were sent ahead, if they are these.
  DeviceRowData<Queue> rows_of(const BaseRows& rows, std::int64_t begin) {
    if (const auto& there = prepared().on_device) {
      DeviceRowData<Queue> out;
      out.borrowed = static_cast<const unsigned char*>(there->data) + begin * rows.row_bytes();
      out.type = rows.type(), out.count = rows.rows(), out.dim = rows.cols();
      return out;
    }
    if (coming_ && coming_->segment == segment_ && coming_->begin == begin && subset_.empty()) {
      // What had no room beside the lists of the chunk before may have it now.
      try {
        coming_->sending.wait();
        DeviceRowData<Queue> out = std::move(coming_->rows);
        coming_.reset();
        if (out.count == rows.rows()) return out;
      } catch (const MemoryBudgetError&) {
      }
    }
    coming_.reset();  // waits for it
    return upload_rows(*queue(), rows, subset_, threads_, piece_);
  }

  // Sends the next chunk of the part on its way, while this one is searched.
  void send_next(const BaseRows& rows, std::int64_t begin) {
    const std::int64_t next = begin + rows.rows(),
                       end = std::min(base().rows(), next + rows.rows());
    if (whole_ || next >= end || prepared().on_device) return;
    const BaseRows following = base().part(next, end);
    if (allowed_between(next, end) != end - next) return;
    // What can't be sent ahead is sent in its turn.
    try {
      if (!sender_) sender_ = std::make_shared<Queue>(queue()->beside());
      Coming& coming = coming_.emplace();
      coming.segment = segment_, coming.begin = next;
      coming.sending.run([this, following, &coming] {
        coming.rows = upload_rows(*sender_, following, {}, threads_, piece_);
      });
    } catch (const MemoryBudgetError&) {
    }
  }

  const std::shared_ptr<Queue>& queue() const {
    if (!queue_) queue_ = std::make_shared<Queue>(open_());
    return queue_;
  }

  std::function<Queue()> open_;
  mutable std::shared_ptr<Queue> queue_;  // see queue()
  std::shared_ptr<Queue> sender_;         // of rows that come next
  std::optional<Coming> coming_;
  std::size_t device_bytes_ = 0;
  std::int64_t piece_ = 4 << 20;  // in which rows go to the device
};

}  // namespace knear::detail
