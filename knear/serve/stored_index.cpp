#include "knear/serve/stored_index.hpp"

#include <filesystem>

#include "knear/index/shards.hpp"
#include "knear/io/archive.hpp"
#include "knear/serve/change_log.hpp"

namespace knear::serve {
namespace {

namespace fs = std::filesystem;

void save_one(const Index& index, const std::string& path, const std::string& permissions_of,
              const std::function<void(std::uint64_t)>& before_replacing) {
  const std::string beside = path + ".checkpoint";
  index.save(beside);
  std::error_code none;
  const fs::file_status like = fs::status(fs::exists(path, none) ? path : permissions_of, none);
  if (fs::exists(like)) fs::permissions(beside, like.permissions(), none);
  try {
    before_replacing(io::Archive::open(beside)->checksum());
  } catch (...) {
    fs::remove(beside, none);
    throw;
  }
  fs::rename(beside, path);
  sync_folder(fs::path(path).parent_path().string());
}

}  // namespace

StoredIndex StoredIndex::load(const std::string& path) {
  return is_sharded_file(path) ? StoredIndex(ShardedIndex::load(path))
                               : StoredIndex(Index::load(path));
}

void StoredIndex::remove_saved(const std::string& path) { detail::remove_saved(path); }

void StoredIndex::remove_left_by_kills(const std::string& path) {
  detail::remove_left_by_kills(path);
}

StoredIndex StoredIndex::next() const {
  if (const Index* one = std::get_if<Index>(&index_))
    return StoredIndex(std::move(*detail::with_state(*one, *impl_of(*one).state())));
  return StoredIndex(detail::ShardsOf::next(std::get<ShardedIndex>(index_)));
}

void StoredIndex::add(AnyMatrixView vectors, std::span<const Id> ids,
                      const ChangeOptions& options) {
  if (Index* one = std::get_if<Index>(&index_))
    impl_of(*one).add_with_any_ids(vectors, ids, options);
  else
    detail::ShardsOf::add_with_any_ids(std::get<ShardedIndex>(index_), vectors, ids, options);
}

void StoredIndex::save(const std::string& path, const std::string& permissions_of,
                       const std::function<void(std::uint64_t)>& before_replacing) const {
  if (const Index* one = std::get_if<Index>(&index_))
    return save_one(*one, path, permissions_of, before_replacing);
  detail::save_shards(*detail::ShardsOf::state(std::get<ShardedIndex>(index_)), path,
                      {.before_replacing = before_replacing, .permissions_of = permissions_of});
}

}  // namespace knear::serve
