#include "knear/factory/factory.hpp"

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/form/factory_shape.hpp"
#include "knear/index/impl/index_impl.hpp"

namespace knear {

bool learns(std::string_view factory) {
  return detail::public_call([&] {
    constexpr std::int64_t unknown_dim = 0;
    return detail::shape_of_factory(factory, unknown_dim, Metric::l2).learns();
  });
}

Index make_index(std::string_view factory, std::int64_t dim, Metric metric) {
  return detail::public_call([&]() -> Index {
    detail::check_index_dim(dim);
    if (factory == "auto")
      throw InvalidArgument(
          "factory is 'auto', which is chosen by numbers: choose_index(rows, dim)");
    return Index(
        std::make_unique<detail::IndexImpl>(detail::shape_of_factory(factory, dim, metric)));
  });
}

Index index_with_centroids(MatrixView<float> centroids, Metric metric) {
  return detail::public_call([&] {
    detail::check_index_dim(centroids.cols());
    detail::check_lists(centroids.rows());
    find_value_range(centroids, metric, "centroids", 1);
    Matrix<float> own(centroids.rows(), centroids.cols());
    detail::copy_exactly(centroids, ElementType::f32, own.data());
    detail::State state;
    state.coarse = std::make_shared<const detail::CoarseQuantizer>(std::move(own), metric);
    state.recall = std::make_shared<detail::RecallCurves>(0);
    return Index(std::make_unique<detail::IndexImpl>(
        detail::IndexShape{.dim = centroids.cols(), .metric = metric, .lists = centroids.rows()},
        std::move(state)));
  });
}

}  // namespace knear
