// The memory of emulated devices: how much of it is in use, and whose an address is.
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

#include "knear/core/error.hpp"
#include "tests/simt/emulator.hpp"

namespace knear {
namespace {

// What memory belongs to a device, of all devices, by where it begins.
struct Owned {
  std::size_t bytes;
  const HostDevice* device;
};
std::map<std::uintptr_t, Owned>& owned() {
  static std::map<std::uintptr_t, Owned> all;
  return all;
}
std::mutex& owned_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

HostDevice::~HostDevice() = default;

std::size_t HostDevice::bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}
std::size_t HostDevice::most_bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return most_in_use_;
}

void HostDevice::take(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes > bytes_ - in_use_)
    throw MemoryBudgetError(
        "device {} has {} bytes, of which {} are in use, but {} more are needed", number_, bytes_,
        in_use_, bytes);
  in_use_ += bytes;
  most_in_use_ = std::max(most_in_use_, in_use_);
}
void HostDevice::give_back(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  in_use_ -= bytes;
}

void HostDevice::own(const void* begin, std::size_t bytes) {
  if (bytes == 0) return;
  std::lock_guard lock(owned_mutex());
  owned()[reinterpret_cast<std::uintptr_t>(begin)] = {bytes, this};
}
void HostDevice::disown(const void* begin) {
  std::lock_guard lock(owned_mutex());
  owned().erase(reinterpret_cast<std::uintptr_t>(begin));
}

void HostDevice::check_address(const void* address, const char* what) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::lock_guard lock(owned_mutex());
  auto next = owned().upper_bound(at);
  if (next == owned().begin()) return;
  const auto& [begin, memory] = *--next;
  if (at - begin >= memory.bytes || memory.device == this) return;
  throw std::logic_error(std::string(what) + " of device " + std::to_string(number_) +
                         " was given memory of device " + std::to_string(memory.device->number()));
}

bool HostDevice::owns_any(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::lock_guard lock(owned_mutex());
  auto next = owned().upper_bound(at);
  if (next == owned().begin()) return false;
  const auto& [begin, memory] = *--next;
  return at - begin < memory.bytes;
}

void HostDevice::check_words(const void* bytes, std::size_t count, const char* what) const {
  for (std::size_t at = 0; at + sizeof(void*) <= count; at += sizeof(void*)) {
    const void* word = nullptr;
    std::memcpy(&word, static_cast<const unsigned char*>(bytes) + at, sizeof word);
    check_address(word, what);
  }
}

}  // namespace knear
