// knear/select/sort/sort_rows.hpp -- a kernel that sorts rows of (value, place), by value or by
// place.
//
// A stable sort by value (block_sort.hpp) of items in ascending place gives the order (value,
// place). A block sorts each row, with 16 bytes read and written per item and pass, and k items of
// memory beside each row that is being sorted.
#pragma once
#include <cstddef>
#include <cstdint>

#include "knear/select/sort/block_sort.hpp"
#include "knear/select/sort/float_order.hpp"

namespace knear::detail {

enum class RowOrder { by_value, by_place };

// values, places [rows x k]: items; empty places are at the end, and stay there. No NaN.
template <class Thread>
struct SortRows {
  using Sort = BlockSort<Thread, 4>;
  static constexpr int threads = Sort::threads, resident_blocks = 2;
  static constexpr std::size_t shared_bytes = sizeof(typename Sort::Shared);

  std::int64_t rows;
  int k;
  RowOrder order;
  unsigned flip;
  float* values;
  int* places;
  float* other_values;  // [blocks x k]
  int* other_places;    // [blocks x k]

  struct Item {
    float value;
    int place;
  };
  struct Items {
    float* values;
    int* places;

    KNEAR_DEVICE Item load(unsigned i) const { return {values[i], places[i]}; }
    KNEAR_DEVICE void store(unsigned i, Item item) const {
      values[i] = item.value, places[i] = item.place;
    }
  };

  KNEAR_KERNEL void operator()(Thread t) const {
    auto& shared = *reinterpret_cast<typename Sort::Shared*>(t.shared());
    const auto digit_of = [this](Item item, int digit) {
      const unsigned key =
          order == RowOrder::by_value ? ordered_key(item.value, flip) : unsigned(item.place);
      return key >> digit * Sort::digit_bits & (Sort::bins - 1);
    };
    for (std::int64_t row = t.block(); row < rows; row += t.blocks()) {
      const Items own = {values + row * k, places + row * k};
      const Items other = {other_values + t.block() * k, other_places + t.block() * k};
      const Items sorted = Sort::sort(t, shared, unsigned(k), own, other, digit_of);
      if (sorted.values != own.values)
        for (auto i = unsigned(t.index()); i < unsigned(k); i += threads)
          own.store(i, sorted.load(i));
      t.sync();
    }
  }
};

}  // namespace knear::detail
