// knear/io/convert.hpp -- one file of vectors or ids into another, in blocks, never scaling.
//
//   io::convert_file("base.npy", "part.fvecs", {.rows = {{0, 100000}}});
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "knear/core/progress.hpp"
#include "knear/io/vectors.hpp"

namespace knear::io {

struct ConvertOptions {
  // The type to store, f32 and f16 with rounding to nearest where needed. By default the one that
  // the output format stores; for .npy the type of the input, where whole numbers of 16 bits and
  // more (ids) become i64, and f64 must be exact in f32.
  std::optional<ElementType> type = {};
  std::optional<RowRange> rows = {};
  Progress progress = {};
};

struct Converted {
  std::string type;  // as stored, as in FileInfo
  std::int64_t rows = 0, dim = 0;
};

// An .ivecs or .ibin output takes any whole numbers of 32 bits. Throws as VectorFile::open and
// write_vectors; InvalidArgument with row, column and value for a number that does not fit;
// Cancelled. `out` may be `in`. Memory: a few megabytes, or a row where that is more.
Converted convert_file(const std::string& in, const std::string& out,
                       const ConvertOptions& options = {});

}  // namespace knear::io
