// knear_gpu -- checks and measures the CUDA code on the GPU of this machine.
//
//   knear_gpu [--seconds N] [--json FILE] [--targets FILE] [--data DIR] [--tests-only] [--few]
//             [--warpgroups] [--one-launch] [--device N] [--only NAME[,NAME...]]
//
// First the tests (those of the emulated warp too; searches of real vectors if DIR has some), then
// the device's peaks, then the kernels and whole searches beside them, for `seconds` (default 120);
// tables on standard output at the end, that of the targets in a file of its own if one is named,
// progress on standard error. FILE of --json holds what was found at any time.
//
// Tests come in 17 passes, each of one case in 17 of every kind. --few is the first pass alone, for
// checkers that slow a program down. With --tests-only no case begins after `seconds`. --only names
// the benches wanted beside the bandwidths: loops, products, select, exact, streamed,
// partial-reduce, lists, k-means, codes, tiled. With --warpgroups searches of more than a block of
// queries go by the products of warpgroups, on a GPU that has them, with --one-launch those of up
// to 32 queries are one launch. The exact searches of the benches are measured in both forms.
//
// Exit status: 0; 1 a test failed or a call did; 2 the words of the command; 3 there is no GPU (the
// tests that need none have passed); 5 nothing failed, but time was over before the first pass was.
// scripts/gpu_check builds and runs it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/gpu/case_share.hpp"
#include "bench/gpu/code_bench.hpp"
#include "bench/gpu/code_checks.hpp"
#include "bench/gpu/exact_bench.hpp"
#include "bench/gpu/exact_checks.hpp"
#include "bench/gpu/hash.hpp"
#include "bench/gpu/k_means_bench.hpp"
#include "bench/gpu/k_means_checks.hpp"
#include "bench/gpu/kernels.hpp"
#include "bench/gpu/list_bench.hpp"
#include "bench/gpu/list_checks.hpp"
#include "bench/gpu/memory_checks.hpp"
#include "bench/gpu/partial_reduce_bench.hpp"
#include "bench/gpu/report.hpp"
#include "bench/gpu/select_checks.hpp"
#include "bench/gpu/targets.hpp"
#include "bench/gpu/timing.hpp"
#include "knear/core/error.hpp"
#include "knear/cuda/device.hpp"
#include "knear/cuda/queue.hpp"
#include "knear/knn/knn_cuda.hpp"
#include "knear/scan/device/launches_cuda.hpp"
#if KNEAR_CUBLASLT
#include "bench/gpu/cublas_lt.hpp"
#include "bench/gpu/matrix_products.hpp"
#include "bench/gpu/tiled_bench.hpp"
#endif

namespace knear::bench {
namespace {

struct Options {
  std::optional<double> seconds;
  std::string json, targets, data;
  std::vector<std::string> only;  // the benches wanted; empty: all
  bool tests = true, benches = true, few = false;
  bool warpgroups = false, one_launch = false;  // in place of the usual kernels
  int device = 0;
};

constexpr std::string_view bench_names[] = {"loops",    "products",       "select", "exact",
                                            "streamed", "partial-reduce", "lists",  "k-means",
                                            "codes",    "tiled"};

enum Status { all_well = 0, failed = 1, bad_words = 2, no_device = 3, too_little = 5 };

// The names between commas; none if one is unknown.
std::vector<std::string> names_of_benches(std::string_view words) {
  std::vector<std::string> out;
  for (;;) {
    const std::size_t comma = words.find(',');
    out.emplace_back(words.substr(0, comma));
    if (std::ranges::find(bench_names, out.back()) == std::end(bench_names)) return {};
    if (comma == words.npos) return out;
    words.remove_prefix(comma + 1);
  }
}

// False for unknown options, or a word that should be a number.
bool parse(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--tests-only") {
      options.benches = false;
      continue;
    }
    if (word == "--benches-only") {
      options.tests = false;
      continue;
    }
    if (word == "--few") {
      options.few = true;
      continue;
    }
    if (word == "--warpgroups") {
      options.warpgroups = true;
      continue;
    }
    if (word == "--one-launch") {
      options.one_launch = true;
      continue;
    }
    if (i + 1 == argc) return false;
    const char* value = argv[++i];
    char* end = nullptr;
    if (std::string* text = word == "--json"      ? &options.json
                            : word == "--targets" ? &options.targets
                            : word == "--data"    ? &options.data
                                                  : nullptr) {
      *text = value;
      continue;
    } else if (word == "--only") {
      options.only = names_of_benches(value);
      if (options.only.empty()) return false;
      continue;
    } else if (word == "--seconds") {
      options.seconds = std::strtod(value, &end);
      if (!(*options.seconds >= 0)) return false;
    } else if (word == "--device") {
      options.device = int(std::strtol(value, &end, 10));
    } else {
      return false;
    }
    if (end == value || *end != 0) return false;
  }
  return true;
}

// Copy and read bandwidth on buffers far larger than the cache; returns the read rate.
double bench_memory(const cuda::DeviceInfo& device, const cuda::Stream& stream, double budget,
                    Report& report) {
  // A gibibyte, or what fits; at least 16 times the cache if memory allows.
  std::size_t bytes = std::max(std::size_t{1} << 30, 16 * device.l2_bytes);
  bytes = std::min(bytes, device.free_bytes / 4) / 4096 * 4096;
  cuda::Queue queue = queue_on(stream);
  auto from = queue.allocate<float>(bytes / 4), to = queue.allocate<float>(bytes / 4),
       sink = queue.allocate<float>(std::size_t(sink_size(device.multiprocessors)));
  constexpr std::uint64_t seed = 31;
  fill_random(from.data(), std::int64_t(from.size()), Random::unit_f32, seed, stream.get());
  const std::string what = fmt::format("{:.1f} GB", double(bytes) / 1e9);
  const auto add = [&](const char* name, const std::string& how, double moved, const Timing& t) {
    report.add({name, what + how, moved / t.seconds / 1e9, "GB/s", t.seconds, t.spread, {}, ""});
    return moved / t.seconds;
  };
  const Timing memcpy_time = time_runs(stream, budget / 3, [&](int) {
    KNEAR_CHECK(
        cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.get()));
  });
  add("copy", ", cudaMemcpy, read + written", 2.0 * double(bytes), memcpy_time);
  queue.fill_bytes(to.data(), 0xff, to.size());
  const Timing copy_time = time_runs(stream, budget / 3, [&](int) {
    launch_copy(from.data(), to.data(), std::int64_t(bytes), device.multiprocessors, stream.get());
  });
  add("copy", ", kernel, read + written", 2.0 * double(bytes), copy_time);
  // Checks the copy at every place that a power of two or the end could hide.
  for (std::size_t at = 1; at <= to.size(); at *= 2)
    for (std::size_t place : {at - 1, to.size() - at}) {
      float got;
      queue.download(&got, to.data() + place, 1);
      queue.wait();
      ++report.tests;
      if (const float wanted = unit_float(hash(seed, place)); got != wanted)
        report.fail(fmt::format("copy at {}: {} instead of {}", place, got, wanted));
    }
  const Timing read_time = time_runs(stream, budget / 3, [&](int) {
    launch_read(from.data(), std::int64_t(bytes), device.multiprocessors, sink.data(),
                stream.get());
  });
  return add("read", ", kernel", double(bytes), read_time);
}

using LaunchLoop = Launch (*)(int multiprocessors, int rounds, float* sink, cudaStream_t stream);

// Times a loop over registers, long enough (some milliseconds) for its launch not to count.
void bench_loop(const char* name, const char* what, const char* unit, LaunchLoop loop,
                const cuda::DeviceInfo& device, const cuda::Stream& stream, double budget,
                Report& report) {
  cuda::Queue queue = queue_on(stream);
  auto sink = queue.allocate<float>(std::size_t(sink_size(device.multiprocessors)));
  int rounds = 256;
  for (; rounds < 1 << 24; rounds *= 4)
    if (time_runs(stream, 0, [&](int) {
          loop(device.multiprocessors, rounds, sink.data(), stream.get());
        }).seconds > 2e-3)
      break;
  double operations = 0;
  const Timing timing = time_runs(stream, budget, [&](int) {
    operations = loop(device.multiprocessors, rounds, sink.data(), stream.get()).operations;
  });
  report.add({name,
              what,
              operations / timing.seconds / 1e12,
              unit,
              timing.seconds,
              timing.spread,
              {},
              ""});
}

void run_benches(const cuda::DeviceInfo& device, const cuda::Stream& stream,
                 const std::vector<std::string>& only, const Deadline& deadline, Report& report) {
  const auto wanted = [&](const char* name) {
    return only.empty() || std::ranges::find(only, name) != only.end();
  };
  const double share = std::min(2.0, deadline.left() / 12);
  const double read_rate = bench_memory(device, stream, share, report);
  const struct {
    const char *name, *what, *unit;
    LaunchLoop loop;
  } loops[] = {{"fp32 multiply-add", "registers only", "Tflop/s", launch_fma},
               {"compare, select, add", "registers only, fp32 lanes", "Top/s", launch_cop},
               {"bf16 mma.sync", "registers only, m16n8k16", "Tflop/s", launch_mma_bf16},
               {"int8 mma.sync", "registers only, m16n8k32", "Top/s", launch_mma_int8}};
  for (const auto& l : loops) {
    if (!wanted("loops")) break;
    if (deadline.left() > 0)
      bench_loop(l.name, l.what, l.unit, l.loop, device, stream, share, report);
    else
      report.skipped.push_back(std::string(l.name) + ": out of time");
  }
#if KNEAR_CUBLASLT
  report.no_cublaslt = CublasLt::get().why_not;
  if (report.no_cublaslt.empty() && wanted("products"))
    bench_matrix_products(stream, deadline, report);
#else
  report.no_cublaslt = "this was built without its header";
#endif
  if (!report.no_cublaslt.empty())
    fmt::print(stderr, "no cuBLASLt ({}): what is held against its products is unmeasured\n",
               report.no_cublaslt);
  stream.synchronize();  // the memory of one bench is back before the next asks how much is free
  if (wanted("select")) bench_select(stream, read_rate, deadline, report);
  stream.synchronize();
  if (wanted("exact")) bench_exact(device.index, stream, read_rate, deadline, report);
  if (wanted("streamed")) bench_streamed(device.index, deadline, report);
  if (wanted("partial-reduce")) bench_partial_reduce(device.index, deadline, report);
  if (wanted("lists")) bench_lists(device.index, deadline, report);
  if (wanted("k-means")) bench_k_means(device.index, deadline, report);
  if (wanted("codes")) bench_codes(device.index, deadline, report);
#if KNEAR_CUBLASLT
  stream.synchronize();
  if (report.no_cublaslt.empty() && wanted("tiled")) bench_tiled_search(stream, deadline, report);
#endif
  if (!report.no_cublaslt.empty())
    report.skipped.push_back("matrix products and tiled search: no cuBLASLt");
}

// A copy of a matrix in the memory of a device, "cuda:N".
class DeviceCopy {
 public:
  DeviceCopy(AnyMatrixView matrix, const std::string& device)
      : queue_(std::stoi(device.substr(device.find(':') + 1))) {
    // Rows of a file may lie further apart than their length.
    const auto each = static_cast<std::size_t>(matrix.cols() * size_of(matrix.type()));
    std::vector<unsigned char> rows(static_cast<std::size_t>(matrix.rows()) * each);
    for (std::int64_t i = 0; i < matrix.rows(); ++i)
      std::memcpy(rows.data() + static_cast<std::size_t>(i) * each, matrix.row(i), each);
    memory_ = queue_.allocate<unsigned char>(rows.size());
    queue_.upload(memory_.data(), rows.data(), rows.size());
    queue_.wait();
    view_ = {memory_.data(), matrix.type(), matrix.rows(), matrix.cols()};
  }
  cuda::Queue& queue() { return queue_; }
  const cuda::MatrixView& view() const { return view_; }

 private:
  cuda::Queue queue_;
  cuda::Queue::Array<unsigned char> memory_;
  cuda::MatrixView view_;
};

// knn(), self_join() and range_search() for vectors that were copied to the device before.
Neighbors search_device_memory(AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
                               const KnnOptions& options, KnnReport* report, bool kept) {
  Neighbors out{Matrix<Id>(queries.rows(), k), Matrix<float>(queries.rows(), k)};
  DeviceCopy asked(queries, options.device);
  const DeviceCopy rows(base, options.device);
  cuda::Queue& queue = asked.queue();
  const auto count = static_cast<std::size_t>(queries.rows() * k);
  auto ids = queue.allocate<Id>(count);
  auto distances = queue.allocate<float>(count);
  queue.fill_bytes(ids.data(), 0xa5, count);
  queue.wait();
  if (kept) {
    // The second search uses the codes of the first.
    cuda::ExactSearcher searcher(rows.view(), options, queue.stream());
    for (int time = 0; time < 2; ++time)
      searcher.search(asked.view(), k, ids.data(), distances.data(), options, report);
  } else {
    cuda::knn(asked.view(), rows.view(), k, ids.data(), distances.data(), queue.stream(), options,
              report);
  }
  queue.download(out.ids.data(), ids.data(), count);
  queue.download(out.distances.data(), distances.data(), count);
  queue.wait();
  return out;
}

Neighbors self_join_device_memory(AnyMatrixView base, std::int64_t k, const KnnOptions& options,
                                  KnnReport* report) {
  Neighbors out{Matrix<Id>(base.rows(), k), Matrix<float>(base.rows(), k)};
  DeviceCopy rows(base, options.device);
  cuda::Queue& queue = rows.queue();
  const auto count = static_cast<std::size_t>(base.rows() * k);
  auto ids = queue.allocate<Id>(count);
  auto distances = queue.allocate<float>(count);
  queue.wait();
  cuda::self_join(rows.view(), k, ids.data(), distances.data(), queue.stream(), options, report);
  queue.download(out.ids.data(), ids.data(), count);
  queue.download(out.distances.data(), distances.data(), count);
  queue.wait();
  return out;
}

RangeNeighbors range_search_device_memory(AnyMatrixView queries, AnyMatrixView base, double radius,
                                          const KnnOptions& options, KnnReport* report) {
  const DeviceCopy asked(queries, options.device), rows(base, options.device);
  return cuda::range_search(asked.view(), rows.view(), radius, nullptr, options, report);
}

void write_targets(const Report& report, const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file) report.print_targets(file);
  if (!file || std::fclose(file) != 0) throw IoError("cannot write {}", path);
}

// One pass of the tests. Searches of the same rows in other ways are of fewer cases.
void run_tests(const Options& options, const cuda::Stream& stream, const CaseShare& share,
               Report& report) {
  const std::string device = fmt::format("cuda:{}", options.device);
  const auto begin = [&](const char* what) {
    report.save();
    if (share.pass == 0) fmt::print(stderr, "tests of {}\n", what);
  };
  // Not under checkers, whose own memory grows with what it takes.
  if (share.pass == 0 && !options.few) {
    begin("the memory of queues");
    check_memory(report);
  }
  const cuda::Queue keeper(options.device);  // searches find its pool, and make none
  begin("select_k");
  check_select_on_device(stream, share, report);
  begin("whole searches");
  const ExactSearch nearest = [](AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
                                 const KnnOptions& knn_options, KnnReport* knn_report) {
    return knn(queries, base, k, knn_options, knn_report);
  };
  check_exact(nearest, device, options.data, share, false, report);
  begin("searches of rows that stay there");
  const ExactSearch again = [](AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
                               const KnnOptions& knn_options, KnnReport* knn_report) {
    const ExactSearcher searcher(base, knn_options);
    searcher.search(queries, k, {.metric = knn_options.metric, .device = knn_options.device});
    return searcher.search(queries, k, knn_options, knn_report);
  };
  check_exact(again, device, options.data, share.one_in(5), false, report);
  begin("searches of device memory");
  for (const bool kept : {false, true})
    check_exact(
        [kept](AnyMatrixView queries, AnyMatrixView base, std::int64_t k,
               const KnnOptions& knn_options, KnnReport* knn_report) {
          return search_device_memory(queries, base, k, knn_options, knn_report, kept);
        },
        device, options.data, share.one_in(kept ? 11 : 7), true, report);
  begin("self-joins");
  const SelfJoin joined = [](AnyMatrixView base, std::int64_t k, const KnnOptions& knn_options,
                             KnnReport* knn_report) {
    return self_join(base, k, knn_options, knn_report);
  };
  check_self_join(joined, device, share, report);
  check_self_join(self_join_device_memory, device, share.one_in(7), report);
  begin("range searches");
  const RangeSearch within = [](AnyMatrixView queries, AnyMatrixView base, double radius,
                                const KnnOptions& knn_options, KnnReport* knn_report) {
    return range_search(queries, base, radius, knn_options, knn_report);
  };
  check_range(within, device, share, false, report);
  check_range(range_search_device_memory, device, share.one_in(7), true, report);
  begin("searches of inverted lists");
  const IndexSearch by_lists = [](const Index& index, AnyMatrixView queries, std::int64_t k,
                                  const SearchOptions& search_options, KnnReport* knn_report) {
    return index.search(queries, k, search_options, knn_report);
  };
  check_lists(by_lists, device, share, report);
  if (const int gpus = cuda::device_count(); gpus > 1) {
    begin("self-joins and searches of inverted lists by all GPUs");
    std::string all = "cuda:0";
    for (int gpu = 1; gpu < gpus; ++gpu) all += fmt::format(",{}", gpu);
    check_self_join(joined, all, share.one_in(7), report);
    check_lists(
        [&](const Index& index, AnyMatrixView queries, std::int64_t k, SearchOptions search_options,
            KnnReport* knn_report) {
          search_options.memory *= gpus;  // which share it
          return by_lists(index, queries, k, search_options, knn_report);
        },
        all, share.one_in(7), report);
  }
  begin("k-means");
  check_k_means(
      [](AnyMatrixView rows, const RowBlocks* blocks, std::int64_t k,
         const KMeansOptions& k_means_options) {
        return blocks ? k_means(*blocks, k, k_means_options) : k_means(rows, k, k_means_options);
      },
      device, share, report);
  begin("codes");
  check_codes(device, share, report);
#if KNEAR_CUBLASLT
  // Not in the first pass, which checkers run: they would go through the library's own kernels.
  if (share.pass == 1 && !share.is_over() && CublasLt::get().why_not.empty())
    check_tiled_search(stream, report);
#endif
}

// One case in 17 of each kind, and so on until all had their turn or time is over. False if not
// even the first had.
bool run_passes(const Options& options, const Deadline* deadline,
                const std::function<void(const CaseShare&)>& pass, Report& report) {
  constexpr int passes = 17;
  const int wanted = options.few ? 1 : passes;
  for (int number = 0; number < wanted; ++number) {
    const CaseShare share(number, passes, deadline);
    if (number > 0) fmt::print(stderr, "tests, pass {} of {}\n", number + 1, wanted);
    pass(share);
    if (!share.is_over()) continue;
    report.skipped.push_back(
        fmt::format("tests after {} of {} passes: out of time", number, wanted));
    return number > 0;
  }
  return true;
}

int run(const Options& options) {
  Report report;
  report.json = options.json;
  Status status = all_well;
  // The seconds limit the tests where no benches follow; otherwise they are for the benches.
  const Deadline tests_end(options.seconds.value_or(0));
  const Deadline* const limit = options.benches || !options.seconds ? nullptr : &tests_end;
  const bool is_there = cuda::device_count() > 0;
  bool enough = true;
  if (!is_there) {
    status = no_device;
    report.skipped.push_back("everything on a device: " + cuda::why_no_device());
  }
  // What went wrong is part of the report, with all that was measured before.
  try {
    std::optional<cuda::Stream> stream;
    if (is_there) {
      report.device = cuda::device_info(options.device);
      cuda::use_device(options.device);
      stream.emplace();
      fmt::print(stderr, "on {}\n", report.device->name);
      // All queues of this process, of whichever search.
      if (options.one_launch) {
        setenv("KNEAR_GPU_ONE_LAUNCH", "1", 1);
        if (!detail::searches_in_one_launch(cuda::Queue(options.device), 1, detail::few_queries))
          throw InvalidArgument(
              "--one-launch: this GPU has no room for the blocks of such a search");
      }
      if (options.warpgroups) {
        setenv("KNEAR_GPU_WARPGROUPS", "1", 1);
        if (!cuda::Queue(options.device).warpgroups())
          throw InvalidArgument("--warpgroups: this GPU, or this build, has no such products");
      }
    }
    if (options.tests)
      enough = run_passes(
          options, limit,
          [&](const CaseShare& share) {
            if (share.pass == 0) fmt::print(stderr, "tests of the emulated warp\n");
            check_select_on_host(share, report);
            if (is_there) run_tests(options, *stream, share, report);
          },
          report);
    if (options.benches && is_there) {
      const Deadline deadline(options.seconds.value_or(120));
      fmt::print(stderr, "benches, {:.0f} seconds at most\n", deadline.left());
      run_benches(*report.device, *stream, options.only, deadline, report);
    }
  } catch (const std::exception& error) {
    report.fail(error.what());
  }
  if (!enough && status == all_well) status = too_little;
  if (!report.failures.empty()) status = failed;
  if (options.benches) judge_targets(report);
  report.save();
  report.print_table(stdout);
  if (options.targets.empty())
    report.print_targets(stdout);
  else
    write_targets(report, options.targets);
  if (status == no_device)
    fmt::print("no GPU: {}{}\n", cuda::why_no_device(),
               options.tests ? "; the tests that need none passed" : "");
  return status;
}

}  // namespace
}  // namespace knear::bench

int main(int argc, char** argv) {
  knear::bench::Options options;
  if (!knear::bench::parse(argc, argv, options)) {
    fmt::print(
        stderr,
        "knear_gpu: usage: knear_gpu [--seconds N] [--json FILE] [--targets FILE] [--data DIR] "
        "[--tests-only | --benches-only] [--few] [--warpgroups] [--one-launch] [--device N] "
        "[--only NAME[,NAME...]]\n");
    return knear::bench::bad_words;
  }
  try {
    return knear::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "knear_gpu: {}\n", error.what());
    return knear::bench::failed;
  }
}
