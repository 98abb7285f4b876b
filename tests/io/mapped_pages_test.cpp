// io/mapped_pages.hpp: pages of files come to be given back, their contents stay, and what is no
// file is left alone.
#include "knear/io/mapped_pages.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace knear::io {
namespace {

constexpr std::size_t bytes = std::size_t{48} << 20;

class MappedPagesTest : public testing::Test {
 protected:
  MappedPagesTest() {
    std::string name = testing::TempDir() + "mapped-pages-XXXXXX";
    file_ = mkstemp(name.data());
    unlink(name.c_str());
    std::vector<unsigned char> block(1 << 20);
    for (std::size_t at = 0; at < bytes; at += block.size()) {
      for (std::size_t i = 0; i < block.size(); i += 4096)
        block[i] = static_cast<unsigned char>((at + i) / 4096);
      EXPECT_EQ(write(file_, block.data(), block.size()), static_cast<ssize_t>(block.size()));
    }
  }
  ~MappedPagesTest() override { close(file_); }

  unsigned char* map(int rights, int kind) const {
    void* const at = mmap(nullptr, bytes, rights, kind, file_, 0);
    EXPECT_NE(at, MAP_FAILED);
    return static_cast<unsigned char*>(at);
  }
  // How many pages do not hold what was written.
  static int wrong(const unsigned char* at) {
    int out = 0;
    for (std::size_t i = 0; i < bytes; i += 4096)
      out += at[i] != static_cast<unsigned char>(i / 4096);
    return out;
  }
  static std::int64_t resident() {
    std::ifstream statm("/proc/self/statm");
    std::int64_t size = 0, all = 0;
    statm >> size >> all;
    return all * sysconf(_SC_PAGESIZE);
  }

  int file_ = -1;
};

TEST_F(MappedPagesTest, are_given_back_beyond_the_limit_and_read_again) {
  const unsigned char* const at = map(PROT_READ, MAP_PRIVATE);
  MappedPages pages(1 << 20);
  ASSERT_TRUE(pages.add(at + bytes / 2));
  const std::int64_t before = resident();
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(wrong(at), 0);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (resident() > before + (std::int64_t{8} << 20) &&
           std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_LT(resident(), before + (std::int64_t{8} << 20));
  }
}

TEST_F(MappedPagesTest, leave_alone_what_has_no_file_behind_it) {
  MappedPages pages(0);
  const std::vector<int> memory(1 << 22, 7);
  EXPECT_FALSE(pages.add(memory.data()));
  EXPECT_FALSE(pages.add(nullptr));
  // Changed, or to be changed, in memory alone.
  unsigned char* const own = map(PROT_READ | PROT_WRITE, MAP_PRIVATE);
  EXPECT_FALSE(pages.add(own));
  own[4096] = 77;
  ASSERT_EQ(mprotect(own, bytes, PROT_READ), 0);
  EXPECT_FALSE(pages.add(own));
  // The file itself is changed through this one.
  unsigned char* const shared = map(PROT_READ | PROT_WRITE, MAP_SHARED);
  EXPECT_TRUE(pages.add(shared));
  shared[8192] = 99;
  pages.give_back();
  EXPECT_EQ(shared[8192], 99);
  EXPECT_EQ(own[4096], 77);
  EXPECT_EQ(memory[1 << 20], 7);
}

// How many pages of a stretch are in the page cache.
std::int64_t cached(const unsigned char* at, std::size_t count) {
  std::vector<unsigned char> in((count + 4095) / 4096);
  EXPECT_EQ(mincore(const_cast<unsigned char*>(at), count, in.data()), 0);
  return std::count_if(in.begin(), in.end(), [](unsigned char c) { return (c & 1) != 0; });
}

TEST_F(MappedPagesTest, come_one_by_one_or_as_they_are_asked_for) {
  const unsigned char* const at = map(PROT_READ, MAP_PRIVATE);
  fdatasync(file_);
  posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  if (cached(at, bytes) > 0) GTEST_SKIP() << "this file system keeps its pages";
  ASSERT_TRUE(read_by_page(at + 12345));
  EXPECT_EQ(at[20 << 20], static_cast<unsigned char>(20 << 8));
  EXPECT_LE(cached(at, bytes), 16);  // as many as are put into the page table at once
  // The pages that the stretch touches, soon, and not many more.
  read_ahead(at + (30 << 20) + 100, (1 << 20) - 100);
  for (int i = 0; i < 500 && cached(at + (30 << 20), 1 << 20) < 256; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(cached(at + (30 << 20), 1 << 20), 256);
  EXPECT_LE(cached(at, bytes), 256 + 32);
  EXPECT_EQ(wrong(at), 0);
  munmap(const_cast<unsigned char*>(at), bytes);
}

TEST(MappedPages, of_no_file_are_left_alone) {
  std::vector<char> memory(1 << 20, 7);
  EXPECT_FALSE(read_by_page(memory.data() + 5000));
  read_ahead(memory.data() + 5000, 100000);
  read_ahead(nullptr, 0);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), 7), 1 << 20);
}

}  // namespace
}  // namespace knear::io
