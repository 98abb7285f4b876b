#include "knear/transform/hadamard_rotation.hpp"

#include <cmath>
#include <cstring>

#include "knear/core/random.hpp"

namespace knear::detail {
namespace {

typedef float Four __attribute__((vector_size(16)));

Four loaded(const float* x) {
  Four out;
  std::memcpy(&out, x, sizeof out);
  return out;
}

// The first two steps, within a group of four elements: compilers make no vector instructions of
// loops over one or two.
Four within_four(Four four) {
  constexpr Four last = {1, -1, 1, -1}, last_but_one = {1, 1, -1, -1};
  four = __builtin_shufflevector(four, four, 0, 0, 2, 2) +
         __builtin_shufflevector(four, four, 1, 1, 3, 3) * last;
  return __builtin_shufflevector(four, four, 0, 1, 0, 1) +
         __builtin_shufflevector(four, four, 2, 3, 2, 3) * last_but_one;
}

// Two steps at once, between four groups of four elements.
void two_steps(Four (&x)[4]) {
  const Four a = x[0] + x[1], b = x[0] - x[1], c = x[2] + x[3], d = x[2] - x[3];
  x[0] = a + c, x[1] = b + d, x[2] = a - c, x[3] = b - d;
}

// Sums and differences of all pairs of elements whose places differ in one bit, of one bit after
// the other. What is done together changes no sum.
void transform(float* x, std::int64_t size) {
  std::int64_t apart = 1;
  if (size >= 16) {
    for (std::int64_t i = 0; i < size; i += 16) {
      Four some[4];
      for (int j = 0; j < 4; ++j) some[j] = within_four(loaded(x + i + 4 * j));
      two_steps(some);
      std::memcpy(x + i, some, sizeof some);
    }
    for (apart = 16; 4 * apart <= size; apart *= 4)
      for (std::int64_t begin = 0; begin < size; begin += 4 * apart)
        for (float* at = x + begin; at < x + begin + apart; at += 4) {
          Four some[4];
          for (int j = 0; j < 4; ++j) some[j] = loaded(at + j * apart);
          two_steps(some);
          for (int j = 0; j < 4; ++j) std::memcpy(at + j * apart, &some[j], sizeof some[j]);
        }
  }
  for (; apart < size; apart *= 2)
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
