// knear/io/hdf5.hpp -- what is in an HDF5 file, read by the HDF5 library in a process of its own.
//
// The library was not made for hostile files: some crash it. So a child process opens the file and
// writes to a pipe what it found; if it dies, that is an error of the file. Contiguous,
// uncompressed data, as ann-benchmarks writes them, are mapped by the caller like those of any
// other format; all else comes through the pipe.
//
// A file may name other files, which the library would read: by external links, external raw
// storage and virtual datasets. By these a stranger's file could show any file of the user. None of
// them is followed.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "knear/io/layout.hpp"

namespace knear::io {

struct Hdf5Dataset {
  std::string name;
  std::vector<std::int64_t> shape;
  std::optional<Scalar> scalar;  // none for text, structures and the like
  bool big_endian = false;
  std::int64_t offset = -1;  // in the file, of contiguous data; -1: they are not
  std::int64_t stored_bytes = 0;
  // Why it is not read, if its rows lie elsewhere: "lies in another file, 'x.h5', behind an
  // external link". The dataset has no shape then.
  std::string elsewhere = {};
};

struct Hdf5Contents {
  std::vector<Hdf5Dataset> datasets;  // those of the root, or the one asked for
  std::string distance;               // the attribute of that name, "" if there is none
};

// The file and the dataset that a path names: "glove.hdf5:train" names both, "glove.hdf5" the
// dataset "".
struct Hdf5Path {
  std::string file, dataset;
};
// nullopt if neither the path nor what stands before its last colon ends in .hdf5 or .h5.
std::optional<Hdf5Path> hdf5_path(const std::string& path);

// Describes one dataset, or those of the root if `dataset` is "". Throws IoError; CorruptFile;
// InvalidArgument if there is no such dataset, if it lies in another file, or if this build has no
// HDF5 library.
Hdf5Contents inspect_hdf5(const std::string& file, const std::string& dataset = {});

// The rows of a dataset of two dimensions (or one), one after another, in this machine's byte
// order.
class Hdf5Stream {
 public:
  Hdf5Stream(const std::string& file, const Hdf5Dataset& dataset, std::int64_t first_row,
             std::int64_t end_row);
  ~Hdf5Stream();
  Hdf5Stream(Hdf5Stream&&) noexcept;
  Hdf5Stream& operator=(Hdf5Stream&&) noexcept;

  // Throws CorruptFile unless that many bytes more come.
  void read(void* out, std::int64_t bytes);

 private:
  void close();

  std::string file_;
  pid_t child_ = -1;
  int pipe_ = -1;
};

}  // namespace knear::io
