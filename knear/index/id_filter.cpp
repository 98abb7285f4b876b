#include "knear/index/id_filter.hpp"

#include <algorithm>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"

namespace knear {

IdFilter IdFilter::of_ids(std::span<const Id> ids) {
  return detail::public_call([&] {
    for (std::size_t i = 0; i < ids.size(); ++i)
      if (ids[i] < 0)
        throw InvalidArgument("filter holds id {} in place {}, but ids are not negative", ids[i],
                              i);
    std::vector<Id> list(ids.begin(), ids.end());
    if (!std::is_sorted(list.begin(), list.end())) std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    IdFilter out;
    out.list_ = std::make_shared<const std::vector<Id>>(std::move(list));
    return out;
  });
}

IdFilter IdFilter::as_bits(std::int64_t n) const {
  if (!list_) return *this;
  IdFilter out;
  out.bits_ = RowFilter::of_ids(*list_, n);
  return out;
}

IdFilter IdFilter::of_bits(std::span<const std::uint8_t> bits, std::int64_t n) {
  IdFilter out;
  out.bits_ = RowFilter::of_bits(bits, n);
  return out;
}

}  // namespace knear
