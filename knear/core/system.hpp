// knear/core/system.hpp -- what the library asks of the operating system and POSIX has no word for,
// or another one on each system: nothing else in it asks which system this is, but for core/cpu.
//
// system_linux.cpp answers by what Linux has. system_posix.cpp answers on any other system, macOS
// among them, by what all have: where there is nothing, a wish is not fulfilled, a number is not
// known, and callers do without it. The CMake option KNEAR_POSIX_ONLY takes the latter on Linux
// too, where it can be tested.
#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace knear::detail {

// ---- memory ---

// Wishes for large pages under new memory, whose first use is then faster; may do nothing.
void want_large_pages(void* memory, std::size_t bytes);
// Gives memory that was freed back to the system, which allocators keep for what comes next: after
// building that took far more than what it leaves. Takes milliseconds; may do nothing.
void give_back_freed_memory();
// Bytes that nobody uses, not even as a copy of a file; nullopt where the system does not say.
std::optional<std::int64_t> unused_memory();
// Bytes that could be allocated now, copies of files given back; nullopt likewise.
std::optional<std::int64_t> available_memory();
// Of the cache of a level, 1 to 4, of one core or shared; 0: there is none, or nobody says.
std::int64_t cache_size(int level);

// ---- processors ---

// The processors on which a thread may run: bit i % 64 of word i / 64 is processor i.
struct CpuMask {
  static constexpr int most = 1024;
  std::array<std::uint64_t, most / 64> words{};

  bool has(int cpu) const { return words[std::size_t(cpu) / 64] >> (cpu % 64) & 1; }
  void add(int cpu) { words[std::size_t(cpu) / 64] |= std::uint64_t{1} << (cpu % 64); }
  int count() const {
    int out = 0;
    for (const std::uint64_t word : words) out += std::popcount(word);
    return out;
  }
  bool operator==(const CpuMask&) const = default;
};
// Of the calling thread, and of the one that the process began with. nullopt where the system does
// not say, or counts more processors than a mask holds.
std::optional<CpuMask> cpus_of_thread();
std::optional<CpuMask> cpus_of_first_thread();
// Keeps the calling thread on these. Returns whether it does.
bool stay_on_cpus(const CpuMask& cpus);

// "Intel(R) Xeon(R) ...": what the system calls the processor; empty: it does not say.
std::string processor_model();
// Clocks of the fastest processor, in Hz; 0: the system does not say.
struct ProcessorClocks {
  double highest = 0;  // that it may reach for a moment
  double nominal = 0;  // without its boost, or the current one
};
ProcessorClocks processor_clocks();

// ---- files ---

// Brings what was written to a file to disk: its bytes and size, and with sync_file() all that
// the system knows of it. A folder may be synced too. Return 0, or -1 with errno as fsync() does.
int sync_data(int file);
int sync_file(int file);
// Brings some bytes of a file to disk, so that syncing it later takes less long. Returns false
// where the system cannot: nothing is lost.
bool send_to_disk(int file, std::int64_t at, std::size_t bytes);

// A new file without a name in a folder, to be written; -1: the system or the folder has none such,
// or could not give it a name later. It ends with the process unless name_file() gives it one,
// which returns 0, or -1 with errno as link() does.
int open_file_without_name(const char* folder);
int name_file(int file, const char* name);

// ---- processes, random numbers ---

// The path of the program that runs; empty: the system does not say.
std::string program_path();
// A pipe whose ends a started program does not inherit. Returns 0, or -1 with errno as pipe() does.
int open_pipe(int ends[2]);
// Closes all files from this number on: for a child process, so without taking memory.
void close_files_from(int first);
// A random number; throws IoError where the system gives none.
std::uint64_t random_number();

}  // namespace knear::detail
