// cli/gz_file.hpp -- a file that may be gzipped, read by zlib.
#pragma once
#include <zlib.h>

#include <memory>
#include <string>

#include "knear/io/open_file.hpp"

namespace knear::cli {

struct CloseGz {
  void operator()(gzFile_s* file) const { gzclose(file); }
};
using GzFile = std::unique_ptr<gzFile_s, CloseGz>;

// Throws as io::OpenFile, and IoError where there is no memory.
GzFile open_gz(const std::string& path, io::Accepted accepted = io::Accepted::files);

}  // namespace knear::cli
