// knear/io/mapped_pages.hpp -- a limit on what mapped files take of a process.
//
//   MappedPages pages(1 << 30);
//   pages.add(base.data());       // as long as `pages` lives, the file must stay mapped
//
// Pages of a mapped file stay with the process that has read them, though they are the system's
// copy of what is on disk. A thread looks twenty times a second how many pages of files are
// resident, and gives those of the files that were added back when they are more than the limit:
// who reads them again gets them from the page cache, or from disk if memory was short. Between two
// looks a few hundred megabytes may come above the limit.
#pragma once
#include <cstdint>
#include <memory>

namespace knear::io {

class MappedPages {
 public:
  // limit: bytes of mapped files that may be resident.
  explicit MappedPages(std::int64_t limit);
  ~MappedPages();
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;

  // Adds what is mapped around an address. Returns false, and adds nothing, where that is no file,
  // or one of which pages were or may be changed in memory alone. Any thread.
  bool add(const void* at);
  // Gives all pages of the files back now.
  void give_back();

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

// Of a mapped file that is read here and there, from now on: the system reads a page from disk when
// it is used, without those around it, which may be megabytes. Returns false where there is no such
// file at the address.
bool read_by_page(const void* at);
// That as long as this lives.
class ReadingByPage {
 public:
  explicit ReadingByPage(const void* at) : at_(at) { read_by_page(at); }
  ~ReadingByPage();
  ReadingByPage(const ReadingByPage&) = delete;
  ReadingByPage& operator=(const ReadingByPage&) = delete;

 private:
  const void* const at_;
};
// Begins to read so many bytes of a mapped file, which will be used soon. Bytes that are in no file
// are left alone.
void read_ahead(const void* begin, std::int64_t bytes);

}  // namespace knear::io
