// Files are mapped by mmap and unpacked by zlib itself: gzread would let trailing bytes pass.
#include "knear/io/byte_source.hpp"

#include <sys/mman.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/io/open_file.hpp"

namespace knear::io {

MappedFile::MappedFile(const std::string& path) {
  const OpenFile file(path);
  if (file.size() == 0) throw CorruptFile("'{}' is empty", path);
  void* const mapped = mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (mapped == MAP_FAILED)
    throw IoError(SystemError{errno, path}, "cannot map the {} bytes of '{}': {}", file.size(),
                  path, std::strerror(errno));
  data_ = static_cast<const std::byte*>(mapped);
  size_ = file.size();
  try {
    known_ = KnownMapping(mapped, size_, path);
  } catch (const std::bad_alloc&) {
    munmap(mapped, size_);
    throw;
  }
}

void MappedFile::forget_before(std::int64_t end) {
  constexpr std::int64_t step = 4 << 20;  // so seldom that the calls cost nothing
  if (end < forgotten_) forgotten_ = 0;   // from the front again
  if (end - forgotten_ < step) return;
  end -= end % step;
  madvise(const_cast<std::byte*>(data_) + forgotten_, end - forgotten_, MADV_DONTNEED);
  forgotten_ = end;
}

MappedFile::~MappedFile() {
  known_ = {};
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      forgotten_(std::exchange(other.forgotten_, 0)),
      known_(std::move(other.known_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(forgotten_, other.forgotten_);
  std::swap(known_, other.known_);
  return *this;
}

// On the heap, since zlib keeps the address of its z_stream.
struct GzipStream::State {
  z_stream zlib = {};
  const std::byte* input = nullptr;  // not yet handed to zlib
  std::int64_t input_left = 0, size = 0;
  bool ended = false;  // the last member is complete
  std::string path;
  std::vector<std::byte> window = std::vector<std::byte>(std::size_t{64} << 10);
  std::size_t begin = 0, end = 0;  // the unread part of the window

  ~State() { inflateEnd(&zlib); }
};

GzipStream::GzipStream(const std::byte* data, std::int64_t size, std::string path)
    : state_(std::make_unique<State>()) {
  if (size < 2 || data[0] != std::byte{0x1f} || data[1] != std::byte{0x8b})
    throw CorruptFile("'{}' does not begin like a gzip file, as its name promises", path);
  state_->input = data;
  state_->input_left = state_->size = size;
  state_->path = std::move(path);
  constexpr int gzip_only = 16;
  if (inflateInit2(&state_->zlib, MAX_WBITS + gzip_only) != Z_OK)
    throw MemoryBudgetError("no memory to unpack '{}'", state_->path);
}

GzipStream::~GzipStream() = default;
GzipStream::GzipStream(GzipStream&&) noexcept = default;
GzipStream& GzipStream::operator=(GzipStream&&) noexcept = default;

std::int64_t GzipStream::consumed() const {
  return state_->size - state_->input_left - state_->zlib.avail_in;
}

std::int64_t GzipStream::available() {
  State& s = *state_;
  if (s.begin < s.end || s.ended) return static_cast<std::int64_t>(s.end - s.begin);
  s.begin = s.end = 0;
  s.zlib.next_out = reinterpret_cast<Bytef*>(s.window.data());
  s.zlib.avail_out = static_cast<uInt>(s.window.size());
  while (s.zlib.avail_out > 0 && !s.ended) {
    if (s.zlib.avail_in == 0) {
      const auto part = static_cast<uInt>(std::min<std::int64_t>(s.input_left, 1 << 30));
      s.zlib.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(s.input));
      s.zlib.avail_in = part;
      s.input += part;
      s.input_left -= part;
    }
    const int status = inflate(&s.zlib, Z_NO_FLUSH);
    if (status == Z_STREAM_END) {
      if (s.zlib.avail_in == 0 && s.input_left == 0) {
        s.ended = true;
      } else {
        // Members may follow one another; anything else after the first is damage. The input is
        // one piece of memory, so next[1] is there even where zlib was handed less.
        const auto* next = reinterpret_cast<const std::byte*>(s.zlib.next_in);
        const std::int64_t left = s.input_left + s.zlib.avail_in;
        if (left < 2 || next[0] != std::byte{0x1f} || next[1] != std::byte{0x8b})
          throw CorruptFile("'{}' has {} bytes after the end of its gzip data", s.path, left);
        inflateReset(&s.zlib);
      }
    } else if (status == Z_BUF_ERROR && s.zlib.avail_in == 0 && s.input_left == 0) {
      throw CorruptFile("'{}' is truncated: its gzip data has no end", s.path);
    } else if (status == Z_MEM_ERROR) {
      throw MemoryBudgetError("no memory to unpack '{}'", s.path);
    } else if (status != Z_OK) {
      throw CorruptFile("'{}' is damaged: {}", s.path,
                        s.zlib.msg ? s.zlib.msg : "its gzip data makes no sense");
    }
  }
  s.end = s.window.size() - s.zlib.avail_out;
  return static_cast<std::int64_t>(s.end);
}

std::int64_t GzipStream::read(void* out, std::int64_t bytes) {
  auto* to = static_cast<std::byte*>(out);
  std::int64_t done = 0;
  while (done < bytes) {
    const std::int64_t part = std::min(available(), bytes - done);
    if (part == 0) break;
    if (to) std::memcpy(to + done, state_->window.data() + state_->begin, size_t(part));
    state_->begin += part;
    done += part;
  }
  return done;
}

std::int64_t GzipStream::skip(std::int64_t bytes) { return read(nullptr, bytes); }

}  // namespace knear::io
