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
    if (choices.group > 0 || choices.parts > 0 || choices.tile > 0 || !choices.guess ||
        choices.refine)
      throw InvalidArgument("choices are made for the processor, but device is {}", options.device);
    if (pass == FirstPass::integer && queries.cols() > DeviceScan<Queue>::most_integer_dim)
      throw InvalidArgument(
          "first_pass is integer, but device is {}, which has it up to {} columns", options.device,
          DeviceScan<Queue>::most_integer_dim);
    learns_ = false;
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
      const std::shared_ptr<Form> form = form_of(rows);
      const FirstPass pass = integer() ? FirstPass::integer : FirstPass::int8;
      DeviceStats stats;
      const std::size_t before = todo.size();
      std::lock_guard lock(form->mutex);
      DeviceScan<Queue>& scan = *form->scan;
      todo = scan.run(queries_, todo, found_, k, out, stats,
                      scan.batch_for(std::ssize(todo), k, form->queue->free_bytes()),
                      options_.progress);
      note_scan(form->packed, pass, static_cast<std::int64_t>(before));
      note_pass(pass, (before - todo.size()) * static_cast<std::size_t>(count_));
      stats_.survivors += stats.survivors;
      device_bytes_ = std::max(device_bytes_, form->queue->most_bytes_in_use());
    }
    fallback_queries_ = std::max(fallback_queries_, std::ssize(todo));
    if (!todo.empty()) search_queries(rows, begin, std::move(todo), out);
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

 private:
  // Rows on the device, and what is left of them here. One search at a time.
  struct Form {
    std::shared_ptr<Queue> queue;
    PackedBase packed;  // without codes
    std::optional<DeviceScan<Queue>> scan;
    std::mutex mutex;
  };

  bool integer() const {
    return part_->integer && options_.first_pass != FirstPass::int8 &&
           base().cols() <= DeviceScan<Queue>::most_integer_dim;
  }
  std::string name() const { return options_.device + (integer() ? " integer" : " int8"); }

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
      form->scan.emplace(*form->queue, form->packed, rows, threads_);
      form->packed.codes = {};
      prepare_seconds_ += seconds_since(start);
      return form;
    };
    if (once_ || !whole_ || !subset_.empty()) return make();
    return std::static_pointer_cast<Form>(prepared().device_form(name(), make));
  }

  std::shared_ptr<Queue> queue_;
  std::size_t device_bytes_ = 0;
};

}  // namespace knear::detail
