// knear/io/open_file.hpp -- opens a file that comes from outside, without being held up by it.
//
//   const io::OpenFile file("base.fvecs");              // read(file.number(), ...)
//   char magic[8];
//   if (io::read_beginning(path, magic, sizeof magic)) ...
//
// open(2) on a pipe waits for a process that writes to it, perhaps for ever, and reading from a
// device may never end. Every path that a user names is opened here, which refuses both.
#pragma once
#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace knear::io {

enum class Accepted {
  files,           // regular files
  files_and_pipes  // and pipes, `<(command)` or /dev/stdin; one without a writer is empty
};

// An open file, closed in the end. Movable.
class OpenFile {
 public:
  // flags: as of open(2); O_CREAT makes a file for everybody, as the umask allows. Throws IoError
  // for what open() refuses, for a directory, a device, a socket, and for a pipe unless it is
  // accepted.
  explicit OpenFile(const std::string& path, int flags = O_RDONLY,
                    Accepted accepted = Accepted::files);
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept
      : number_(std::exchange(other.number_, -1)), size_(other.size_) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(size_, other.size_);
    return *this;
  }

  int number() const { return number_; }       // the descriptor
  std::int64_t size() const { return size_; }  // in bytes, when it was opened; 0: a pipe
  // The descriptor, which the caller closes.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
  std::int64_t size_ = 0;
};

// Reads the first `bytes` of a regular file. Returns false if there are fewer, or if the file
// cannot be read; throws nothing.
bool read_beginning(const std::string& path, void* out, std::size_t bytes);

// The whole content. Throws IoError, MemoryBudgetError for more than `most` bytes.
std::string read_all(const std::string& path, std::int64_t most,
                     Accepted accepted = Accepted::files);

}  // namespace knear::io
