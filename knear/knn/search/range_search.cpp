// The ways into a range search.
#include "knear/knn/search/range_search.hpp"

#include "knear/knn/device/device_range_search.hpp"

#ifdef KNEAR_CUDA
#include "knear/knn/device/queue_factory.hpp"
#include "knear/scan/device/compress_cuda.hpp"
#include "knear/scan/device/packing_cuda.hpp"
#include "knear/scan/device/scan_launches_cuda.hpp"
#endif

namespace knear::detail {

RangeNeighbors range_search_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                     double radius, const KnnOptions& options, Reuse reuse,
                                     KnnReport* report) {
  check_exact(options, "a range search");
  check_device(options.device);
  const double limit = range_limit(options.metric, radius);
#ifdef KNEAR_CUDA
  if (const Device device = parse_device(options.device); device.cuda)
    return DeviceRangeSearch<cuda::Queue>(queue_factory(device, options), segments, queries,
                                          options, reuse)
        .run_range(limit, report);
#endif
  return RangeSearch<Search>(segments, queries, usual_k, options, reuse).run_range(limit, report);
}

}  // namespace knear::detail
