// knear/io/byte_source.hpp -- the bytes of a file: mapped, or unpacked from gzip as a stream.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "knear/io/lost_pages.hpp"

namespace knear::io {

// A regular file mapped into memory, read-only. Movable.
class MappedFile {
 public:
  // Throws IoError for no such file, no permission, a directory, a pipe, no address space;
  // CorruptFile for an empty file.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  // Releases the memory of pages that end before this byte; they are read from the file again when
  // needed. For callers that read front to back a file larger than memory.
  void forget_before(std::int64_t end);

 private:
  const std::byte* data_ = nullptr;
  std::int64_t size_ = 0, forgotten_ = 0;
  KnownMapping known_ = {};
};

// The content of a gzip file of one or more members, front to back. The bytes must outlive it.
class GzipStream {
 public:
  // Throws CorruptFile if these bytes are no gzip file; path is for messages.
  GzipStream(const std::byte* data, std::int64_t size, std::string path);
  ~GzipStream();
  GzipStream(GzipStream&&) noexcept;
  GzipStream& operator=(GzipStream&&) noexcept;

  // Reads up to `bytes` more bytes; fewer only at the end of the content. Throws CorruptFile for
  // damaged or truncated data, a wrong checksum, or bytes after the last member.
  std::int64_t read(void* out, std::int64_t bytes);
  // As read(), but drops the bytes.
  std::int64_t skip(std::int64_t bytes);
  // Bytes of the input that are no longer needed.
  std::int64_t consumed() const;
  // Whether all has been read.
  bool at_end() { return available() == 0; }

 private:
  struct State;
  std::int64_t available();  // bytes in the window; unpacks more if there are none

  std::unique_ptr<State> state_;
};

}  // namespace knear::io
