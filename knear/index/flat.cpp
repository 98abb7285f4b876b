#include "knear/index/flat.hpp"

#include "knear/core/public_call.hpp"
#include "knear/index/index_impl.hpp"

namespace knear {

FlatIndex::FlatIndex(std::int64_t dim, Metric metric)
    : Index(detail::public_call([&] {
        detail::check_index_dim(dim);
        return std::make_unique<Impl>(detail::IndexShape{.dim = dim, .metric = metric});
      })) {}

FlatIndex FlatIndex::load(const std::string& path) {
  return detail::public_call([&] { return FlatIndex(Impl::load(path, "Flat")); });
}

std::int64_t FlatIndex::optimize(const ChangeOptions& options) {
  return detail::public_call([&] {
    std::lock_guard lock(impl().writer);
    const auto state = impl().state();
    std::int64_t rows = 0;
    for (const detail::Segment& segment : state->segments)
      if (detail::optimize(segment.rows->prepared(), options.threads, options.progress))
        rows += segment.size();
    return rows;
  });
}

}  // namespace knear
