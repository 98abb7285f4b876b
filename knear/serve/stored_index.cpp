#include "knear/serve/stored_index.hpp"

#include <filesystem>

#include "knear/core/error.hpp"
#include "knear/index/sharded.hpp"
#include "knear/index/shards/shards.hpp"
#include "knear/io/archive.hpp"
#include "knear/io/lost_pages.hpp"
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
  auto files = std::make_shared<Files>();
  std::error_code none;
  files->path = path, files->resolved = fs::canonical(path, none).string();
  files->first = io::next_mapping();
  StoredIndex out = is_sharded_file(path) ? StoredIndex(ShardedIndex::load(path))
                                          : StoredIndex(Index::load(path));
  files->end = io::next_mapping();
  out.files_ = std::move(files);
  out.check_pages();
  return out;
}

void StoredIndex::check_pages() const {
  if (!files_) return;
  for (const io::LostFile& lost : io::lost_files()) {
    const bool own =
        lost.path == files_->path || lost.path == files_->resolved ||
        (lost.path.starts_with(files_->resolved + ".") && lost.path.ends_with(".shard"));
    if (own && lost.number >= files_->first && lost.number < files_->end)
      throw IoError(
          "'{}' was truncated while it was in use, or its disk failed: open it again once it is "
          "whole",
          lost.path);
  }
}

void StoredIndex::remove_saved(const std::string& path) { detail::remove_saved(path); }

void StoredIndex::remove_left_by_kills(const std::string& path) {
  detail::remove_left_by_kills(path);
}

StoredIndex StoredIndex::next() const {
  if (const Index* one = std::get_if<Index>(&index_))
    return {std::move(*detail::with_state(*one, *impl_of(*one).state())), files_};
  return {detail::ShardsOf::next(std::get<ShardedIndex>(index_)), files_};
}

void StoredIndex::check_not_too_far(AnyMatrixView vectors) const {
  const Index* one = std::get_if<Index>(&index_);
  const Index& any =
      one ? *one : *detail::ShardsOf::state(std::get<ShardedIndex>(index_))->any().index;
  impl_of(any).check_not_too_far(vectors);
}

void StoredIndex::add(AnyMatrixView vectors, const ChangeOptions& options) {
  if (Index* one = std::get_if<Index>(&index_))
    impl_of(*one).add(vectors, options);
  else
    std::get<ShardedIndex>(index_).add(vectors, options);
}

void StoredIndex::replace(std::span<const Id> ids, AnyMatrixView vectors,
                          const ChangeOptions& options) {
  if (Index* one = std::get_if<Index>(&index_))
    impl_of(*one).replace(ids, vectors, options);
  else
    std::get<ShardedIndex>(index_).replace(ids, vectors, options);
}

void StoredIndex::add(AnyMatrixView vectors, std::span<const Id> ids,
                      const ChangeOptions& options) {
  if (Index* one = std::get_if<Index>(&index_))
    impl_of(*one).add_with_any_ids(vectors, ids, options);
  else
    detail::ShardsOf::add_with_any_ids(std::get<ShardedIndex>(index_), vectors, ids, options);
}

void StoredIndex::save(const std::string& path, const std::string& permissions_of,
                       const std::function<void(std::uint64_t)>& replacing) const {
  const auto before_replacing = [&](std::uint64_t checksum) {
    check_pages();
    replacing(checksum);
  };
  check_pages();
  try {
    if (const Index* one = std::get_if<Index>(&index_))
      return save_one(*one, path, permissions_of, before_replacing);
    detail::save_shards(*detail::ShardsOf::state(std::get<ShardedIndex>(index_)), path,
                        {.before_replacing = before_replacing, .permissions_of = permissions_of});
  } catch (...) {
    check_pages();
    throw;
  }
}

}  // namespace knear::serve
