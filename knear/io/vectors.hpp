// knear/io/vectors.hpp -- vectors and ids in files: .fvecs .bvecs .ivecs, .fbin .u8bin .i8bin
// .ibin, .npy, .hdf5 and MNIST idx, or gzipped.
//
//   io::VectorFile base = io::VectorFile::open("base.fvecs");      // mapped, not read
//   Neighbors near = knn(queries.view(), base.view(), 10);
//   io::write_ids("near.ivecs", near.ids);
//
// The ending of the name says the format, .gz after it allowed; where the name has none of these
// endings, the first bytes of the file do (the official MNIST names are
// "train-images-idx3-ubyte.gz").
//
//   .fvecs .bvecs .ivecs   rows of one int32 d and d floats, bytes or int32
//   .fbin .u8bin .i8bin    one uint32 n, one uint32 d, n rows of d floats, bytes or int8
//   .ibin                  the same of int32; or, recognised by its size, big-ann ground truth: n
//                          rows of d ids and then as many float distances, which are skipped
//   .npy                   NumPy arrays of two dimensions, f2 f4 f8, i1 i2 i4 i8, u1 u2 u4 u8, in
//                          C or Fortran order, either byte order
//   .hdf5 .h5             a dataset of two dimensions of one of these types, named after a colon:
//                          "glove.hdf5:train"; without a name the one asked for (OpenOptions)
//   idx                    arrays of two and more dimensions, all but the first flattened
//
// A file is hostile until proven otherwise. Every size is computed in 64 bits with checks, and
// compared with what the file really holds before memory is taken. A refusal is one line that names
// the path, what was found and what was expected: IoError where the system refused, CorruptFile
// where the file is not what it says, InvalidArgument where it is sound but of no use here. NaN and
// infinity pass: searches check for them.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"
#include "knear/core/progress.hpp"
#include "knear/io/open_options.hpp"

namespace knear::io {

// A file of vectors, open for reading.
//
// Uncompressed f32, f16, u8 and i8 are mapped: opening reads only the header, of .fvecs and .bvecs
// that of each row, and their view is strided (a .fvecs row is d + 1 floats, a .bvecs row d + 4
// bytes). All else (gzip, other number types, the other byte order, Fortran order, a conversion) is
// in memory. The file must not shrink while it is mapped. Dimensions are 1 to 65,536; .fvecs,
// .bvecs and .ivecs have at least one row.
class VectorFile {
 public:
  // Without options.type, numbers of 16 bits and fewer keep their type or become f32 (i2, u2);
  // those of 32 and 64 bits become f32 and must be exact in it, else InvalidArgument names the
  // place and asks for a type.
  static VectorFile open(const std::string& path, const OpenOptions& options = {});
  ~VectorFile();
  VectorFile(VectorFile&&) noexcept;
  VectorFile& operator=(VectorFile&&) noexcept;

  // [rows x dim]; valid as long as this file is open. Moving the VectorFile leaves it valid.
  AnyMatrixView view() const { return view_; }
  const std::string& path() const { return path_; }

 private:
  struct Storage;
  VectorFile(std::string path, AnyMatrixView view, std::unique_ptr<Storage> storage);

  std::string path_;
  AnyMatrixView view_;
  std::unique_ptr<Storage> storage_;
};

// The vectors of a file one block after another, for files that do not fit into memory and cannot
// be mapped.
class VectorBlocks {
 public:
  // Throws as VectorFile::open; errors of values when their block is read.
  explicit VectorBlocks(const std::string& path, const OpenOptions& options = {});
  ~VectorBlocks();

  // Whether VectorFile::open maps this file rather than reading it.
  bool is_mapped() const;
  std::int64_t rows() const;
  std::int64_t dim() const;
  ElementType type() const;
  // The next rows, `max_rows` or what is left; valid until the next call. No rows at the end.
  AnyMatrixView next(std::int64_t max_rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The neighbour lists [q x k] of a file: .ivecs, .ibin, or .npy of any integer type, of one
// dimension for [q x 1]; of .hdf5 without a name the dataset "neighbors". The values are not
// checked.
Matrix<Id> read_ids(const std::string& path, const Progress& progress = {});

// The writers below put a new file in the place of an old one only when it is complete and on disk
// (atomic_file.hpp); the ending of the name says the format and may not be .gz. They throw IoError,
// and InvalidArgument where the format cannot hold the data: .fvecs and .fbin take f32, .bvecs and
// .u8bin u8, .i8bin i8, .npy any type but bf16; .fvecs and .bvecs cannot have no rows. Progress is
// "write", and Cancelled leaves the old file.
void write_vectors(const std::string& path, AnyMatrixView vectors, const Progress& progress = {});
// .ivecs or .ibin (InvalidArgument if an id is beyond int32) or .npy of int64.
void write_ids(const std::string& path, MatrixView<Id> ids, const Progress& progress = {});
// .fvecs, .fbin or .npy.
void write_distances(const std::string& path, MatrixView<float> distances);

// What the header of a file says, checked against its size; the content of a .gz file is read
// through, without keeping it.
struct FileInfo {
  std::string path;
  Format format = Format::npy;
  bool gzipped = false;
  std::string type;  // as stored: f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64
  std::int64_t rows = 0, dim = 0;
  std::int64_t file_bytes = 0;
  std::int64_t element_bytes = 0;  // rows * dim * size of the type
};
FileInfo inspect(const std::string& path);

}  // namespace knear::io
