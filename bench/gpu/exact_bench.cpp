#include "bench/gpu/exact_bench.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "bench/gpu/ceiling.hpp"
#include "bench/gpu/held_scan.hpp"
#include "bench/gpu/made_vectors.hpp"
#include "knear/core/threads.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/knn.hpp"
#include "knear/scan/device/device_scan.hpp"
#include "knear/scan/device/launches_cuda.hpp"
#if KNEAR_CUBLASLT
#include "bench/gpu/matrix_products.hpp"
#endif

namespace knear::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Scan = detail::DeviceScan<cuda::Queue>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// When the device reached each stage of a run, by its events.
class Stages {
 public:
  explicit Stages(const cuda::Stream& stream) : stream_(stream) {}

  void begin(const char* stage) {
    marks_.emplace_back(stage ? stage : "", cuda::Event());
    marks_.back().second.record(stream_);
  }
  // One number for each run of the stage.
  std::vector<double> each(std::string_view stage) const {
    std::vector<double> out;
    for (std::size_t i = 0; i + 1 < marks_.size(); ++i)
      if (marks_[i].first == stage)
        out.push_back(marks_[i + 1].second.seconds_since(marks_[i].second));
    return out;
  }
  double seconds_of(std::string_view stage) const {
    const std::vector<double> all = each(stage);
    return std::accumulate(all.begin(), all.end(), 0.0);
  }

 private:
  const cuda::Stream& stream_;
  std::vector<std::pair<std::string, cuda::Event>> marks_;
};

// A base that is on the device already.
class ResidentBase {
 public:
  ResidentBase(int device, const cuda::Stream& stream, AnyMatrixView base)
      : base_(base),
        found_(find_value_range(base, Metric::l2, "base", threads_)),
        packed_(detail::device_coding(
            found_.integer ? detail::Coding::whole_numbers(Metric::l2, active_isa(), found_)
                           : detail::certified_coding(
                                 detail::CodingSpace::choose(base, Metric::l2, active_isa())),
            base.rows(), base.cols())),
        queue_(device, 0, stream.get()),
        scan_(queue_, packed_, detail::upload_rows(queue_, base, {}, threads_), threads_) {}

  // The kernels of the next searches of so many queries: the usual ones, products of warpgroups for
  // more than a block of queries, one launch for few. False where the device or this build has
  // none.
  enum Kernels { usual, warpgroups, one_launch };
  bool use(Kernels kernels, std::int64_t queries) {
    queue_.use_warpgroups(kernels == warpgroups), queue_.use_one_launch(kernels == one_launch);
    const bool one = detail::searches_in_one_launch(
        queue_, static_cast<int>(detail::slices_of(packed_.steps)), queries);
    return queue_.warpgroups() == (kernels == warpgroups) && one == (kernels == one_launch);
  }
  AnyMatrixView base() const { return base_; }
  bool integer() const { return packed_.is_integer; }
  // The bytes that a search reads at least once: codes and the numbers beside them in the test.
  double scored_bytes() const {
    const auto panels = static_cast<double>(packed_.panels());
    const auto slots = panels * detail::panel_rows;
    return slots * static_cast<double>(detail::slices_of(packed_.steps) * detail::slice_bytes) +
           (integer() ? slots * 8 : slots * 4 + panels * sizeof(detail::PanelHead));
  }

  // How many queries at a time: all, if they take little memory, without asking how much is free.
  std::int64_t batch_for(AnyMatrixView queries, std::int64_t k) const {
    const std::int64_t count = queries.rows();
    return scan_.batch_for(count, k, count <= detail::block_queries ? 0 : queue_.free_bytes());
  }

  // Times scans of which nothing passes: the usual form for many queries, and the one that holds
  // their codes in registers. Adds to `seconds` of each; returns whether as many pairs pass by both
  // where they are as near as the last neighbour that was found, and at least all that were.
  bool scan_both(AnyMatrixView queries, const ValueRange& found, const ExactNeighbors& nearest,
                 const cuda::Stream& stream, std::vector<double> (&seconds)[2]) {
    std::vector<std::int64_t> which(static_cast<std::size_t>(queries.rows()));
    std::iota(which.begin(), which.end(), 0);
    const detail::DeviceQueries coded =
        detail::device_queries(packed_, queries, which, found, threads_);
    const std::int64_t k = nearest.keys.cols();
    std::vector<double> bounds(which.size());
    for (std::size_t q = 0; q < which.size(); ++q)
      bounds[q] = nearest.keys.row(static_cast<std::int64_t>(q))[k - 1];
    auto counts = queue_.allocate<int>(which.size());
    const detail::DeviceLists lists = {nullptr, nullptr, counts.data(), nullptr, 0};
    std::vector<int> passed[2];
    const auto scan = [&](bool held, int rounds) {
      auto there = scan_.upload_queries(coded, scan_.thresholds_for(coded, bounds));
      for (int round = 0; round < rounds; ++round) {
        queue_.fill_bytes(counts.data(), 0, which.size());
        cuda::Event begin, end;
        begin.record(stream);
        if (held)
          launch_held_scan(queue_, scan_.base(), there.view(0, coded.count), lists);
        else
          detail::launch_scan(queue_, scan_.base(), there.view(0, coded.count), lists, 0,
                              scan_.base().panels);
        end.record(stream);
        passed[held].resize(which.size());
        queue_.download(passed[held].data(), counts.data(), which.size());
        queue_.wait();
        if (rounds > 1) seconds[held].push_back(end.seconds_since(begin));
      }
    };
    scan(false, 1), scan(true, 1);
    const bool same = passed[0] == passed[1] &&
                      std::ranges::all_of(passed[0], [&](int count) { return count >= k; });
    std::fill(bounds.begin(), bounds.end(), -1e12);
    for (int time = 0; time < 2; ++time) scan(false, 4), scan(true, 4);
    return same;
  }

  // Returns the number of queries that it could not answer.
  // upper_bounds: as DeviceScan::run() has them.
  std::int64_t run(AnyMatrixView queries, const ValueRange& found, ExactNeighbors& out,
                   detail::DeviceStats& stats, std::span<const double> upper_bounds = {}) {
    std::vector<std::int64_t> which(static_cast<std::size_t>(queries.rows()));
    std::iota(which.begin(), which.end(), 0);
    const std::int64_t k = out.keys.cols();
    const auto left =
        scan_.run(queries, which, found, k, out, stats, batch_for(queries, k), {}, upper_bounds);
    queue_.wait();
    return std::ssize(left);
  }
  // The same with the rows for queries, each pair scored once if there is memory for that, or
  // twice.
  std::int64_t self_join(bool once, ExactNeighbors& out, detail::DeviceStats& stats) {
    std::vector<std::int64_t> which(static_cast<std::size_t>(base_.rows()));
    std::iota(which.begin(), which.end(), 0);
    const std::int64_t k = out.keys.cols();
    const auto left =
        scan_.run(base_, which, found_, k, out, stats, batch_for(base_, k), {}, {}, {},
                  std::numeric_limits<std::size_t>::max(), detail::usual_piece, {}, once);
    queue_.wait();
    return std::ssize(left);
  }

 private:
  int threads_ = available_threads();
  AnyMatrixView base_;
  ValueRange found_;
  detail::Coding packed_;
  cuda::Queue queue_;
  Scan scan_;
};

// Compares some queries of the answer with those of the processor.
std::string first_error(AnyMatrixView queries, AnyMatrixView base, const ExactNeighbors& got) {
  constexpr std::int64_t samples = 4;
  const auto number = [&](std::int64_t sample) {
    return (queries.rows() - 1) * sample / (samples - 1);
  };
  AnyMatrix some(queries.type(), samples, queries.cols());
  for (std::int64_t sample = 0; sample < samples; ++sample)
    std::memcpy(some.row(sample), queries.row(number(sample)),
                static_cast<std::size_t>(queries.cols() * size_of(queries.type())));
  const Neighbors truth = knn(some, base, got.keys.cols());
  for (std::int64_t sample = 0; sample < samples; ++sample)
    for (std::int64_t i = 0, q = number(sample); i < got.keys.cols(); ++i) {
      const auto distance = static_cast<float>(distance_of_key(Metric::l2, got.keys.row(q)[i]));
      if (got.ids.row(q)[i] != truth.ids.row(sample)[i] ||
          distance != truth.distances.row(sample)[i])
        return fmt::format("query {}, place {}: ({}, {}) instead of ({}, {})", q, i, distance,
                           got.ids.row(q)[i], truth.distances.row(sample)[i],
                           truth.ids.row(sample)[i]);
    }
  return "";
}

// kernels: which ones scan, if these are not the usual ones.
void bench_queries(ResidentBase& base, AnyMatrixView queries, std::int64_t k, bool by_memory,
                   const std::string& kernels, const cuda::Stream& stream,
                   double read_bytes_per_second, double budget, Report& report) {
  const ValueRange found = find_value_range(queries, Metric::l2, "queries", 0);
  ExactNeighbors out(queries.rows(), k);
  std::vector<double> seconds;
  detail::DeviceStats stats;
  std::int64_t back = 0;
  const Deadline deadline(budget);
  for (int run = -1; run < 20 && (run < 3 || deadline.left() > 0); ++run) {
    stats = {};
    const auto start = Clock::now();
    back = base.run(queries, found, out, stats);
    if (run >= 0) seconds.push_back(seconds_since(start));
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];

  const char* type = base.integer() ? "u8" : "f32";
  const std::string name = fmt::format("exact {} k={}{}", type, k, kernels);
  const std::string shape =
      fmt::format("{} x {} x {}", queries.rows(), base.base().rows(), base.base().cols());
  if (back != 0) {
    report.fail(fmt::format("{}, {}: {} queries were handed back, so its time says little", name,
                            shape, back));
    return;
  }
  ++report.tests;
  if (const std::string error = first_error(queries, base.base(), out); !error.empty())
    report.fail(fmt::format("{}, {}: {}", name, shape, error));

  Stages stages(stream);
  detail::DeviceStats of_stages;
  of_stages.at_stage = [&](const char* stage) { stages.begin(stage); };
  base.run(queries, found, out, of_stages);
  const double scan = stages.seconds_of("scan"), thresholds = stages.seconds_of("thresholds"),
               measure = stages.seconds_of("measure"), rank = stages.seconds_of("rank");

  // The scan alone where no pair passes: what products and tests take.
  Stages nothing(stream);
  detail::DeviceStats of_nothing;
  of_nothing.at_stage = [&](const char* stage) { nothing.begin(stage); };
  const std::vector<double> unreachable(static_cast<std::size_t>(queries.rows()), -1e12);
  ExactNeighbors none(queries.rows(), k);
  base.run(queries, found, none, of_nothing, unreachable);
  const double products = nothing.seconds_of("scan");

  // Work and ceiling: one pass over the codes, or all products.
  const Ceiling ceiling = by_memory ? Ceiling{read_bytes_per_second / 1e9, "read"}
                                    : product_ceiling(report, base.integer() ? "int8" : "bf16");
  const double work = by_memory ? base.scored_bytes() / 1e9
                                : 2e-12 * static_cast<double>(queries.rows()) *
                                      static_cast<double>(base.base().rows()) *
                                      static_cast<double>(base.base().cols());
  const auto add = [&](const std::string& entry, const std::string& what, double taken,
                       double spread) {
    Entry out_entry{
        entry, what,   work / taken, by_memory ? "GB/s" : base.integer() ? "Top/s" : "Tflop/s",
        taken, spread, {},           ""};
    hold_against(ceiling, out_entry);
    report.add(out_entry);
  };
  add(name, shape + ", whole run()", median, (seconds.back() - seconds.front()) / median);
  add(name, shape + ", kernels alone", scan + thresholds + measure + rank, 0);
  add(name, shape + ", scan kernel alone", scan, 0);
  add(name, shape + ", scan of which nothing passes", products, 0);
  if (!by_memory && base.base().cols() <= 128) {
    std::vector<double> each[2];
    ++report.tests;
    if (!base.scan_both(queries, found, out, stream, each))
      report.fail(
          fmt::format("{}, {}: with queries held in registers other pairs pass", name, shape));
    for (int held = 0; held < 2; ++held) {
      std::sort(each[held].begin(), each[held].end());
      add(name,
          shape + (held ? ", nothing passes, queries held in registers"
                        : ", nothing passes, usual form"),
          each[held][each[held].size() / 2], 0);
    }
  }
  std::string steps;
  for (const double step : stages.each("scan")) steps += fmt::format(" {:.3f}", step * 1e3);
  report.notes.push_back(fmt::format(
      "{}, {}: {} steps, {:.0f} survivors a query; ms by events: queries in {:.2f}, scan {:.2f} "
      "(its steps{}), thresholds {:.2f}, measure {:.2f}, rank {:.2f}, answers out {:.2f}",
      name, shape, stats.steps,
      static_cast<double>(stats.survivors) / static_cast<double>(queries.rows()),
      stages.seconds_of("queries in") * 1e3, scan * 1e3, steps, thresholds * 1e3, measure * 1e3,
      rank * 1e3, stages.seconds_of("answers out") * 1e3));
}

// A self-join of the rows, each pair scored once and twice, in turn: the answers must be the same.
void bench_self_join(ResidentBase& base, std::int64_t k, const cuda::Stream& stream, double budget,
                     Report& report) {
  const std::int64_t rows = base.base().rows(), columns = k + 1;  // with the row itself
  const std::string name = fmt::format("self-join {} k={}", base.integer() ? "u8" : "f32", k),
                    shape = fmt::format("{} x {}", rows, base.base().cols());
  const char* const words[] = {"each pair twice", "each pair once"};
  const Deadline deadline(budget);
  std::vector<double> whole[2], kernels[2];
  std::string told[2];
  ExactNeighbors found[2] = {ExactNeighbors(rows, columns), ExactNeighbors(rows, columns)};
  for (int run = -1; run < 5 && (run < 1 || deadline.left() > 0); ++run)
    for (const bool once : {false, true}) {
      Stages stages(stream);
      detail::DeviceStats stats;
      stats.at_stage = [&](const char* stage) { stages.begin(stage); };
      const auto start = Clock::now();
      const std::int64_t back = base.self_join(once, found[once], stats);
      if (back != 0 || stats.once != once) {
        report.skipped.push_back(fmt::format("{}, {}, {}: {}", name, shape, words[once],
                                             back != 0 ? "rows were handed back" : "no memory"));
        return;
      }
      if (run < 0) continue;
      whole[once].push_back(seconds_since(start));
      const double scan = stages.seconds_of("scan"), thresholds = stages.seconds_of("thresholds"),
                   measure = stages.seconds_of("measure"), rank = stages.seconds_of("rank");
      kernels[once].push_back(scan + thresholds + measure + rank);
      std::string steps;
      for (const double step : stages.each("scan")) steps += fmt::format(" {:.2f}", step * 1e3);
      told[once] = fmt::format(
          "{}, {}, {}: {} steps, {:.0f} survivors a row, {} rows searched again; "
          "ms by events: scan {:.1f} (its steps{}), thresholds {:.1f}, measure {:.1f}, rank {:.1f}",
          name, shape, words[once], stats.steps,
          static_cast<double>(stats.survivors) / static_cast<double>(rows), stats.repeated,
          scan * 1e3, steps, thresholds * 1e3, measure * 1e3, rank * 1e3);
    }
  ++report.tests;
  const auto places = static_cast<std::size_t>(rows * columns);
  if (!std::equal(found[0].ids.data(), found[0].ids.data() + places, found[1].ids.data()) ||
      !std::equal(found[0].keys.data(), found[0].keys.data() + places, found[1].keys.data()))
    report.fail(fmt::format("{}, {}: pairs scored once give other answers", name, shape));
  ++report.tests;
  if (const std::string error = first_error(base.base(), base.base(), found[1]); !error.empty())
    report.fail(fmt::format("{}, {}: {}", name, shape, error));
  // Of both by the pairs that are wanted: twice is what a search for every row does.
  const double work = 2e-12 * static_cast<double>(rows) * static_cast<double>(rows) *
                      static_cast<double>(base.base().cols());
  for (const bool once : {false, true}) {
    const auto add = [&](const std::string& what, std::vector<double> seconds) {
      std::sort(seconds.begin(), seconds.end());
      const double median = seconds[seconds.size() / 2];
      report.add({name,
                  fmt::format("{}, {}, {}", shape, words[once], what),
                  work / median,
                  base.integer() ? "Top/s" : "Tflop/s",
                  median,
                  (seconds.back() - seconds.front()) / median,
                  {},
                  ""});
    };
    add("whole run()", whole[once]);
    add("kernels alone", kernels[once]);
    report.notes.push_back(told[once]);
  }
}

// The rate of the bus for pinned memory, bytes per second.
double bus_bytes_per_second(int device, double budget) {
  cuda::Queue queue(device);
  constexpr std::size_t bytes = 64 << 20;
  const auto from = queue.allocate_host<unsigned char>(bytes);
  auto to = queue.allocate<unsigned char>(bytes);
  std::vector<double> seconds;
  const Deadline deadline(budget);
  for (int run = -1; run < 20 && (run < 5 || deadline.left() > 0); ++run) {
    const auto start = Clock::now();
    for (int time = 0; time < 8; ++time) queue.upload(to.data(), from.data(), bytes);
    queue.wait();
    if (run >= 0) seconds.push_back(seconds_since(start) / 8);
  }
  std::sort(seconds.begin(), seconds.end());
  return static_cast<double>(bytes) / seconds[seconds.size() / 2];
}

// A base in the memory of the processor, four times as large as what a search may take of the
// device, beside the rate of the bus; and a base searched once, copies and coding included.
void bench_streamed_base(int device, const Deadline& deadline, Report& report) {
  constexpr std::int64_t rows = 4000000, dim = 128, count = 1000, k = 10;
  constexpr std::int64_t memory = rows * dim * 4 / 4;
  fmt::print(stderr, "exact search of {} x {} f32 within {} MB\n", rows, dim, memory >> 20);
  const double bus = bus_bytes_per_second(device, 1);
  report.add({"host to device",
              "pinned memory",
              bus / 1e9,
              "GB/s",
              static_cast<double>(64 << 20) / bus,
              0,
              {},
              ""});
  const AnyMatrix base = make_clusters(ElementType::f32, rows, dim, 43);
  {
    // The rows alone, as every search brings them: what filling pinned memory leaves of the bus.
    cuda::Queue queue(device);
    std::vector<double> seconds;
    for (int run = -1; run < 5 && (run < 1 || deadline.left() > 0); ++run) {
      const auto start = Clock::now();
      const auto there = detail::upload_rows(queue, base.view(), {}, available_threads());
      if (run >= 0) seconds.push_back(seconds_since(start));
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2], bytes = double(rows * dim * 4);
    Entry entry{"host to device",
                fmt::format("{} x {} f32, through pinned memory", rows, dim),
                bytes / median / 1e9,
                "GB/s",
                median,
                (seconds.back() - seconds.front()) / median,
                {},
                ""};
    entry.of_peak = bytes / median / bus, entry.peak = "bus";
    report.add(entry);
  }
  const AnyMatrix queries = make_clusters(ElementType::f32, count, dim, 44);
  KnnOptions options{.device = fmt::format("cuda:{}", device)};
  const Neighbors truth = knn(queries.view().rows(0, 4), base, k);
  const auto measure = [&](const char* name, const char* words, const auto& search) {
    std::vector<double> seconds;
    KnnReport seen;
    Neighbors found;
    for (int run = -1; run < 5 && (run < 1 || deadline.left() > 0); ++run) {
      const auto start = Clock::now();
      found = search(seen);
      if (run >= 0) seconds.push_back(seconds_since(start));
    }
    ++report.tests;
    for (std::int64_t q = 0; q < truth.ids.rows(); ++q)
      if (!std::equal(truth.ids.row(q), truth.ids.row(q) + k, found.ids.row(q)))
        report.fail(fmt::format("{}: query {} has other neighbours", name, q));
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    Entry entry{name,
                fmt::format("{} x {} x {}, {}", count, rows, dim, words),
                static_cast<double>(rows * dim * 4) / median / 1e9,
                "GB/s",
                median,
                (seconds.back() - seconds.front()) / median,
                {},
                ""};
    entry.of_peak = static_cast<double>(rows * dim * 4) / median / bus, entry.peak = "bus";
    report.add(entry);
    report.notes.push_back(fmt::format("{}: {} chunks, {} queries handed back, {} MB of the device",
                                       entry.name, seen.scan.chunks, seen.scan.fallback_queries,
                                       seen.device.bytes >> 20));
  };
  const ExactSearcher searcher(base, options);
  options.memory = memory;
  measure("exact f32 streamed", "memory a quarter of the base",
          [&](KnnReport& seen) { return searcher.search(queries, k, options, &seen); });
  options.memory = 0;
  measure("exact f32 once", "knn() from the processor's memory",
          [&](KnnReport& seen) { return knn(queries, base, k, options, &seen); });
}

// The number of rows that fit a third of the free memory with their codes; notes it if they are
// fewer than wanted.
std::int64_t rows_that_fit(std::int64_t rows, std::int64_t dim, int element_bytes, Report& report) {
  std::size_t free_bytes = 0, all_bytes = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  const std::int64_t wanted = rows;
  while (rows > 100000 &&
         static_cast<double>(rows * (dim * (element_bytes + 1) + 64)) > double(free_bytes) / 3)
    rows /= 10;
  if (rows < wanted)
    report.skipped.push_back(
        fmt::format("exact search of {} x {}: {:.1f} GB are free on the device", wanted, dim,
                    static_cast<double>(free_bytes) / 1e9));
  return rows;
}

}  // namespace

void bench_exact(int device, const cuda::Stream& stream, double read_bytes_per_second,
                 const Deadline& deadline, Report& report) {
  const struct {
    ElementType type;
    std::int64_t rows, dim;
    std::vector<std::int64_t> queries, ks;
    bool by_memory;
  } cases[] = {{ElementType::f32, 1000000, 128, {10000}, {10, 100}, false},
               {ElementType::u8, 1000000, 128, {10000}, {10, 100}, false},
               {ElementType::f32, 10000000, 96, {1, 32}, {10, 100}, true}};
  report.notes.push_back(
      "exact: base resident; run() codes queries on the processor, copies them in and answers out; "
      "data are rows around 1000 centres (bench/gpu/made_vectors.hpp)");
  for (const auto& one : cases) {
    const std::string name =
        fmt::format("exact search of {} x {} {}", one.rows, one.dim, knear::name_of(one.type));
    if (deadline.left() < 5) {
      report.skipped.push_back(name + ": out of time");
      continue;
    }
    fmt::print(stderr, "{}\n", name);
    const int element_bytes = one.type == ElementType::u8 ? 1 : 4;
    const std::int64_t rows = rows_that_fit(one.rows, one.dim, element_bytes, report);
#if KNEAR_CUBLASLT
    if (one.type == ElementType::f32 && !one.by_memory && report.no_cublaslt.empty())
      bench_search_product(ProductType::f32, one.queries[0], rows, one.dim, stream,
                           std::min(3.0, deadline.left() / 4), report);
#endif
    const AnyMatrix vectors = make_clusters(one.type, rows, one.dim, 41);
    ResidentBase base(device, stream, vectors);
    for (const std::int64_t count : one.queries) {
      const AnyMatrix queries = make_clusters(one.type, count, one.dim, 42);
      for (const std::int64_t k : one.ks)
        // The usual kernels and the others one after the other, on the same codes.
        for (const auto by :
             {ResidentBase::usual,
              count <= detail::few_queries ? ResidentBase::one_launch : ResidentBase::warpgroups}) {
          const std::string kernels = by == ResidentBase::usual        ? ""
                                      : by == ResidentBase::one_launch ? ", one launch"
                                                                       : ", warpgroups";
          const std::string what = fmt::format("{}, {} queries, k {}{}", name, count, k, kernels);
          if (by == ResidentBase::warpgroups && count <= detail::block_queries) continue;
          if (!base.use(by, count))
            report.skipped.push_back(what + ": not on this device, or not built");
          else if (deadline.left() <= 0)
            report.skipped.push_back(what + ": out of time");
          else
            bench_queries(base, queries, k, one.by_memory, kernels, stream, read_bytes_per_second,
                          std::min(3.0, deadline.left() / 4), report);
          base.use(ResidentBase::usual, count);
        }
    }
    if (one.by_memory) continue;
    if (deadline.left() > 10)
      bench_self_join(base, one.ks[0], stream, std::min(3.0, deadline.left() / 4), report);
    else
      report.skipped.push_back(name + ", self-join: out of time");
  }
}

void bench_streamed(int device, const Deadline& deadline, Report& report) {
  if (deadline.left() > 15)
    bench_streamed_base(device, deadline, report);
  else
    report.skipped.push_back("exact search of a base beyond the memory: out of time");
}

}  // namespace knear::bench
