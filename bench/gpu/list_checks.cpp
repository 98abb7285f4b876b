#include "bench/gpu/list_checks.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "bench/gpu/differences.hpp"
#include "bench/gpu/made_vectors.hpp"
#include "knear/cuda/device_error.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"

namespace knear::bench {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};
constexpr std::int64_t lists = 48, dim = 40;

// Rows in two calls, so in two segments, of which some were removed.
Index made_index(ElementType type, Metric metric, std::uint64_t seed) {
  Index index = make_index(fmt::format("IVF{},Flat", lists), dim, metric);
  const AnyMatrix first = make_vectors(VectorKind::uniform, type, 6000, dim, seed),
                  more = make_vectors(VectorKind::copies, type, 700, dim, seed + 1);
  index.train(first, {.iterations = 3});
  index.add(first);
  index.add(more);
  std::vector<Id> removed;
  for (Id id = 3; id < 6700; id += 11) removed.push_back(id);
  index.remove(removed);
  return index;
}

void check(const IndexSearch& search, const Index& index, AnyMatrixView queries, std::int64_t k,
           SearchOptions options, const std::string& device, Report& report) {
  const std::int64_t memory = options.memory;
  options.memory = 0;
  KnnReport by_processor, by_device;
  const Neighbors truth = index.search(queries, k, options, &by_processor);
  options.memory = memory, options.device = device;
  std::string error;
  try {
    error = first_difference(search(index, queries, k, options, &by_device), truth);
  } catch (const cuda::DeviceError&) {
    throw;
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  if (error.empty() && by_device.device.name != device)
    error = "device " + by_device.device.name + " answered";
  if (error.empty() && by_device.scan.fallback_queries != 0)
    error = fmt::format("{} of {} queries were handed back", by_device.scan.fallback_queries,
                        queries.rows());
  if (error.empty() &&
      (by_device.lists.probes != by_processor.lists.probes ||
       by_device.promise.certified_queries != by_processor.promise.certified_queries))
    error = fmt::format("{} probes and {} certified queries instead of {} and {}",
                        by_device.lists.probes, by_device.promise.certified_queries,
                        by_processor.lists.probes, by_processor.promise.certified_queries);
  ++report.tests;
  if (!error.empty())
    report.fail(fmt::format(
        "inverted lists, {} {}, {} queries of {}, k {}, probes {}, recall {}, memory {}{}: {}",
        name_of(index.metric()), knear::name_of(index.element_type()), queries.rows(),
        knear::name_of(queries.type()), k, options.method.probes, options.method.recall.value_or(0),
        memory, options.filter.everything() ? "" : ", some rows allowed", error));
}

}  // namespace

void check_lists(const IndexSearch& search, const std::string& device, const CaseShare& share,
                 Report& report) {
  std::int64_t number = 0;
  for (const ElementType type : all_element_types)
    for (const Metric metric : metrics) {
      std::optional<Index> index;
      const auto next = [&](std::int64_t queries, std::int64_t k, const SearchOptions& options) {
        if (!share.takes(number++)) return;
        if (!index) index = made_index(type, metric, 61);
        check(search, *index, make_vectors(VectorKind::uniform, type, queries, dim, 63), k, options,
              device, report);
      };
      for (const std::int64_t probes : {std::int64_t{1}, std::int64_t{5}, lists}) {
        next(1, 10, {.method = {.probes = probes}});
        next(33, 1, {.method = {.probes = probes, .lists = {.certify = true}}});
        next(300, 100, {.method = {.probes = probes}});
        next(9, 1500, {.method = {.probes = probes}});
      }
      next(50, 10, {.method = {.recall = 0.9}});
      next(140, 10, {.method = {.recall = 1}});
      next(7, 400, {.method = {.probes = 1, .lists = {.widen = true}}});
      for (const std::int64_t every : {3, 500}) {
        std::vector<Id> ids;
        for (Id id = 1; id < 6700; id += every)
          if (id % 11 != 3) ids.push_back(id);
        next(40, 10, {.filter = IdFilter::of_ids(ids), .method = {.probes = 8}});
      }
      next(20, 10, {.threads = 2, .memory = 4 << 20, .method = {.probes = 8}});
    }
}

}  // namespace knear::bench
