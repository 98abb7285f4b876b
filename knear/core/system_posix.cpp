// What core/system.hpp promises, by what every system has that keeps to POSIX.
#include <fcntl.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <mach-o/dyld.h>
#include <sys/sysctl.h>
#endif

#include <cerrno>
#include <cstring>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"

namespace knear::detail {

void want_large_pages(void*, std::size_t) {}
void give_back_freed_memory() {}
std::optional<std::int64_t> unused_memory() { return std::nullopt; }
std::optional<std::int64_t> available_memory() { return std::nullopt; }

std::int64_t cache_size(int level) {
#if defined(__APPLE__)
  std::int64_t bytes = 0;
  std::size_t size = sizeof bytes;
  const char* const name = level == 1   ? "hw.perflevel0.l1dcachesize"
                           : level == 2 ? "hw.perflevel0.l2cachesize"
                                        : "hw.l3cachesize";
  if (level < 4 && sysctlbyname(name, &bytes, &size, nullptr, 0) == 0) return bytes;
#else
  (void)level;
#endif
  return 0;
}

std::optional<CpuMask> cpus_of_thread() { return std::nullopt; }
std::optional<CpuMask> cpus_of_first_thread() { return std::nullopt; }
bool stay_on_cpus(const CpuMask&) { return false; }

std::string processor_model() {
#if defined(__APPLE__)
  char name[256] = {};
  std::size_t size = sizeof name - 1;
  if (sysctlbyname("machdep.cpu.brand_string", name, &size, nullptr, 0) == 0) return name;
#endif
  return "";
}

ProcessorClocks processor_clocks() { return {}; }

// On macOS fsync() leaves bytes in the disk's own memory.
int sync_file(int file) {
#if defined(F_FULLFSYNC)
  if (fcntl(file, F_FULLFSYNC) == 0) return 0;  // some file systems have no such thing
#endif
  return fsync(file);
}
int sync_data(int file) { return sync_file(file); }
bool send_to_disk(int, std::int64_t, std::size_t) { return false; }

int open_file_without_name(const char*) { return -1; }
int name_file(int, const char*) {
  errno = ENOSYS;
  return -1;
}

std::string program_path() {
#if defined(__APPLE__)
  std::uint32_t size = 0;
  _NSGetExecutablePath(nullptr, &size);
  std::vector<char> path(size + 1);
  if (_NSGetExecutablePath(path.data(), &size) == 0) return path.data();
#endif
  return "";
}

int open_pipe(int ends[2]) {
  if (pipe(ends) != 0) return -1;
  for (int i = 0; i < 2; ++i) fcntl(ends[i], F_SETFD, FD_CLOEXEC);
  return 0;
}

void close_files_from(int first) {
  const long most = sysconf(_SC_OPEN_MAX);
  for (int file = first; file < (most > 0 && most < 65536 ? most : 65536); ++file) close(file);
}

std::uint64_t random_number() {
  std::uint64_t number;
  const int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  const bool read_all = file >= 0 && read(file, &number, sizeof number) == sizeof number;
  const int error = errno;
  if (file >= 0) close(file);
  if (!read_all) throw IoError("the system gives no random number ({})", std::strerror(error));
  return number;
}

}  // namespace knear::detail
