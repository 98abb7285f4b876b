#include "knear/index/index_cuda.hpp"

#include "knear/core/public_call.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/index/impl/device_query_index.hpp"
#include "knear/knn/device/cuda_arrays.hpp"
#include "knear/scan/device/launches_cuda.hpp"

namespace knear::cuda {

using knear::detail::check_k;
using knear::detail::check_pointer;
using knear::detail::check_shape;
using knear::detail::device_of;
using knear::detail::device_of_arrays;
using knear::detail::public_call;
using knear::detail::rows_of;
using knear::detail::search_on_device;

void search(const Index& index, const MatrixView& queries, std::int64_t k, Id* ids,
            float* distances, CUstream_st* stream, const SearchOptions& options,
            KnnReport* report) {
  public_call([&] {
    check_k(k);
    check_shape(queries, "queries");
    int device = 0;
    if (queries.rows > 0)
      device = device_of(queries.data, "queries");
    else
      KNEAR_CHECK(cudaGetDevice(&device));
    if (queries.rows > 0) {
      check_pointer(ids, device, "ids", "queries are");
      check_pointer(distances, device, "distances", "queries are");
    }
    SearchOptions there = options;
    there.device = device_of_arrays(options.device, device, "queries are");
    const CurrentDevice current(device);
    KNEAR_CHECK(cudaStreamSynchronize(stream));
    Queue queue(device);
    search_on_device<Queue>(
        index.body().one(), queue, [device] { return Queue(device); }, rows_of(queries), k, there,
        {ids, distances}, report);
  });
}

}  // namespace knear::cuda
