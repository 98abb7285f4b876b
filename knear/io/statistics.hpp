// knear/io/statistics.hpp -- what the numbers in a file are like, found in one pass over them.
#pragma once
#include <cstdint>
#include <string>

#include "knear/core/progress.hpp"
#include "knear/io/vectors.hpp"

namespace knear::io {

struct Statistics {
  FileInfo info;
  // Whether all finite numbers are whole (-0 is), and the least and greatest of them; int64 ids
  // beyond 2^53 are rounded. Both 0 if there are none.
  bool whole_numbers = true;
  double least = 0, greatest = 0;
  std::int64_t nan_count = 0, infinity_count = 0;
  std::int64_t first_bad_row = -1;  // the first with NaN or infinity
  std::int64_t finite_rows = 0;     // rows without NaN or infinity
  // The least and greatest Euclidean length of the finite rows. Both 0 if there are none.
  double least_norm = 0, greatest_norm = 0;
  // XXH3, 64 bits, of the numbers as stored, in little-endian order, row after row without what the
  // format puts around them: equal for the same matrix in .fvecs and .npy, gzipped or not.
  std::uint64_t checksum = 0;
};

// Reads the whole file, of any number type; throws as VectorFile::open, and Cancelled.
Statistics compute_statistics(const std::string& path, const Progress& progress = {});

// Statistics::checksum of rows in memory.
std::uint64_t checksum_of(AnyMatrixView rows, const Progress& progress = {});

}  // namespace knear::io
