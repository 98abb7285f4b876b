// Mapped files that are truncated while they are read: a line and an end, or zeros and a note.
#include "knear/io/lost_pages.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "knear/io/byte_source.hpp"
#include "knear/io/open_file.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

// Each runs in a child process, since the handler is the process's.
class LostPagesTest : public FileTest {
 protected:
  struct End {
    int status = -1, signal = 0;
    std::string errors;
  };
  template <class F>
  static End in_a_child(F f) {
    int errors[2];
    EXPECT_EQ(pipe(errors), 0);
    const pid_t child = fork();
    if (child == 0) {
      dup2(errors[1], STDERR_FILENO);
      _exit(f() ? 0 : 2);
    }
    close(errors[1]);
    End out;
    char part[4096];
    for (ssize_t got; (got = ::read(errors[0], part, sizeof part)) > 0;)
      out.errors.append(part, static_cast<std::size_t>(got));
    close(errors[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) out.status = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) out.signal = WTERMSIG(status);
    return out;
  }
  std::string pages(const std::string& name, std::size_t count) const {
    return write(name, std::string(count * page, 'x'));
  }
  static char read_byte(const MappedFile& file, std::size_t at) {
    return *reinterpret_cast<const volatile char*>(file.data() + at);
  }

  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
};

TEST_F(LostPagesTest, AProgramEndsWithALine) {
  const std::string name = pages("a", 5);
  const End end = in_a_child([&] {
    handle_lost_pages(LostPages::end_process);
    const MappedFile file(name);
    const bool was_there = read_byte(file, 4 * page) == 'x';
    std::filesystem::resize_file(name, 2 * page);
    return was_there && read_byte(file, page) == 'x' && read_byte(file, 3 * page + 7) == 'y';
  });
  EXPECT_EQ(end.status, 1) << end.signal;
  EXPECT_EQ(end.errors,
            fmt::format("knear: cannot read '{}' from byte {} on: it was truncated while it was in "
                        "use, or its disk failed\n",
                        name, 3 * page));
}

TEST_F(LostPagesTest, AServerReadsZerosAndIsTold) {
  const std::string name = pages("a", 5), other = pages("b", 5);
  const End end = in_a_child([&] {
    handle_lost_pages(LostPages::end_process);
    handle_lost_pages(LostPages::read_as_zeros);
    const std::uint64_t first = next_mapping();
    auto file = std::make_unique<MappedFile>(name);
    const MappedFile whole(other), again(name);
    if (!lost_files().empty()) return false;
    std::filesystem::resize_file(name, page + 1);
    // From the end to the beginning, then all again: a page is read once with a signal, and then
    // without.
    for (int round = 0; round < 2; ++round)
      for (std::size_t at = 5 * page; at-- > 0;)
        if (read_byte(*file, at) != (at < page + 1 ? 'x' : '\0')) return false;
    const std::vector<LostFile> lost = lost_files();
    if (lost.size() != 1 || lost[0].path != name || lost[0].number != first) return false;
    if (read_byte(whole, 4 * page) != 'x') return false;
    // A mapping that moved is the same one.
    MappedFile moved = std::move(*file);
    file.reset();
    if (lost_files().size() != 1 || read_byte(moved, 0) != 'x') return false;
    moved = MappedFile(other);
    return lost_files().empty() && read_byte(again, 0) == 'x';
  });
  EXPECT_EQ(end.status, 0) << end.signal << end.errors;
}

TEST_F(LostPagesTest, OtherMemoryKeepsTheUsualEffect) {
  const std::string name = pages("a", 3);
  const End end = in_a_child([&] {
    signal(SIGBUS, SIG_DFL);  // that of a sanitiser
    handle_lost_pages(LostPages::read_as_zeros);
    const OpenFile file(name);
    void* const at = mmap(nullptr, 3 * page, PROT_READ, MAP_PRIVATE, file.number(), 0);
    std::filesystem::resize_file(name, page);
    return static_cast<const volatile char*>(at)[2 * page] == 'x';
  });
  EXPECT_EQ(end.signal, SIGBUS);
  EXPECT_EQ(end.errors, "");
}

// The handler looks through the table while threads change it, which has room for any number.
TEST_F(LostPagesTest, ManyMappingsThatComeAndGo) {
  const std::string name = pages("a", 2), lost_name = pages("lost", 60);
  const End end = in_a_child([&] {
    handle_lost_pages(LostPages::read_as_zeros);
    std::vector<MappedFile> many;
    for (int i = 0; i < 600; ++i) many.emplace_back(name);
    const MappedFile lost(lost_name);
    std::atomic<bool> ends = false, failed = false;
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&] {
        while (!ends) {
          const MappedFile file(name);
          if (read_byte(file, page) != 'x') failed = true;
        }
      });
    std::filesystem::resize_file(lost_name, page);
    for (std::size_t at = 60; --at > 0;)
      if (read_byte(lost, at * page) != '\0') failed = true;
    ends = true;
    for (std::thread& thread : threads) thread.join();
    return !failed && lost_files().size() == 1 && read_byte(many.back(), page) == 'x';
  });
  EXPECT_EQ(end.status, 0) << end.signal << end.errors;
}

}  // namespace
}  // namespace knear::io
