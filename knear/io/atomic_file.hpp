// knear/io/atomic_file.hpp -- a file that appears complete or not at all.
//
//   io::AtomicFile file("ids.npy");
//   file.write(data, bytes);
//   file.commit();                     // without it, nothing has changed
//
// Bytes go to a temporary file in the same directory; commit() syncs it, renames it to its name and
// syncs the directory, so that after a crash there is the old file or the new one. Where the system
// allows it the temporary has no name until then, so that a killed process leaves nothing behind,
// unless it is killed between naming and renaming; elsewhere the destructor removes it. A temporary
// that a killed process has left, PATH.tmp-0123456789ab, is removed by the next AtomicFile of the
// same path: its writer holds a lock (flock) as long as it lives.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace knear::io {

// Throws IoError, naming both numbers, where the disk of `path`, a file that need not be there yet,
// has fewer bytes left. what: the files that take them, in words. No error where the system does
// not tell.
void check_free_space(const std::string& path, std::int64_t bytes, std::string_view what);

// Has the names in a folder survive a crash. Throws IoError.
void sync_folder(const std::string& folder);

class AtomicFile {
 public:
  // Throws IoError if the directory cannot be written to, or if path is a directory, a device or a
  // file without permission to write. A symbolic link is followed. A file that is replaced passes
  // its permissions on.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends. Throws IoError with the path and the system's message.
  void write(const void* data, std::size_t bytes);
  // Replaces bytes that were written before, for formats whose beginning tells of what follows.
  void overwrite(std::uint64_t at, const void* data, std::size_t bytes);
  // Call once, last. Throws IoError; then the old file still stands.
  void commit();

 private:
  bool hold_lock();
  void flush();
  void write_through(const std::byte* data, std::size_t bytes);
  // As much of the sync as the system does in parts, between which the writer can be stopped.
  void send_to_disk();
  [[noreturn]] void fail(const char* doing, int error) const;

  std::string path_;       // as the caller wrote it, for messages
  std::string target_;     // symbolic links resolved
  std::string directory_;  // of the target
  std::string temporary_;  // empty while the temporary has no name
  int file_ = -1;
  int lock_ = -1;  // the same open file, closed last: its lock says that the writer lives
  int mode_ = -1;  // permissions of the file to be replaced, -1 if there is none
  std::vector<std::byte> buffer_;
};

}  // namespace knear::io
