// The formats as they are written: a header for each row, a header of two numbers, .npy version
// 1.0.
#include "knear/io/row_writer.hpp"

#include <limits>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/io/hdf5.hpp"

namespace knear::io {
namespace {

Format writable_format(const std::string& path) {
  if (path.ends_with(".gz"))
    throw InvalidArgument("cannot write '{}': gzip is read, not written; leave .gz out", path);
  if (hdf5_path(path)) throw InvalidArgument("cannot write '{}': HDF5 is read, not written", path);
  if (const auto format = format_of_name(path)) return *format;
  throw InvalidArgument("cannot write '{}': the name must end in one of {}", path, known_endings());
}

// Checked before the file is made.
Format checked_format(const std::string& path, Scalar scalar, std::int64_t rows,
                      std::int64_t cols) {
  const Format format = writable_format(path);
  if (cols < 1 || cols > std::numeric_limits<std::int32_t>::max())
    throw InvalidArgument("cannot write '{}': rows have {} columns, expected 1 to {}", path, cols,
                          std::numeric_limits<std::int32_t>::max());
  const auto stored = scalar_of(format);
  if (stored && scalar != *stored)
    throw InvalidArgument("cannot write '{}': .{} stores {}, but these are {}", path,
                          name_of(format), name_of(*stored), name_of(scalar));
  if (is_vecs(format) && rows < 1)
    throw InvalidArgument("cannot write '{}': .{} cannot store a matrix of no rows, .npy can", path,
                          name_of(format));
  if (is_bin(format) && rows > std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgument("cannot write '{}': {} rows are beyond the 32 bits of .{}", path, rows,
                          name_of(format));
  return format;
}

std::string npy_header(Scalar scalar, std::int64_t rows, std::int64_t cols) {
  const std::string_view name = name_of(scalar);  // f32: NumPy counts bytes, f4
  std::string text =
      fmt::format("{{'descr': '{}{}{}', 'fortran_order': False, 'shape': ({}, {}), }}",
                  size_of(scalar) == 1 ? '|' : '<', name[0], size_of(scalar), rows, cols);
  constexpr std::size_t before = 10;  // magic, version and length
  text.append((64 - (before + text.size() + 1) % 64) % 64, ' ');
  text += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(text.size() & 255);
  header += static_cast<char>(text.size() >> 8);
  return header + text;
}

}  // namespace

RowWriter::RowWriter(const std::string& path, Scalar scalar, std::int64_t rows, std::int64_t cols)
    : path_(path),
      format_(checked_format(path, scalar, rows, cols)),
      scalar_(scalar),
      rows_(rows),
      cols_(cols),
      file_(path) {
  if (format_ == Format::npy) {
    const std::string header = npy_header(scalar, rows, cols);
    file_.write(header.data(), header.size());
  } else if (is_bin(format_)) {
    const std::uint32_t header[2] = {static_cast<std::uint32_t>(rows),
                                     static_cast<std::uint32_t>(cols)};
    file_.write(header, sizeof header);
  }
}

void RowWriter::append_row(const void* row) {
  if (is_vecs(format_)) {
    const auto dim = static_cast<std::int32_t>(cols_);
    file_.write(&dim, sizeof dim);
  }
  file_.write(row, cols_ * size_of(scalar_));
  ++written_;
}

void RowWriter::append(AnyMatrixView rows) {
  if (rows.cols() != cols_ || scalar_of(rows.type()) != scalar_)
    throw ShapeMismatch("rows of {} {} appended to '{}', which has {} {}", rows.cols(),
                        name_of(rows.type()), path_, cols_, name_of(scalar_));
  for (std::int64_t i = 0; i < rows.rows(); ++i) append_row(rows.row(i));
}

void RowWriter::append_ids(MatrixView<Id> rows) {
  if (rows.cols() != cols_)
    throw ShapeMismatch("rows of {} ids appended to '{}', which has {}", rows.cols(), path_, cols_);
  std::vector<std::int32_t> narrow(scalar_ == Scalar::i32 ? cols_ : 0);
  for (std::int64_t i = 0; i < rows.rows(); ++i) {
    const Id* ids = rows.row(i);
    if (scalar_ == Scalar::i64) {
      append_row(ids);
      continue;
    }
    for (std::int64_t j = 0; j < cols_; ++j) {
      if (ids[j] != static_cast<std::int32_t>(ids[j]))
        throw InvalidArgument(
            "cannot write '{}': id {} in row {}, column {} is beyond the 32 bits of .{}; .npy has "
            "64",
            path_, ids[j], written_, j, name_of(format_));
      narrow[j] = static_cast<std::int32_t>(ids[j]);
    }
    append_row(narrow.data());
  }
}

void RowWriter::commit() {
  if (written_ != rows_)
    throw ShapeMismatch("{} rows written to '{}', which was to have {}", written_, path_, rows_);
  file_.commit();
}

Scalar id_scalar(const std::string& path) {
  const Format format = writable_format(path);
  if (scalar_of(format) == Scalar::i32) return Scalar::i32;
  if (format == Format::npy) return Scalar::i64;
  throw InvalidArgument("cannot write ids to '{}': the name must end in .ivecs, .ibin or .npy",
                        path);
}

}  // namespace knear::io
