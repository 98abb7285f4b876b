// knear/knn/device_search.hpp -- the k nearest by a GPU: a Search whose rows are scanned there.
//
// The processor packs the rows of a chunk, as for its own scan, and the device does the rest
// (scan/device_scan.hpp). Rows that are searched again stay on the device. Queries that come back
// are answered by the processor. Queue: cuda::Queue, or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "knear/knn/search.hpp"
#include "knear/scan/device_scan.hpp"

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
std::unique_ptr<Search> make_search(std::span<const SearchPart> parts, AnyMatrixView queries,
                                    std::int64_t k, const KnnOptions& options, bool once,
                                    std::int64_t already = 0);

template <class Queue>
class DeviceSearch : public Search {
 public:
  DeviceSearch(Queue queue, std::span<const SearchPart> parts, AnyMatrixView queries,
               std::int64_t k, const KnnOptions& options, bool once, std::int64_t already)
      : Search(parts, queries, k, options, once, already),
        queue_(std::make_shared<Queue>(std::move(queue))) {
    const FirstPass pass = options.first_pass;
    if (pass != FirstPass::automatic && pass != FirstPass::integer && pass != FirstPass::int8)
      throw InvalidArgument("first_pass is {}, but device is {}, which has auto, integer and int8",
                            name_of(pass), options.device);
    const KnnChoices& choices = options.choices;
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
      more_bytes_ = host_bytes(std::min<std::int64_t>(queries.rows(), block_queries)) + piece_;
    }
  }

 protected:
  void search_rows(const BaseRows& rows, std::int64_t begin, ExactLists& out) override {
    const std::int64_t k = out.keys.cols();
    std::vector<std::int64_t> todo = all_queries();
    if (k <= DeviceScan<Queue>::most_k) {
      ScanJob job{queries_, rows,  options_.metric, k, threads_, isa_,
                  found_,   false, most_pending()};
      job.allowed = allowed_rows(rows, begin);
      list_allowed(job);
      if (options_.metric != Metric::l2) answer_zero_queries(todo, job.allowed, out);
      // Where the device has no memory for the rows, or for a few queries, the processor has.
      std::shared_ptr<Form> form;
      try {
        form = form_of(rows);
      } catch (const MemoryBudgetError&) {
      }
      if (form) search_on_device(*form, k, todo, out);
    }
    fallback_queries_ = std::max(fallback_queries_, std::ssize(todo));
    if (!todo.empty()) search_queries(rows, begin, std::move(todo), out);
  }

  std::int64_t packing_bytes(std::int64_t rows, FirstPass pass) const override {
    if (pass != FirstPass::integer && pass != FirstPass::int8)
      return Search::packing_bytes(rows, pass);
    if (prepared().kept_device_form(name())) return 0;
    return packed_bytes(rows, integer() ? FirstPass::integer : FirstPass::int8);
  }

  // What half of the device's free memory holds: the other half is for queries and lists. All rows
  // where they are there.
  std::int64_t most_chunk_rows() const override {
    if (prepared().kept_device_form(name())) return Search::most_chunk_rows();
    const std::int64_t dim = base().cols();
    const std::int64_t row_bytes = slices_of((dim + 3) / 4) * slice_bytes + 16 +
                                   dim * size_of(base().type()) + 2 * dim / panel_rows + 2;
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(queue_->free_bytes() / 2) / row_bytes,
                                    1024, Search::most_chunk_rows());
  }

  void fill(KnnReport& r, double seconds) const override {
    Search::fill(r, seconds);
    r.device = options_.device;
    r.device_bytes = static_cast<std::int64_t>(device_bytes_);
  }

  // Rows on the device, and what is left of them here. One search at a time.
  struct Form {
    std::shared_ptr<Queue> queue;
    PackedBase packed;  // without codes
    std::optional<DeviceScan<Queue>> scan;
    std::mutex mutex;
  };

  // Of the processor's memory for a batch of so many queries.
  std::int64_t host_bytes(std::int64_t batch) const {
    const std::int64_t dim = queries_.cols();
    return batch * DeviceScan<Queue>::host_bytes_for_query(k_, dim, slices_of((dim + 3) / 4)) +
           threads_ * DeviceScan<Queue>::host_bytes_for_thread(dim);
  }

  // Answers what it can of `todo`, and leaves the others there.
  void search_on_device(Form& form, std::int64_t k, std::vector<std::int64_t>& todo,
                        ExactLists& out) {
    std::lock_guard lock(form.mutex);
    const std::size_t before = todo.size();
    std::int64_t batch = form.scan->batch_for(std::ssize(todo), k, form.queue->free_bytes());
    if (options_.memory > 0) {
      const std::int64_t left = options_.memory - other_bytes() - form.packed.bytes();
      while (batch > block_queries && host_bytes(batch) - host_bytes(block_queries) > left)
        batch = std::max<std::int64_t>(block_queries, batch / 2);
    }
    DeviceStats stats;
    todo = form.scan->run(queries_, todo, found_, k, out, stats, batch, options_.progress);
    note_scan(form.packed, integer() ? FirstPass::integer : FirstPass::int8,
              static_cast<std::int64_t>(before));
    note_pass(integer() ? FirstPass::integer : FirstPass::int8,
              (before - todo.size()) * static_cast<std::size_t>(count_));
    stats_.survivors += stats.survivors;
    stats_.buffer_bytes =
        std::max(stats_.buffer_bytes, host_bytes(std::min<std::int64_t>(batch, queries_.rows())));
    device_bytes_ = std::max(device_bytes_, form.queue->most_bytes_in_use());
  }

  bool integer() const {
    return part_->integer && options_.first_pass != FirstPass::int8 &&
           base().cols() <= DeviceScan<Queue>::most_integer_dim;
  }
  // Of a form: "cuda" and "cuda:0" are the same device.
  std::string name() const {
    return fmt::format("{} {}", parse_device(options_.device).index,
                       integer() ? "integer" : "int8");
  }

  // Of the rows allowed of a chunk. That of a whole part is kept for later searches.
  std::shared_ptr<Form> form_of(const BaseRows& rows) {
    const auto make = [&] {
      const auto start = Clock::now();
      auto form = std::make_shared<Form>();
      form->queue = queue_;
      form->packed = integer()
                         ? PackedBase::integer(rows, subset_, options_.metric, isa_,
                                               prepared().found, threads_, options_.progress)
                         : PackedBase::certified(rows, subset_, format_int8,
                                                 CodingSpace::choose(rows, options_.metric, isa_),
                                                 threads_, options_.progress, 0, false);
      packed_bytes_ = std::max(packed_bytes_, form->packed.bytes() + piece_);
      form->scan.emplace(*form->queue, form->packed, rows, threads_, piece_);
      form->packed.codes = {};
      prepare_seconds_ += seconds_since(start);
      return form;
    };
    if (once_ || !whole_ || !subset_.empty()) return make();
    return std::static_pointer_cast<Form>(prepared().device_form(name(), make));
  }

  std::shared_ptr<Queue> queue_;
  std::size_t device_bytes_ = 0;
  std::int64_t piece_ = 16 << 20;  // in which rows and codes go to the device
};

}  // namespace knear::detail
