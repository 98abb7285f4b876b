// knear/io/open_options.hpp -- the formats of files of vectors, and how such a file is opened.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "knear/core/element_type.hpp"
#include "knear/core/progress.hpp"

namespace knear::io {

enum class Format : std::uint8_t { fvecs, bvecs, ivecs, fbin, u8bin, i8bin, ibin, npy, hdf5, idx };
std::string_view name_of(Format format);

// The rows begin, begin + 1, ... end - 1; to the last row if there is no end.
struct RowRange {
  std::int64_t begin = 0;
  std::optional<std::int64_t> end = {};
};

struct OpenOptions {
  // Converts to this type, rounding to nearest where f32, f16 and bf16 need it. A value that the
  // type cannot hold (300 or 0.5 as u8, 70,000 as f16) is an InvalidArgument with row and column.
  std::optional<ElementType> type = {};
  // Opens these rows only; the others of a mapped file are not even read. InvalidArgument if empty
  // or beyond the file.
  std::optional<RowRange> rows = {};
  // The dataset to open of an HDF5 file whose name says none; empty: the only one of two
  // dimensions.
  std::string dataset = {};
  // "read", of the rows that come into memory; a mapped file is open at once.
  Progress progress = {};
};

}  // namespace knear::io
