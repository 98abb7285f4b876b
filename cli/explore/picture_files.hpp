// cli/explore/picture_files.hpp -- the pictures of a folder: PNG and JPEG, in the order of names.
//
//   PictureFolder folder = open_pictures("photos/", rows, threads, progress);
//   std::string bytes = folder.read(17);          // the file of row 17, as it is on disk
//
// Every file is decoded once when the folder is opened, so that none is found broken later.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "knear/core/progress.hpp"

namespace knear::cli {

struct PictureFolder {
  std::string path;
  std::vector<std::string> names;  // one a row, ascending bytewise

  // The bytes of the file of a row. Throws IoError; CorruptFile where it has become another kind.
  std::string read(std::int64_t row) const;
};

// "image/png" or "image/jpeg" by the first bytes; empty for anything else.
std::string picture_type(const std::string& bytes);

// The files of a folder that end in .png, .jpg or .jpeg, in any case. Throws IoError; ShapeMismatch
// unless there are `rows`; CorruptFile, with its name, for one that does not decode as a whole or
// has more than 100 million pixels; InvalidArgument where this build decodes none (KNEAR_EXPLORE);
// Cancelled.
PictureFolder open_pictures(const std::string& path, std::int64_t rows, int threads,
                            const Progress& progress);

}  // namespace knear::cli
