// knear/index/form/block_progress.hpp -- the progress of a change that is made block by block.
#pragma once
#include <cstdint>
#include <string_view>

#include "knear/core/progress.hpp"

namespace knear::detail {

// Returns the progress of rows begin, ..., end - 1 as a part of that of all rows, so that no stage
// begins again with each block. Keeps a reference to `whole`; empty if that is.
inline Progress progress_of_block(const Progress& whole, std::int64_t begin, std::int64_t end,
                                  std::int64_t all) {
  if (!whole) return {};
  return [&whole, begin, end, all](std::string_view stage, double fraction) {
    const double done = static_cast<double>(begin) + fraction * static_cast<double>(end - begin);
    return whole(stage, done / static_cast<double>(all));
  };
}

}  // namespace knear::detail
