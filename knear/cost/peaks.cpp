#include "knear/cost/peaks.hpp"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <functional>
#include <limits>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/public_call.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/system.hpp"
#include "knear/core/threads.hpp"
#include "knear/cost/clock_limit.hpp"
#include "knear/cost/peak_loops.hpp"

namespace knear {
namespace {

using detail::PeakLoop;
using detail::PeakLoops;
using Clock = std::chrono::steady_clock;

constexpr int slices = 5;
constexpr double part_seconds = 0.05;  // of work after which a thread asks whether to go on

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// The median over slices of the time in which all threads do `work` once, after one slice that is
// not counted (clocks settle, pages and code are loaded). prepare(thread) runs before, untimed.
// Either may throw.
double median_seconds(int threads, const std::function<void(int)>& prepare,
                      const std::function<void(int)>& work) {
  std::vector<std::vector<Clock::time_point>> begin(slices + 1), end(slices + 1);
  for (auto* times : {&begin, &end})
    for (auto& slice : *times) slice.resize(threads);
  std::barrier together(threads);
  run_together(threads, [&](int thread) {
    try {
      prepare(thread);
      for (int slice = 0; slice <= slices; ++slice) {
        together.arrive_and_wait();
        begin[slice][thread] = Clock::now();
        work(thread);
        end[slice][thread] = Clock::now();
      }
    } catch (...) {
      together.arrive_and_drop();  // the others go on; the caller gets the exception
      throw;
    }
  });
  std::vector<double> seconds;
  for (int slice = 1; slice <= slices; ++slice)
    seconds.push_back(seconds_between(*std::min_element(begin[slice].begin(), begin[slice].end()),
                                      *std::max_element(end[slice].begin(), end[slice].end())));
  std::nth_element(seconds.begin(), seconds.begin() + slices / 2, seconds.end());
  return seconds[slices / 2];
}

// How many rounds of a loop take a slice, and how many of these are run at a time.
struct Rounds {
  long all = 1, part = 1;

  template <class Run>
  Rounds(double slice_seconds, Run run) {
    // They grow until the clock can measure them, then are scaled.
    const double enough = std::min(slice_seconds / 16, part_seconds / 4);
    for (; all < 1L << 40; all *= 4) {
      stop_if_asked();
      const auto begin = Clock::now();
      run(all);
      const double taken = seconds_between(begin, Clock::now());
      if (taken < enough) continue;
      const auto within = [&](double seconds) {
        return std::max(1L, long(double(all) * seconds / taken));
      };
      part = within(std::min(slice_seconds, part_seconds));
      all = within(slice_seconds);
      return;
    }
    part = all;
  }

  template <class Run>
  void in_parts(Run run) const {
    for (long left = all; left > 0; left -= part) {
      stop_if_asked();
      run(std::min(part, left));
    }
  }
};

constexpr int dependent_adds = 16;

// Adds again and again, and each addition waits a cycle for the one before. The compiler knows
// neither number, so that both are in registers: some processors (Emerald Rapids) resolve several
// additions of a small constant in a cycle, when they rename registers.
void run_dependent(long rounds) {
  std::uint64_t x = 1, y = 3;
  for (long i = 0; i < rounds; ++i)
    for (int j = 0; j < dependent_adds; ++j) {
      asm volatile("" : "+r"(x), "+r"(y));
      x += y;
    }
  asm volatile("" : "+r"(x));
}

double measure(const PeakLoop& loop, int threads, double slice_seconds) {
  const Rounds rounds(slice_seconds, loop.run);
  const double seconds = median_seconds(
      threads, [](int) {}, [&](int) { rounds.in_parts(loop.run); });
  return double(threads) * double(rounds.all) * loop.operations / seconds;
}

// Bytes for one thread, which writes them first, so that they lie in its memory node.
AlignedArray<unsigned char> filled(long bytes) {
  constexpr long together = 1L << 24;
  AlignedArray<unsigned char> buffer{size_t(bytes)};
  for (long i = 0; i < bytes; ++i) {
    if (i % together == 0) stop_if_asked();
    buffer[size_t(i)] = static_cast<unsigned char>(i * 37 >> 3);
  }
  return buffer;
}

double measure_read(const PeakLoops& loops, int threads) {
  // Four times the last-level cache, as far as a quarter of the free memory allows.
  constexpr long mebibyte = 1L << 20;
  const long cache = static_cast<long>(std::max(cache_bytes(3), detail::cache_size(4)));
  const long free = static_cast<long>(detail::unused_memory().value_or(machine_memory()) / 4);
  long total = std::clamp(4 * cache, 256 * mebibyte, 1024 * mebibyte);
  total = std::max(64 * mebibyte, std::min(total, free));
  const long bytes = std::max(1L, total / threads / detail::read_granule) * detail::read_granule;
  std::vector<AlignedArray<unsigned char>> buffers(threads);
  const double seconds = median_seconds(
      threads, [&](int thread) { buffers[thread] = filled(bytes); },
      [&](int thread) {
        constexpr long part = 64 * mebibyte;
        for (long at = 0; at < bytes; at += part) {
          stop_if_asked();
          loops.read_ahead(buffers[thread].data() + at, std::min(part, bytes - at));
        }
      });
  return double(threads) * double(bytes) / seconds;
}

CachePeak measure_cache(const PeakLoops& loops, int threads, int level, double slice_seconds) {
  const long size = cache_bytes(level + 1);
  if (size == 0) return {};
  const long each = level < 2 ? size / 2 : std::min(size / 2, 32L << 20) / threads;
  const long bytes = each / detail::read_granule * detail::read_granule;
  if (bytes < detail::read_granule) return {};
  std::vector<AlignedArray<unsigned char>> buffers(threads);
  const auto read = [&](int thread, long rounds) {
    const auto once = level < 2 ? loops.read : loops.read_ahead;
    for (long i = 0; i < rounds; ++i) once(buffers[thread].data(), bytes);
  };
  buffers[0] = filled(bytes);
  const Rounds rounds(slice_seconds, [&](long some) { read(0, some); });
  const double seconds = median_seconds(
      threads, [&](int thread) { buffers[thread] = filled(bytes); },
      [&](int thread) { rounds.in_parts([&](long some) { read(thread, some); }); });
  return {std::int64_t{bytes} * threads,
          double(threads) * double(rounds.all) * double(bytes) / seconds};
}

}  // namespace

MachinePeaks measure_peaks(int threads, double seconds) {
  return detail::public_call([&] {
    if (!(seconds > 0 && seconds <= 600))
      throw InvalidArgument("seconds must be above 0 and at most 600, but is {}", seconds);
    MachinePeaks peaks;
    peaks.isa = active_isa();
    peaks.threads = resolve_threads(threads);
    const PeakLoops loops = detail::peak_loops(peaks.isa);
    const bool bf16 = loops.bf16.run != nullptr;
    const double slice =
        seconds / ((bf16 ? 10 : 9) * (slices + 2));  // one warms up, one finds rounds
    peaks.fp32_flops = measure(loops.fp32, peaks.threads, slice);
    peaks.bf16_flops =
        bf16 ? measure(loops.bf16, peaks.threads, slice) : std::numeric_limits<double>::quiet_NaN();
    peaks.int16_ops = measure(loops.int16, peaks.threads, slice);
    peaks.int8_ops = measure(loops.int8, peaks.threads, slice);
    peaks.cop_per_second = measure(loops.cop, peaks.threads, slice);
    peaks.cycles_per_second = measure({run_dependent, dependent_adds}, peaks.threads, slice);
    if (peaks.cycles_per_second > peaks.threads * detail::clock_limit())
      peaks.cycles_per_second = 0;
    peaks.memory_bytes_per_second = measure_read(loops, peaks.threads);
    for (int level = 0; level < 3; ++level)
      peaks.caches[level] = measure_cache(loops, peaks.threads, level, slice);
    return peaks;
  });
}

MachinePeaks estimated_peaks(Isa isa, int threads) {
  MachinePeaks peaks;
  peaks.isa = isa;
  peaks.threads = resolve_threads(threads);
  const double cycles = peaks.cycles_per_second = assumed_cycles_per_second * peaks.threads;
  const bool neon = isa == Isa::neon || isa == Isa::neon_dot || isa == Isa::neon_i8mm;
  const double lanes = isa == Isa::scalar || neon ? 4 : isa == Isa::avx2 ? 8 : 16;  // of 32 bits
  // Two vector instructions per cycle. A multiply-add of a 32-bit lane: fp32 one instruction (two
  // without FMA); two int16 products two, with VNNI one; four int8 products three, with VNNI one
  // (without vpmaddubsw they are widened first: half the rate of int16).
  const double multiply_adds = 2 * lanes * cycles;
  const bool vnni = isa == Isa::avx512_vnni || isa == Isa::avx512_amx;
  peaks.fp32_flops = 2 * multiply_adds / (isa == Isa::scalar ? 2 : 1);
  peaks.bf16_flops = std::numeric_limits<double>::quiet_NaN();  // the level does not promise it
  peaks.int16_ops = 2 * multiply_adds * 2 / (vnni ? 1 : neon ? 4 : 2);
  peaks.int8_ops =
      isa == Isa::scalar ? peaks.int16_ops / 2 : 2 * multiply_adds * 4 / (vnni ? 1 : 3);
  if (isa == Isa::avx512_amx) peaks.int8_ops *= tile_gain;
  // Four products to a lane: six instructions, one with SDOT, and with USMMLA half of one.
  if (neon) peaks.int8_ops = 2 * multiply_adds * 4 / (isa == Isa::neon ? 6 : 1);
  if (isa == Isa::neon_i8mm) peaks.int8_ops *= 2;
  peaks.cop_per_second = 1.5 * multiply_adds;  // three a cycle: any of the vector units
  peaks.memory_bytes_per_second = std::min(10e9 * peaks.threads, 40e9);
  return peaks;
}

}  // namespace knear
