#include "knear/io/open_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "knear/core/error.hpp"

namespace knear::io {
namespace {

// As read(2), again where a signal came between.
ssize_t read_some(int file, void* out, std::size_t bytes) {
  for (;;) {
    const ssize_t got = read(file, out, bytes);
    if (got >= 0 || errno != EINTR) return got;
  }
}

}  // namespace

OpenFile::OpenFile(const std::string& path, int flags, Accepted accepted) {
  const bool reading = (flags & O_ACCMODE) == O_RDONLY;
  const char* const doing = reading ? "open" : "write";
  number_ = open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0666);
  if (number_ < 0)
    throw IoError(SystemError{errno, path}, "cannot {} '{}': {}", doing, path,
                  std::strerror(errno));
  struct stat status;
  const int error = fstat(number_, &status) == 0 ? 0 : errno;
  const bool pipe = error == 0 && S_ISFIFO(status.st_mode);
  const bool taken =
      error == 0 && (S_ISREG(status.st_mode) || (pipe && accepted == Accepted::files_and_pipes));
  // From now on reads may wait for the writers of a pipe.
  if (taken && fcntl(number_, F_SETFL, flags & ~(O_CREAT | O_EXCL | O_TRUNC)) == 0) {
    size_ = pipe ? 0 : status.st_size;
    return;
  }
  const int failed = error != 0 ? error : errno;
  close(number_);
  if (error != 0 || taken)
    throw IoError(SystemError{failed, path}, "cannot {} '{}': {}", doing, path,
                  std::strerror(failed));
  const bool directory = S_ISDIR(status.st_mode);
  throw IoError(SystemError{directory ? EISDIR : EINVAL, path}, "cannot {} '{}': {}",
                reading ? "read" : doing, path,
                directory ? "is a directory" : "is not a regular file");
}

OpenFile::~OpenFile() {
  if (number_ >= 0) close(number_);
}

bool read_beginning(const std::string& path, void* out, std::size_t bytes) {
  try {
    const OpenFile file(path);
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t got = read_some(file.number(), static_cast<char*>(out) + done, bytes - done);
      if (got <= 0) return false;
      done += got;
    }
    return true;
  } catch (const IoError&) {
    return false;
  }
}

std::string read_all(const std::string& path, std::int64_t most, Accepted accepted) {
  const OpenFile file(path, O_RDONLY, accepted);
  std::string out;
  std::string block(std::size_t{1} << 16, '\0');
  for (;;) {
    const ssize_t got = read_some(file.number(), block.data(), block.size());
    if (got < 0)
      throw IoError(SystemError{errno, path}, "cannot read '{}': {}", path, std::strerror(errno));
    if (got == 0) return out;
    out.append(block, 0, got);
    if (std::ssize(out) > most) throw MemoryBudgetError("'{}' has more than {} bytes", path, most);
  }
}

}  // namespace knear::io
