// knear/index/file/packed_sections.hpp -- packed rows and prefixes as sections of a .knear file.
//
//   add_packed(writer, "0/int8/", packed, worth_up_to);
//   packed = load_packed(sections, "0/int8/", FirstPass::int8, shape, worth_up_to);
//
// docs/knear-files.md lists the sections. A file is hostile: whatever is loaded has been checked so
// far that no number in it can lead a search beyond its arrays. Codes, which are most of the bytes,
// are compared with their checksums when they are first used, everything else at once. Loading
// copies nothing large.
#pragma once
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/io/archive.hpp"
#include "knear/knn/rows/prepared_rows.hpp"

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

// The rows that were packed.
struct PackedShape {
  std::int64_t rows, dim;
  Metric metric;
};

// Adds packed rows as sections whose names begin with `prefix`; they must live until these are
// written. worth_up_to: the k up to which the pass is known to pay.
void add_packed(io::ArchiveWriter& writer, const std::string& prefix, const PackedBase& packed,
                std::int64_t worth_up_to);
// Throws CorruptFile, naming the section.
std::shared_ptr<PackedBase> load_packed(Sections& in, const std::string& prefix, FirstPass pass,
                                        const PackedShape& shape, std::int64_t& worth_up_to);

// These do the same for the prefix of a segment. `found` is the value range of the segment.
void add_prefix(io::ArchiveWriter& writer, const std::string& prefix, const AdoptedPrefix& adopted);
bool has_prefix(const Sections& in, const std::string& prefix);
AdoptedPrefix load_prefix(Sections& in, const std::string& prefix, const PackedShape& shape,
                          const ValueRange& found);

}  // namespace knear::detail
