// knear/factory/forms_to_choose.hpp -- what the choices by rules and by a sample share: bytes of a
// row in each form, and names.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/element_type.hpp"
#include "knear/core/metric.hpp"
#include "knear/cost/graph_plan.hpp"
#include "knear/factory/index_needs.hpp"
#include "knear/index/options.hpp"

namespace knear::detail {

// Whether rows are whole numbers of 8 bits whose packed codes are all that is kept of them.
inline bool kept_as_bytes(const IndexNeeds& needs) {
  return (needs.type == ElementType::u8 || needs.type == ElementType::i8) &&
         !traits_of(needs.metric).unit_rows;
}

// Bytes of a row's packed codes. All rows may be scored in float32 where products of bytes are
// slow; those of lists never are.
inline double packed_row_bytes(std::int64_t dim, const IndexNeeds& needs, bool lists) {
  const auto d = static_cast<double>(dim);
  const bool floats = !lists && !kept_as_bytes(needs) && !has_byte_products(active_isa());
  return floats ? 4.05 * d + 12 : 1.055 * d + 9;
}

// Bytes of a row that is kept as it came, packed codes included.
inline double vector_row_bytes(std::int64_t dim, const IndexNeeds& needs, bool lists) {
  const double packed = packed_row_bytes(dim, needs, lists);
  return kept_as_bytes(needs) ? packed : static_cast<double>(dim * size_of(needs.type)) + packed;
}

// The links of the graph that is guessed, and of the graphs that are measured.
inline constexpr std::int64_t guessed_links = 32, few_links = 16;

// Bytes of a row and its place in a graph: a byte a column, the links and 16 bytes, in a sixteenth
// more rows for the coarser layers. Its packed codes are those of a scan.
inline double graph_row_bytes(std::int64_t dim, std::int64_t links, const IndexNeeds& needs) {
  // Of a graph that estimates (index/graph/node_runs.hpp): a bit for each column and link, and two
  // factors of each link.
  const std::int64_t estimates =
      GraphShape{.dim = dim, .links = links}.estimates() ? links * (dim / 8 + 4) : 0;
  return vector_row_bytes(dim, needs, false) +
         1.07 * static_cast<double>(dim + 4 * links + estimates + 16) + 24;
}

// Bytes of a vector's second place, where each vector is in two lists: its packed codes again, its
// number, and its share of the last panel of each list, which is half empty.
inline double second_list_row_bytes(std::int64_t rows, std::int64_t dim, std::int64_t lists) {
  const auto d = static_cast<double>(dim);
  return d + 20 + 16 * (d + 12) * static_cast<double>(lists) / static_cast<double>(rows);
}

// Bytes of a code beside itself: an id, a scalar, and what the segment keeps of it.
inline constexpr double id_and_scalar = 12.5;

// A form of rows without the lists, and its bytes a row.
struct RowForm {
  std::string form;
  double row_bytes;
};

// Bytes of an index of codes: rows, centroids, the tables of a quantiser, and the vectors by which
// recall is measured.
inline double coded_index_bytes(std::int64_t rows, std::int64_t dim, double row_bytes,
                                std::int64_t lists) {
  const auto n = static_cast<double>(rows), d = static_cast<double>(dim);
  return 1.02 * (n * row_bytes + static_cast<double>(lists) * 4 * d + 256 * 4 * d +
                 std::min(n, 1000.0) * (1024 + 4 * d));
}

// Below this many centroids comparing a query with all of them takes less than the rest.
inline constexpr std::int64_t most_lists_compared = 16384;
// Calls of fewer queries than this share next to no work.
inline constexpr std::int64_t few_queries = 16;
// Fewer rows are found fast enough in any form.
inline constexpr std::int64_t least_measured_rows = 5000;

// Returns true if vectors, where there are any, say more than the rules.
bool may_be_measured(std::int64_t rows, const IndexNeeds& needs);
// "IVF1024," or with an index of the centroids "IVF65536(IVF512,Flat),"; empty for 0 lists.
std::string lists_in_words(std::int64_t lists, std::int64_t batch);
// "1.5 GiB", "20.0 MiB", "100 bytes".
std::string readable_size(double bytes);

// Chooses by needs.sample, which may be measured (may_be_measured()) and has the right columns.
// smaller: forms to measure in lists where vectors as they are do not fit the memory, those that
// lose least first. The choice has no name where no form reaches the recall within the memory.
IndexChoice measured_choice(std::int64_t rows, const IndexNeeds& needs,
                            const std::vector<RowForm>& smaller, const ChangeOptions& options);

}  // namespace knear::detail
