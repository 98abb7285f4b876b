#include "knear/index/lists/probed_options.hpp"

#include <algorithm>

#include "knear/core/error.hpp"
#include "knear/knn/lists/list_search.hpp"
#include "knear/scan/device_choice.hpp"

namespace knear::detail {
namespace {

// Codes that are measured more finely, for each neighbour.
constexpr std::int64_t usual_refine_factor = 4, most_refine_factor = 1 << 20;

// Throws for what no search of lists or codes takes.
void check_scan(const SearchOptions& options, const IndexShape& shape) {
  const SearchMethod& method = options.method;
  if (method.ef != 0)
    throw InvalidArgument("ef is {}, but index {} has no graph", method.ef, shape.description());
  if (shape.codes && options.memory > 0 && parse_devices(options.device).cuda())
    throw InvalidArgument(
        "memory is {} bytes, but a search of codes on a device ({}) keeps to no limit",
        options.memory, options.device);
  // How much is found is for the index to choose by.
  check_list_options({method.kind, {}, method.threshold_heap, method.partial_reduce},
                     options.first_pass, options.tuning, shape.codes ? "codes" : "inverted lists");
}

void check_factor_and_proof(const SearchMethod& method, const IndexShape& shape) {
  const std::int64_t factor = method.codes.refine_factor;
  if (factor < 0 || factor > most_refine_factor)
    throw InvalidArgument("refine_factor must be between 1 and {}, but is {}", most_refine_factor,
                          factor);
  if (factor > 0 && !shape.codes)
    throw InvalidArgument("refine_factor is {}, but index {} has no codes to refine", factor,
                          shape.description());
  if (factor > 0 && !shape.refine)
    throw InvalidArgument(
        "refine_factor is {}, but index {} keeps no vectors to refine its codes by", factor,
        shape.description());
  if (method.lists.certify && shape.codes)
    throw InvalidArgument("certify is on, but codes, as index {} has them, prove nothing",
                          shape.description());
  if (method.lists.certify && shape.alters_vectors())
    throw InvalidArgument(
        "certify is on, but index {} keeps no vectors as they were added, and nothing is proven of "
        "these",
        shape.description());
  if (factor > 0 && method.recall)
    throw InvalidArgument("refine_factor is {} and recall is {}, but only one can be asked for",
                          factor, *method.recall);
}

// Throws where Method::exact is asked for with probes or a lower recall.
void check_everything(const SearchMethod& method) {
  if (method.probes != 0) throw InvalidArgument("method is exact, but probes is {}", method.probes);
  if (method.recall.value_or(1) != 1)
    throw InvalidArgument("method is exact, but recall is {}", *method.recall);
}

void check_recall(const SearchMethod& method) {
  if (const double recall = method.recall.value_or(1); !(recall > 0 && recall <= 1))
    throw InvalidArgument("recall must be in (0, 1], but is {}", recall);
}

// Throws InvalidArgument unless the caller names either a number of probes, at most that of the
// lists, or a recall.
void check_effort(const SearchMethod& method, std::int64_t lists) {
  check_recall(method);
  if (method.probes != 0 && method.recall)
    throw InvalidArgument("probes is {} and recall is {}, but only one of them can be asked for",
                          method.probes, *method.recall);
  if (method.probes == 0 && !method.recall)
    throw InvalidArgument(
        "neither probes nor recall is given, and a search of {} inverted lists needs one of them",
        lists);
  if (!method.recall && (method.probes < 1 || method.probes > lists))
    throw InvalidArgument("probes must be between 1 and the {} lists, but is {}", lists,
                          method.probes);
}

void check_no_lists(const SearchMethod& method) {
  if (method.probes != 0)
    throw InvalidArgument("probes is {}, but there are no inverted lists", method.probes);
  if (method.lists.widen) throw InvalidArgument("widen is on, but there are no inverted lists");
}

void check_range(const SearchMethod& method) {
  if (method.lists.widen)
    throw InvalidArgument("widen is on, but a range search has no number of rows to find");
  if (method.lists.certify)
    throw InvalidArgument("certify is on, but of a range search only recall = 1 is certain");
  if (method.recall.value_or(1) != 1)
    throw InvalidArgument("recall is {}, but a range search is calibrated for none below 1",
                          *method.recall);
}

void check_no_factor_of_range(const SearchMethod& method) {
  if (method.codes.refine_factor > 0)
    throw InvalidArgument(
        "refine_factor is {}, but a range search has no number of neighbours to refine more than",
        method.codes.refine_factor);
}

ProbedOptions converted(const SearchOptions& options, const IndexShape& shape) {
  const std::int64_t factor = options.method.codes.refine_factor;
  return {.scan = options_of_part(options, shape.metric),
          .probes = options.method.probes,
          .recall = options.method.recall.value_or(1),
          .exact = options.method.kind == Method::exact,
          .widen = options.method.lists.widen,
          .certify = options.method.lists.certify,
          .refine_factor = !shape.refine ? 0
                           : factor > 0  ? factor
                                         : usual_refine_factor};
}

}  // namespace

ProbedOptions options_of_lists(const SearchOptions& options, const IndexShape& shape,
                               std::int64_t lists, SearchKind kind) {
  const SearchMethod& method = options.method;
  check_scan(options, shape);
  check_factor_and_proof(method, shape);
  if (method.kind == Method::exact)
    check_everything(method);
  else
    check_effort(method, lists);
  if (kind == SearchKind::range) {
    check_range(method);
    if (method.probes > 0) check_processor(options.device, "a range search of some inverted lists");
  }
  return converted(options, shape);
}

ProbedOptions options_of_codes(const SearchOptions& options, const IndexShape& shape,
                               std::int64_t lists, SearchKind kind) {
  const SearchMethod& method = options.method;
  const bool range = kind == SearchKind::range, exact = method.kind == Method::exact;
  check_scan(options, shape);
  if (range) check_processor(options.device, "a range search of codes");
  check_factor_and_proof(method, shape);
  if (range) check_no_factor_of_range(method);
  if (exact) check_everything(method);
  // An exact search compares all codes. It is refused where codes are refined, since only some of
  // them are then measured; a range search measures all.
  if (exact && shape.refine && !range)
    throw InvalidArgument(
        "method is exact, but index {} refines only what its codes find: probes and refine_factor "
        "say how much that is",
        shape.description());
  const bool all = !method.recall && (exact || lists == 0);
  if (lists == 0) check_no_lists(method);
  if (lists == 0) check_recall(method);
  if (lists > 0 && !all) check_effort(method, lists);
  if (range) {
    check_range(method);
    if (method.recall)
      throw InvalidArgument("recall is {}, but a range search of codes has none to promise",
                            *method.recall);
  }
  ProbedOptions out = converted(options, shape);
  if (all) out.probes = std::max<std::int64_t>(1, lists);
  return out;
}

ProbedOptions options_of_given_lists(const SearchOptions& options, const IndexShape& shape) {
  check_scan(options, shape);
  check_factor_and_proof(options.method, shape);
  return converted(options, shape);
}

}  // namespace knear::detail
