// knear/index/lists/probed_options.hpp -- what a search of inverted lists or codes was asked for:
// SearchOptions, checked, in the form in which the search takes them. This is the only check and
// the only conversion.
//
//   const ProbedOptions asked = options_of_lists(options, shape, lists, SearchKind::nearest);
//   if (asked.probes > 0) ...
#pragma once
#include <cstdint>
#include <optional>

#include "knear/index/index_shape.hpp"
#include "knear/index/options.hpp"
#include "knear/knn/search/search_request.hpp"

namespace knear::detail {

struct ProbedOptions {
  KnnOptions scan;          // of the rows that are probed
  std::int64_t probes = 0;  // lists of each query; 0: as many as `recall` takes
  double recall = 1;        // counts where probes is 0
  bool exact = false;       // Method::exact was asked for
  bool widen = false;       // as ListSearchOptions
  bool certify = false;     // likewise
  // Codes that are measured more finely for each neighbour; 0: none.
  std::int64_t refine_factor = 0;

  bool by_recall() const { return probes == 0; }
};

// Each throws InvalidArgument for options that the index has not.
//
// lists: how many the index has; 0 for codes without lists, whose probes are 1 where all codes are
// compared.
ProbedOptions options_of_lists(const SearchOptions& options, const IndexShape& shape,
                               std::int64_t lists, SearchKind kind);
ProbedOptions options_of_codes(const SearchOptions& options, const IndexShape& shape,
                               std::int64_t lists, SearchKind kind);
// Where the caller names the lists, so that neither probes nor recall count.
ProbedOptions options_of_given_lists(const SearchOptions& options, const IndexShape& shape);

}  // namespace knear::detail
