// knear/select/bins.hpp -- what a partial reduction of so many bins may be expected to lose.
//
//   expected_recall(10, 1'000'000, {.bins = 4478, .kept = 1});     // 0.999, as for 12 bins of 4
//
// The rows of a base, in random order, are distributed over bins of sizes as equal as possible, and
// only the best `kept` of each bin survive (PartialReduce: Chern et al., "TPU-KNN" (2022), section
// 5, where kept = 1; Samaga et al. (2025), arXiv 2506.04165, for more). A bin that c of the k
// nearest rows fell into loses max(0, c - kept) of them, and nothing else is ever lost. The k
// nearest are k definite rows (ties go by id), so where they fall depends on the order of the base
// alone, and the law of the loss is the same for every query and every data set. A neighbour at the
// very distance of the k-th also counts as found, which can only help.
//
// All this holds for an order drawn at random, independently of base and queries
// (permutation.hpp). Rows that a filter forbids change nothing: k rows are placed as before. It is
// about the order in which the bins compare: if they compare low-precision scores, the neighbours
// by those scores are meant.
//
// Everything is plain arithmetic. Functions throw InvalidArgument for k < 1, k > rows, bins outside
// [1, rows], kept outside [1, most_kept]. Any number of calls may run at once.
#pragma once
#include <cstdint>

namespace knear {

// The best `kept` of each of `bins` bins.
struct Reduction {
  std::int64_t bins = 1;
  int kept = 1;
};

inline constexpr int most_kept = 1 << 20;  // the largest `kept` of these functions

// The expected share of the k nearest that are kept: 1 - (1/k) sum over bins of
// sum_{r > kept} (r - kept) P(c = r), the number c of them in a bin being hypergeometric. Exact.
double expected_recall(std::int64_t k, std::int64_t rows, const Reduction& reduction);

// An upper bound on the expected share of queries whose answer is not certified
// (scan/methods/partial_reduce_scan.hpp): the probability that some bin holds more than `kept` of
// the k nearest, by the union bound over the bins. At most 1. By negative association the truth is
// at least 1 - prod P(c <= kept), so the bound is nearly exact where it is small. Certificates by
// scores that are known to lie in an interval miss more than this.
double uncertified_share(std::int64_t k, std::int64_t rows, const Reduction& reduction);

}  // namespace knear
