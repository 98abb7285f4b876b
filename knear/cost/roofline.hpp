// knear/cost/roofline.hpp -- the roofline that also counts coefficient-wise operations, and
// machines whose roofs are known from their data sheets.
//
//   const Attainable roof = attainable_rate({274e12, 1144e9, 4.3e12}, {4701, 2 * 128 / 6.0});
//   roof.rate, roof.limit                        // 183.5e12 and Limit::coefficient_wise: TPU v4,
//   SIFT predict_scan(shape, known_machine("h200").peaks)
//
// Chern et al. 2022 (TPU-KNN), section 4.1, Eq. 6. A coefficient-wise operation is one on a single
// number that is no multiply-add of the matrix unit: compare, select, add.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "knear/core/neighbors.hpp"
#include "knear/cost/peaks.hpp"

namespace knear {

// Rates per second.
struct Roofs {
  double operations = 0;        // pi: multiply-adds, at two operations each
  double bytes = 0;             // beta: from memory
  double coefficient_wise = 0;  // gamma
};

// The intensity of a computation: its operations over the bytes that it moves and over its
// coefficient-wise ones.
struct Intensity {
  double memory = 0;
  double coefficient_wise = 0;
};

enum class Limit : std::uint8_t { multiply_adds, memory, coefficient_wise };
// "multiply-adds", "memory", "coefficient-wise operations".
std::string_view name_of(Limit limit);

struct Attainable {
  double rate = 0;  // operations per second
  Limit limit = Limit::multiply_adds;
};

// Eq. 6: the smallest of pi, beta I_MEM and gamma I_COP. Throws InvalidArgument unless all five are
// positive (infinity is allowed).
Attainable attainable_rate(const Roofs& roofs, const Intensity& intensity);

// A search by PartialReduce on a TPU (appendix A.3 and A.5 of the paper).
struct PartialReduceShape {
  std::int64_t rows = 0, dim = 0, queries = 0;
  Metric metric = Metric::ip;
  std::int64_t bins = 128;
  std::int64_t query_block = 1024;  // queries that share one reading of the base
  bool padded = true;               // dim was rounded up to a multiple of 128
};
// C: coefficient-wise operations per score. 3 for the reduction; 1 more where dim is no multiple of
// 128, 1 where rows is no power of two, 2 for l2 (subtracting half the norm, and bringing it
// there).
int coefficient_wise_per_score(const PartialReduceShape& shape);
// Eq. 11 and 20. Throws InvalidArgument unless all numbers of the shape are positive.
Intensity intensity_of(const PartialReduceShape& shape);

struct KnownMachine {
  std::string_view name;    // "h200"
  std::string_view title;   // "NVIDIA H200 SXM"
  std::string_view source;  // where the figures come from
  MachinePeaks peaks;       // one "thread"; NaN where the machine has no such unit
};

// Table 1 of the paper (V100, A100, TPU v3, TPU v4), and H200.
std::span<const KnownMachine> known_machines();
// Throws InvalidArgument for any other name.
const KnownMachine& known_machine(std::string_view name);

}  // namespace knear
