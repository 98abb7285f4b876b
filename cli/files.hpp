// cli/files.hpp -- the files that commands read and write, checked before the work begins.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "knear/io/vectors.hpp"

namespace knear::cli {

// Opens the vectors of a file, as `type` (f64, f32, f16, bf16, u8, i8) unless that is empty.
// dataset: the one to open of an HDF5 file whose name says none.
io::VectorFile open_vectors(const std::string& path, const std::string& type,
                            const std::string& dataset);
// A file of vectors that is read block by block, since it cannot be mapped and takes more than half
// of the memory.
struct BlockwiseFile {
  std::string path;
  io::OpenOptions options;
  ElementType type = ElementType::f32;
  std::int64_t rows = 0, dim = 0;
  std::int64_t block_rows = 0;  // a quarter of the memory
  std::int64_t block_bytes() const { return block_rows * dim * size_of(type); }
};

// `path` as such a file, or none where it is opened as a whole. memory: in bytes; 0: the machine's.
std::optional<BlockwiseFile> blockwise_file(const std::string& path, const std::string& type,
                                            const std::string& dataset, std::int64_t memory);
// The names that ann-benchmarks uses.
inline constexpr const char* base_dataset = "train";
inline constexpr const char* queries_dataset = "test";

// The metric that an HDF5 file names in its attribute "distance" (euclidean, angular); l2 for any
// other file. Throws InvalidArgument for a distance that knear does not have.
Metric metric_of_file(const std::string& path);

// Whether two names are of one file: by device and inode, which other names and links share, or
// where it is not there yet by its path without links. b may name a dataset of an HDF5 file.
bool same_file(const std::string& a, const std::string& b);

// " (a pipe)" for a pipe, else nothing: for messages about what was read of it.
std::string_view pipe_note(const std::string& path);

// Checks an output before the work begins: throws for a name that cannot be written, lacks these
// endings (none: any will do), is too long for the names of files beside it, or would overwrite one
// of the inputs, by whatever name. An empty path means no output, or no input.
void check_output(const std::string& option, const std::string& path,
                  std::initializer_list<std::string_view> endings,
                  std::initializer_list<std::string> inputs);

}  // namespace knear::cli
