// knear/index/sections/sections.hpp -- the sections of a .knear file by their names, while it is
// read.
//
//   Sections in(archive);
//   const auto fields = in.fields<IndexFields>("index");   // throws CorruptFile, naming it
//   const auto ids = in.array<Id>("0/ids", rows);
//   in.check_all_used();
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/matrix.hpp"
#include "knear/core/row_set.hpp"
#include "knear/io/archive.hpp"

namespace knear::detail {

inline constexpr std::int64_t max_rows = std::int64_t{1} << 31;

// Sections of a file, each asked for by name. What nobody asks for is an error in the end, unless
// it is optional: it might change what the rest means.
class Sections {
 public:
  explicit Sections(std::shared_ptr<const io::Archive> archive) : archive_(std::move(archive)) {}
  // Those whose names begin with a prefix, which is not said again. One of both has to check
  // whether all are used.
  Sections nested(std::string_view prefix) const {
    Sections out = *this;
    out.prefix_ += prefix;
    return out;
  }

  bool has(const std::string& name) const { return archive_->has(prefix_ + name); }
  [[noreturn]] void refuse(const std::string& name, std::string_view what) const {
    throw CorruptFile("{}: section '{}' is wrong: {}", archive_->path(), prefix_ + name, what);
  }

  template <class T>
  T fields(const std::string& name) {
    const io::Section section = read(name);
    if (section.bytes != sizeof(T)) refuse(name, "it has another length");
    T out;
    std::memcpy(&out, section.data, sizeof out);
    return out;
  }
  // `count` elements, checked now.
  template <class T>
  AlignedArray<T> array(const std::string& name, std::int64_t count) {
    const io::Section section = read(name);
    check_length(name, section, count, sizeof(T));
    return borrowed<T>(section);
  }
  // As array(), of finite numbers.
  AlignedArray<float> finite(const std::string& name, std::int64_t count) {
    auto out = array<float>(name, count);
    if (!std::all_of(out.begin(), out.end(), [](float x) { return std::isfinite(x); }))
      refuse(name, "it holds a NaN or infinity");
    return out;
  }
  // As many as there are; none if there is no such section.
  template <class T>
  std::vector<T> list(const std::string& name) {
    if (!has(name)) return {};
    const io::Section section = read(name);
    if (section.bytes % sizeof(T) != 0) refuse(name, "its length is no multiple of its elements");
    std::vector<T> out(section.bytes / sizeof(T));
    if (section.bytes > 0) std::memcpy(out.data(), section.data, section.bytes);
    return out;
  }
  // Checked when used.
  io::Archive::Guarded guarded(const std::string& name, std::int64_t bytes) {
    used_->insert(prefix_ + name);
    io::Archive::Guarded out = archive_->guarded(prefix_ + name);
    check_length(name, out.section, bytes, 1);
    return out;
  }
  template <class T>
  AlignedArray<T> borrowed(const io::Section& section) const {
    return AlignedArray<T>::borrowed(reinterpret_cast<const T*>(section.data),
                                     section.bytes / sizeof(T), archive_);
  }
  std::shared_ptr<const void> keeper() const { return archive_; }

  void check_all_used() const {
    for (const io::Section& section : archive_->sections())
      if (!section.optional && !used_->contains(section.name))
        throw CorruptFile("{}: section '{}' is unknown to this program", archive_->path(),
                          section.name);
  }

 private:
  io::Section read(const std::string& name) {
    used_->insert(prefix_ + name);
    return archive_->read(prefix_ + name);
  }
  void check_length(const std::string& name, const io::Section& section, std::int64_t count,
                    std::size_t size) const {
    if (section.bytes % size != 0 || section.bytes / size != static_cast<std::uint64_t>(count))
      refuse(name,
             fmt::format("it has {} bytes, where {} x {} are due", section.bytes, count, size));
  }

  using Names = std::set<std::string, std::less<>>;
  std::shared_ptr<const io::Archive> archive_;
  std::string prefix_;
  std::shared_ptr<Names> used_ = std::make_shared<Names>();
};

// The live rows of a segment: a section that is there if some rows are not live.
void add_live(io::ArchiveWriter& writer, const std::string& name, const RowSet& live);
RowSet load_live(Sections& in, const std::string& name, std::int64_t rows);

}  // namespace knear::detail
