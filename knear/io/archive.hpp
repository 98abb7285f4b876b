// knear/io/archive.hpp -- .knear files: named sections with checksums, used where they lie.
//
//   ArchiveWriter writer("Flat");
//   writer.add("vectors", data, bytes);          // borrowed until written
//   writer.write("my.knear", progress);          // whole or not at all (io/atomic_file.hpp)
//
//   const auto archive = Archive::open("my.knear");
//   const Section vectors = archive->section("vectors");
//
// docs/knear-files.md describes the format. Opening maps the file, checks header and table, that
// every section lies inside and that there are zeros between them; contents are checked when asked
// for: at once (read) or block by block on first use (blocks).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "knear/core/checked_blocks.hpp"
#include "knear/core/progress.hpp"
#include "knear/io/byte_source.hpp"

namespace knear::io {

class ArchiveWriter {
 public:
  // kind: what the file holds, at most 15 characters.
  explicit ArchiveWriter(std::string kind) : kind_(std::move(kind)) {}

  // Names of sections added from now on begin with this.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Appends a section; its bytes must live until write(). Names are at most 39 characters, each
  // once.
  void add(std::string_view name, const void* data, std::size_t bytes);
  // As add(), of bytes that the writer keeps.
  void add_copy(std::string_view name, const void* data, std::size_t bytes);
  // Keeps something alive as long as this writer, such as what a section refers to.
  void keep(std::shared_ptr<const void> what) { kept_.push_back(std::move(what)); }
  // Sections added from now on may be left out by a reader that does not know them, or not.
  void set_optional(bool optional) { optional_ = optional; }
  // before_replacing: called with the checksum that the archive will have, when all was written
  // and before the file has its name; what it throws ends the write. Throws IoError; Cancelled.
  // Then nothing has changed on disk.
  void write(const std::string& path, const Progress& progress,
             const std::function<void(std::uint64_t checksum)>& before_replacing = {}) const;

 private:
  struct Section {
    std::string name;
    const std::byte* data;
    std::size_t bytes;
    std::shared_ptr<std::vector<std::byte>> own;
    bool optional;
  };
  std::string kind_, prefix_;
  std::vector<Section> sections_;
  std::vector<std::shared_ptr<const void>> kept_;
  bool optional_ = false;
};

// A section of an open archive.
struct Section {
  std::string_view name;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  bool optional = false;  // a reader that does not know it may do without
};

class Archive : public std::enable_shared_from_this<Archive> {
 public:
  // Throws IoError; CorruptFile if it is no .knear file, of a later version, cut off, or its header
  // or table altered.
  static std::shared_ptr<const Archive> open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string_view kind() const { return kind_; }
  std::int64_t file_bytes() const { return file_.size(); }
  // That of the header, which stands for all that is in the file.
  std::uint64_t checksum() const { return checksum_; }
  const std::vector<Section>& sections() const { return sections_; }
  bool has(std::string_view name) const { return numbers_.contains(name); }

  // A section whose content is checked now. Throws CorruptFile, naming it, if it is missing or
  // altered.
  Section read(std::string_view name) const;
  // A section whose content the guard checks block by block.
  struct Guarded {
    Section section;
    std::shared_ptr<const CheckedBlocks> blocks;
  };
  Guarded guarded(std::string_view name) const;
  // Checks every block of every section.
  void verify(const Progress& progress) const;

 private:
  explicit Archive(const std::string& path);
  std::size_t find(std::string_view name) const;
  std::string title(std::string_view name) const;

  std::string path_;
  MappedFile file_;
  std::string kind_;
  std::uint64_t checksum_ = 0;
  std::vector<Section> sections_;
  std::vector<const std::uint64_t*> sums_;  // checksums of the blocks of each section
  std::map<std::string_view, std::size_t> numbers_;
};

// Writes the right checksum into the header of an archive, if these bytes are as long as the header
// says: for tests that alter the header.
void seal_archive(std::vector<std::byte>& bytes);

// Whether the first bytes of a file are those of an archive; false if it can't be read.
bool is_archive(const std::string& path);
// What kind such a file says it is, whether or not the rest of it is sound; empty for other files.
std::string kind_of_archive(const std::string& path);

}  // namespace knear::io
