#include "bench/gpu/select_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "bench/gpu/hash.hpp"
#include "bench/gpu/kernels.hpp"
#include "knear/cuda/buffer.hpp"
#include "knear/select/warp_select.hpp"
#include "knear/select/warp_select_cuda.hpp"
#include "knear/simt/host_warp.hpp"
#include "tests/select/select_cases.hpp"

namespace knear::bench {
namespace {

using test::SelectKind;

// What a selection is given and what it answers, in host memory.
struct Problem {
  std::int64_t rows, cols, stride;
  int k;
  std::vector<float> values;    // [rows x stride]; what stands between rows must not be read
  std::vector<int> lengths;     // [rows], or empty: all of a row
  std::vector<float> smallest;  // [rows x k]
  std::vector<int> ids;         // [rows x k]
};

Problem make_problem(SelectKind kind, std::int64_t rows, std::int64_t cols, int k, bool ragged) {
  const std::uint64_t seed = std::uint64_t(cols * 2048 + k);
  Problem p{rows, cols, cols + 3, k, {}, {}, {}, {}};
  // Gaps hold -infinity, which would win if it were read as a value.
  p.values.assign(std::size_t(rows * p.stride), -std::numeric_limits<float>::infinity());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<float> x = test::select_values(kind, cols, seed + std::uint64_t(row) * 7919);
    std::copy(x.begin(), x.end(), p.values.begin() + row * p.stride);
    if (ragged) p.lengths.push_back(int(hash(seed, std::uint64_t(row)) % std::uint64_t(cols + 1)));
  }
  p.smallest.resize(std::size_t(rows * k));
  p.ids.resize(std::size_t(rows * k));
  return p;
}

// Empty if the answer is right, else what is wrong in the first row that is not.
std::string first_error(const Problem& p) {
  std::vector<float> smallest(std::size_t(p.k));
  std::vector<int> ids(std::size_t(p.k));
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const int length = p.lengths.empty() ? int(p.cols) : p.lengths[std::size_t(row)];
    test::select_reference(&p.values[std::size_t(row * p.stride)], length, p.k, smallest.data(),
                           ids.data());
    for (int i = 0; i < p.k; ++i) {
      const auto at = std::size_t(row * p.k + i);
      if (p.ids[at] != ids[std::size_t(i)] ||
          !test::same_bits(&p.smallest[at], &smallest[std::size_t(i)], 1))
        return fmt::format("row {} of length {}, place {}: ({}, {}) instead of ({}, {})", row,
                           length, i, p.smallest[at], p.ids[at], smallest[std::size_t(i)],
                           ids[std::size_t(i)]);
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
      select.store(&p.smallest[std::size_t(row * p.k)], &p.ids[std::size_t(row * p.k)]);
    }
  });
}

void select_on_device(Problem& p, const cuda::Stream& stream) {
  cuda::Buffer<float> values(p.values.size()), smallest(p.smallest.size());
  cuda::Buffer<int> lengths(p.lengths.size()), ids(p.ids.size());
  values.upload(p.values.data(), p.values.size(), stream);
  lengths.upload(p.lengths.data(), p.lengths.size(), stream);
  smallest.fill_bytes(0xff, stream);
  ids.fill_bytes(0x5a, stream);
  cuda::select_smallest(values.data(), p.rows, p.cols, p.stride,
                        p.lengths.empty() ? nullptr : lengths.data(), p.k, smallest.data(),
                        ids.data(), stream.get());
  smallest.download(p.smallest.data(), p.smallest.size(), stream);
  ids.download(p.ids.data(), p.ids.size(), stream);
  stream.synchronize();
}

void check_all(const char* where, std::int64_t rows, const std::vector<std::int64_t>& lengths,
               int every, const std::function<void(Problem&)>& select, Report& report) {
  int number = 0;
  for (SelectKind kind : test::all_select_kinds)
    for (std::int64_t cols : lengths)
      for (int k : {1, 32, 33, 100, 128, 129, 256, 257, 1000, 1024})
        for (bool ragged : {false, true}) {
          if (number++ % every != 0) continue;
          Problem p = make_problem(kind, rows, cols, k, ragged);
          select(p);
          ++report.tests;
          if (const std::string error = first_error(p); !error.empty())
            report.failures.push_back(fmt::format("select on {}, {}{}, {} x {}, k {}: {}", where,
                                                  name_of(kind), ragged ? ", ragged" : "", rows,
                                                  cols, k, error));
        }
}

}  // namespace

void check_select_on_host(int every, Report& report) {
  check_all("the emulated warp", 2, {1, 31, 257, 700}, every, select_on_host, report);
}

void check_select_on_device(const cuda::Stream& stream, int every, Report& report) {
  // 37 rows: not a multiple of the warps of a block.
  check_all(
      "the device", 37, {1, 31, 32, 33, 255, 256, 257, 1000, 5000}, every,
      [&](Problem& p) { select_on_device(p, stream); }, report);
}

void bench_select(const cuda::Stream& stream, double read_bytes_per_second,
                  const Deadline& deadline, Report& report) {
  constexpr std::int64_t rows = 10000;
  std::size_t free_bytes = 0, all_bytes = 0;
  KNEAR_CHECK(cudaMemGetInfo(&free_bytes, &all_bytes));
  std::int64_t longest = 128000;
  while (longest > 1000 && std::size_t(rows * longest) * sizeof(float) > free_bytes / 2)
    longest /= 2;
  if (longest < 128000)
    report.skipped.push_back(fmt::format("select on rows beyond {}: {:.1f} GB of memory are free",
                                         longest, double(free_bytes) / 1e9));
  cuda::Buffer<float> values(std::size_t(rows * longest)), smallest(std::size_t(rows) * 1000);
  cuda::Buffer<int> ids(smallest.size());
  constexpr std::uint64_t seed = 21;
  fill_random(values.data(), std::int64_t(values.size()), Random::unit_f32, seed, stream.get());
  stream.synchronize();

  for (std::int64_t cols : {std::int64_t{1000}, std::int64_t{8000}, std::int64_t{32000}, longest}) {
    if (cols > longest || (cols == longest && cols != 128000 && cols <= 32000)) continue;
    // Short matrices would stay in the cache: each run takes the next part of the large one.
    const std::int64_t parts = longest / cols, part = rows * cols;
    for (int k : {32, 100, 1000}) {
      const std::string name = fmt::format("select k={}", k);
      const std::string what = fmt::format("{} x {} fp32, random", rows, cols);
      if (deadline.left() <= 0) {
        report.skipped.push_back(name + ", " + what + ": out of time");
        continue;
      }
      smallest.fill_bytes(0xff, stream);
      ids.fill_bytes(0x5a, stream);
      int last = 0;
      const Timing timing = time_runs(stream, std::min(2.0, deadline.left() / 4), [&](int run) {
        last = run;
        cuda::select_smallest(values.data() + run % parts * part, rows, cols, cols, nullptr, k,
                              smallest.data(), ids.data(), stream.get());
      });
      const double bytes = double(part) * sizeof(float);
      report.entries.push_back({name, what, bytes / timing.seconds / 1e9, "GB/s", timing.seconds,
                                timing.spread, bytes / timing.seconds / read_bytes_per_second,
                                "read"});
      // First, middle and last row of the last run; their values are a function of the place.
      for (std::int64_t row : {std::int64_t{0}, rows / 2 + 1, rows - 1}) {
        Problem p{1, cols, cols, k, {}, {}, {}, {}};
        p.smallest.resize(std::size_t(k));
        p.ids.resize(std::size_t(k));
        for (std::int64_t i = 0; i < cols; ++i)
          p.values.push_back(
              unit_float(hash(seed, std::uint64_t(last % parts * part + row * cols + i))));
        KNEAR_CHECK(cudaMemcpyAsync(p.smallest.data(), smallest.data() + row * k,
                                    std::size_t(k) * 4, cudaMemcpyDeviceToHost, stream.get()));
        KNEAR_CHECK(cudaMemcpyAsync(p.ids.data(), ids.data() + row * k, std::size_t(k) * 4,
                                    cudaMemcpyDeviceToHost, stream.get()));
        stream.synchronize();
        ++report.tests;
        if (const std::string error = first_error(p); !error.empty())
          report.failures.push_back(
              fmt::format("{}, {}, matrix row {}: {}", name, what, row, error));
      }
    }
  }
}

}  // namespace knear::bench
