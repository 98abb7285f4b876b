// knear/select/bins.hpp -- how many bins a partial reduction needs for a recall, and what it then
// promises.
//
//   const RecallGoal goal{.recall = 0.95};                       // a promise, with its margin
//   const auto reduction = choose_reduction(goal, 10, {.rows = 1'000'000});
//   if (reduction)                                               // else: keep every row
//     ... reduction->bins bins, reduction->kept of each; expected_recall(10, 1'000'000, *reduction)
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
// Everything is plain arithmetic: a choice takes a few milliseconds at most, whatever k and the
// rows. Functions throw InvalidArgument for k < 1, k > rows, bins outside [1, rows], kept outside
// [1, most_kept], a recall or share outside (0, 1). Any number of calls may run at once.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <variant>

namespace knear {

// The best `kept` of each of `bins` bins.
struct Reduction {
  std::int64_t bins = 1;
  int kept = 1;

  std::int64_t candidates() const { return bins * kept; }  // at most: a bin may have fewer rows
  bool operator==(const Reduction&) const = default;
};

inline constexpr int most_kept = 1 << 20;  // the largest `kept` of these functions

// The expected share of the k nearest that are kept: 1 - (1/k) sum over bins of
// sum_{r > kept} (r - kept) P(c = r), the number c of them in a bin being hypergeometric. Exact.
double expected_recall(std::int64_t k, std::int64_t rows, const Reduction& reduction);

// A bound on the probability, over the order of the base, that the mean recall of a set of queries
// is below `recall`. It holds for any set: a thousand copies of one query, queries that share
// neighbours, or just one. bins.cpp has the proof.
double shortfall_probability(std::int64_t k, std::int64_t rows, const Reduction& reduction,
                             double recall);

// An upper bound on the expected share of queries whose answer is not certified
// (scan/methods/partial_reduce_scan.hpp): the probability that some bin holds more than `kept` of the k nearest, by
// the union bound over the bins. At most 1. By negative association the truth is at least 1 - prod
// P(c <= kept), so the bound is nearly exact where it is small. Certificates by scores that are
// known to lie in an interval miss more than this.
double uncertified_share(std::int64_t k, std::int64_t rows, const Reduction& reduction);

// Eq. 13 of the paper, ((bins - 1) / bins)^(k - 1): the expected share of neighbours that are alone
// in their bin, for kept = 1. It is a lower bound, whose loss is too large by nearly a factor of
// two: one of two in a bin survives.
double paper_expected_recall(std::int64_t k, std::int64_t bins);
// Eq. 14: the fewest bins for which Eq. 13 gives at least `recall`; and the approximation of the
// paper, (k - 1) / (1 - recall). Both are 1 or more.
std::int64_t paper_bins(std::int64_t k, double recall);
double paper_bins_approximation(std::int64_t k, double recall);

// The goal of a reduction. ----------------------------------------------------------------------

// The mean recall of any set of queries is below `recall` in at most a share `risk` of all orders.
struct RecallGoal {
  double recall = 0.95;
  double risk = 1e-3;  // at least 1e-9
};
// The expected recall alone, without a margin: a set of queries falls below it about every other
// time.
struct ExpectedRecallGoal {
  double recall = 0.95;
};
// The expected share of queries whose answer is not certified exact.
struct CertificateGoal {
  double uncertified = 0.01;
};
using ReductionGoal = std::variant<RecallGoal, ExpectedRecallGoal, CertificateGoal>;

// How the rows of a larger, logical base were split into shards. Each shard is reduced by itself,
// in a random order of its own, and the candidates are merged.
enum class Split {
  any,    // by time, by cluster, by an enemy: one shard may hold all k nearest
  random  // every row was assigned to its shard at random, independently of the data
};

// The rows to reduce; if logical_rows is larger than rows, they are one shard of a base of that
// size.
//
// What is promised for a shard holds for the answer merged from all shards. Unless the split was
// random, that takes more bins than a proportional share of those for the whole base: with
// Split::any each shard has bins enough for all k nearest, and logical_rows does not matter
// further. XLA's reduction_input_size_override assumes Split::random: bins of the same size in
// every shard, so fewer of them in a smaller one; where it is wrong the promise is broken (all k in
// one of 8 shards: eight times as many in each of its bins).
//
// All shards must be given the same goal, k, logical_rows, split and number kept: choose_reduction
// for the largest of them, fewest_bins with what it keeps for the others.
struct ReducedBase {
  std::int64_t rows = 0;
  std::int64_t logical_rows = 0;  // 0: the rows are the whole base
  Split split = Split::any;
};

// The fewest bins of these rows that meet the goal; nullopt if no number of bins both meets it and
// drops a row (bins * kept < rows): then keep everything.
//
// Where the goal has a margin it is the fewest only in so far as the bound falls with the number of
// bins; the result meets the goal in any case.
std::optional<std::int64_t> fewest_bins(const ReductionGoal& goal, std::int64_t k,
                                        const ReducedBase& base, int kept);

// The cheapest reduction that meets the goal, over kept = 1 .. 8; nullopt: keep everything. Among
// equally cheap ones that with the smallest `kept`.
using ReductionCost = std::function<double(const Reduction&)>;
std::optional<Reduction> choose_reduction(const ReductionGoal& goal, std::int64_t k,
                                          const ReducedBase& base, const ReductionCost& cost);
// With a simple count of operations as cost: 3 for each row and kept place (the comparison and two
// selections of the paper), 32 for each candidate, which is rescored and sorted.
std::optional<Reduction> choose_reduction(const ReductionGoal& goal, std::int64_t k,
                                          const ReducedBase& base);

}  // namespace knear
