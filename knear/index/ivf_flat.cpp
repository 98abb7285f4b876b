#include "knear/index/ivf_flat.hpp"

#include <algorithm>

#include "knear/core/public_call.hpp"
#include "knear/index/index_impl.hpp"

namespace knear {
namespace {

constexpr std::int64_t most_lists = 1 << 24;

void check_lists(std::int64_t lists) {
  if (lists < 1 || lists > most_lists)
    throw InvalidArgument("lists must be between 1 and {}, but is {}", most_lists, lists);
}

// The centroids in the state of an index that has no rows yet.
detail::State with_centroids(MatrixView<float> centroids, Metric metric) {
  find_value_range(centroids, metric, "centroids", 1);
  Matrix<float> own(centroids.rows(), centroids.cols());
  for (std::int64_t l = 0; l < centroids.rows(); ++l)
    std::copy_n(centroids.row(l), centroids.cols(), own.row(l));
  detail::State out;
  out.coarse = std::make_shared<const detail::CoarseQuantizer>(std::move(own), metric);
  out.recall = std::make_shared<detail::RecallCurves>(0);
  return out;
}

}  // namespace

IvfFlatIndex::IvfFlatIndex(std::int64_t dim, std::int64_t lists, Metric metric)
    : Index(detail::public_call([&] {
        detail::check_index_dim(dim);
        check_lists(lists);
        return std::make_unique<Impl>(
            detail::IndexShape{.dim = dim, .metric = metric, .lists = lists});
      })) {}

IvfFlatIndex::IvfFlatIndex(MatrixView<float> centroids, Metric metric)
    : Index(detail::public_call([&] {
        detail::check_index_dim(centroids.cols());
        check_lists(centroids.rows());
        return std::make_unique<Impl>(
            detail::IndexShape{
                .dim = centroids.cols(), .metric = metric, .lists = centroids.rows()},
            with_centroids(centroids, metric));
      })) {}

IvfFlatIndex IvfFlatIndex::load(const std::string& path) {
  return detail::public_call([&] { return IvfFlatIndex(Impl::load(path, "IVFFlat")); });
}

std::int64_t IvfFlatIndex::lists() const { return impl().shape.lists; }

Matrix<float> IvfFlatIndex::centroids() const {
  return detail::public_call([&] {
    const auto state = impl().state();
    if (!state->coarse) return Matrix<float>(0, dim());
    const MatrixView<float> from = state->coarse->centroids();
    Matrix<float> out(from.rows(), from.cols());
    std::copy_n(from.data(), from.rows() * from.cols(), out.data());
    return out;
  });
}

std::vector<std::int64_t> IvfFlatIndex::list_sizes() const {
  return detail::public_call([&] {
    std::vector<std::int64_t> out(static_cast<std::size_t>(lists()));
    for (const detail::Segment& segment : impl().state()->segments) {
      const std::vector<std::uint32_t> of = segment.rows->lists()->list_of();
      for (std::size_t row = 0; row < of.size(); ++row)
        out[of[row]] += segment.live.contains(static_cast<std::int64_t>(row));
    }
    return out;
  });
}

std::vector<std::int64_t> IvfFlatIndex::lists_of(std::span<const Id> ids) const {
  return detail::public_call([&] {
    const auto state = impl().state();
    std::vector<std::vector<std::uint32_t>> of(state->segments.size());
    std::vector<std::int64_t> out;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const detail::State::Place place = state->find(ids[i]);
      if (place.row < 0)
        throw InvalidArgument("ids hold {} in place {}, which the index does not hold", ids[i], i);
      auto& lists = of[place.segment];
      if (lists.empty()) lists = state->segments[place.segment].rows->lists()->list_of();
      out.push_back(lists[static_cast<std::size_t>(place.row)]);
    }
    return out;
  });
}

}  // namespace knear
