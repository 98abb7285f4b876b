#include "knear/serve/stored_index.hpp"

#include <filesystem>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/index/shards/shards.hpp"
#include "knear/io/lost_pages.hpp"

namespace knear::serve {

using detail::public_call;

StoredIndex StoredIndex::load(const std::string& path) {
  auto files = std::make_shared<Files>();
  std::error_code none;
  files->path = path, files->resolved = std::filesystem::canonical(path, none).string();
  files->first = io::next_mapping();
  StoredIndex out(Index::load(path));
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
  StoredIndex out(Index(body().next()));
  out.files_ = files_;
  return out;
}

void StoredIndex::add(AnyMatrixView vectors, const ChangeOptions& options) {
  public_call([&] { body().add(vectors, options); });
}

void StoredIndex::replace(std::span<const Id> ids, AnyMatrixView vectors,
                          const ChangeOptions& options) {
  public_call([&] { body().replace(ids, vectors, options); });
}

void StoredIndex::add(AnyMatrixView vectors, std::span<const Id> ids,
                      const ChangeOptions& options) {
  public_call([&] { body().add_with_any_ids(vectors, ids, options); });
}

void StoredIndex::save(const std::string& path, const std::string& permissions_of,
                       const std::function<void(std::uint64_t)>& replacing) const {
  const auto before_replacing = [&](std::uint64_t checksum) {
    check_pages();
    replacing(checksum);
  };
  check_pages();
  try {
    public_call([&] {
      body().save(path, {.before_replacing = before_replacing, .permissions_of = permissions_of});
    });
  } catch (...) {
    check_pages();
    throw;
  }
}

}  // namespace knear::serve
