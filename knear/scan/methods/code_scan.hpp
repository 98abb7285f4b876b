// knear/scan/methods/code_scan.hpp -- the nearest codes to each query among the rows of a few lists
// (asymmetric distances: queries are not coded).
//
//   scan_codes(segments, job, probes, found, stats, progress);
//
// The key of a row is, in float32 and in this order, with the sum S of its code (code_book.hpp),
// the term A of the query and the list, and the scalar s of the row, where rows have one:
//   l2      max(0, (A + s) + S)       sums of squared differences; or of products with -2 q, with
//                                     A = |q - c|^2 and s = |r|^2 + 2 <c, r>, where a row is a
//                                     centroid c and a residual r (Johnson et al., Eq. 11, of which
//                                     what depends on the row is one number instead of a table)
//   ip      A + S                     products with -q, A = -<q, c>
//   cosine  1 + (A + S) / s           the same with q of length 1, s the length of the row; 1 for
//                                     rows of length 0
// Tables are rounded down to bytes first, and rows whose sums of bytes prove that they are too far
// are dropped (kernels/code_kernels.hpp). Work goes list by list for some thousand queries, so that
// the codes of a list stay in a near cache and tables come and go. Where many queries come to each
// list its rows are decoded to 8 bits once instead, and multiplied with them (code_products.hpp).
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "knear/core/metric.hpp"
#include "knear/core/progress.hpp"
#include "knear/scan/methods/range_scan.hpp"
#include "knear/scan/packing/code_book.hpp"
#include "knear/scan/packing/coded_lists.hpp"
#include "knear/scan/scan_job.hpp"

namespace knear::detail {

struct CodeSegment {
  const CodedLists* lists;
  RowIds ids;           // of its rows, in any order
  AllowedRows allowed;  // of its rows
  // Of the ids below its number of rows, those that may be found too: looked up where rows are
  // scanned. A filter of rows is made for all of them; few queries look at few.
  const RowFilter* allowed_ids = nullptr;

  bool filtered() const { return allowed.filter || allowed_ids; }
};

// How rows are compared with queries; no answer depends on it.
enum class CodeComparison {
  automatic,    // by which is expected to take less time
  by_tables,    // of each query
  by_products,  // of rows that are decoded for all queries of a list (code_products.hpp), where the
                // book allows it
};

// What rows stand for, where that is known: the vector of the code, and in list l centroids.row(l)
// less `middle`. By cosine rows and queries are of length 1, for l2 queries are less `middle` too.
struct CodedVectors {
  bool known = false;
  MatrixView<float> centroids = {};     // [lists x dim]; empty: nothing is added
  std::span<const double> middle = {};  // [dim]; empty: 0
};

struct CodeScanJob {
  const CodeBook* book;
  Metric metric;
  bool squared;  // sums are of squared differences
  // Writes what the tables of a query are made with [dim].
  std::function<void(std::int64_t query, double* out)> prepare;
  std::int64_t k;
  int threads;
  Isa isa;
  std::int64_t memory;  // bytes that all threads may take for tables and candidates, about
  // A key for each query that k rows found elsewhere do not exceed; nullptr: none is known.
  const double* upper_bounds = nullptr;
  // Whether rows are wanted in order; else they may come in any.
  bool ordered = true;
  CodeComparison comparison = CodeComparison::automatic;
  CodedVectors vectors = {};  // by which a device compares many queries at once
};

// The nearest rows of each query [queries x k], ascending by (key, id) where they are in order,
// padded with infinity and no_id.
struct CodedNeighbors {
  struct Row {
    float key = std::numeric_limits<float>::infinity();
    std::uint32_t segment = 0;
    std::int64_t row = 0;  // of the segment
    Id id = no_id;
    // No row is behind every row, those of infinite keys too.
    bool operator<(const Row& other) const {
      return std::tuple(key, id == no_id, id) < std::tuple(other.key, other.id == no_id, other.id);
    }
  };

  std::int64_t k = 0;
  std::vector<Row> rows;

  CodedNeighbors() = default;
  CodedNeighbors(std::int64_t queries, std::int64_t columns);
  std::span<Row> of(std::int64_t query) { return std::span(rows).subspan(query * k, k); }
};
// The nearest of both, in order or in none, as they may be; they have as many places and no row in
// common.
void merge_rows(std::span<CodedNeighbors::Row> all, std::span<const CodedNeighbors::Row> more,
                bool ordered);

// The lists of each query, none twice, nearest first; no_id for none, behind the others; and its
// terms for these.
struct CodeProbes {
  MatrixView<Id> lists;     // [queries x most]
  MatrixView<float> terms;  // [queries x most]
};

// Fills `out` [queries x job.k] with rows of all segments, which have no id in common. Rows whose
// key exceeds the query's upper bound may be missing.
void scan_codes(std::span<const CodeSegment> segments, const CodeScanJob& job,
                const CodeProbes& probes, CodedNeighbors& out, ScanStats& stats,
                const Progress& progress);
// Gives all rows whose key is at most `limit` to the sink, under their ids. job.k has no say.
void scan_codes_range(std::span<const CodeSegment> segments, const CodeScanJob& job,
                      const CodeProbes& probes, double limit, RangeSink& sink, ScanStats& stats,
                      const Progress& progress);

// Bytes that a query takes while it is scanned.
std::int64_t bytes_of_coded_query(const CodeBook& book, std::int64_t k);

}  // namespace knear::detail
