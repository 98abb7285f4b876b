#include "bench/gpu/select_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "bench/gpu/hash.hpp"
#include "bench/gpu/kernels.hpp"
#include "knear/core/threads.hpp"
#include "knear/select/select_k_cuda.hpp"
#include "knear/select/warp/warp_select.hpp"
#include "knear/simt/host_warp.hpp"
#include "tests/select/misled_rows.hpp"
#include "tests/select/select_cases.hpp"

namespace knear::bench {
namespace {

using test::SelectKind;

constexpr float infinity = std::numeric_limits<float>::infinity();

// The input of a selection and its answer, in host memory.
struct Problem {
  std::int64_t rows, cols, stride;
  int k;
  DeviceSelectOptions options;
  std::vector<float> values;  // [rows x stride]; what stands between rows must not be read
  std::vector<int> lengths;   // [rows], or empty: all of a row
  std::vector<float> best;    // [rows x k]
  std::vector<int> places;    // [rows x k]
};

Problem make_problem(SelectKind kind, std::int64_t rows, std::int64_t cols, int k,
                     DeviceSelectOptions options, bool ragged) {
  const std::uint64_t seed = std::uint64_t(cols * 2048 + k);
  Problem p{rows, cols, cols + 3, k, options, {}, {}, {}, {}};
  // Gaps hold the value that would win if it were read.
  p.values.assign(std::size_t(rows * p.stride),
                  options.extreme == Extreme::smallest ? -infinity : infinity);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<float> x = test::select_values(kind, cols, seed + std::uint64_t(row) * 7919);
    std::copy(x.begin(), x.end(), p.values.begin() + row * p.stride);
    if (ragged) p.lengths.push_back(int(hash(seed, std::uint64_t(row)) % std::uint64_t(cols + 1)));
  }
  p.best.resize(std::size_t(rows * k));
  p.places.resize(std::size_t(rows * k));
  return p;
}

// Empty if the answer is right, else the mistake in the first row that has one. The largest values
// are the smallest of the negated ones.
std::string first_error(const Problem& p) {
  const bool largest = p.options.extreme == Extreme::largest;
  std::vector<float> values, best(std::size_t(p.k));
  std::vector<int> places(std::size_t(p.k));
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const int length = p.lengths.empty() ? int(p.cols) : p.lengths[std::size_t(row)];
    const float* x = &p.values[std::size_t(row * p.stride)];
    values.assign(x, x + length);
    if (largest)
      for (float& value : values) value = -value;
    test::select_reference(values.data(), length, p.k, best.data(), places.data());
    if (!p.options.sorted)
      std::sort(places.begin(), places.end(),
                [](int a, int b) { return unsigned(a) < unsigned(b); });
    for (int i = 0; i < p.k; ++i) {
      const auto at = std::size_t(row * p.k + i);
      const int place = places[std::size_t(i)];
      const float value = place >= 0 ? x[place] : largest ? -infinity : infinity;
      if (p.places[at] != place || !test::same_bits(&p.best[at], &value, 1))
        return fmt::format("row {} of length {}, place {}: ({}, {}) instead of ({}, {})", row,
                           length, i, p.best[at], p.places[at], value, place);
    }
  }
  return "";
}

void select_on_host(Problem& p) {
  with_warp_select_shape(p.k, [&](auto shape) {
    for (std::int64_t row = 0; row < p.rows; ++row) {
      WarpSelect<HostWarp, int, shape.R, shape.T> select(HostWarp(), p.k);
      select.add_row(&p.values[std::size_t(row * p.stride)],
                     p.lengths.empty() ? int(p.cols) : p.lengths[std::size_t(row)]);
      select.store(&p.best[std::size_t(row * p.k)], &p.places[std::size_t(row * p.k)]);
    }
  });
}

void select_on_device(Problem& p, cuda::Queue& queue) {
  auto values = queue.allocate<float>(p.values.size()), best = queue.allocate<float>(p.best.size());
  auto lengths = queue.allocate<int>(p.lengths.size()),
       places = queue.allocate<int>(p.places.size());
  queue.upload(values.data(), p.values.data(), p.values.size());
  queue.upload(lengths.data(), p.lengths.data(), p.lengths.size());
  queue.fill_bytes(best.data(), 0xff, best.size());
  queue.fill_bytes(places.data(), 0x5a, places.size());
  cuda::select_k(
      {values.data(), p.rows, p.cols, p.stride, p.lengths.empty() ? nullptr : lengths.data()}, p.k,
      p.options, best.data(), places.data(), queue.stream());
  queue.download(p.best.data(), best.data(), best.size());
  queue.download(p.places.data(), places.data(), places.size());
  queue.wait();
}

// Its share of the questions: all k of all rows, whole and ragged.
struct Sizes {
  std::int64_t rows;
  std::vector<std::int64_t> lengths;
  std::vector<int> ks;
};
struct Question {
  SelectKind kind;
  std::int64_t cols;
  int k;
  DeviceSelectOptions way;
  bool ragged;
};
// `threads`: how many may select at once. All of the processor make the rows and judge the answers
// of some questions at a time: the device takes less.
void check_all(const char* where, const Sizes& sizes, const std::vector<DeviceSelectOptions>& ways,
               const CaseShare& share, int threads, const std::function<void(Problem&)>& select,
               Report& report) {
  std::vector<Question> questions;
  std::int64_t number = 0;
  for (SelectKind kind : test::all_select_kinds)
    for (std::int64_t cols : sizes.lengths)
      for (int k : sizes.ks)
        for (const DeviceSelectOptions& way : ways)
          for (bool ragged : {false, true})
            if (share.takes(number++)) questions.push_back({kind, cols, k, way, ragged});
  constexpr std::ptrdiff_t together = 32;
  for (std::ptrdiff_t begin = 0; begin < std::ssize(questions) && !share.is_over();
       begin += together) {
    const std::ptrdiff_t count = std::min(together, std::ssize(questions) - begin);
    std::vector<Problem> problems(static_cast<std::size_t>(count));
    std::vector<std::string> errors(problems.size());
    parallel_for(0, count, [&](std::int64_t i) {
      const Question& q = questions[static_cast<std::size_t>(begin + i)];
      problems[static_cast<std::size_t>(i)] =
          make_problem(q.kind, sizes.rows, q.cols, q.k, q.way, q.ragged);
    });
    parallel_for(threads, count,
                 [&](std::int64_t i) { select(problems[static_cast<std::size_t>(i)]); });
    parallel_for(0, count, [&](std::int64_t i) {
      errors[static_cast<std::size_t>(i)] = first_error(problems[static_cast<std::size_t>(i)]);
    });
    for (std::size_t i = 0; i < errors.size(); ++i) {
      const Question& q = questions[static_cast<std::size_t>(begin) + i];
      ++report.tests;
      if (!errors[i].empty())
        report.fail(fmt::format(
            "select on {}, {}{}{}{}, {} x {}, k {}: {}", where, name_of(q.kind),
            q.ragged ? ", ragged" : "", q.way.extreme == Extreme::largest ? ", largest" : "",
            q.way.sorted ? "" : ", by place", sizes.rows, q.cols, q.k, errors[i]));
    }
  }
}

// Rows whose threshold lets too few values pass, or all.
void check_misled_rows(const std::function<void(Problem&)>& select, Report& report) {
  for (int k : {40, 300, 1000, 4000})
    for (Extreme extreme : {Extreme::smallest, Extreme::largest}) {
      constexpr int cols =
          16381;  // and 3 between rows, so that each begins at a boundary of 16 bytes
      Problem p = make_problem(SelectKind::uniform, std::ssize(test::all_misled), cols, k,
                               {.extreme = extreme}, false);
      for (std::int64_t row = 0; row < p.rows; ++row) {
        std::vector<float> x =
            test::misled_row(test::all_misled[row], k, cols, std::uint64_t(row * 31 + k));
        if (extreme == Extreme::largest)
          for (float& value : x) value = -value;
        std::copy(x.begin(), x.end(), p.values.begin() + row * p.stride);
      }
      select(p);
      ++report.tests;
      if (const std::string error = first_error(p); !error.empty())
        report.fail(fmt::format("select of misled rows, k {}{}: {}", k,
                                extreme == Extreme::largest ? ", largest" : "", error));
    }
}

// The same work captured in a CUDA graph, of which a second launch gives the answer.
void select_by_graph(Problem& p, cuda::Queue& queue) {
  auto values = queue.allocate<float>(p.values.size()), best = queue.allocate<float>(p.best.size());
  auto places = queue.allocate<int>(p.places.size());
  queue.upload(values.data(), p.values.data(), p.values.size());
  const auto select = [&] {
    cuda::select_k({values.data(), p.rows, p.cols, p.stride}, p.k, p.options, best.data(),
                   places.data(), queue.stream());
  };
  select();
  queue.wait();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  KNEAR_CHECK(cudaStreamBeginCapture(queue.stream(), cudaStreamCaptureModeGlobal));
  select();
  KNEAR_CHECK(cudaStreamEndCapture(queue.stream(), &graph));
  KNEAR_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int time = 0; time < 2; ++time) {
    queue.fill_bytes(best.data(), 0xff, best.size());
    queue.fill_bytes(places.data(), 0x5a, places.size());
    KNEAR_CHECK(cudaGraphLaunch(exec, queue.stream()));
  }
  queue.download(p.best.data(), best.data(), best.size());
  queue.download(p.places.data(), places.data(), places.size());
  queue.wait();
  KNEAR_CHECK(cudaGraphExecDestroy(exec));
  KNEAR_CHECK(cudaGraphDestroy(graph));
}

const std::vector<int> warp_ks = {1, 32, 33, 100, 128, 129, 256, 257, 1000, 1024};

}  // namespace

void check_select_on_host(const CaseShare& share, Report& report) {
  check_all("the emulated warp", {2, {1, 31, 257, 700}, warp_ks}, {{}}, share, 0, select_on_host,
            report);
}

void check_select_on_device(const cuda::Stream& stream, const CaseShare& share, Report& report) {
  cuda::Queue queue = queue_on(stream);
  const auto select = [&](Problem& p) { select_on_device(p, queue); };
  const DeviceSelectOptions largest{.extreme = Extreme::largest}, by_place{.sorted = false},
      largest_by_place{.extreme = Extreme::largest, .sorted = false};
  // 37 rows: not a multiple of the warps of a block. A warp for each up to k = 32, then a block.
  check_all("the device", {37, {1, 31, 32, 33, 255, 256, 257, 1000, 5000}, warp_ks}, {{}}, share, 1,
            select, report);
  check_all("the device", {37, {1, 1000, 5000}, {100, 1000, 1025, 3000, 4999, 5005}},
            {{}, largest, by_place, largest_by_place}, share, 1, select, report);
  // Lengths around the steps and tiles of a block and those at which it takes a sample, and k
  // around its memory and the largest that it takes.
  check_all("the device",
            {37,
             {1023, 1025, 4095, 4096, 4099, 8192, 16385},
             {33, 64, 127, 255, 512, 513, 1500, 2048, 2049, 4095, 4096, 4097, 6000}},
            {{}, largest_by_place}, share, 1, select, report);
  // As many rows as it takes for a block each where they are long, and for a warp each.
  check_all("the device", {2 * queue.multiprocessors(), {17000}, {33, 129, 1000, 4096, 4097}},
            {{}, largest_by_place}, share, 1, select, report);
  check_all("the device", {2 * queue.multiprocessors(), {66001}, {100, 129, 2000}}, {{}}, share, 1,
            select, report);
  // Few rows, which are cut into parts.
  check_all("the device", {2, {100000, 1000003}, {10, 1000, 2000, 99999}},
            {{}, largest, by_place, largest_by_place}, share, 1, select, report);
  if (share.pass != 0) return;
  check_misled_rows(select, report);
  // By warps, by blocks with a threshold and with digits, and by parts of rows; with a sort.
  for (const auto& [rows, cols, k] :
       {std::tuple{37, 1000, 10}, std::tuple{37, 1000, 100}, std::tuple{37, 5000, 3000},
        std::tuple{37, 5000, 4500}, std::tuple{2, 100000, 100}, std::tuple{2, 100000, 3000}}) {
    Problem p = make_problem(SelectKind::uniform, rows, cols, k, {}, false);
    select_by_graph(p, queue);
    ++report.tests;
    if (const std::string error = first_error(p); !error.empty())
      report.fail(fmt::format("select by a CUDA graph, {} x {}, k {}: {}", rows, cols, k, error));
  }
}

void bench_select(const cuda::Stream& stream, double read_bytes_per_second,
                  const Deadline& deadline, Report& report) {
  constexpr std::int64_t rows = 10000, most_k = 4000;
  std::size_t free_bytes = 0, all_bytes = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  std::int64_t longest = 128000;
  while (longest > 1000 && std::size_t(rows * longest) * sizeof(float) > free_bytes / 2)
    longest /= 2;
  if (longest < 128000)
    report.skipped.push_back(fmt::format("select on rows beyond {}: {:.1f} GB of memory are free",
                                         longest, double(free_bytes) / 1e9));
  cuda::Queue queue = queue_on(stream);
  auto values = queue.allocate<float>(std::size_t(rows * longest)),
       best = queue.allocate<float>(std::size_t(rows) * most_k);
  auto places = queue.allocate<int>(best.size());
  constexpr std::uint64_t seed = 21;
  fill_random(values.data(), std::int64_t(values.size()), Random::unit_f32, seed, stream.get());
  stream.synchronize();

  for (std::int64_t cols : {std::int64_t{1000}, std::int64_t{8000}, std::int64_t{32000}, longest}) {
    if (cols > longest || (cols == longest && cols != 128000 && cols <= 32000)) continue;
    // Short matrices would stay in the cache, so each run takes the next part of a large one.
    const std::int64_t parts = longest / cols, part = rows * cols;
    for (int k : {32, 100, 1000, 4000}) {
      if (k >= cols) continue;
      const std::string name = fmt::format("select k={}", k);
      const std::string what = fmt::format("{} x {} fp32, random", rows, cols);
      if (deadline.left() <= 0) {
        report.skipped.push_back(name + ", " + what + ": out of time");
        continue;
      }
      queue.fill_bytes(best.data(), 0xff, best.size());
      queue.fill_bytes(places.data(), 0x5a, places.size());
      int last = 0;
      const Timing timing = time_runs(stream, std::min(2.0, deadline.left() / 4), [&](int run) {
        last = run;
        cuda::select_k(queue, {values.data() + run % parts * part, rows, cols, cols}, k, {},
                       best.data(), places.data());
      });
      const double bytes = double(part) * sizeof(float);
      report.add({name, what, bytes / timing.seconds / 1e9, "GB/s", timing.seconds, timing.spread,
                  bytes / timing.seconds / read_bytes_per_second, "read"});
      // Checks first, middle and last row of the last run; their values are a function of the
      // place.
      for (std::int64_t row : {std::int64_t{0}, rows / 2 + 1, rows - 1}) {
        Problem p{1, cols, cols, k, {}, {}, {}, {}, {}};
        p.best.resize(std::size_t(k));
        p.places.resize(std::size_t(k));
        for (std::int64_t i = 0; i < cols; ++i)
          p.values.push_back(
              unit_float(hash(seed, std::uint64_t(last % parts * part + row * cols + i))));
        queue.download(p.best.data(), best.data() + row * k, std::size_t(k));
        queue.download(p.places.data(), places.data() + row * k, std::size_t(k));
        queue.wait();
        ++report.tests;
        if (const std::string error = first_error(p); !error.empty())
          report.fail(fmt::format("{}, {}, matrix row {}: {}", name, what, row, error));
      }
    }
  }
}

}  // namespace knear::bench
