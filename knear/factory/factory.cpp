#include "knear/factory/factory.hpp"

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/form/factory_shape.hpp"
#include "knear/index/index_of_shape.hpp"

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
    return IndexOfShape(detail::shape_of_factory(factory, dim, metric));
  });
}

}  // namespace knear
