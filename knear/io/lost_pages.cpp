// A signal handler may neither lock nor allocate. So mappings are kept in slots of atomic numbers,
// in blocks that are never freed: the handler reads them while other threads change other slots.
#include "knear/io/lost_pages.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

namespace knear::io {
namespace {

// `end` is 0 while the other members change.
struct Slot {
  std::atomic<std::uintptr_t> begin = 0;  // 0: the slot is free
  std::atomic<std::uintptr_t> end = 0;
  std::atomic<const char*> path = nullptr;
  std::atomic<std::uint64_t> number = 0;
  std::atomic<bool> lost = false;
};
struct Block {
  std::array<Slot, 256> slots;
  std::atomic<Block*> next = nullptr;
};

Block first_block;
std::mutex lost_mutex;  // held to list lost mappings, and when one of these goes
std::atomic<std::uint64_t> mappings = 0;
std::atomic<bool> any_lost = false;
std::atomic<LostPages> chosen = LostPages::end_process;
struct sigaction former = {};
std::uintptr_t page_bytes = 4096;

// Returns the slot of the mapping that holds an address. A slot of another mapping may change
// meanwhile; its beginning then differs when it is read again.
Slot* slot_around(std::uintptr_t at) {
  for (Block* block = &first_block; block != nullptr; block = block->next)
    for (Slot& slot : block->slots) {
      const std::uintptr_t begin = slot.begin;
      if (begin != 0 && begin <= at && at < slot.end && slot.begin == begin) return &slot;
    }
  return nullptr;
}

// Takes a slot that is free.
Slot& free_slot() {
  constexpr std::uintptr_t taken = 1;
  for (Block* block = &first_block;;) {
    for (Slot& slot : block->slots)
      if (std::uintptr_t none = 0; slot.begin.compare_exchange_strong(none, taken)) return slot;
    Block* next = block->next;
    if (next == nullptr) {
      auto more = std::make_unique<Block>();
      if (block->next.compare_exchange_strong(next, more.get())) next = more.release();
    }
    block = next;
  }
}

class Line {
 public:
  void add(const char* text) {
    while (*text != '\0' && size_ + 1 < sizeof text_) text_[size_++] = *text++;
  }
  void add(std::uint64_t number) {
    char digits[24];
    int count = 0;
    do digits[count++] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    while (count > 0 && size_ + 1 < sizeof text_) text_[size_++] = digits[--count];
  }
  void write() {
    text_[size_++] = '\n';
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text_, size_);
  }

 private:
  char text_[4096];
  std::size_t size_ = 0;
};

void on_bus_error(int, siginfo_t* info, void*) {
  const int error = errno;
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Slot* const slot = info->si_code == BUS_ADRERR ? slot_around(at) : nullptr;
  if (slot == nullptr) {  // the same read raises the signal again
    sigaction(SIGBUS, &former, nullptr);
    return;
  }
  const std::uintptr_t page = at / page_bytes * page_bytes;
  if (chosen == LostPages::read_as_zeros) {
    slot->lost = true, any_lost = true;  // before a thread can see a zero
    // What follows a missing page is mostly missing too.
    const std::uintptr_t end = (slot->end + page_bytes - 1) / page_bytes * page_bytes;
    if (mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
             MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
      errno = error;
      return;
    }
  }
  Line line;
  line.add("knear: cannot read '");
  line.add(slot->path);
  line.add("' from byte ");
  line.add(std::uint64_t{page > slot->begin ? page - slot->begin : 0});
  line.add(" on: it was truncated while it was in use, or its disk failed");
  line.write();
  _exit(1);
}

}  // namespace

void handle_lost_pages(LostPages how) {
  chosen = how;
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &former);
  });
}

struct KnownMapping::Known {
  Slot* slot = nullptr;
  std::string path;
};

KnownMapping::KnownMapping() noexcept = default;

KnownMapping::KnownMapping(const void* begin, std::size_t bytes, const std::string& path)
    : known_(std::make_unique<Known>()) {
  known_->path = path;
  Slot& slot = free_slot();
  slot.path = known_->path.c_str();
  slot.number = mappings++;
  slot.lost = false;
  slot.begin = reinterpret_cast<std::uintptr_t>(begin);
  slot.end = reinterpret_cast<std::uintptr_t>(begin) + bytes;
  known_->slot = &slot;
}

KnownMapping::~KnownMapping() {
  if (!known_) return;
  Slot& slot = *known_->slot;
  // lost_files() may be reading the path. Other mappings take no lock, because a process that was
  // forked while another thread held it would wait for ever.
  std::unique_lock lock(lost_mutex, std::defer_lock);
  if (slot.lost) lock.lock();
  slot.end = 0, slot.begin = 0;
}

KnownMapping::KnownMapping(KnownMapping&& other) noexcept = default;
KnownMapping& KnownMapping::operator=(KnownMapping&& other) noexcept {
  std::swap(known_, other.known_);
  return *this;
}

std::vector<LostFile> lost_files() {
  std::vector<LostFile> out;
  if (!any_lost) return out;
  std::lock_guard lock(lost_mutex);
  for (Block* block = &first_block; block != nullptr; block = block->next)
    for (Slot& slot : block->slots)
      if (slot.end != 0 && slot.lost) out.push_back({slot.path.load(), slot.number});
  return out;
}

std::uint64_t next_mapping() { return mappings; }

}  // namespace knear::io
