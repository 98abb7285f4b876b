#include "knear/io/archive.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "knear/core/error.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/open_file.hpp"

namespace knear::io {
namespace {

static_assert(std::endian::native == std::endian::little, "archives are little-endian");

// The constants and structures of docs/knear-files.md.
constexpr char magic[8] = {'\x89', 'K', 'N', 'E', 'A', 'R', '\r', '\n'};
constexpr std::uint32_t format_version = 1;
constexpr std::uint32_t flag_optional = 1;
constexpr std::size_t alignment = 64;
constexpr std::size_t step = 1 << 24;  // bytes between reports of progress
constexpr std::uint64_t max_sections = 1 << 20;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t block_bytes;  // CheckedBlocks::block_bytes
  char kind[16];
  std::uint64_t file_bytes;
  std::uint64_t sections;
  std::uint64_t directory_bytes;  // table and sums
  std::uint64_t checksum;         // of header and directory, this field 0
};
static_assert(sizeof(Header) == 64);

struct Entry {
  char name[40];
  std::uint32_t version;
  std::uint32_t flags;
  std::uint64_t offset;
  std::uint64_t bytes;
};
static_assert(sizeof(Entry) == 64);

std::uint64_t aligned(std::uint64_t x) { return (x + alignment - 1) / alignment * alignment; }

// The checksum of header and directory: that of the checksums of their blocks, so that it is
// computed like every other.
std::uint64_t checksum_of(Header header, const std::byte* directory, std::size_t bytes) {
  header.checksum = 0;
  std::vector<std::uint64_t> sums{
      CheckedBlocks::sum_of(reinterpret_cast<const std::byte*>(&header), sizeof header)};
  for (std::size_t begin = 0; begin < bytes; begin += CheckedBlocks::block_bytes)
    sums.push_back(CheckedBlocks::sum_of(directory + begin,
                                         std::min(bytes - begin, CheckedBlocks::block_bytes)));
  return CheckedBlocks::sum_of(reinterpret_cast<const std::byte*>(sums.data()), sums.size() * 8);
}

std::string_view text_of(const char* field, std::size_t size) {
  return {field, strnlen(field, size)};
}

}  // namespace

void ArchiveWriter::add(std::string_view name, const void* data, std::size_t bytes) {
  sections_.push_back({prefix_ + std::string(name), static_cast<const std::byte*>(data), bytes,
                       nullptr, optional_});
}

void ArchiveWriter::add_copy(std::string_view name, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  auto own = std::make_shared<std::vector<std::byte>>(from, from + bytes);
  sections_.push_back({prefix_ + std::string(name), own->data(), bytes, own, optional_});
}

void ArchiveWriter::write(const std::string& path, const Progress& progress,
                          const std::function<void(std::uint64_t)>& before_replacing) const {
  AtomicFile file(path);  // fails before the checksums are computed, if at all
  std::vector<Entry> table;
  std::vector<std::uint64_t> sums;
  std::size_t blocks = 0;
  std::int64_t total = 0;
  for (const Section& section : sections_) {
    blocks += CheckedBlocks::block_count(section.bytes);
    total += static_cast<std::int64_t>(section.bytes);
  }
  Reporter reporter(progress, "save", 2 * total);
  const std::uint64_t directory = sections_.size() * sizeof(Entry) + blocks * 8;
  std::uint64_t offset = aligned(sizeof(Header) + directory);
  for (const Section& section : sections_) {
    Entry entry{};
    section.name.copy(entry.name, sizeof entry.name - 1);
    entry.version = 1;
    entry.flags = section.optional ? flag_optional : 0;
    entry.offset = offset, entry.bytes = section.bytes;
    table.push_back(entry);
    offset = aligned(offset + section.bytes);
    for (std::size_t begin = 0; begin < section.bytes; begin += CheckedBlocks::block_bytes) {
      const std::size_t some = std::min(section.bytes - begin, CheckedBlocks::block_bytes);
      sums.push_back(CheckedBlocks::sum_of(section.data + begin, some));
      reporter.add(static_cast<std::int64_t>(some));
    }
  }
  Header header{};
  std::memcpy(header.magic, magic, sizeof magic);
  header.version = format_version;
  header.block_bytes = CheckedBlocks::block_bytes;
  kind_.copy(header.kind, sizeof header.kind - 1);
  header.file_bytes = offset;
  header.sections = sections_.size();
  header.directory_bytes = directory;
  std::vector<std::byte> bytes(directory);
  if (!table.empty()) std::memcpy(bytes.data(), table.data(), table.size() * sizeof(Entry));
  if (!sums.empty())
    std::memcpy(bytes.data() + table.size() * sizeof(Entry), sums.data(), sums.size() * 8);
  header.checksum = checksum_of(header, bytes.data(), bytes.size());

  const std::byte zeros[alignment] = {};
  std::uint64_t at = 0;
  const auto put = [&](const void* data, std::size_t count) {
    file.write(data, count);
    at += count;
  };
  const auto pad = [&] { put(zeros, aligned(at) - at); };
  put(&header, sizeof header);
  put(bytes.data(), bytes.size());
  pad();
  for (const Section& section : sections_) {
    for (std::size_t begin = 0; begin < section.bytes; begin += step) {
      const std::size_t part = std::min(section.bytes - begin, step);
      put(section.data + begin, part);
      reporter.add(static_cast<std::int64_t>(part));
    }
    pad();
  }
  if (before_replacing) before_replacing(header.checksum);
  file.commit();
}

std::shared_ptr<const Archive> Archive::open(const std::string& path) {
  return std::shared_ptr<const Archive>(new Archive(path));
}

Archive::Archive(const std::string& path) : path_(path), file_(path) {
  const auto size = static_cast<std::uint64_t>(file_.size());
  Header header{};
  if (size < sizeof header) {
    if (size < sizeof magic || std::memcmp(file_.data(), magic, sizeof magic) != 0)
      throw CorruptFile("{} is no .knear file", path);
    throw CorruptFile("{}: section 'header' is cut off: {} of {} bytes", path, size, sizeof header);
  }
  std::memcpy(&header, file_.data(), sizeof header);
  if (std::memcmp(header.magic, magic, sizeof magic) != 0)
    throw CorruptFile("{} is no .knear file", path);
  if (header.version != format_version)
    throw CorruptFile("{} has format version {}, this program reads version {}", path,
                      header.version, format_version);
  const std::uint64_t directory = header.directory_bytes;
  if (directory > size - sizeof header)
    throw CorruptFile("{}: section 'table' is cut off: {} of {} bytes", path, size - sizeof header,
                      directory);
  const std::byte* begin = file_.data() + sizeof header;
  if (checksum_of(header, begin, directory) != header.checksum)
    throw CorruptFile("{}: section 'header' or 'table' has been altered: their checksum differs",
                      path);
  // The checksums match, so from here on the numbers are those that somebody wrote, though perhaps
  // to do harm.
  const auto refuse = [&](std::string_view what) {
    throw CorruptFile("{}: section 'table' is wrong: {}", path, what);
  };
  if (header.block_bytes != CheckedBlocks::block_bytes) refuse("blocks of another size");
  if (header.sections > max_sections || header.sections * sizeof(Entry) > directory)
    refuse("more sections than it has room for");
  std::uint64_t blocks = 0;
  std::vector<std::tuple<std::uint64_t, std::uint64_t, std::string_view>> parts{
      {0, sizeof header + directory, "table"}};
  const auto* sums =
      reinterpret_cast<const std::uint64_t*>(begin + header.sections * sizeof(Entry));
  const std::uint64_t sum_count = (directory - header.sections * sizeof(Entry)) / 8;
  kind_ = text_of(header.kind, sizeof header.kind), checksum_ = header.checksum;
  for (std::uint64_t i = 0; i < header.sections; ++i) {
    const auto* entry = reinterpret_cast<const Entry*>(begin + i * sizeof(Entry));
    const std::string_view name = text_of(entry->name, sizeof entry->name);
    if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 32 || c > 126; }))
      refuse("a name is no plain text");
    const bool optional = entry->flags & flag_optional;
    if (entry->version != 1 && !optional)
      throw CorruptFile("{}: section '{}' has version {}, this program reads version 1", path, name,
                        entry->version);
    if (entry->offset % alignment != 0) refuse("a section is not aligned");
    if (entry->offset > header.file_bytes || entry->bytes > header.file_bytes - entry->offset)
      refuse("a section ends beyond the file");
    if (entry->offset > size || entry->bytes > size - entry->offset)
      throw CorruptFile("{}: section '{}' is cut off: the file has {} of {} bytes", path, name,
                        size, header.file_bytes);
    const std::uint64_t count = CheckedBlocks::block_count(entry->bytes);
    if (count > sum_count - blocks) refuse("fewer checksums than blocks");
    parts.emplace_back(entry->offset, entry->offset + entry->bytes, name);
    if (entry->version == 1) {
      if (!numbers_.emplace(name, sections_.size()).second) refuse("a name occurs twice");
      sections_.push_back({name, file_.data() + entry->offset, entry->bytes, optional});
      sums_.push_back(sums + blocks);
    }
    blocks += count;
  }
  if (size != header.file_bytes)
    throw CorruptFile("{} has {} bytes, but its header says {}", path, size, header.file_bytes);
  // No checksum holds what is between sections.
  std::sort(parts.begin(), parts.end());
  parts.push_back({size, size, ""});
  std::uint64_t end = 0;
  std::string_view before;
  for (const auto& [first, last, name] : parts) {
    if (first > end && first - end >= alignment)
      refuse(fmt::format("there are {} bytes between sections", first - end));
    for (; end < first; ++end)
      if (file_.data()[end] != std::byte{0})
        throw CorruptFile("{}: section '{}' is followed by bytes that have been altered: byte {}",
                          path, before, end);
    if (last >= end) end = last, before = name;
  }
}

std::string Archive::title(std::string_view name) const {
  return fmt::format("{}: section '{}'", path_, name);
}

std::size_t Archive::find(std::string_view name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end()) throw CorruptFile("{} is missing", title(name));
  return found->second;
}

Section Archive::read(std::string_view name) const {
  const Guarded found = guarded(name);
  found.blocks->touch_all(1);
  return found.section;
}

Archive::Guarded Archive::guarded(std::string_view name) const {
  const std::size_t i = find(name);
  return {sections_[i],
          std::make_shared<const CheckedBlocks>(sections_[i].data, sections_[i].bytes, sums_[i],
                                                shared_from_this(), title(name))};
}

void Archive::verify(const Progress& progress) const {
  Reporter reporter(progress, "verify", file_bytes());
  for (std::size_t i = 0; i < sections_.size(); ++i) {
    const Section& section = sections_[i];
    const CheckedBlocks blocks(section.data, section.bytes, sums_[i], nullptr, title(section.name));
    for (std::size_t begin = 0; begin < section.bytes; begin += step) {
      const std::size_t bytes = std::min(section.bytes - begin, step);
      blocks.touch(section.data + begin, bytes);
      reporter.add(static_cast<std::int64_t>(bytes));
    }
  }
}

void seal_archive(std::vector<std::byte>& bytes) {
  Header header{};
  if (bytes.size() < sizeof header) return;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.directory_bytes > bytes.size() - sizeof header) return;
  header.checksum = checksum_of(header, bytes.data() + sizeof header, header.directory_bytes);
  std::memcpy(bytes.data(), &header, sizeof header);
}

bool is_archive(const std::string& path) {
  char first[sizeof magic] = {};
  return read_beginning(path, first, sizeof first) && std::memcmp(first, magic, sizeof magic) == 0;
}

std::string kind_of_archive(const std::string& path) {
  Header header = {};
  if (!read_beginning(path, &header, sizeof header) ||
      std::memcmp(&header, magic, sizeof magic) != 0)
    return {};
  return {header.kind, strnlen(header.kind, sizeof header.kind)};
}

}  // namespace knear::io
