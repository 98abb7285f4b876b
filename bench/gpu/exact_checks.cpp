#include "bench/gpu/exact_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/gpu/differences.hpp"
#include "bench/gpu/made_vectors.hpp"
#include "knear/cuda/device_error.hpp"
#include "knear/io/vectors.hpp"

namespace knear::bench {
namespace {

constexpr Metric metrics[] = {Metric::l2, Metric::ip, Metric::cosine};

using bench::first_difference;
std::string first_difference(const RangeNeighbors& found, const RangeNeighbors& truth) {
  if (found.begin != truth.begin)
    return fmt::format("{} rows instead of {}, or cut elsewhere", found.ids.size(),
                       truth.ids.size());
  for (std::size_t i = 0; i < truth.ids.size(); ++i)
    if (found.ids[i] != truth.ids[i] || std::bit_cast<std::uint32_t>(found.distances[i]) !=
                                            std::bit_cast<std::uint32_t>(truth.distances[i]))
      return fmt::format("place {}: ({:.9g}, {}) instead of ({:.9g}, {})", i, found.distances[i],
                         found.ids[i], truth.distances[i], truth.ids[i]);
  return "";
}

// Decides which cases run, and reports on them.
class Checks {
 public:
  Checks(const std::string& device, const CaseShare& share, bool there, Report& report)
      : device_(device), share_(share), there_(there), report_(report) {}

  // Returns true if the next case is to run. Call it before the data are made.
  bool next() { return share_.takes(number_++); }
  bool large() const { return share_.takes_once(); }

 protected:
  // differs(options, report) searches on the device and says how the answer differs.
  template <class F>
  void judge(const std::string& what, AnyMatrixView queries, AnyMatrixView base, KnnOptions options,
             F differs) {
    options.device = device_;
    KnnReport report;
    std::string error;
    try {
      error = differs(options, &report);
    } catch (const cuda::DeviceError&) {
      throw;
    } catch (const std::exception& thrown) {
      error = thrown.what();
    }
    if (error.empty() && report.device.name != device_)
      error = "device " + report.device.name + " answered";
    const std::int64_t rows = base.rows();
    const bool few = !options.filter.everything() && options.filter.count(0, rows) * 16 < rows;
    if (error.empty() && report.scan.fallback_queries != 0 && !(there_ && few))
      error = fmt::format("{} of {} queries were handed back", report.scan.fallback_queries,
                          queries.rows());
    ++report_.tests;
    if (!error.empty())
      report_.fail(fmt::format("{}, {} {} x {} {}, {} queries of {}: {}", what,
                               name_of(options.metric), base.rows(), base.cols(),
                               knear::name_of(base.type()), queries.rows(),
                               knear::name_of(queries.type()), error));
  }

  // The processor's options: its answer does not depend on the first pass, nor on the method except
  // partial-reduce; those are for the device.
  static KnnOptions as_the_processor(KnnOptions options) {
    options.first_pass = FirstPass::automatic;
    options.memory = 0;
    if (options.method.kind != Method::partial_reduce) options.method = {};
    return options;
  }

 private:
  std::string device_;
  CaseShare share_;
  std::int64_t number_ = 0;
  bool there_;
  Report& report_;
};

class NearestChecks : public Checks {
 public:
  NearestChecks(const ExactSearch& search, const std::string& device, const CaseShare& share,
                bool there, Report& report)
      : Checks(device, share, there, report), search_(search) {}

  void check(const std::string& what, AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
             const KnnOptions& options) {
    const Neighbors truth = knn(queries, base, k, as_the_processor(options));
    judge(fmt::format("exact search, {}, k {}", what, k), queries, base, options,
          [&](const KnnOptions& there, KnnReport* report) {
            return first_difference(search_(queries, base, k, there, report), truth);
          });
  }

 private:
  const ExactSearch& search_;
};

class SelfJoinChecks : public Checks {
 public:
  SelfJoinChecks(const SelfJoin& self_join, const std::string& device, const CaseShare& share,
                 Report& report)
      : Checks(device, share, false, report), self_join_(self_join) {}

  void check(const std::string& what, AnyMatrixView base, std::int64_t k,
             const KnnOptions& options) {
    const Neighbors truth = self_join(base, k, as_the_processor(options));
    judge(fmt::format("self-join, {}, k {}", what, k), base, base, options,
          [&](const KnnOptions& there, KnnReport* report) {
            return first_difference(self_join_(base, k, there, report), truth);
          });
  }

 private:
  const SelfJoin& self_join_;
};

class RangeChecks : public Checks {
 public:
  RangeChecks(const RangeSearch& search, const std::string& device, const CaseShare& share,
              bool there, Report& report)
      : Checks(device, share, there, report), search_(search) {}

  // The radius is the distance of the row of that rank, from 0 on, to the first query.
  void check(const std::string& what, AnyMatrixView queries, AnyMatrixView base, std::int64_t rank,
             const KnnOptions& options) {
    const Neighbors near = knn(queries.rows(0, 1), base, rank + 1, {.metric = options.metric});
    const double radius = near.distances.row(0)[rank];
    const RangeNeighbors truth = range_search(queries, base, radius, as_the_processor(options));
    judge(fmt::format("range search, {}, rank {}", what, rank), queries, base, options,
          [&](const KnnOptions& there, KnnReport* report) {
            return first_difference(search_(queries, base, radius, there, report), truth);
          });
  }

 private:
  const RangeSearch& search_;
};

void check_types(NearestChecks& checks) {
  for (const ElementType type : all_element_types)
    for (const Metric metric : metrics)
      for (const std::int64_t k : {1, 10, 100, 1000}) {
        if (!checks.next()) continue;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, 2500, 40, 1);
        // Queries of the base's type, or floats: types mix.
        const AnyMatrix queries = make_vectors(
            VectorKind::uniform, k == 10 || k == 1000 ? ElementType::f32 : type, 37, 40, 2);
        checks.check("types", queries, base, k, {.metric = metric});
      }
}

// Whole numbers and other types in turn, all metrics, all k.
void check_sizes(NearestChecks& checks) {
  int number = 0;
  for (const std::int64_t rows :
       {1, 31, 32, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1025, 4097})
    for (const std::int64_t count : {1, 7, 8, 9, 127, 128, 129})
      for (const std::int64_t dim : {1, 31, 32, 33, 64, 100}) {
        const int n = number++;
        if (!checks.next()) continue;
        const ElementType type = n % 2 ? ElementType::u8 : ElementType::f32;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, rows, dim, 3);
        const AnyMatrix queries = make_vectors(VectorKind::uniform, type, count, dim, 4);
        constexpr std::int64_t ks[] = {1, 10, 33, 100, 1000};
        checks.check("sizes", queries, base, ks[n / 2 % 5], {.metric = metrics[n / 2 % 3]});
      }
}

void check_long_rows(NearestChecks& checks) {
  for (const std::int64_t dim : {900, 3000})
    for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::u8})
      for (const Metric metric : metrics)
        for (const std::int64_t k : {10, 100}) {
          if (!checks.next()) continue;
          const AnyMatrix base = make_vectors(VectorKind::uniform, type, 1200, dim, 5);
          const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 33, dim, 6);
          checks.check("long rows", queries, base, k, {.metric = metric});
        }
}

void check_filters(NearestChecks& checks) {
  constexpr std::int64_t rows = 5000;
  for (const std::int64_t step : {1, 2, 9, 400, 5000})
    for (const ElementType type : {ElementType::f32, ElementType::u8})
      for (const Metric metric : metrics) {
        if (!checks.next()) continue;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, rows, 24, 7);
        const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 20, 24, 8);
        std::vector<Id> ids;
        for (Id id = step / 2; id < rows; id += step) ids.push_back(id);
        checks.check(fmt::format("one row in {} allowed", step), queries, base, 10,
                     {.metric = metric, .filter = RowFilter::of_ids(ids, rows)});
      }
}

void check_kinds(NearestChecks& checks) {
  for (const VectorKind kind : all_vector_kinds)
    for (const Metric metric : metrics)
      for (const std::int64_t k : {10, 100}) {
        if (!checks.next()) continue;
        const AnyMatrix base = make_vectors(kind, ElementType::f32, 6000, 64, 9);
        const AnyMatrix queries = make_vectors(kind, ElementType::f32, 130, 64, 10);
        checks.check(std::string(name_of(kind)), queries, base, k, {.metric = metric});
      }
}

// Lists that overflow, k beyond a warp's registers or the rows, a base in chunks, a forced first
// pass.
void check_limits(NearestChecks& checks) {
  const auto f32 = ElementType::f32;
  for (const std::int64_t k : {5, 100}) {
    if (!checks.next()) continue;
    const AnyMatrix base = make_vectors(VectorKind::alike, f32, 6000, 8, 11);
    const AnyMatrix queries = make_vectors(VectorKind::alike, f32, 3, 8, 12);
    checks.check("alike", queries, base, k, {});
  }
  for (const VectorKind kind : {VectorKind::uniform, VectorKind::copies})
    for (const std::int64_t k : {256, 257, 1023, 1024, 1025, 3000, 5000, 6000}) {
      if (!checks.next()) continue;
      const AnyMatrix base = make_vectors(kind, f32, 5000, 8, 13);
      const AnyMatrix queries = make_vectors(kind, f32, 9, 8, 14);
      checks.check("large k", queries, base, k, {});
    }
  for (const ElementType type : {f32, ElementType::u8}) {
    if (!checks.next()) continue;
    const AnyMatrix base = make_vectors(VectorKind::uniform, type, 150000, 16, 15);
    const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 9, 16, 16);
    checks.check("in chunks", queries, base, 20, {.threads = 2, .memory = 3 << 20});
  }
  for (const Metric metric : metrics) {
    if (!checks.next()) continue;
    const AnyMatrix base = make_vectors(VectorKind::uniform, ElementType::u8, 3000, 48, 17);
    const AnyMatrix queries = make_vectors(VectorKind::uniform, ElementType::u8, 40, 48, 18);
    checks.check("int8 for whole numbers", queries, base, 10,
                 {.metric = metric, .first_pass = FirstPass::int8});
  }
}

// The TH-heap across devices: all types, thresholds that let one row in eight or every row pass, k
// beyond the registers, equal distances.
void check_threshold_heap(NearestChecks& checks) {
  KnnOptions options{.method = {.kind = Method::threshold_heap}};
  for (const ElementType type : all_element_types)
    for (const Metric metric : metrics)
      for (const std::int64_t k : {1, 10, 100, 2000}) {
        if (!checks.next()) continue;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, 20000, 40, 21);
        const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 140, 40, 22);
        options.metric = metric;
        checks.check("threshold-heap", queries, base, k, options);
      }
  for (const VectorKind kind : {VectorKind::alike, VectorKind::copies}) {
    if (!checks.next()) continue;
    const AnyMatrix base = make_vectors(kind, ElementType::f32, 6000, 8, 23);
    const AnyMatrix queries = make_vectors(kind, ElementType::f32, 300, 8, 24);
    options.metric = Metric::l2;
    checks.check("threshold-heap", queries, base, 5, options);
  }
}

// Bins of all sizes, for all rows and for those that a filter allows.
void check_partial_reduce(NearestChecks& checks) {
  constexpr std::int64_t rows = 5000;
  for (const double recall : {0.5, 0.9, 0.95, 1.0})
    for (const ElementType type : {ElementType::f32, ElementType::u8})
      for (const Metric metric : metrics)
        for (const std::int64_t step : {1, 3}) {
          if (!checks.next()) continue;
          const AnyMatrix base = make_vectors(VectorKind::uniform, type, rows, 24, 21);
          const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 40, 24, 22);
          std::vector<Id> ids;
          for (Id id = 0; id < rows; id += step) ids.push_back(id);
          checks.check(
              fmt::format("partial-reduce, recall {}, one row in {} allowed", recall, step),
              queries, base, 20,
              {.metric = metric,
               .filter = RowFilter::of_ids(ids, rows),
               .method = {.kind = Method::partial_reduce, .recall = recall}});
        }
}

// Enough queries and rows for all multiprocessors, several steps of the scan, and thresholds that
// matter.
void check_many(NearestChecks& checks) {
  if (!checks.large()) return;
  for (const ElementType type : {ElementType::f32, ElementType::u8}) {
    const AnyMatrix base = make_clusters(type, 200000, 128, 19);
    const AnyMatrix queries = make_clusters(type, 1000, 128, 20);
    for (const std::int64_t k : {10, 100, 1000}) checks.check("many", queries, base, k, {});
  }
}

void check_real(NearestChecks& checks, const std::string& data, Report& report) {
  const struct {
    const char *set, *base, *queries;
    std::int64_t split;  // rows of the base, if one file holds base and queries
  } sets[] = {{"sift-5k", "base.bvecs", "queries.bvecs", 0},
              {"glove-twitter-25", "base.npy", "queries.npy", 0},
              {"fashion-mnist", "t10k-images-idx3-ubyte.gz", nullptr, 9500}};
  for (const auto& set : sets) {
    const std::string folder = data + "/" + set.set + "/";
    if (data.empty() || !std::filesystem::exists(folder + set.base)) {
      report.skipped.push_back(fmt::format("exact search of {}: no such data", set.set));
      continue;
    }
    const io::VectorFile file = io::VectorFile::open(folder + set.base);
    std::optional<io::VectorFile> other;
    if (set.queries) other = io::VectorFile::open(folder + set.queries);
    const AnyMatrixView base = set.queries ? file.view() : file.view().rows(0, set.split);
    const AnyMatrixView queries =
        set.queries ? other->view() : file.view().rows(set.split, file.view().rows());
    for (const Metric metric : metrics)
      for (const std::int64_t k : {1, 10, 100, 1000})
        if (checks.next()) checks.check(set.set, queries, base, k, {.metric = metric});
  }
}

void check_range_types(RangeChecks& checks) {
  for (const ElementType type : all_element_types)
    for (const Metric metric : metrics)
      for (const std::int64_t rank : {0, 100, 2499}) {
        if (!checks.next()) continue;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, 2500, 40, 31);
        const AnyMatrix queries =
            make_vectors(VectorKind::uniform, rank == 100 ? ElementType::f32 : type, 37, 40, 32);
        checks.check("types", queries, base, rank, {.metric = metric});
      }
  for (const std::int64_t dim : {900, 3000})
    for (const ElementType type : {ElementType::f32, ElementType::u8})
      for (const Metric metric : metrics) {
        if (!checks.next()) continue;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, 1200, dim, 33);
        const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 33, dim, 34);
        checks.check("long rows", queries, base, 50, {.metric = metric});
      }
}

void check_range_sizes(RangeChecks& checks) {
  int number = 0;
  for (const std::int64_t rows : {1, 31, 32, 33, 127, 128, 129, 513, 1025, 4097, 16385, 40000})
    for (const std::int64_t count : {1, 127, 128, 129, 2049})
      for (const std::int64_t dim : {1, 33, 100}) {
        const int n = number++;
        if (!checks.next()) continue;
        const ElementType type = n % 2 ? ElementType::u8 : ElementType::f32;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, rows, dim, 35);
        const AnyMatrix queries = make_vectors(VectorKind::uniform, type, count, dim, 36);
        checks.check("sizes", queries, base, std::min<std::int64_t>(rows - 1, 20),
                     {.metric = metrics[n / 2 % 3]});
      }
}

// Filters, data that codes separate badly, equal rows, more pairs than a copy has room for, a base
// in blocks, a forced first pass.
void check_range_limits(RangeChecks& checks) {
  constexpr std::int64_t rows = 5000;
  for (const std::int64_t step : {2, 9, 400})
    for (const ElementType type : {ElementType::f32, ElementType::u8})
      for (const Metric metric : metrics) {
        if (!checks.next()) continue;
        const AnyMatrix base = make_vectors(VectorKind::uniform, type, rows, 24, 37);
        const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 20, 24, 38);
        std::vector<Id> ids;
        for (Id id = step / 2; id < rows; id += step) ids.push_back(id);
        checks.check(fmt::format("one row in {} allowed", step), queries, base, 1000,
                     {.metric = metric, .filter = RowFilter::of_ids(ids, rows)});
      }
  for (const VectorKind kind : all_vector_kinds)
    for (const Metric metric : metrics) {
      if (!checks.next()) continue;
      const AnyMatrix base = make_vectors(kind, ElementType::f32, 6000, 64, 39);
      const AnyMatrix queries = make_vectors(kind, ElementType::f32, 130, 64, 40);
      checks.check(std::string(name_of(kind)), queries, base, 50, {.metric = metric});
    }
  for (const ElementType type : {ElementType::f32, ElementType::u8}) {
    if (!checks.next()) continue;
    const AnyMatrix base = make_vectors(VectorKind::uniform, type, 40000, 16, 41);
    const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 200, 16, 42);
    checks.check("everything", queries, base, 39999, {});
  }
  for (const ElementType type : {ElementType::f32, ElementType::u8}) {
    if (!checks.next()) continue;
    const AnyMatrix base = make_vectors(VectorKind::uniform, type, 150000, 16, 43);
    const AnyMatrix queries = make_vectors(VectorKind::uniform, type, 9, 16, 44);
    checks.check("in chunks", queries, base, 20, {.threads = 2, .memory = 6 << 20});
  }
  for (const Metric metric : metrics) {
    if (!checks.next()) continue;
    const AnyMatrix base = make_vectors(VectorKind::uniform, ElementType::u8, 3000, 48, 45);
    const AnyMatrix queries = make_vectors(VectorKind::uniform, ElementType::u8, 40, 48, 46);
    checks.check("int8 for whole numbers", queries, base, 30,
                 {.metric = metric, .first_pass = FirstPass::int8});
  }
}

}  // namespace

void check_exact(const ExactSearch& search, const std::string& device, const std::string& data,
                 const CaseShare& share, bool there, Report& report) {
  NearestChecks checks(search, device, share, there, report);
  check_types(checks);
  check_sizes(checks);
  check_long_rows(checks);
  check_filters(checks);
  check_kinds(checks);
  check_limits(checks);
  if (!there) check_threshold_heap(checks);
  if (!there) check_partial_reduce(checks);
  check_real(checks, data, report);
  check_many(checks);
}

void check_self_join(const SelfJoin& self_join, const std::string& device, const CaseShare& share,
                     Report& report) {
  SelfJoinChecks checks(self_join, device, share, report);
  for (const VectorKind kind : {VectorKind::uniform, VectorKind::copies, VectorKind::zeros})
    for (const ElementType type : {ElementType::f32, ElementType::bf16, ElementType::u8})
      for (const Metric metric : metrics)
        for (const std::int64_t k : {1, 10, 1100}) {
          if (!checks.next()) continue;
          const AnyMatrix base = make_vectors(kind, type, 1050, 20, 51);
          checks.check(std::string(name_of(kind)), base, k, {.metric = metric});
        }
  // In several steps, with rows that fit a stage of the kernel's ring and such that do not.
  for (const std::int64_t dim : {40, 150})
    for (const ElementType type : {ElementType::f32, ElementType::u8}) {
      if (!checks.next()) continue;
      const AnyMatrix base = make_vectors(VectorKind::uniform, type, 7100, dim, 52);
      checks.check("several steps", base, 10, {});
    }
}

void check_range(const RangeSearch& search, const std::string& device, const CaseShare& share,
                 bool there, Report& report) {
  RangeChecks checks(search, device, share, there, report);
  check_range_types(checks);
  check_range_sizes(checks);
  check_range_limits(checks);
}

}  // namespace knear::bench
