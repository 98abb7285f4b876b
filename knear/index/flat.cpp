#include "knear/index/flat.hpp"

#include "knear/core/public_call.hpp"
#include "knear/index/file/index_file.hpp"

namespace knear {

FlatIndex::FlatIndex(std::int64_t dim, Metric metric)
    : Index(detail::public_call([&] {
        detail::check_index_dim(dim);
        return std::make_unique<Impl>(detail::IndexShape{.dim = dim, .metric = metric});
      })) {}

FlatIndex FlatIndex::load(const std::string& path) {
  return detail::public_call([&] { return FlatIndex(detail::open_index(path, "Flat")); });
}

}  // namespace knear
