#include "knear/knn/knn.hpp"

#include "knear/core/public_call.hpp"
#include "knear/knn/faster_device.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear {
using detail::Reuse;
using detail::SearchKind;
using detail::SearchRequest;

namespace {

// Checks the arguments before the base is looked at.
void check_arguments(AnyMatrixView queries, AnyMatrixView base, std::int64_t k) {
  detail::check_answer(queries.rows(), k);
  detail::check_columns(queries.cols(), base.cols());
}

}  // namespace

// A base of one segment.
class ExactSearcher::Impl {
 public:
  Impl(AnyMatrixView base, const KnnOptions& options)
      : matrix(base), rows_(base, options.metric, value_range(base, options)) {}

  // The caller has checked the arguments.
  SearchRequest request(SearchKind kind, AnyMatrixView queries, std::int64_t k,
                        const KnnOptions& options, Reuse reuse) {
    if (options.method.partial_reduce.aggregate)
      detail::check_padding(queries.rows(), k, matrix.rows(), options.memory);
    detail::check_metric(options.metric, rows_.metric);
    detail::check_filter(options.filter, matrix.rows());
    const detail::SearchSegment segment{&rows_, {}, options.filter};
    return detail::placed_request(kind, segment, queries, k, options, reuse);
  }

  const AnyMatrixView matrix;

 private:
  static ValueRange value_range(AnyMatrixView base, const KnnOptions& options) {
    detail::check_dim("base", base.cols());
    return find_value_range(base, options.metric, "base", options.threads);
  }
  detail::PreparedRows rows_;
};

ExactSearcher::ExactSearcher(AnyMatrixView base, const KnnOptions& options)
    : impl_(detail::public_call([&] { return std::make_unique<Impl>(base, options); })) {}
ExactSearcher::~ExactSearcher() = default;
ExactSearcher::ExactSearcher(ExactSearcher&&) noexcept = default;
ExactSearcher& ExactSearcher::operator=(ExactSearcher&&) noexcept = default;

Neighbors ExactSearcher::search(AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                                KnnReport* report) const {
  return detail::public_call([&] {
    check_arguments(queries, impl_->matrix, k);
    return search_segments(
        impl_->request(SearchKind::nearest, queries, k, options, Reuse::expected), report);
  });
}

Neighbors ExactSearcher::self_join(std::int64_t k, const KnnOptions& options,
                                   KnnReport* report) const {
  return detail::public_call([&] {
    check_arguments(impl_->matrix, impl_->matrix, k);
    return search_segments(
        impl_->request(SearchKind::self_join, impl_->matrix, k, options, Reuse::expected), report);
  });
}

RangeNeighbors ExactSearcher::range_search(AnyMatrixView queries, double radius,
                                           const KnnOptions& options, KnnReport* report) const {
  return detail::public_call([&] {
    radius = detail::checked_radius(radius);
    check_arguments(queries, impl_->matrix, detail::usual_k);
    return range_search_segments(
        impl_->request(SearchKind::range, queries, detail::usual_k, options, Reuse::expected),
        radius, report);
  });
}

Neighbors knn(AnyMatrixView queries, AnyMatrixView base, std::int64_t k, const KnnOptions& options,
              KnnReport* report) {
  return detail::public_call([&] {
    check_arguments(queries, base, k);
    ExactSearcher::Impl impl(base, options);
    return search_segments(impl.request(SearchKind::nearest, queries, k, options, Reuse::none),
                           report);
  });
}

Neighbors self_join(AnyMatrixView base, std::int64_t k, const KnnOptions& options,
                    KnnReport* report) {
  return detail::public_call([&] { return detail::self_join(base, k, options, {}, report); });
}

RangeNeighbors range_search(AnyMatrixView queries, AnyMatrixView base, double radius,
                            const KnnOptions& options, KnnReport* report) {
  return detail::public_call([&] {
    radius = detail::checked_radius(radius);
    check_arguments(queries, base, detail::usual_k);
    ExactSearcher::Impl impl(base, options);
    return range_search_segments(
        impl.request(SearchKind::range, queries, detail::usual_k, options, Reuse::none), radius,
        report);
  });
}

}  // namespace knear
