#include "knear/index/file/index_file.hpp"

#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/impl/index_over_centroids.hpp"
#include "knear/index/sections/sections.hpp"

namespace knear::detail {

void save_index(const State& state, const IndexShape& shape, const std::string& path,
                const Progress& progress) {
  io::ArchiveWriter writer(shape.kind());
  add_sections(writer, shape, state);
  writer.write(path, progress);
}

SavedIndex load_index(std::shared_ptr<const io::Archive> archive) {
  if (archive->kind() == kind_of_shards)
    throw InvalidArgument("{} is an index in shards, of which 'knear convert' makes one file",
                          archive->path());
  Sections in(archive);
  SavedIndex saved = load_sections(in, archive->kind(), IndexOverCentroids::loaded);
  in.check_all_used();
  return saved;
}

std::unique_ptr<IndexImpl> open_index(const std::string& path) {
  SavedIndex saved = load_index(io::Archive::open(path));
  return std::make_unique<IndexImpl>(saved.shape, std::move(saved.state));
}

}  // namespace knear::detail
