// cli/unpacked_base.hpp -- a base that cannot be mapped and is too large for the memory, as a file
// that can.
//
//   UnpackedBase base("b.fvecs.gz", "", "g.knear", memory, 0, progress);
//   build_graph_file(base.view(), ...);   // the file is removed with the object
//
// What is gzipped, of another number type, of the other byte order or in HDF5 is read block by
// block into OUT.base-<mark>.npy, where the mark stands for the file's path, size, time of change
// and the element type. The file appears whole or not at all, so that a later run takes up that of
// one that was killed. Other bases are opened as they are.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "knear/core/progress.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {

class UnpackedBase {
 public:
  // As open_vectors() for the base; memory: as for blockwise_file(). Throws IoError, before it
  // writes, where the disk is too full for the file and so many bytes a row beside it;
  // InvalidArgument for bf16, which no file holds; Cancelled.
  UnpackedBase(const std::string& path, const std::string& type, const std::string& out,
               std::int64_t memory, std::int64_t bytes_a_row, const Progress& progress);
  // Removes the file unless OUT.partial is there, which goes on with it.
  ~UnpackedBase();
  UnpackedBase(const UnpackedBase&) = delete;
  UnpackedBase& operator=(const UnpackedBase&) = delete;

  AnyMatrixView view() const { return file_->view(); }
  // Bytes of a base that lies in memory, counted where a memory was given, and of a file that was
  // made; or 0.
  std::int64_t memory_bytes() const { return memory_bytes_; }
  std::int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  std::optional<io::VectorFile> file_;
  std::string scratch_, partial_;  // empty: none
  std::int64_t memory_bytes_ = 0, scratch_bytes_ = 0;
};

}  // namespace knear::cli
