// knear/serve/stored_index.hpp -- an index as it lies in files, whose pages may be lost while it is
// in use.
//
//   StoredIndex index = StoredIndex::load("base.knear");
//   StoredIndex next = index.next();       // shares all rows
//   next.add(vectors, ids);                // and `index` is as it was
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "knear/index/impl/index_body.hpp"
#include "knear/index/index.hpp"

namespace knear::serve {

class StoredIndex : Index {
  // Returns f(), which reads rows. Throws IoError if some of their pages were lost before its end.
  template <class F>
  auto checked(F f) const {
    check_pages();
    try {
      if constexpr (std::is_void_v<decltype(f())>) {
        f();
        check_pages();
      } else {
        auto out = f();
        check_pages();
        return out;
      }
    } catch (...) {
      check_pages();  // zeros in place of a page may look like damage
      throw;
    }
  }

 public:
  explicit StoredIndex(Index index) : Index(std::move(index)) {}
  // Throws as Index::load(). Where pages of the files that it opens are lost later, and the program
  // has them read as zeros (io/lost_pages.hpp), all that reads rows throws IoError from then on.
  static StoredIndex load(const std::string& path);

  // Throws IoError if pages of the files that load() opened were lost.
  void check_pages() const;

  // Removes what save() wrote to a path.
  static void remove_saved(const std::string& path);
  // Removes what saves to it that were killed left beside it.
  static void remove_left_by_kills(const std::string& path);

  // One that shares all rows and may be changed, if this one is not changed any more.
  StoredIndex next() const;

  using Index::audit;
  using Index::audits;
  using Index::contains;
  using Index::description;
  using Index::dim;
  using Index::element_type;
  using Index::has_codes;
  using Index::has_graph;
  using Index::lists;
  using Index::memory_bytes;
  using Index::metric;
  using Index::next_id;
  using Index::set_audit;
  using Index::size;
  using Index::version;
  std::vector<Id> ids() const {
    return checked([&] { return Index::ids(); });
  }
  AnyMatrix reconstruct(std::span<const Id> ids) const {
    return checked([&] { return Index::reconstruct(ids); });
  }
  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options = {},
                   KnnReport* report = nullptr) const {
    return checked([&] { return Index::search(queries, k, options, report); });
  }

  // Throws InvalidArgument for rows that Index::add() refuses since they lie too far from 0 for
  // codes. The changes below take them, as a log may hold some.
  void check_not_too_far(AnyMatrixView vectors) const { body().check_not_too_far(vectors); }
  void add(AnyMatrixView vectors, const ChangeOptions& options = {});
  // The ids may also be above last_given_id, as those of a log are.
  void add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options = {});
  void remove(std::span<const Id> ids, const ChangeOptions& options = {}) {
    checked([&] { Index::remove(ids, options); });
  }
  void replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options = {});
  void optimize(const ChangeOptions& options = {}) {
    checked([&] { Index::optimize(options); });
  }

  // Writes it to `path`, whole or not at all. before_replacing is called with the checksum of what
  // will be at `path` (of shards: the manifest), when all is on disk but the name; what it throws
  // ends the save, and nothing has changed. permissions_of: the file whose permissions new files
  // get. Throws IoError.
  void save(const std::string& path, const std::string& permissions_of,
            const std::function<void(std::uint64_t checksum)>& before_replacing) const;

 private:
  // The files that load() opened: their names, and the numbers of their mappings.
  struct Files {
    std::string path, resolved;
    std::uint64_t first = 0, end = 0;
  };
  std::shared_ptr<const Files> files_ = {};  // none: they are in memory
};

}  // namespace knear::serve
