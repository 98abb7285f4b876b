// knear/knn/device_search.hpp -- the k nearest by a GPU: a Search whose rows are scanned there.
//
// The processor packs the rows of a chunk, as for its own scan, and the device does the rest
// (scan/device_scan.hpp). Queries that come back are answered by the processor. Queue: cuda::Queue,
// or the emulated one of the tests.
#pragma once
#include <algorithm>
#include <memory>
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
      : Search(parts, queries, k, options, once, already), queue_(std::move(queue)) {
    const FirstPass pass = options.first_pass;
    if (pass != FirstPass::automatic && pass != FirstPass::integer && pass != FirstPass::int8)
      throw InvalidArgument("first_pass is {}, but device is {}, which has auto, integer and int8",
                            name_of(pass), options.device);
    const KnnChoices& choices = options.choices;
    if (choices.group > 0 || choices.parts > 0 || choices.tile > 0 || !choices.guess ||
        choices.refine)
      throw InvalidArgument("choices are made for the processor, but device is {}", options.device);
    learns_ = false;
  }

 protected:
  void search_rows(const BaseRows& rows, std::int64_t begin, ExactLists& out) override {
    const std::int64_t k = out.keys.cols();
    std::vector<std::int64_t> todo = all_queries();
    if (k <= DeviceScan<Queue>::most_k) {
      ScanJob job{queries_, rows,  options_.metric, k, threads_, isa_,
                  found_,   false, most_pending()};
      const auto start = Clock::now();
      job.allowed = allowed_rows(rows, begin);
      list_allowed(job);
      if (options_.metric != Metric::l2) answer_zero_queries(todo, job.allowed, out);
      const bool integer = part_->integer && options_.first_pass != FirstPass::int8 &&
                           rows.cols() <= DeviceScan<Queue>::most_integer_dim;
      const FirstPass pass = integer ? FirstPass::integer : FirstPass::int8;
      const PackedBase packed =
          integer ? PackedBase::integer(rows, subset_, options_.metric, isa_, prepared().found,
                                        threads_, options_.progress)
                  : PackedBase::certified(rows, subset_, format_int8,
                                          CodingSpace::choose(rows, options_.metric, isa_),
                                          threads_, options_.progress, 0, false);
      DeviceScan<Queue> scan(queue_, packed, rows, threads_);
      queue_.wait();
      prepare_seconds_ += seconds_since(start);
      DeviceStats stats;
      const std::size_t before = todo.size();
      todo = scan.run(queries_, todo, found_, k, out, stats,
                      scan.batch_for(std::ssize(todo), k, queue_.free_bytes()), options_.progress);
      note_scan(packed, pass, static_cast<std::int64_t>(before));
      note_pass(pass, (before - todo.size()) * static_cast<std::size_t>(count_));
      stats_.survivors += stats.survivors;
    }
    fallback_queries_ = std::max(fallback_queries_, std::ssize(todo));
    if (!todo.empty()) search_queries(rows, begin, std::move(todo), out);
  }

  // What half of the device's free memory holds: the other half is for queries and lists.
  std::int64_t most_chunk_rows() const override {
    const std::int64_t dim = base().cols();
    const std::int64_t row_bytes = slices_of((dim + 3) / 4) * slice_bytes + 16 +
                                   dim * size_of(base().type()) + 2 * dim / panel_rows + 2;
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(queue_.free_bytes() / 2) / row_bytes,
                                    1024, Search::most_chunk_rows());
  }

  void fill(KnnReport& r, double seconds) const override {
    Search::fill(r, seconds);
    r.device = options_.device;
    r.device_bytes = static_cast<std::int64_t>(queue_.most_bytes_in_use());
  }

 private:
  Queue queue_;
};

}  // namespace knear::detail
