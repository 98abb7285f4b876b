// knear/io/lost_pages.hpp -- mapped files whose pages can no longer be read.
//
//   io::handle_lost_pages(io::LostPages::end_process);      // a program; never the library
//   io::handle_lost_pages(io::LostPages::read_as_zeros);    // a server
//   for (const io::LostFile& file : io::lost_files()) ...   // while one of its mappings lives
//
// A file that another program truncates while it is mapped, or whose disk fails, raises SIGBUS in
// the thread that reads a missing page, and the process ends without a word. The handler here knows
// the files that are mapped. It either ends the process with one line and status 1, or puts zeros
// in place of the missing pages and notes the file, so that a server can drop what it read from it
// and goes on. SIGBUS anywhere else keeps its former effect.
//
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace knear::io {

enum class LostPages { end_process, read_as_zeros };

// Installs the handler, or changes what it does.
void handle_lost_pages(LostPages how);

// Makes a mapping known to the handler for the lifetime of this object. Movable.
class KnownMapping {
 public:
  KnownMapping() noexcept;
  // bytes of a file that are mapped at `begin`; path is for messages.
  KnownMapping(const void* begin, std::size_t bytes, const std::string& path);
  ~KnownMapping();
  KnownMapping(KnownMapping&& other) noexcept;
  KnownMapping& operator=(KnownMapping&& other) noexcept;

 private:
  struct Known;
  std::unique_ptr<Known> known_;
};

// A file of which pages were read as zeros.
struct LostFile {
  std::string path;
  std::uint64_t number = 0;  // number of its mapping, in the order in which they were made
};
// Files whose mapping still exists. Costs nothing while no page was ever lost.
std::vector<LostFile> lost_files();
// The number that the next mapping gets.
std::uint64_t next_mapping();

}  // namespace knear::io
