// knear/cost/new_memory.hpp -- the rate at which the system gives memory that was nobody's.
//
//   const double bytes_per_second = measure_new_memory(0);   // all threads, a fifth of a second
//
// What an index keeps of rows is written to pages that the process did not have before, each of
// which the system makes at the first write. In a virtual machine that may take ten times as long
// as it does elsewhere, and longer than all else that adding rows to a flat index needs.
#pragma once

namespace knear {

// Bytes per second of all threads together, the median of some slices: pages are asked for as
// index/life/segment.cpp asks for those of rows, and written to once. Takes 192 MiB for the time of
// the call. threads as in resolve_threads. Throws MemoryBudgetError if there is no such memory.
double measure_new_memory(int threads);

}  // namespace knear
