// knear/factory/choose_index.hpp -- which index to make, where a factory string would otherwise
// have to be found by trying.
//
//   const IndexChoice choice = choose_index(1'000'000, 96, {.memory = 200 << 20, .recall = 0.9});
//   Index index = make_index(choice.factory, 96);  // "IVF2048,PQ48x4,Refine(SQ8)"
//   std::cerr << choice.reason;
//
// It goes by rules, not by the vectors, which nobody has seen yet: the form that loses least of
// those that fit the memory, in inverted lists where these are expected to be faster. `bench/auto`
// measures how far from the fastest of six, a graph among them, that is. What vectors in no lists
// take depends on the machine: without AVX-512 VNNI they may be kept in float32 once more.
#pragma once
#include <cstdint>
#include <string>

#include "knear/core/element_type.hpp"
#include "knear/core/metric.hpp"

namespace knear {

struct IndexNeeds {
  Metric metric = Metric::l2;
  ElementType type = ElementType::f32;  // of the rows; u8 and i8 are kept as bytes
  std::int64_t memory = 0;              // bytes that the index may take; 0: as many as it likes
  double recall = 0.95;                 // of the 10 nearest; 1: all of them, for certain
  std::int64_t batch = 1000;            // queries in a call
};

struct IndexChoice {
  std::string factory = {};
  std::string reason = {};  // one sentence
  std::int64_t bytes = 0;   // what the index will take, about
};

// Throws InvalidArgument unless rows >= 1, 1 <= dim <= 65536, memory >= 0, 0 < recall <= 1 and
// batch >= 1; and where nothing fits the memory, with what would be enough.
IndexChoice choose_index(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs = {});

}  // namespace knear
