// tests/scan/random_probes.hpp -- inverted lists for queries to probe, drawn at random.
#pragma once
#include <cstdint>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/random.hpp"

namespace knear::test {

// [queries x probes]: numbers of lists below `lists`, none twice in a row; every fourth query has
// fewer of them, or none, and no_id behind.
inline Matrix<Id> random_probes(std::int64_t queries, std::int64_t probes, std::int64_t lists,
                                std::uint64_t seed) {
  Random random(seed);
  Matrix<Id> out(queries, probes);
  for (std::int64_t q = 0; q < queries; ++q) {
    std::vector<Id> all(static_cast<std::size_t>(lists));
    for (std::int64_t l = 0; l < lists; ++l) {
      const auto at = static_cast<std::size_t>(random.below(static_cast<std::uint64_t>(l) + 1));
      all[static_cast<std::size_t>(l)] = all[at], all[at] = l;
    }
    const std::int64_t count =
        q % 4 == 3 ? random.below(static_cast<std::uint64_t>(probes) + 1) : probes;
    for (std::int64_t p = 0; p < probes; ++p)
      out.row(q)[p] = p < count ? all[static_cast<std::size_t>(p)] : no_id;
  }
  return out;
}

}  // namespace knear::test
