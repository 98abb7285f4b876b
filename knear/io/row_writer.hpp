// knear/io/row_writer.hpp -- writes a matrix file row by row, so that it need never be in memory
// whole.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/layout.hpp"

namespace knear::io {

class RowWriter {
 public:
  // `scalar` is the type to store. Throws InvalidArgument where the ending of the path is none of
  // those that are written (vectors.hpp) or its format does not store these numbers or this shape;
  // IoError.
  RowWriter(const std::string& path, Scalar scalar, std::int64_t rows, std::int64_t cols);

  // [n x cols], of the element type that is `scalar`.
  void append(AnyMatrixView rows);
  // [n x cols]; `scalar` is i32 (InvalidArgument for an id beyond it) or i64.
  void append_ids(MatrixView<Id> rows);
  // Call once, after the last row.
  void commit();

 private:
  void append_row(const void* row);

  std::string path_;
  Format format_;
  Scalar scalar_;
  std::int64_t rows_, cols_, written_ = 0;
  AtomicFile file_;
};

// The type in which a file of this name stores ids: i32 for .ivecs and .ibin, i64 for .npy;
// InvalidArgument for others.
Scalar id_scalar(const std::string& path);

}  // namespace knear::io
