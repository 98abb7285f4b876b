#include "knear/index/ivf_flat.hpp"

#include <algorithm>

#include "knear/core/public_call.hpp"
#include "knear/index/file/index_file.hpp"

namespace knear {
namespace {

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
        detail::check_lists(lists);
        return std::make_unique<Impl>(
            detail::IndexShape{.dim = dim, .metric = metric, .lists = lists});
      })) {}

IvfFlatIndex::IvfFlatIndex(MatrixView<float> centroids, Metric metric)
    : Index(detail::public_call([&] {
        detail::check_index_dim(centroids.cols());
        detail::check_lists(centroids.rows());
        return std::make_unique<Impl>(
            detail::IndexShape{
                .dim = centroids.cols(), .metric = metric, .lists = centroids.rows()},
            with_centroids(centroids, metric));
      })) {}

IvfFlatIndex IvfFlatIndex::load(const std::string& path) {
  return detail::public_call([&] { return IvfFlatIndex(detail::open_index(path, "IVFFlat")); });
}

}  // namespace knear
