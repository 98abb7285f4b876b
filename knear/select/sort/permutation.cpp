// The digits and keys of the computed permutation (contract in permutation.hpp).
#include "knear/select/sort/permutation.hpp"

#include <cmath>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"

namespace knear {

Permutation::Permutation(std::int64_t n, std::uint64_t seed) : n_(static_cast<std::uint64_t>(n)) {
  if (n < 1 || n > std::int64_t{1} << 62)
    throw InvalidArgument("n must be between 1 and 2^62, but is {}", n);
  // The root may be rounded either way: any a near it will do, as long as a * b >= n.
  a_ = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));
  while (a_ * a_ < n_) ++a_;
  b_ = (n_ + a_ - 1) / a_;
  rounds_ = n_ < few ? rounds_if_few : rounds;
  Random random(seed);
  for (std::uint64_t& key : key_) key = random.next();
}

}  // namespace knear
