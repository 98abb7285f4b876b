#include "cli/gz_file.hpp"

#include "knear/core/error.hpp"

namespace knear::cli {

GzFile open_gz(const std::string& path, io::Accepted accepted) {
  io::OpenFile opened(path, O_RDONLY, accepted);
  GzFile file(gzdopen(opened.number(), "rb"));
  if (!file) throw IoError("cannot open '{}': no memory", path);
  opened.release();  // gzclose() closes it
  return file;
}

}  // namespace knear::cli
