#include "knear/io/mapped_pages.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "knear/core/threads.hpp"

namespace knear::io {
namespace {

struct Range {
  std::uintptr_t begin, end;
};

// The mapping around an address, if its pages can be given back: those of a file, none of which is
// this process's own.
std::optional<Range> file_mapping(std::uintptr_t at) {
  std::ifstream maps("/proc/self/smaps");
  std::optional<Range> found;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    if (found) {
      std::string name;
      std::int64_t kilobytes = -1;
      if (words >> name >> kilobytes && name == "Anonymous:")
        return kilobytes == 0 ? found : std::nullopt;
      continue;
    }
    Range range{};
    std::string addresses, rights, offset, device;
    std::uint64_t inode = 0;
    words >> addresses >> rights >> offset >> device >> std::dec >> inode;
    const std::size_t dash = addresses.find('-');
    if (!words || dash == std::string::npos) continue;
    const char* const first = addresses.data();
    std::from_chars(first, first + dash, range.begin, 16);
    std::from_chars(first + dash + 1, first + addresses.size(), range.end, 16);
    if (at < range.begin || at >= range.end) continue;
    const bool writable = rights[1] == 'w', shared = rights[3] == 's';
    if (inode == 0 || (writable && !shared)) return {};
    found = range;
  }
  return {};
}

bool advise(const void* at, int advice) {
  const auto range = file_mapping(reinterpret_cast<std::uintptr_t>(at));
  return range &&
         madvise(reinterpret_cast<void*>(range->begin), range->end - range->begin, advice) == 0;
}

// Resident pages of files, of this process.
std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return statm ? shared * sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace

struct MappedPages::Watch {
  explicit Watch(std::int64_t most) : limit(most) {
    looking.run([this] { run(); });
  }
  ~Watch() {
    {
      std::lock_guard lock(mutex);
      ends = true;
    }
    wake.notify_all();
    looking.wait();
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!wake.wait_for(lock, std::chrono::milliseconds(50), [this] { return ends; }))
      if (resident_bytes() > limit) give_back();
  }
  // The lock is held.
  void give_back() {
    for (const Range& range : ranges)
      madvise(reinterpret_cast<void*>(range.begin), range.end - range.begin, MADV_DONTNEED);
  }

  const std::int64_t limit;
  std::mutex mutex;  // of what follows
  std::condition_variable wake;
  bool ends = false;
  std::vector<Range> ranges;
  // Last: it uses all others. A thread of its own, which looks while all others wait for pages.
  BackgroundTask looking{BackgroundTask::TakenBy::own_thread};
};

MappedPages::MappedPages(std::int64_t limit) : watch_(std::make_unique<Watch>(limit)) {}
MappedPages::~MappedPages() = default;

bool MappedPages::add(const void* at) {
  const auto range = file_mapping(reinterpret_cast<std::uintptr_t>(at));
  if (!range) return false;
  std::lock_guard lock(watch_->mutex);
  watch_->ranges.push_back(*range);
  return true;
}

void MappedPages::give_back() {
  std::lock_guard lock(watch_->mutex);
  watch_->give_back();
}

bool read_by_page(const void* at) { return advise(at, MADV_RANDOM); }
ReadingByPage::~ReadingByPage() { advise(at_, MADV_NORMAL); }

void read_ahead(const void* begin, std::int64_t bytes) {
  if (bytes <= 0) return;
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(begin), first = at / page * page;
  // Failing changes nothing but speed.
  madvise(reinterpret_cast<void*>(first), at - first + static_cast<std::size_t>(bytes),
          MADV_WILLNEED);
}

}  // namespace knear::io
