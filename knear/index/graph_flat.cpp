#include "knear/index/graph_flat.hpp"

#include "knear/core/public_call.hpp"
#include "knear/index/file/index_file.hpp"

namespace knear {

GraphFlatIndex::GraphFlatIndex(std::int64_t dim, std::int64_t degree, Metric metric)
    : Index(detail::public_call([&] {
        detail::check_index_dim(dim);
        if (degree < detail::least_degree || degree > detail::most_degree)
          throw InvalidArgument("degree must be between {} and {}, but is {}", detail::least_degree,
                                detail::most_degree, degree);
        return std::make_unique<Impl>(
            detail::IndexShape{.dim = dim, .metric = metric, .graph_degree = degree});
      })) {}

GraphFlatIndex GraphFlatIndex::load(const std::string& path) {
  return detail::public_call([&] { return GraphFlatIndex(detail::open_index(path, "GraphFlat")); });
}

}  // namespace knear
