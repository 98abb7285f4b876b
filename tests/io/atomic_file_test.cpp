// AtomicFile: the new file whole, or the old one untouched and nothing beside it.
#include "knear/io/atomic_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include "knear/core/matrix.hpp"
#include "knear/io/vectors.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

class AtomicFiles : public FileTest {
 protected:
  void write_atomically(const std::string& name, const std::string& bytes) const {
    AtomicFile file(path(name));
    file.write(bytes.data(), bytes.size());
    file.commit();
  }
  int mode(const std::string& name) const {
    struct stat status;
    return stat(path(name).c_str(), &status) == 0 ? status.st_mode & 07777 : -1;
  }
};

TEST_F(AtomicFiles, CommitPutsTheFileInPlace) {
  for (const std::size_t size : {0u, 1u, 1u << 20, (1u << 20) + 1, 5u << 20}) {
    const std::string bytes(size, 'x');
    write_atomically("a", bytes);
    EXPECT_EQ(read("a"), bytes);
    EXPECT_EQ(file_count(), 1);
  }
}

TEST_F(AtomicFiles, SpaceIsCheckedInTheFolderOfTheFile) {
  const auto free = std::filesystem::space(path(".")).available;
  EXPECT_NO_THROW(check_free_space(path("a"), 0, "vectors"));
  EXPECT_NO_THROW(check_free_space(path("a"), static_cast<std::int64_t>(free / 2), "vectors"));
  const std::int64_t much = std::int64_t{1} << 62;
  expect_error<IoError>([&] { check_free_space(path("a"), much, "vectors"); },
                        path("a") + ": vectors take 4611686018427387904 bytes, but ");
  // Of what isn't there nothing is known: the file that cannot be made says why.
  EXPECT_NO_THROW(check_free_space(path("none/a"), much, "vectors"));
  EXPECT_EQ(file_count(), 0);
}

TEST_F(AtomicFiles, ManySmallWritesArriveInOrder) {
  std::string expected;
  AtomicFile file(path("a"));
  for (int i = 0; i < 300000; ++i) {
    const std::string part = raw(i) + std::string(size_t(i % 7), 'x');
    file.write(part.data(), part.size());
    expected += part;
  }
  file.commit();
  EXPECT_EQ(read("a"), expected);
}

TEST_F(AtomicFiles, NothingIsSeenBeforeCommitAndNothingIsLeftWithoutIt) {
  write("a", "old");
  try {
    AtomicFile file(path("a"));
    const std::string bytes(3 << 20, 'x');
    file.write(bytes.data(), bytes.size());
    EXPECT_EQ(read("a"), "old");
    throw std::runtime_error("the writer failed");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(read("a"), "old");
  EXPECT_EQ(file_count(), 1);
}

TEST_F(AtomicFiles, AWriterThatThrowsLeavesTheOldFile) {
  Matrix<Id> ids(100, 2);
  ids.row(99)[1] = std::int64_t{1} << 40;  // found out at the very end
  write("a.ivecs", "old");
  EXPECT_THROW(write_ids(path("a.ivecs"), ids), InvalidArgument);
  EXPECT_EQ(read("a.ivecs"), "old");
  EXPECT_EQ(file_count(), 1);
}

TEST_F(AtomicFiles, AKilledProcessLeavesTheOldFileWhole) {
  write("a", "old");
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(path("a"));
    const std::string bytes(3 << 20, 'x');
    file.write(bytes.data(), bytes.size());
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read("a"), "old");
}

// A process that is killed between the last two steps, naming and renaming, leaves a temporary with
// a name.
TEST_F(AtomicFiles, WhatAKilledProcessLeftIsRemovedByTheNextWriteOfTheFile) {
  const std::string left[] = {"a.tmp-0123456789ab", "a.tmp-ffffffffffff"};
  // Files of others: of another path, and names that are none of a temporary.
  const std::string others[] = {"b.tmp-0123456789ab", "a.tmp-0123456789abc", "a.tmp-0123456789aB",
                                "aa.tmp-0123456789ab", "a.tmp-"};
  for (const std::string& name : left) write(name, "xyz");
  for (const std::string& name : others) write(name, "xyz");
  // Neither a link nor a folder is a temporary.
  write("target", "xyz");
  std::filesystem::create_symlink("target", path("a.tmp-00000000000a"));
  std::filesystem::create_directory(path("a.tmp-00000000000b"));
  write_atomically("a", "new");
  for (const std::string& name : left) EXPECT_FALSE(std::filesystem::exists(path(name))) << name;
  for (const std::string& name : others) EXPECT_EQ(read(name), "xyz") << name;
  EXPECT_EQ(read("target"), "xyz");
  EXPECT_EQ(read("a"), "new");
  EXPECT_EQ(file_count(), 1 + std::ssize(others) + 3);
  // Through a link too, beside the target.
  std::filesystem::create_symlink("a", path("link"));
  write(left[0], "xyz");
  write_atomically("link", "newer");
  EXPECT_FALSE(std::filesystem::exists(path(left[0])));
}

TEST_F(AtomicFiles, ATemporaryWhoseWriterLivesStays) {
  const std::string held = write("a.tmp-0123456789ab", "xyz");
  int ready[2], end[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(end), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int file = open(held.c_str(), O_RDWR);
    char byte = flock(file, LOCK_EX) == 0;
    if (::write(ready[1], &byte, 1) != 1) _exit(1);
    _exit(::read(end[0], &byte, 1) == 1 ? 0 : 1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 1);
  write_atomically("a", "new");
  EXPECT_EQ(read("a.tmp-0123456789ab"), "xyz");
  ASSERT_EQ(::write(end[1], &byte, 1), 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  write_atomically("a", "newer");
  EXPECT_FALSE(std::filesystem::exists(held));
  for (const int pipe_end : {ready[0], ready[1], end[0], end[1]}) close(pipe_end);
}

// Each removes what others have left, and never what another is about to rename.
TEST_F(AtomicFiles, ManyWritersOfOnePathAtATime) {
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) try {
          write_atomically("a", std::string(100, static_cast<char>('a' + t)));
        } catch (const IoError&) {
          ++failed;
        }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(read("a"), std::string(100, read("a")[0]));
  EXPECT_EQ(file_count(), 1);
}

TEST_F(AtomicFiles, PermissionsAreKeptOrThoseOfTheUmask) {
  const mode_t mask = umask(027);
  write_atomically("new", "x");
  umask(mask);
  EXPECT_EQ(mode("new"), 0640);
  write("old", "x");
  chmod(path("old").c_str(), 0604);
  write_atomically("old", "y");
  EXPECT_EQ(mode("old"), 0604);
}

TEST_F(AtomicFiles, ASymbolicLinkStaysOne) {
  std::filesystem::create_directory(path("folder"));
  write("folder/target", "old");
  std::filesystem::create_symlink("folder/target", path("link"));
  write_atomically("link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
  EXPECT_EQ(read("folder/target"), "new");
}

TEST_F(AtomicFiles, RelativePathsAreTakenFromTheCurrentFolder) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_);
  AtomicFile file("a");
  file.write("x", 1);
  file.commit();
  std::filesystem::current_path(before);
  EXPECT_EQ(read("a"), "x");
}

TEST_F(AtomicFiles, WhatIsNoPlainFileIsNotReplaced) {
  expect_error<IoError>([] { AtomicFile file("/dev/null"); }, "is not a regular file");
  expect_error<IoError>([&] { AtomicFile file(folder_.string()); }, "is a directory");
  expect_error<IoError>([&] { AtomicFile file(path("none/a")); }, "No such file");
  expect_error<IoError>([] { AtomicFile file(""); }, "No such file");
  expect_error<IoError>([&] { AtomicFile file(path("none/")); }, "directory");
}

TEST_F(AtomicFiles, ANameThatIsTooLongIsRefusedAtOnce) {
  EXPECT_THROW(AtomicFile(path(std::string(300, 'x'))), IoError);
  // That of the temporary file is longer.
  EXPECT_THROW(AtomicFile(path(std::string(239, 'x'))), IoError);
  write_atomically(std::string(238, 'x'), "y");
  std::filesystem::remove(path(std::string(238, 'x')));
  EXPECT_EQ(file_count(), 0);
}

TEST_F(AtomicFiles, NoPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everything";
  write("a", "old");
  chmod(path("a").c_str(), 0400);
  expect_error<IoError>([&] { AtomicFile file(path("a")); }, "Permission denied");
}

// A limit on the size of files stands in for a full disk: write() fails in the middle of the data.
TEST_F(AtomicFiles, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  write("a.npy", "old");
  void (*const handler)(int) = signal(SIGXFSZ, SIG_IGN);
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 2 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    write_vectors(path("a.npy"), AnyMatrix(ElementType::f32, 1000, 1000));
  } catch (const IoError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(message, fmt::format("cannot write '{}': File too large", path("a.npy")));
  EXPECT_EQ(read("a.npy"), "old");
  EXPECT_EQ(file_count(), 1);
}

}  // namespace
}  // namespace knear::io
