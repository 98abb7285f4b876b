// knear/select/kernels/select_kernels.hpp -- the loops of select_k, one table per instruction set.
//
// A value and its place in the row travel as one key of 64 bits: the bits of the value, turned so
// that their unsigned order is that of the numbers, above the place. One comparison of integers is
// then that of (value, place), no two keys are equal, and a NaN never becomes one.
#pragma once
#include <cstdint>

namespace knear {
enum class Isa : std::uint8_t;  // core/cpu.hpp
}
namespace knear::detail {

struct SelectKernels {
  // Rows of up to this many times k values are partitioned whole: one for results in order, one for
  // results by place.
  int partition_sorted, partition_by_place;
  // Appends to `out` the keys of those of row[0 .. count) that are at most `bound`, in order; value
  // i has place first + i. With flip = 0x80000000 values change their sign first, so that the
  // largest become the smallest; `bound` applies to the changed values. NaN is never kept. Returns
  // how many; out needs room for 16 more than that.
  std::int64_t (*gather)(const float* row, std::int64_t count, std::uint32_t flip, float bound,
                         std::uint32_t first, std::uint64_t* out);
  // The k-th smallest value of row[0 .. count), changed by `flip` as above, NaN not counted; `ties`
  // is how many of the values equal to it are among the k smallest. +infinity, and all of these,
  // where fewer than k are numbers. low and above: [count + 16]. Requires 1 <= k <= count.
  float (*nth_of_row)(const float* row, std::int64_t count, std::uint32_t flip, std::int64_t k,
                      float* low, float* above, std::int64_t* ties);
  // The values of row[0 .. count) that are less than `last` after `flip`, and the first `ties` of
  // those that equal it, with their places, in order. Returns how many; there must be room for so
  // many, `room`, and nothing beyond is written.
  std::int64_t (*take)(const float* row, std::int64_t count, std::uint32_t flip, float last,
                       std::int64_t ties, std::int64_t room, float* values, std::int64_t* places);
  // Moves the k smallest of keys [count] to the front, in no order, and returns the largest of
  // them. spare: [count + 8]; keys has room for 8 more than count. Requires 1 <= k <= count.
  std::uint64_t (*keep_smallest)(std::uint64_t* keys, std::uint64_t* spare, std::int64_t count,
                                 std::int64_t k);
  // Moves the keys up to `last` to the front, in their order; returns how many.
  std::int64_t (*cut)(std::uint64_t* keys, std::int64_t count, std::uint64_t last);
  // As keep_smallest, but ascending. Requires k <= count; k = count sorts them all.
  void (*sort_smallest)(std::uint64_t* keys, std::uint64_t* spare, std::int64_t count,
                        std::int64_t k);
  // The values of keys, with the bits that they have in the row, and their places.
  void (*unpack)(const std::uint64_t* keys, std::int64_t count, std::uint32_t flip,
                 const float* row, float* values, std::int64_t* places);
};

// Those that serve a level; one source for each kind of processor knows which there are.
const SelectKernels& select_kernels(Isa isa);

const SelectKernels& select_kernels_scalar();
const SelectKernels& select_kernels_avx2();
const SelectKernels& select_kernels_avx512();
const SelectKernels& select_kernels_neon();

// Zeros of both signs get the same bits. Static, so that each level has its own, compiled for it.
static inline std::uint32_t ordered_bits(float value) {
  std::uint32_t bits;
  value += 0.0f;
  __builtin_memcpy(&bits, &value, 4);
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
static inline float value_of_ordered(std::uint32_t ordered) {
  const std::uint32_t bits = ordered ^ (ordered >> 31 ? 0x80000000u : 0xffffffffu);
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
static inline std::uint32_t place_of(std::uint64_t key) { return static_cast<std::uint32_t>(key); }
static inline float value_of(std::uint64_t key) {
  return value_of_ordered(static_cast<std::uint32_t>(key >> 32));
}

}  // namespace knear::detail
