// knear/cost/peaks.hpp -- the peak rates of this machine, which bound every predicted time.
//
//   MachinePeaks peaks = measure_peaks(0, 2.0);        // all threads, about two seconds
//   double seconds = 2.0 * multiply_adds / peaks.int8_ops;
//
// A multiply-add counts as two operations everywhere in this file, whatever instructions it takes.
// The arithmetic loops touch registers only and keep enough independent sums in flight to hide the
// latency of each instruction; all threads start together and the slowest ends the slice; a figure
// is the median of several slices. So a figure is what the level's instructions reach on this
// machine at its present clock with all those threads busy, not a product of data-sheet numbers.
#pragma once
#include <cstdint>

#include "knear/core/cpu.hpp"

namespace knear {

// The rate of reading repeatedly what fits into half of a cache: each thread its own bytes of a
// level that cores have to themselves, all together those of the last level (at most 32 MiB: a
// virtual machine may report a cache that it shares with many others).
struct CachePeak {
  std::int64_t bytes = 0;  // that were read, by all threads together; 0: not known
  double bytes_per_second = 0;
};

struct MachinePeaks {
  Isa isa = Isa::scalar;  // level of the instructions that were timed
  int threads = 0;        // all figures are sums over this many threads
  double fp32_flops = 0;  // operations per second, multiply-add = 2
  double bf16_flops =
      0;  // bf16 products summed in fp32; NaN without AVX512_BF16 (or below its level)
  double int16_ops = 0;  // int16 products summed in int32
  double int8_ops = 0;  // int8 products summed in int32; below VNNI two or three instructions each,
                        // with tiles those of twelve queries
  // The rate of reading a buffer far larger than the last-level cache, fetching ahead.
  double memory_bytes_per_second = 0;
  double cop_per_second = 0;  // coefficient-wise operations (compare, select, add; one third each)
                              // on 32-bit lanes: what a threshold test or a selection is made of
  double cycles_per_second = 0;  // of one dependent operation after another; 0: not known,
                                 // or more than a processor can have
  CachePeak caches[3] = {};      // first, second and third level
  // Whether multiply-adds have a unit of their own, beside which other operations go on.
  bool matrix_unit = false;
};

// Measures for about `seconds` (the figure of the memory alone needs half a second) with the
// instructions of active_isa(). threads as in resolve_threads. Throws InvalidArgument unless 0 <
// seconds <= 600, MemoryBudgetError if there is no memory for the buffers (64 MiB to 1 GiB
// together), and what a StopCheck of this thread throws.
MachinePeaks measure_peaks(int threads, double seconds);

// An estimate where nothing was measured: a server core at 2.5 GHz with two vector pipes and 10
// GB/s of memory per thread up to 40 GB/s. Right within a factor of two or so; good for ranking
// plans.
MachinePeaks estimated_peaks(Isa isa, int threads);

// The clock of a thread where it is not known.
inline constexpr double assumed_cycles_per_second = 2.5e9;

// About how many times the bytes of VNNI tiles multiply, rows being in the first-level cache.
inline constexpr double tile_gain = 3;

}  // namespace knear
