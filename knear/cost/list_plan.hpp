// knear/cost/list_plan.hpp -- how long a search of inverted lists or codes will take, and how long
// such an index takes to make.
//
//   const ListShape shape{.rows = 1000000, .dim = 96, .queries = 10000, .k = 10,
//                         .lists = 1024, .probes = 16, .probed_rows = 16000};
//   predict_lists(shape, peaks).seconds, predict_list_making(shape, 262144, peaks).train_seconds
//
// The model is that of cost/plan.hpp, with the same units and its constants
// (cost/scan_cost_model.hpp), for the parts of such a search, whose times add up:
//
//   lists       each query against all centroids, as an exact scan for the nearest of them
//   queries     packing them, or making the tables of codes: 2^bits products a column; or, where
//               many queries come to each list, decoding its rows once for all of them
//   scoring     the rows of the lists that are probed: multiply-adds and coefficient-wise
//               operations of vectors, in groups of 12 queries where many probe the same list, or
//               look-ups of codes; or reading them, if that takes longer. And for each list of a
//               query or a group, whatever its length: threshold, places, terms
//   selection   rows that pass the threshold
//   rescoring   rows that are measured by their vectors
#pragma once
#include <cstdint>
#include <string>

#include "knear/cost/peaks.hpp"

namespace knear {

struct ListShape {
  std::int64_t rows = 0, dim = 0, queries = 0, k = 0;
  std::int64_t lists = 0;              // 0: there are none, and all rows are scored
  double probes = 0, probed_rows = 0;  // lists of a query, and the rows in them, on average
  // Sub-quantisers of a row's code, and bits of each, 4 or 8; 0: rows are vectors, scored by 8-bit
  // codes of all columns.
  std::int64_t code_parts = 0;
  int code_bits = 8;
  bool rows_have_sums = false;  // of codes: rows have sums of their own, if they are multiplied
  bool whole = false;        // the 8-bit codes of vectors are the vectors: none is measured again
  double measured_rows = 0;  // of a query, by their vectors; 0: as usual, and of codes none
  bool decoded = false;      // these are codes too, and decoded first
  int threads = 0;           // 0: as many as were measured
};

// Whether a search of codes decodes the rows of lists for all queries that come to them, and
// multiplies (scan/methods/code_products.hpp), rather than make tables for each query: by which of
// both is expected to take less time with these instructions. Of codes of 8 bits.
bool products_of_codes_pay(const ListShape& shape, Isa isa);
// Returns true if a scan by products that lets this share of the rows through had better go on by
// tables, where each query has `rows` left: codes of 8 bits can be too coarse to tell rows apart.
bool tables_of_codes_pay_instead(const ListShape& shape, double share, double rows, Isa isa);

struct ListCost {
  double seconds = 0;
  // The largest of "lists", "queries", "multiply-adds", "look-ups", "memory", "selection",
  // "rescoring".
  std::string limit;
  double coarse_seconds = 0, query_seconds = 0, selection_seconds = 0, rescore_seconds = 0;
  double scoring_seconds = 0;  // about the larger of computing and reading
  double compute_seconds = 0, memory_seconds = 0;
};

// Throws InvalidArgument for a negative number, k < 1, dim < 1, bits other than 4 and 8, more lists
// probed than there are, or peaks that are not known.
ListCost predict_lists(const ListShape& shape, const MachinePeaks& peaks);

// More lists are learned in two levels, by which rows are compared with fewer centroids.
inline constexpr std::int64_t most_lists_of_one_level = 16384;

struct ListMakingCost {
  double train_seconds = 0, add_seconds = 0;
};
// To learn the lists and the codes from training_rows, and to add shape.rows; with measured_rows
// codes have finer ones beside them. Queries, k and probes say nothing. Errors as above.
ListMakingCost predict_list_making(const ListShape& shape, std::int64_t training_rows,
                                   const MachinePeaks& peaks);

}  // namespace knear
