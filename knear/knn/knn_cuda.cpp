#include "knear/knn/knn_cuda.hpp"

#include <algorithm>
#include <string_view>

#include "knear/core/public_call.hpp"
#include "knear/cuda/check.hpp"
#include "knear/knn/device/cuda_arrays.hpp"
#include "knear/knn/device/device_base.hpp"
#include "knear/scan/device/launches_cuda.hpp"

namespace knear::cuda {
namespace {

using knear::detail::AnswerOnDevice;
using knear::detail::check_pointer;
using knear::detail::check_shape;
using knear::detail::device_of;
using knear::detail::Reuse;
using knear::detail::rows_of;
using knear::detail::SearchKind;

std::size_t budget_of(const KnnOptions& options) {
  return std::max<std::int64_t>(0, options.memory);
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
  knear::detail::check_exact(options.method, "a search of device memory");
  options.device = knear::detail::device_of_arrays(options.device, device, "base is");
  return options;
}

void check_queries(const MatrixView& queries, const MatrixView& base, int device,
                   const KnnOptions& options) {
  check_shape(queries, "queries");
  knear::detail::check_columns(queries.cols, base.cols);
  knear::detail::check_filter(options.filter, base.rows);
  if (queries.rows > 0) check_pointer(queries.data, device, "queries", "base is");
}

void check_search(const MatrixView& queries, const MatrixView& base, std::int64_t k,
                  const AnswerOnDevice& to, int device, const KnnOptions& options) {
  knear::detail::check_k(k);
  check_queries(queries, base, device, options);
  if (queries.rows == 0) return;
  check_pointer(to.ids, device, "ids", "base is");
  check_pointer(to.distances, device, "distances", "base is");
}

}  // namespace

class ExactSearcher::Impl {
 public:
  Impl(const MatrixView& base, const KnnOptions& options, cudaStream_t stream)
      : matrix(base),
        device(home_of(base)),
        rows(Queue(device, budget_of(options), stream), rows_of(base), options.metric) {}

  void search(const MatrixView& queries, std::int64_t k, const KnnOptions& options, Reuse reuse,
              AnswerOnDevice to, KnnReport* report) {
    check_search(queries, matrix, k, to, device, options);
    knear::detail::check_metric(options.metric, rows.metric());
    rows.search(SearchKind::nearest, rows_of(queries), k, checked(options, device), reuse, to,
                report);
  }

  RangeNeighbors range_search(const MatrixView& queries, double radius, const KnnOptions& options,
                              Reuse reuse, KnnReport* report) {
    radius = knear::detail::checked_radius(radius);
    check_queries(queries, matrix, device, options);
    knear::detail::check_metric(options.metric, rows.metric());
    return rows.range_search(rows_of(queries), radius, checked(options, device), reuse, report);
  }

  MatrixView matrix;
  int device;
  knear::detail::DeviceBase<Queue> rows;
};

ExactSearcher::ExactSearcher(const MatrixView& base, const KnnOptions& options, cudaStream_t stream)
    : impl_(knear::detail::public_call(
          [&] { return std::make_unique<Impl>(base, options, stream); })) {}
ExactSearcher::~ExactSearcher() = default;
ExactSearcher::ExactSearcher(ExactSearcher&&) noexcept = default;
ExactSearcher& ExactSearcher::operator=(ExactSearcher&&) noexcept = default;

void ExactSearcher::search(const MatrixView& queries, std::int64_t k, Id* ids, float* distances,
                           const KnnOptions& options, KnnReport* report) {
  knear::detail::public_call([&] {
    impl_->search(queries, k, options, Reuse::expected, {ids, distances}, report);
  });
}

RangeNeighbors ExactSearcher::range_search(const MatrixView& queries, double radius,
                                           const KnnOptions& options, KnnReport* report) {
  return knear::detail::public_call(
      [&] { return impl_->range_search(queries, radius, options, Reuse::expected, report); });
}

void knn(const MatrixView& queries, const MatrixView& base, std::int64_t k, Id* ids,
         float* distances, cudaStream_t stream, const KnnOptions& options, KnnReport* report) {
  knear::detail::public_call([&] {
    // What is wrong is said before the base is looked at.
    const int device = home_of(base);
    checked(options, device);
    check_search(queries, base, k, {ids, distances}, device, options);
    ExactSearcher::Impl(base, options, stream)
        .search(queries, k, options, Reuse::none, {ids, distances}, report);
  });
}

void self_join(const MatrixView& base, std::int64_t k, Id* ids, float* distances,
               cudaStream_t stream, const KnnOptions& options, KnnReport* report) {
  knear::detail::public_call([&] {
    const int device = home_of(base);
    checked(options, device);
    check_search(base, base, k, {ids, distances}, device, options);
    ExactSearcher::Impl impl(base, options, stream);
    impl.rows.search(SearchKind::self_join, rows_of(base), k, checked(options, device), Reuse::none,
                     {ids, distances}, report);
  });
}

RangeNeighbors range_search(const MatrixView& queries, const MatrixView& base, double radius,
                            cudaStream_t stream, const KnnOptions& options, KnnReport* report) {
  return knear::detail::public_call([&] {
    const int device = home_of(base);
    checked(options, device);
    radius = knear::detail::checked_radius(radius);
    check_queries(queries, base, device, options);
    return ExactSearcher::Impl(base, options, stream)
        .range_search(queries, radius, options, Reuse::none, report);
  });
}

}  // namespace knear::cuda
