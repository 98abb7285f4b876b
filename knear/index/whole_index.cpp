// What an index does with the help of files and of other indexes, which are made of it themselves.
#include <filesystem>
#include <utility>

#include "knear/index/file/index_file.hpp"
#include "knear/index/graph/graph_search.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/impl/index_over_centroids.hpp"
#include "knear/io/atomic_file.hpp"

namespace knear::detail {

namespace fs = std::filesystem;

void IndexImpl::train(AnyMatrixView vectors, const TrainOptions& options) {
  train(vectors, options, IndexOverCentroids::trained);
}

void IndexImpl::save(const std::string& path, const SaveOptions& options) const {
  const auto now = state();
  if (now->graph) now->graph->get(*now, shape, 0, options.progress);
  if (!options.before_replacing) return save_index(*now, shape, path, options.progress);
  // Under a name of its own until then. A file that its owner protected is replaced as well.
  const std::string beside = path + ".checkpoint";
  save_index(*now, shape, beside, options.progress);
  std::error_code none;
  const fs::file_status like =
      fs::status(fs::exists(path, none) ? path : options.permissions_of, none);
  if (fs::exists(like)) fs::permissions(beside, like.permissions(), none);
  try {
    options.before_replacing(io::Archive::open(beside)->checksum());
  } catch (...) {
    fs::remove(beside, none);
    throw;
  }
  fs::rename(beside, path);
  io::sync_folder(fs::path(path).parent_path().string());
}

}  // namespace knear::detail
