// knear/select/select_k.hpp -- the k smallest or largest values of each row of a matrix.
//
//   Selection best = select_k(scores.view(), 100, {.extreme = Extreme::largest});
//   best.values.row(i), best.places.row(i)                  // [100] each, best first
//
// The entry point of all selection methods (docs/selection.md): they give the same answer to the
// bit, and the one that is expected to be fastest is taken.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "knear/core/matrix.hpp"
#include "knear/core/metric.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"

namespace knear {

enum class SelectMethod : std::uint8_t {
  automatic,  // by k and the length of a row
  threshold,  // a threshold from a sample, then a partition of what passes it (TH-heap's idea)
  partition,  // partition of the whole row
  // The other methods, for comparison; automatic never chooses them.
  list,            // as the scan: a sorted list, for k > 32 a buffer cut by partition
  radix,           // the k-th value by its bits from the left, then a gather
  threshold_heap,  // TH-heap: k-th of a sample, compression, min-max heap
  bitonic,         // sorted runs merged to the k-th place
  warp_select      // WarpSelect on the emulated warp; k > 1024 goes to radix
};
inline constexpr SelectMethod all_select_methods[] = {
    SelectMethod::automatic, SelectMethod::threshold,  SelectMethod::partition,
    SelectMethod::list,      SelectMethod::radix,      SelectMethod::threshold_heap,
    SelectMethod::bitonic,   SelectMethod::warp_select};

std::string_view name_of(SelectMethod method);
// The inverse; throws InvalidArgument for any other word.
SelectMethod parse_select_method(std::string_view name);

struct SelectOptions {
  Extreme extreme = Extreme::smallest;
  bool sorted = true;  // best first; otherwise by ascending place, which is faster for large k
  // [rows] How many values of each row count, from its beginning; empty: all.
  std::span<const std::int64_t> lengths = {};
  int threads = 0;  // 0: all that the process may use
  SelectMethod method = SelectMethod::automatic;
  Progress progress = {};
};

// [rows x k] values and their places in the row. Places for which no value is left hold no_id and
// +infinity, or -infinity where the largest were wanted.
struct Selection {
  Matrix<float> values;
  Matrix<Id> places;
};

// The k smallest or largest of each row of `rows` [n x m], of any element type but f64.
//
// The order is (value, place): of equal values the one further to the left comes first, -0 equals
// +0 (values come back with the bits that they have), and NaN is never kept. The answer does not
// depend on the method, the number of threads or the instruction set. Memory: 12 bytes a result,
// and for each thread some 48 k bytes and 400 KB; where the whole row is partitioned 8 m bytes,
// best first 32 m.
//
// Throws InvalidArgument unless 1 <= k < 2^31 and each length is between 0 and m; ShapeMismatch
// unless there are n lengths or none; Cancelled.
Selection select_k(AnyMatrixView rows, std::int64_t k, const SelectOptions& options = {});

// As Selection, of values of type f64.
struct SelectionF64 {
  Matrix<double> values;
  Matrix<Id> places;
};

// The same of values of type f64, as they are: the same order, the same places for fewer than k. A
// plain loop for every processor, a part of the speed of the above, with 16 bytes for each of 2 k
// values a thread; throws InvalidArgument for any method but automatic.
SelectionF64 select_k(MatrixView<double> rows, std::int64_t k, const SelectOptions& options = {});

namespace detail {
// Throws as select_k does for k, and as check_lengths.
void check_selection(std::int64_t k, std::span<const std::int64_t> lengths, std::int64_t rows,
                     std::int64_t cols);
// Throws as select_k if `lengths` do not fit [rows x cols]; an empty list is fine.
void check_lengths(std::span<const std::int64_t> lengths, std::int64_t rows, std::int64_t cols);
}  // namespace detail

}  // namespace knear
