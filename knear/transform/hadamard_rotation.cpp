#include "knear/transform/hadamard_rotation.hpp"

#include <cmath>
#include <cstring>

#include "knear/core/random.hpp"

namespace knear::detail {
namespace {

typedef float Four __attribute__((vector_size(16)));

// The first two steps, within each group of four elements: compilers make no vector instructions of
// loops over one or two.
void transform_fours(float* x, std::int64_t size) {
  constexpr Four last = {1, -1, 1, -1}, last_but_one = {1, 1, -1, -1};
  for (std::int64_t i = 0; i < size; i += 4) {
    Four four;
    std::memcpy(&four, x + i, sizeof four);
    four = __builtin_shufflevector(four, four, 0, 0, 2, 2) +
           __builtin_shufflevector(four, four, 1, 1, 3, 3) * last;
    four = __builtin_shufflevector(four, four, 0, 1, 0, 1) +
           __builtin_shufflevector(four, four, 2, 3, 2, 3) * last_but_one;
    std::memcpy(x + i, &four, sizeof four);
  }
}

// Sums and differences of all pairs of elements whose places differ in one bit.
void transform(float* x, std::int64_t size) {
  const bool fours = size >= 4;
  if (fours) transform_fours(x, size);
  for (std::int64_t apart = fours ? 4 : 1; apart < size; apart *= 2)
    for (std::int64_t begin = 0; begin < size; begin += 2 * apart) {
      float* const a = x + begin;
      float* const b = a + apart;
      for (std::int64_t i = 0; i < apart; ++i) {
        const float sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum, b[i] = difference;
      }
    }
}

}  // namespace

HadamardRotation::HadamardRotation(std::int64_t columns, std::uint64_t seed) : columns_(columns) {
  while (2 * block_ <= columns_) block_ *= 2;
  const float within = 1 / std::sqrt(static_cast<float>(block_));
  Random random(seed);
  for (int round = 0; round < rounds; ++round)
    for (std::int64_t j = 0; j < columns_; ++j) {
      const bool transformed = round % 2 == 0 ? j < block_ : j >= columns_ - block_;
      const float sign = random.next() & 1 ? 1.0f : -1.0f;
      signs_.push_back(transformed ? sign * within : sign);
    }
}

void HadamardRotation::apply(float* x) const {
  for (int round = 0; round < rounds; ++round) {
    const float* const signs = signs_.data() + round * columns_;
    for (std::int64_t j = 0; j < columns_; ++j) x[j] *= signs[j];
    transform(round % 2 == 0 ? x : x + columns_ - block_, block_);
  }
}

}  // namespace knear::detail
