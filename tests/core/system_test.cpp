// What is asked of the system, in the form that the library has here and in the one for systems
// other than Linux: the same test is linked to either (tests/CMakeLists.txt).
#include "knear/core/system.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>

namespace knear::detail {
namespace {

namespace fs = std::filesystem;

class SystemFiles : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/knear-system-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(SystemFiles, AreSynced) {
  const int file = open((folder_ / "a").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  ASSERT_GE(file, 0);
  ASSERT_EQ(write(file, "abc", 3), 3);
  send_to_disk(file, 0, 3);  // a file system need not know how
  EXPECT_EQ(sync_data(file), 0);
  EXPECT_EQ(sync_file(file), 0);
  close(file);
  EXPECT_EQ(sync_file(file), -1);
  EXPECT_EQ(errno, EBADF);
}

TEST_F(SystemFiles, WithoutANameGetOneOrAreNone) {
  const int file = open_file_without_name(folder_.c_str());
  EXPECT_TRUE(fs::is_empty(folder_));
  if (file < 0) {
    EXPECT_EQ(name_file(0, (folder_ / "a").c_str()), -1);
    return;  // this system has none such
  }
  ASSERT_EQ(write(file, "abc", 3), 3);
  const fs::path name = folder_ / "a";
  EXPECT_EQ(name_file(file, name.c_str()), 0);
  EXPECT_EQ(name_file(file, name.c_str()), -1);
  EXPECT_EQ(errno, EEXIST);
  close(file);
  EXPECT_EQ(fs::file_size(name), 3U);
}

TEST(System, PipesAreNotInherited) {
  int ends[2];
  ASSERT_EQ(open_pipe(ends), 0);
  for (const int end : ends) EXPECT_NE(fcntl(end, F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(write(ends[1], "x", 1), 1);
  char got = 0;
  EXPECT_EQ(read(ends[0], &got, 1), 1);
  EXPECT_EQ(got, 'x');
  close(ends[0]), close(ends[1]);
}

TEST(SystemDeathTest, FilesAreClosedFromANumberOn) {
  EXPECT_EXIT(
      {
        const int file = dup(1);
        close_files_from(3);
        _exit(file >= 3 && fcntl(file, F_GETFD) == -1 && fcntl(1, F_GETFD) != -1 ? 7 : 1);
      },
      testing::ExitedWithCode(7), "");
}

TEST(System, RandomNumbersDiffer) {
  const std::uint64_t a = random_number(), b = random_number();
  EXPECT_NE(a, b);
}

TEST(System, ProcessorsOfAThreadCanBeLimited) {
  const auto all = cpus_of_thread();
  if (!all) {
    EXPECT_FALSE(cpus_of_first_thread());
    EXPECT_FALSE(stay_on_cpus(CpuMask{}));
    return;  // this system does not say
  }
  ASSERT_GT(all->count(), 0);
  EXPECT_EQ(cpus_of_first_thread(), all);
  CpuMask last;
  for (int cpu = 0; cpu < CpuMask::most; ++cpu)
    if (all->has(cpu)) last = {}, last.add(cpu);
  ASSERT_TRUE(stay_on_cpus(last));
  EXPECT_EQ(cpus_of_thread(), last);
  EXPECT_EQ(last.count(), 1);
  EXPECT_TRUE(stay_on_cpus(*all));
  EXPECT_EQ(cpus_of_thread(), all);
}

TEST(System, NumbersAreOfARealMachine) {
  for (int level = 1; level <= 4; ++level) EXPECT_GE(cache_size(level), 0);
  EXPECT_GT(available_memory().value_or(1), 0);
  EXPECT_GT(unused_memory().value_or(1), 0);
  const std::string program = fs::path(program_path()).filename().string();
  EXPECT_TRUE(program.empty() || program.starts_with("system_")) << program;
  std::string memory(1 << 20, 'x');
  want_large_pages(memory.data(), memory.size());
  EXPECT_EQ(memory, std::string(1 << 20, 'x'));
}

}  // namespace
}  // namespace knear::detail
