#include "knear/knn/knn_cuda.hpp"

#include <algorithm>
#include <string_view>

#include "knear/core/threads.hpp"
#include "knear/cuda/check.hpp"
#include "knear/knn/device/device_base.hpp"
#include "knear/scan/device/compress_cuda.hpp"
#include "knear/scan/device/packing_cuda.hpp"
#include "knear/scan/device/scan_launches_cuda.hpp"

namespace knear::cuda {
namespace {

using knear::detail::DeviceRowData;
using knear::detail::Reuse;

// The device whose memory it is. Throws InvalidArgument for a pointer to anything else.
int device_of(const void* data, std::string_view argument) {
  cudaPointerAttributes found = {};
  KNEAR_CHECK(cudaPointerGetAttributes(&found, data));
  if (found.type != cudaMemoryTypeDevice && found.type != cudaMemoryTypeManaged)
    throw InvalidArgument("{} must be in the memory of a GPU, but {} is not", argument, data);
  return found.device;
}

void check_pointer(const void* data, int device, std::string_view argument) {
  if (const int found = device_of(data, argument); found != device)
    throw InvalidArgument("{} must be on device {}, where base is, but is on device {}", argument,
                          device, found);
}

void check_shape(const MatrixView& matrix, std::string_view argument) {
  constexpr std::int64_t most_cols = 65536, most_rows = std::int64_t{1} << 30;
  if (matrix.cols < 1 || matrix.cols > most_cols)
    throw InvalidArgument("{} must have between 1 and {} columns, but has {}", argument, most_cols,
                          matrix.cols);
  if (matrix.rows < 0 || matrix.rows > most_rows)
    throw InvalidArgument("{} must have between 0 and {} rows, but has {}", argument, most_rows,
                          matrix.rows);
  if (matrix.rows > 0 &&
      reinterpret_cast<std::uintptr_t>(matrix.data) % static_cast<unsigned>(size_of(matrix.type)) !=
          0)
    throw InvalidArgument("{} must begin at a multiple of {} bytes, but begins at {}", argument,
                          size_of(matrix.type), matrix.data);
}

DeviceRowData<Queue> rows_of(const MatrixView& matrix) {
  DeviceRowData<Queue> out;
  out.borrowed = matrix.data, out.type = matrix.type;
  out.count = matrix.rows, out.dim = matrix.cols;
  return out;
}

std::size_t budget_of(const KnnOptions& options) {
  return static_cast<std::size_t>(std::max<std::int64_t>(0, options.memory));
}

// A base without rows is on no device; then the current one will do.
int home_of(const MatrixView& base) {
  check_shape(base, "base");
  if (base.rows > 0) return device_of(base.data, "base");
  int device = 0;
  KNEAR_CHECK(cudaGetDevice(&device));
  return device;
}

// With the name of the device, and nothing that it does not have.
KnnOptions checked(KnnOptions options, int device) {
  knear::detail::check_exact(options, "a search of device memory");
  const knear::detail::Device asked = knear::detail::parse_device(options.device);
  if (asked.cuda && asked.index != device && options.device != "cuda")
    throw InvalidArgument("device is {}, but base is on cuda:{}", options.device, device);
  options.device = fmt::format("cuda:{}", device);
  return options;
}

void check_queries(const MatrixView& queries, const MatrixView& base, int device,
                   const KnnOptions& options) {
  check_shape(queries, "queries");
  if (queries.cols != base.cols)
    throw ShapeMismatch("queries have {} columns, base has {}", queries.cols, base.cols);
  if (!options.filter.everything() && options.filter.rows() != base.rows)
    throw ShapeMismatch("filter is for {} rows, base has {}", options.filter.rows(), base.rows);
  if (queries.rows > 0) check_pointer(queries.data, device, "queries");
}

void check_search(const MatrixView& queries, const MatrixView& base, std::int64_t k, const Id* ids,
                  const float* distances, int device, const KnnOptions& options) {
  knear::detail::check_k(k);
  check_queries(queries, base, device, options);
  if (queries.rows == 0) return;
  check_pointer(ids, device, "ids");
  check_pointer(distances, device, "distances");
}

void check_range_search(const MatrixView& queries, const MatrixView& base, double radius,
                        int device, const KnnOptions& options) {
  knear::detail::check_radius(radius);
  check_queries(queries, base, device, options);
}

}  // namespace

class ExactSearcher::Impl {
 public:
  Impl(const MatrixView& base, const KnnOptions& options, cudaStream_t stream)
      : matrix(base),
        device(home_of(base)),
        rows(Queue(device, budget_of(options), stream), rows_of(base), options.metric) {}

  void search(const MatrixView& queries, std::int64_t k, Id* ids, float* distances,
              const KnnOptions& options, Reuse reuse, KnnReport* report) {
    const DefaultFloatMode mode;
    check_search(queries, matrix, k, ids, distances, device, options);
    check_metric(options);
    rows.search(rows_of(queries), k, checked(options, device), reuse, ids, distances, report);
  }

  RangeNeighbors range_search(const MatrixView& queries, double radius, const KnnOptions& options,
                              KnnReport* report) {
    const DefaultFloatMode mode;
    check_range_search(queries, matrix, radius, device, options);
    check_metric(options);
    return rows.range_search(rows_of(queries), radius, checked(options, device), Reuse::expected,
                             report);
  }

  MatrixView matrix;
  int device;
  knear::detail::DeviceBase<Queue> rows;

 private:
  void check_metric(const KnnOptions& options) const {
    if (options.metric != rows.metric())
      throw InvalidArgument("metric is {}, but the base was prepared for {}",
                            name_of(options.metric), name_of(rows.metric()));
  }
};

ExactSearcher::ExactSearcher(const MatrixView& base, const KnnOptions& options, cudaStream_t stream)
    : impl_(std::make_unique<Impl>(base, options, stream)) {}
ExactSearcher::~ExactSearcher() = default;
ExactSearcher::ExactSearcher(ExactSearcher&&) noexcept = default;
ExactSearcher& ExactSearcher::operator=(ExactSearcher&&) noexcept = default;

void ExactSearcher::search(const MatrixView& queries, std::int64_t k, Id* ids, float* distances,
                           const KnnOptions& options, KnnReport* report) {
  impl_->search(queries, k, ids, distances, options, Reuse::expected, report);
}

RangeNeighbors ExactSearcher::range_search(const MatrixView& queries, double radius,
                                           const KnnOptions& options, KnnReport* report) {
  return impl_->range_search(queries, radius, options, report);
}

void knn(const MatrixView& queries, const MatrixView& base, std::int64_t k, Id* ids,
         float* distances, cudaStream_t stream, const KnnOptions& options, KnnReport* report) {
  // What is wrong is said before the base is looked at.
  const int device = home_of(base);
  checked(options, device);
  check_search(queries, base, k, ids, distances, device, options);
  const DefaultFloatMode mode;
  knear::detail::DeviceBase<Queue> rows(Queue(device, budget_of(options), stream), rows_of(base),
                                        options.metric);
  rows.search(rows_of(queries), k, checked(options, device), Reuse::none, ids, distances, report);
}

void self_join(const MatrixView& base, std::int64_t k, Id* ids, float* distances,
               cudaStream_t stream, const KnnOptions& options, KnnReport* report) {
  const int device = home_of(base);
  checked(options, device);
  check_search(base, base, k, ids, distances, device, options);
  const DefaultFloatMode mode;
  knear::detail::DeviceBase<Queue> rows(Queue(device, budget_of(options), stream), rows_of(base),
                                        options.metric);
  rows.self_join(k, checked(options, device), Reuse::none, ids, distances, report);
}

RangeNeighbors range_search(const MatrixView& queries, const MatrixView& base, double radius,
                            cudaStream_t stream, const KnnOptions& options, KnnReport* report) {
  const int device = home_of(base);
  checked(options, device);
  check_range_search(queries, base, radius, device, options);
  const DefaultFloatMode mode;
  knear::detail::DeviceBase<Queue> rows(Queue(device, budget_of(options), stream), rows_of(base),
                                        options.metric);
  return rows.range_search(rows_of(queries), radius, checked(options, device), Reuse::none, report);
}

}  // namespace knear::cuda
