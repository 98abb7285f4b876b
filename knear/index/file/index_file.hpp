// knear/index/file/index_file.hpp -- an index in a .knear file.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "knear/core/progress.hpp"
#include "knear/index/form/form_file.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/io/archive.hpp"

namespace knear::detail {

// An index in a .knear file (docs/knear-files.md), written whole or not at all. Throws IoError;
// Cancelled; CorruptFile if the state lies in a mapped file that was altered.
void save_index(const State& state, const IndexShape& shape, const std::string& path,
                const Progress& progress);

// The kind of an archive that is no index but names the files of its shards
// (index/shards/shards.hpp).
inline constexpr char kind_of_shards[] = "Shards";

// Vectors and codes in the mapped file are not read but checked when they are first used. Throws
// CorruptFile, naming the section; InvalidArgument for a manifest of shards.
SavedIndex load_index(std::shared_ptr<const io::Archive> archive);
// The same of a file. Throws IoError too.
inline SavedIndex load_index(const std::string& path) {
  return load_index(io::Archive::open(path));
}
// The index of a file.
std::unique_ptr<IndexImpl> open_index(const std::string& path);

}  // namespace knear::detail
