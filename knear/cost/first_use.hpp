// knear/cost/first_use.hpp -- the rate at which the pages of a file are checked when they are first
// used.
//
//   const double bytes_per_second = measure_first_use(0);   // all threads, a tenth of a second
//
// An index that was opened from a file searches it where it lies: the first search to come to a
// page has the system map it and compares its checksum (core/checked_blocks.hpp). Until all pages
// have been used, that is a part of what searches take, which the models of cost/plan.hpp and
// list_plan.hpp leave out.
#pragma once

namespace knear {

// Bytes per second of all threads together, the median of some slices, of a file that is in memory
// already; reading it from a disk comes on top. Writes a temporary file of 64 MiB, which has no
// name and is gone afterwards. threads as in resolve_threads. Throws IoError if that cannot be.
double measure_first_use(int threads);

}  // namespace knear
