#include "bench/gpu/code_checks.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <vector>

#include "bench/gpu/differences.hpp"
#include "bench/gpu/made_vectors.hpp"
#include "knear/cuda/device_error.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "knear/scan/device/launches_cuda.hpp"
#include "tests/scan/device/code_problem.hpp"

namespace knear::bench {
namespace {

using test::CodeShape;

constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};

class Checks {
 public:
  Checks(int device, const CaseShare& share, Report& report)
      : queue_(device), share_(share), report_(report) {}

  void scan(const std::string& what, const CodeShape& shape, std::int64_t k) {
    judge(fmt::format("codes, {}, {} parts of {} bits, {}, {} queries, k {}", what, shape.parts,
                      shape.bits, knear::name_of(shape.metric), shape.queries, k),
          [&] { return test::difference_of_ways(queue_, test::problem_of(shape), k); });
  }
  void products(const std::string& what, const CodeShape& shape, std::int64_t k) {
    judge(fmt::format("codes by products, {}, {} parts of {} bits, {}, {} queries, k {}", what,
                      shape.parts, shape.bits, knear::name_of(shape.metric), shape.queries, k),
          [&] {
            std::int64_t left = 0;
            detail::DeviceStats stats;
            std::string error =
                test::difference_of_products(queue_, test::problem_of(shape), k, left, stats);
            if (error.empty() && left > 0) error = fmt::format("{} queries were handed back", left);
            return error;
          });
  }
  // differs() says how an answer is not what it should be.
  void judge(const std::string& what, const std::function<std::string()>& differs) {
    if (!share_.takes(number_++)) return;
    std::string error;
    try {
      error = differs();
    } catch (const cuda::DeviceError&) {
      throw;
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    ++report_.tests;
    if (!error.empty()) report_.fail(what + ": " + error);
  }

 private:
  cuda::Queue queue_;
  const CaseShare share_;
  Report& report_;
  std::int64_t number_ = 0;
};

// As an index has it: tables of differences where nothing else is known of a row.
CodeShape shape_of(std::int64_t parts, int bits, Metric metric, bool residual) {
  CodeShape out{parts, bits};
  out.metric = metric;
  out.squared = traits_of(metric).squared && !residual;
  out.scalars = traits_of(metric).unit_rows || (traits_of(metric).squared && residual);
  return out;
}

void check_scans(Checks& checks) {
  std::uint64_t seed = 1;
  for (const int bits : {8, 4})
    for (const std::int64_t parts : {1, 4, 7, 8, 16, 24, 32, 48, 64, 127, 128})
      for (const Metric metric : metrics)
        for (const bool residual : {true, false}) {
          if (bits == 8 && parts > 64) continue;
          CodeShape shape = shape_of(parts, bits, metric, residual);
          shape.width = 1 + static_cast<std::int64_t>(seed % 4), shape.seed = ++seed;
          shape.sizes = {{1000, 0, 1, 63, 64, 65, 5000}, {70, 900, 1, 0, 2}};
          shape.queries = 20, shape.probes = 4;
          checks.scan("every size", shape, seed % 2 == 0 ? 10 : 100);
        }
  for (const std::int64_t k : {1, 32, 33, 100, 128, 129, 256, 257, 1000, 1024, 1025, 3000, 20000})
    for (const std::int64_t queries : {1, 5, 500}) {
      CodeShape shape = shape_of(16, 8, Metric::l2, true);
      shape.sizes = {{4000, 3000, 10, 7000}, {2000, 1}}, shape.queries = queries;
      shape.probes = 3, shape.seed = ++seed;
      checks.scan("every k", shape, k);
    }
  for (const int values : {1, 2, 3})
    for (const std::int64_t k : {1, 10, 100, 1000, 2000})
      for (const Metric metric : metrics) {
        CodeShape shape = shape_of(2, 4, metric, false);
        shape.values = values, shape.seed = ++seed;
        shape.sizes = {{3000, 64, 900}, {65, 1, 2000}}, shape.probes = 3;
        checks.scan("ties", shape, k);
      }
  std::vector<std::int64_t> many;
  for (int list = 0; list < 700; ++list) many.push_back(list * 7 % 111);
  for (const std::int64_t queries : {1, 40}) {
    CodeShape shape = shape_of(32, 8, Metric::ip, true);
    shape.sizes = {many, many}, shape.probes = 700, shape.queries = queries, shape.seed = ++seed;
    checks.scan("many lists", shape, 50);
    shape.sizes = {{200000}}, shape.probes = 1;
    checks.scan("one list", shape, 50);
  }
  CodeShape large = shape_of(200, 8, Metric::l2, false);
  large.width = 1, large.sizes = {{3000, 500}}, large.probes = 2, large.queries = 30;
  checks.scan("tables in device memory", large, 20);
}

void check_products(Checks& checks) {
  std::uint64_t seed = 500;
  for (const Metric metric : metrics)
    for (const bool residuals : {true, false})
      for (const int bits : {8, 4})
        for (const std::int64_t parts : {1, 7, 32})
          for (const std::int64_t queries : {20, 300}) {
            CodeShape shape{parts, bits};
            shape.width = 1 + static_cast<std::int64_t>(seed % 4), shape.seed = ++seed;
            shape.sizes = {{1000, 0, 1, 63, 64, 65, 5000}, {70, 900, 1, 0, 2}};
            shape.queries = queries, shape.probes = 4;
            checks.products("every metric", test::shape_of_vectors(shape, metric, residuals),
                            seed % 2 == 0 ? 10 : 100);
          }
  for (const std::int64_t k : {1, 257, 1025, 3000}) {
    CodeShape shape{16, 8};
    shape.sizes = {{4000, 3000, 10, 7000}, {2000, 1}}, shape.queries = 150;
    shape.probes = 3, shape.seed = ++seed;
    checks.products("every k", test::shape_of_vectors(shape, Metric::l2, true), k);
  }
  for (const std::int64_t k : {10, 1000}) {
    CodeShape shape{2, 4};
    shape.values = 2, shape.sizes = {{3000, 64, 900}, {65, 1, 2000}}, shape.probes = 3;
    shape.queries = 140;
    checks.products("ties", test::shape_of_vectors(shape, Metric::l2, true), k);
  }
}

std::string difference_of(const Index& index, AnyMatrixView queries, std::int64_t k,
                          SearchOptions options, const std::string& device) {
  const Neighbors wanted = index.search(queries, k, options);
  options.device = device;
  for (int time = 0; time < 2; ++time) {  // the second goes by what stayed there
    KnnReport report;
    const Neighbors found = index.search(queries, k, options, &report);
    if (report.device.name != device) return "device " + report.device.name + " answered";
    if (report.scan.fallback_queries != 0)
      return fmt::format("{} queries were handed back", report.scan.fallback_queries);
    if (std::string error = first_difference(found, wanted); !error.empty()) return error;
  }
  return "";
}

void check_indexes(Checks& checks, const std::string& device) {
  for (const Metric metric : metrics)
    for (const auto& [name, residual] :
         {std::pair("IVF20,PQ8", true), std::pair("IVF20,PQ8x4", false),
          std::pair("IVF20,PQ8,RFlat", true)})
      for (const std::int64_t k : {10, 300})
        for (const bool filtered : {false, true})
          checks.judge(
              fmt::format("index {}, {}{}, k {}{}", name, knear::name_of(metric),
                          residual ? "" : ", of whole vectors", k, filtered ? ", filtered" : ""),
              [&]() -> std::string {
                const AnyMatrix base = make_vectors(VectorKind::clustered, ElementType::f32, 9000,
                                                    16, 71),
                                queries = make_vectors(VectorKind::clustered, ElementType::f32, 200,
                                                       16, 72);
                detail::IndexShape shape = make_index(name, 16, metric).body().shape;
                shape.codes->residual = residual;
                Index index(std::make_unique<detail::IndexImpl>(shape));
                index.train(base.view()), index.add(base.view());
                index.add(queries.view());
                std::vector<Id> ids(4000);
                std::iota(ids.begin(), ids.end(), Id{2500});
                index.remove(std::vector<Id>{1, 17, 3000, 3001, 9010});
                SearchOptions options;
                options.method.probes = 5;
                if (filtered) {
                  std::erase_if(ids, [](Id id) { return id == 3000 || id == 3001; });
                  options.filter = IdFilter::of_ids(ids);
                }
                return difference_of(index, queries.view(), k, options, device);
              });
}

}  // namespace

void check_codes(const std::string& device, const CaseShare& share, Report& report) {
  Checks checks(std::stoi(device.substr(device.find(':') + 1)), share, report);
  check_scans(checks);
  check_products(checks);
  check_indexes(checks, device);
}

}  // namespace knear::bench
