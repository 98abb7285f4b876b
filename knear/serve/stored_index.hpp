// knear/serve/stored_index.hpp -- an index as it lies in files: one index, or one in shards.
//
//   StoredIndex index = StoredIndex::load("base.knear");
//   StoredIndex next = index.next();       // shares all rows
//   next.add(vectors, ids);                // and `index` is as it was
//
// A server does the same with both, so that all but this file need not know which it is.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "knear/index/index.hpp"
#include "knear/index/sharded.hpp"

namespace knear::serve {

class StoredIndex {
  template <class F>
  auto get(F f) const {
    return std::visit([&](const auto& index) { return f(index); }, index_);
  }
  template <class F>
  void set(F f) {
    checked([&] { std::visit([&](auto& index) { f(index); }, index_); });
  }
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
  explicit StoredIndex(Index index) : index_(std::move(index)) {}
  explicit StoredIndex(ShardedIndex index) : index_(std::move(index)) {}
  // Throws as Index::load() and ShardedIndex::load(). Where pages of the files that it opens are
  // lost later, and the program has them read as zeros (io/lost_pages.hpp), all that reads rows
  // throws IoError from then on.
  static StoredIndex load(const std::string& path);

  // Throws IoError if pages of the files that load() opened were lost.
  void check_pages() const;

  // Removes what save() wrote to a path.
  static void remove_saved(const std::string& path);
  // Removes what saves to it that were killed left beside it.
  static void remove_left_by_kills(const std::string& path);

  // One that shares all rows and may be changed, if this one is not changed any more.
  StoredIndex next() const;

  // As of an Index.
  std::string description() const {
    return get([](auto& x) { return x.description(); });
  }
  std::int64_t dim() const {
    return get([](auto& x) { return x.dim(); });
  }
  Metric metric() const {
    return get([](auto& x) { return x.metric(); });
  }
  ElementType element_type() const {
    return get([](auto& x) { return x.element_type(); });
  }
  std::int64_t size() const {
    return get([](auto& x) { return x.size(); });
  }
  Id next_id() const {
    return get([](auto& x) { return x.next_id(); });
  }
  std::int64_t version() const {
    return get([](auto& x) { return x.version(); });
  }
  std::int64_t memory_bytes() const {
    return get([](auto& x) { return x.memory_bytes(); });
  }
  std::int64_t lists() const {
    return get([](auto& x) { return x.lists(); });
  }
  bool has_codes() const {
    return get([](auto& x) { return x.has_codes(); });
  }
  bool has_graph() const {
    return get([](auto& x) { return x.has_graph(); });
  }
  bool contains(Id id) const {
    return get([&](auto& x) { return x.contains(id); });
  }
  std::vector<Id> ids() const {
    return checked([&] { return get([](auto& x) { return x.ids(); }); });
  }
  AnyMatrix reconstruct(std::span<const Id> ids) const {
    return checked([&] { return get([&](auto& x) { return x.reconstruct(ids); }); });
  }
  Neighbors search(AnyMatrixView queries, std::int64_t k, const SearchOptions& options = {},
                   KnnReport* report = nullptr) const {
    return checked(
        [&] { return get([&](auto& x) { return x.search(queries, k, options, report); }); });
  }

  // Throws InvalidArgument for rows that Index::add() refuses since they lie too far from 0 for
  // codes. The changes below take them, as a log may hold some.
  void check_not_too_far(AnyMatrixView vectors) const;
  void add(AnyMatrixView vectors, const ChangeOptions& options = {});
  // The ids may also be above last_given_id, as those of a log are.
  void add(AnyMatrixView vectors, std::span<const Id> ids, const ChangeOptions& options = {});
  void remove(std::span<const Id> ids, const ChangeOptions& options = {}) {
    set([&](auto& x) { x.remove(ids, options); });
  }
  void replace(std::span<const Id> ids, AnyMatrixView vectors, const ChangeOptions& options = {});
  void optimize(const ChangeOptions& options = {}) {
    set([&](auto& x) { x.optimize(options); });
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
  StoredIndex(std::variant<Index, ShardedIndex> index, std::shared_ptr<const Files> files)
      : index_(std::move(index)), files_(std::move(files)) {}

  std::variant<Index, ShardedIndex> index_;
  std::shared_ptr<const Files> files_ = {};  // none: they are in memory
};

}  // namespace knear::serve
