// What core/system.hpp promises, by what Linux has.
#include <fcntl.h>
#include <fmt/format.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "knear/core/error.hpp"
#include "knear/core/processor_model.hpp"
#include "knear/core/system.hpp"

namespace knear::detail {
namespace {

static_assert(sizeof(cpu_set_t) == sizeof(CpuMask) && CPU_SETSIZE == CpuMask::most &&
              std::endian::native == std::endian::little);

std::optional<CpuMask> cpus_of(pid_t thread) {
  cpu_set_t set;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return std::nullopt;
  return std::bit_cast<CpuMask>(set);
}

// In no memory that could be refused while a file waits to be closed.
struct DescriptorPath {
  explicit DescriptorPath(int file) { *fmt::format_to(text, "/proc/self/fd/{}", file) = '\0'; }
  char text[32];
};

}  // namespace

void want_large_pages(void* memory, std::size_t bytes) { madvise(memory, bytes, MADV_HUGEPAGE); }

void give_back_freed_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

std::optional<std::int64_t> unused_memory() {
  const std::int64_t pages = sysconf(_SC_AVPHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  if (pages < 0 || bytes < 0) return std::nullopt;
  return pages * bytes;
}

std::optional<std::int64_t> available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name; meminfo >> name;) {
    std::int64_t kilobytes = 0;
    if (name == "MemAvailable:" && meminfo >> kilobytes) return kilobytes * 1024;
    std::getline(meminfo, name);
  }
  return std::nullopt;
}

std::int64_t cache_size(int level) {
  const long size = sysconf(level == 1   ? _SC_LEVEL1_DCACHE_SIZE
                            : level == 2 ? _SC_LEVEL2_CACHE_SIZE
                            : level == 3 ? _SC_LEVEL3_CACHE_SIZE
                                         : _SC_LEVEL4_CACHE_SIZE);
  return size > 0 ? size : 0;
}

std::optional<CpuMask> cpus_of_thread() { return cpus_of(0); }
std::optional<CpuMask> cpus_of_first_thread() { return cpus_of(getpid()); }
bool stay_on_cpus(const CpuMask& cpus) {
  const auto set = std::bit_cast<cpu_set_t>(cpus);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

std::string processor_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  return processor_model_in(cpuinfo);
}

ProcessorClocks processor_clocks() {
  ProcessorClocks out;
  // One folder for processors of a kind.
  std::error_code error;
  const std::filesystem::directory_iterator kinds("/sys/devices/system/cpu/cpufreq", error);
  for (auto kind = begin(kinds); !error && kind != end(kinds); kind.increment(error)) {
    std::ifstream file(kind->path() / "cpuinfo_max_freq");
    double kilohertz = 0;
    if (file >> kilohertz) out.highest = std::max(out.highest, 1e3 * kilohertz);
  }
  std::ifstream cpuinfo("/proc/cpuinfo");
  out.nominal = processor_clock_in(cpuinfo);
  return out;
}

int sync_data(int file) { return fdatasync(file); }
int sync_file(int file) { return fsync(file); }

bool send_to_disk(int file, std::int64_t at, std::size_t bytes) {
  constexpr unsigned whole =
      SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  return sync_file_range(file, at, static_cast<off64_t>(bytes), whole) == 0;
}

int open_file_without_name(const char* folder) {
  const int file = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (file >= 0 && access(DescriptorPath(file).text, F_OK) != 0) {
    close(file);  // without /proc the file could never be given a name
    return -1;
  }
  return file;
}

int name_file(int file, const char* name) {
  return linkat(AT_FDCWD, DescriptorPath(file).text, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

std::string program_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, length) : "";
}

int open_pipe(int ends[2]) { return pipe2(ends, O_CLOEXEC); }
void close_files_from(int first) { close_range(static_cast<unsigned>(first), ~0u, 0); }

// std::random_device would want a glibc newer than that of the wheels.
std::uint64_t random_number() {
  std::uint64_t number;
  if (getrandom(&number, sizeof number, 0) != sizeof number)
    throw IoError("the system gives no random number ({})", std::strerror(errno));
  return number;
}

}  // namespace knear::detail
