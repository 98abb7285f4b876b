// knear/index/plain_search.hpp -- searches of rows that no index has packed: scalar codes, halves
// or floats one after another, as knear.faiss keeps them.
//
//   const PlainSearch search({.kind = PlainSearch::Kind::f16, .metric = Metric::l2, .dim = 96});
//   std::optional<PlainSearch::Answer> found = search.nearest(rows, queries, {}, 10, 1);
//
// The answer is that of an index of these rows, to the bit. All rows of the lists are compared in
// float32 first, in any order of sums. Those that come within twice the error of these sums of the
// k-th are measured as an index measures them: a few more than k. An index has to read, check and
// pack all rows before its first search, which costs as much as comparing them with some 30
// queries here. The comparison takes 4 to 8 ns for a row of 128 columns and a query.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/index/index.hpp"

namespace knear::detail {

class RowCoder;

class PlainSearch {
 public:
  // Rows are codes of an index (codes8, codes4), numbers of 6 bits that stand for floats, halves or
  // floats.
  enum class Kind : std::uint8_t { codes8, codes4, bits6, f16, bf16, f32 };
  static Kind kind_of(std::string_view name);  // "8", "4", "6", "fp16", "bf16", "f32"

  struct Options {
    Kind kind;
    Metric metric;  // l2 or ip
    std::int64_t dim;
    // For codes: an index with their quantiser and, if the rows are in lists, its lists.
    const Index* like = nullptr;
    // For bits6: the least value of each column, and the largest less the least [dim].
    std::span<const float> low = {}, span = {};
    // For all but codes: rows are differences from these centroids [lists x dim], if any.
    MatrixView<float> centroids = {};
    // The centroids by which lists are found [lists x dim]; without columns: they are given.
    MatrixView<float> coarse = {};
  };
  // Copies what it is given, but shares the quantiser. Throws InvalidArgument for an index without
  // such codes and for another metric; ShapeMismatch.
  explicit PlainSearch(const Options& options);
  ~PlainSearch();

  struct Rows {
    const std::uint8_t* bytes;  // [n x row_bytes()]
    std::int64_t n;
    std::span<const Id> list_of = {};            // [n]; empty: no lists
    std::span<const std::uint8_t> allowed = {};  // [n], 0: may not be found; empty: all may
    // The rows in the order of their lists [n], and where each list begins [lists + 1]; empty: they
    // are looked for.
    std::span<const Id> by_list = {}, begin = {};
  };
  struct Answer {
    Neighbors neighbors;      // [queries x k], ids are numbers of rows
    std::int64_t probed = 0;  // pairs of a query and a row of its lists
  };

  std::int64_t row_bytes() const;
  // The k nearest rows of each query [queries x dim] in the lists of `probes` [queries x p], none
  // twice in a row, no_id for none; without columns: of all rows. Ties go to the smaller row.
  // Nothing where a number is not finite: the index says what is wrong. Throws InvalidArgument for
  // a list that does not exist; Cancelled. Threads: any may call at once.
  std::optional<Answer> nearest(const Rows& rows, MatrixView<float> queries, MatrixView<Id> probes,
                                std::int64_t k, int threads) const;
  // The same in the nearest `probes` lists of each query, 1 <= probes <= lists.
  std::optional<Answer> nearest(const Rows& rows, MatrixView<float> queries, std::int64_t probes,
                                std::int64_t k, int threads) const;

 private:
  class Block;
  bool is_codes() const { return kind_ == Kind::codes8 || kind_ == Kind::codes4; }

  Kind kind_;
  Metric metric_;
  std::int64_t dim_;
  double last_ = 0;                  // number, where rows are numbers
  std::vector<float> low_, step_;    // [dim], of numbers: they stand for low + c step
  std::vector<float> least_, span_;  // [dim], of bits6
  Matrix<float> own_centroids_;
  MatrixView<float> centroids_;            // beside which rows are; without columns: none
  std::shared_ptr<const RowCoder> coder_;  // of codes
  double longest_ = 0;                     // vector that a code stands for
  std::vector<double> apart_;              // [lists], of codes: each centroid from the mean
  Matrix<float> coarse_rows_;
  std::unique_ptr<const PlainSearch> coarse_;  // of these
  std::int64_t lists_ = 0;                     // 0: any number
};

// The rows of each list in ascending order [n], and where each begins [lists + 1]. Requires that
// list_of is in [0, lists).
std::pair<std::vector<Id>, std::vector<Id>> rows_by_list(std::span<const Id> list_of,
                                                         std::int64_t lists);

}  // namespace knear::detail
