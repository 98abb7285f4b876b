// The method threshold-heap on the processor, and the way into it.
#include "knear/knn/search/threshold_heap_search.hpp"

#include "knear/knn/device/device_threshold_heap_search.hpp"
#include "knear/select/sort/permutation.hpp"

#ifdef KNEAR_CUDA
#include "knear/knn/device/queue_factory.hpp"
#include "knear/scan/device/compress_cuda.hpp"
#include "knear/scan/device/packing_cuda.hpp"
#include "knear/scan/device/scan_launches_cuda.hpp"
#endif

namespace knear::detail {
namespace {

constexpr std::uint64_t sample_seed = 0x7468726573686f6c;

class ThresholdHeapSearch final : public ThresholdHeap<Search> {
 public:
  ThresholdHeapSearch(std::span<const SearchSegment> segments, AnyMatrixView queries,
                      std::int64_t k, const KnnOptions& options, Reuse reuse)
      : ThresholdHeap(segments, queries, k, options, reuse) {
    fit_memory(threshold_heap_bytes(allowed_rows_, k_) * threads_);
  }

 protected:
  void search_rows(const BaseRows& rows, std::int64_t begin, ExactNeighbors& out) override {
    search_on_processor(rows, begin, upper_bounds(), all_queries(), out);
  }
};

}  // namespace

std::vector<std::int64_t> sampled_rows(std::int64_t count, std::int64_t wanted) {
  const Permutation order(count, sample_seed);
  std::vector<std::int64_t> out(static_cast<std::size_t>(wanted));
  for (std::int64_t i = 0; i < wanted; ++i) out[static_cast<std::size_t>(i)] = order.row_at(i);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::uint32_t> allowed_rows_of(const SearchSegment& segment) {
  const std::int64_t rows = segment.rows->base.rows();
  if (!segment.live)
    return segment.filter.allowed(segment.filter_offset, segment.filter_offset + rows);
  std::vector<std::uint32_t> out;
  for (std::int64_t row = 0; row < rows; ++row)
    if (segment.live->contains(row)) out.push_back(static_cast<std::uint32_t>(row));
  return out;
}

Neighbors threshold_heap_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                  std::int64_t k, const KnnOptions& options, Reuse reuse,
                                  KnnReport* report) {
  check_device(options.device);
#ifdef KNEAR_CUDA
  if (const Device device = parse_device(options.device); device.cuda)
    return DeviceThresholdHeap<cuda::Queue>(queue_factory(device, options), segments, queries, k,
                                            options, reuse)
        .run_heap(report);
#endif
  return ThresholdHeapSearch(segments, queries, k, options, reuse).run_heap(report);
}

}  // namespace knear::detail
