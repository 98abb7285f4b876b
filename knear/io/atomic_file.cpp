// The temporary has no name where the system and the file system have such files, so that a process
// killed by a signal leaves nothing. commit() then links it to a temporary name before the rename,
// because link() alone does not replace a file.
#include "knear/io/atomic_file.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/system.hpp"
#include "knear/io/open_file.hpp"

namespace knear::io {
namespace {

constexpr std::size_t buffer_bytes = 1 << 20;
// What goes to the system, or to the disk, between two looks whether to stop.
constexpr std::size_t bytes_at_once = std::size_t{16} << 20;

// Names differ between threads and processes; O_EXCL and link() catch what chance does not.
std::string temporary_name(const std::string& target) {
  static std::atomic<std::uint64_t> counter{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  Random random(static_cast<std::uint64_t>(now) ^ (static_cast<std::uint64_t>(getpid()) << 32) ^
                (counter++ << 48));
  return fmt::format("{}.tmp-{:012x}", target, random.next() >> 16);
}

// What comes after the last slash of a path, and what temporary_name() adds to it.
std::string name_in_folder(const std::string& path) { return path.substr(path.rfind('/') + 1); }
constexpr std::size_t added_bytes = 5 + 12;  // ".tmp-" and digits

bool is_temporary_name(std::string_view name, const std::string& of) {
  return name.size() == of.size() + added_bytes && name.starts_with(of) &&
         name.substr(of.size()).starts_with(".tmp-") &&
         name.find_first_not_of("0123456789abcdef", of.size() + 5) == std::string_view::npos;
}

bool is_named(int file, const std::string& path) {
  struct stat open_status, status;
  return fstat(file, &open_status) == 0 && lstat(path.c_str(), &status) == 0 &&
         open_status.st_dev == status.st_dev && open_status.st_ino == status.st_ino;
}

// Removes temporaries of a target whose writers were killed. One that cannot be opened or locked
// may have a writer, and stays.
void remove_left_by_kills(const std::string& folder, const std::string& target) {
  const std::string of = name_in_folder(target);
  const std::unique_ptr<DIR, int (*)(DIR*)> open_folder(opendir(folder.c_str()), closedir);
  while (const dirent* const entry = open_folder ? readdir(open_folder.get()) : nullptr) {
    if (!is_temporary_name(entry->d_name, of)) continue;
    const std::string path = folder + "/" + entry->d_name;
    try {
      const OpenFile file(path, O_RDONLY | O_NOFOLLOW);
      if (flock(file.number(), LOCK_EX | LOCK_NB) == 0 && is_named(file.number(), path))
        unlink(path.c_str());
    } catch (const IoError&) {
    }
  }
}

}  // namespace

void check_free_space(const std::string& path, std::int64_t bytes, std::string_view what) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (!error && space.available < static_cast<std::uintmax_t>(bytes))
    throw IoError(SystemError{ENOSPC, path}, "{}: {} take {} bytes, but {} are free", path, what,
                  bytes, space.available);
}

void sync_folder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int error = file < 0 || detail::sync_file(file) != 0 ? errno : 0;
  if (file >= 0) close(file);
  // Some file systems refuse to sync a folder; they keep names all the same.
  if (error != 0 && error != EINVAL)
    throw IoError("cannot sync the folder '{}': {}", folder, std::strerror(error));
}

AtomicFile::AtomicFile(const std::string& path) : path_(path), target_(path) {
  buffer_.reserve(buffer_bytes);  // nothing below throws once there is a file
  if (path.empty() || path.back() == '/') fail("write", path.empty() ? ENOENT : EISDIR);
  struct stat status;
  if (stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode))
      throw IoError(SystemError{EISDIR, path_}, "cannot write '{}': is a directory", path_);
    if (!S_ISREG(status.st_mode))
      throw IoError(SystemError{EINVAL, path_}, "cannot write '{}': is not a regular file", path_);
    // A rename would replace even a file that its owner protected.
    if (access(path.c_str(), W_OK) != 0) fail("write", errno);
    mode_ = status.st_mode & 07777;
    const std::unique_ptr<char, decltype(&::free)> resolved(realpath(path.c_str(), nullptr),
                                                            ::free);
    if (!resolved) fail("write", errno);
    target_ = resolved.get();
  } else if (errno == ENAMETOOLONG || errno == ELOOP) {
    fail("write", errno);
  }
  const std::size_t slash = target_.rfind('/');
  directory_ = slash == std::string::npos ? "." : slash == 0 ? "/" : target_.substr(0, slash);

  // A file without a name gets a temporary one at the end, when all the work is done.
  const long longest = pathconf(directory_.c_str(), _PC_NAME_MAX);
  if (longest > 0 &&
      name_in_folder(target_).size() + added_bytes > static_cast<std::size_t>(longest))
    fail("write", ENAMETOOLONG);
  remove_left_by_kills(directory_, target_);
  file_ = detail::open_file_without_name(directory_.c_str());
  if (file_ >= 0) hold_lock();
  for (int attempt = 0; file_ < 0 && attempt < 100; ++attempt) {
    std::string name = temporary_name(target_);
    file_ = open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) fail("write", errno);
    if (file_ < 0) continue;
    temporary_ = std::move(name);
    // Another writer to the same path may have seen it before it was locked, and removed it.
    if (hold_lock() && is_named(file_, temporary_)) break;
    close(std::exchange(file_, -1));
    if (lock_ >= 0) close(std::exchange(lock_, -1));
    unlink(std::exchange(temporary_, {}).c_str());
  }
  if (file_ < 0) fail("write", EEXIST);
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) close(file_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
  if (lock_ >= 0) close(lock_);
}

// Returns false if another process has locked the file, which it may be about to remove. On a file
// system without locks no process removes it.
bool AtomicFile::hold_lock() {
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  lock_ = fcntl(file_, F_DUPFD_CLOEXEC, 0);
  return true;
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  if (buffer_.size() + bytes > buffer_bytes) flush();
  if (bytes >= buffer_bytes)
    write_through(from, bytes);
  else
    buffer_.insert(buffer_.end(), from, from + bytes);
}

void AtomicFile::overwrite(std::uint64_t at, const void* data, std::size_t bytes) {
  flush();
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = pwrite(file_, from, bytes, static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written < 0 ? errno : ENOSPC);
    from += written, at += static_cast<std::uint64_t>(written);
    bytes -= written;
  }
}

void AtomicFile::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::write_through(const std::byte* data, std::size_t bytes) {
  while (bytes > 0) {
    stop_if_asked();
    const ssize_t written = ::write(file_, data, std::min(bytes, bytes_at_once));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written < 0 ? errno : ENOSPC);
    data += written;
    bytes -= written;
  }
}

void AtomicFile::send_to_disk() {
  struct stat status;
  if (fstat(file_, &status) != 0) return;
  for (std::int64_t at = 0; at < status.st_size; at += std::int64_t{bytes_at_once}) {
    stop_if_asked();
    if (!detail::send_to_disk(file_, at, bytes_at_once)) return;
  }
}

void AtomicFile::commit() {
  flush();
  send_to_disk();
  if (mode_ >= 0 && fchmod(file_, static_cast<mode_t>(mode_)) != 0) fail("write", errno);
  if (detail::sync_file(file_) != 0) fail("sync", errno);
  for (int attempt = 0; temporary_.empty(); ++attempt) {
    std::string name = temporary_name(target_);
    if (detail::name_file(file_, name.c_str()) == 0)
      temporary_ = std::move(name);
    else if (errno != EEXIST || attempt == 100)
      fail("name", errno);
  }
  const int file = file_;
  file_ = -1;
  if (close(file) != 0) fail("close", errno);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail("rename to", errno);
  temporary_.clear();
  if (lock_ >= 0) close(std::exchange(lock_, -1));

  // The rename itself survives a crash only when the directory is on disk too. Some file systems
  // refuse to sync a directory; the file is complete all the same.
  const int directory = open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    const int error = detail::sync_file(directory) == 0 ? 0 : errno;
    close(directory);
    if (error != 0 && error != EINVAL && error != EROFS) fail("sync the directory of", error);
  }
}

void AtomicFile::fail(const char* doing, int error) const {
  throw IoError(SystemError{error, path_}, "cannot {} '{}': {}", doing, path_,
                std::strerror(error));
}

}  // namespace knear::io
