// knear/core/sample.hpp -- a part of many rows, drawn at random: the same for the same seed.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"

namespace knear::detail {

// `count` numbers below n, ascending, each set of them as likely as another (Floyd's algorithm).
// Requires 0 <= count <= n.
std::vector<std::int64_t> sample_of(std::int64_t n, std::int64_t count, Random& random);

// Copies of the rows with these numbers.
AnyMatrix rows_at(AnyMatrixView rows, std::span<const std::int64_t> which);

// Returns at most this many of the rows, drawn by a seed and copied into `sample`, which has to
// stay; all of them where there are no more, and for 0.
AnyMatrixView sampled_rows(AnyMatrixView rows, std::int64_t most, std::uint64_t seed,
                           AnyMatrix& sample);

}  // namespace knear::detail
