// bench/gpu/differences.hpp -- how an answer differs from the one that it should be.
#pragma once
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <string>

#include "knear/core/neighbors.hpp"

namespace knear::bench {

// The first place that differs in its id or in a bit of its distance, in words; empty: none does.
inline std::string first_difference(const Neighbors& found, const Neighbors& truth) {
  if (found.ids.rows() != truth.ids.rows() || found.ids.cols() != truth.ids.cols())
    return "another shape";
  for (std::int64_t q = 0; q < truth.ids.rows(); ++q)
    for (std::int64_t i = 0; i < truth.ids.cols(); ++i)
      if (found.ids.row(q)[i] != truth.ids.row(q)[i] ||
          std::bit_cast<std::uint32_t>(found.distances.row(q)[i]) !=
              std::bit_cast<std::uint32_t>(truth.distances.row(q)[i]))
        return fmt::format("query {}, place {}: ({:.9g}, {}) instead of ({:.9g}, {})", q, i,
                           found.distances.row(q)[i], found.ids.row(q)[i],
                           truth.distances.row(q)[i], truth.ids.row(q)[i]);
  return "";
}

}  // namespace knear::bench
