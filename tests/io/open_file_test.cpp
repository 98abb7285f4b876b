// What is opened, and what is refused without waiting for it.
#include "knear/io/open_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "knear/core/error.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

class OpenFileTest : public FileTest {
 protected:
  std::string pipe() const {
    const std::string out = path("pipe");
    EXPECT_EQ(mkfifo(out.c_str(), 0600), 0);
    return out;
  }
  static std::string refusal(const std::string& path, int flags = O_RDONLY,
                             Accepted accepted = Accepted::files) {
    try {
      OpenFile file(path, flags, accepted);
      return "";
    } catch (const IoError& error) {
      return error.what();
    }
  }
};

TEST_F(OpenFileTest, ReadsARegularFile) {
  std::ofstream(path("a")) << "some words";
  OpenFile file(path("a"));
  EXPECT_EQ(file.size(), 10);
  char letters[5] = {};
  EXPECT_EQ(::read(file.number(), letters, 4), 4);
  EXPECT_STREQ(letters, "some");
  EXPECT_EQ(fcntl(file.number(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(file.number(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(read_beginning(path("a"), letters, 4));
  EXPECT_EQ(read_all(path("a"), 10), "some words");
  EXPECT_THROW(read_all(path("a"), 9), MemoryBudgetError);
  char more[11];
  EXPECT_FALSE(read_beginning(path("a"), more, sizeof more));
  const int number = OpenFile(path("a")).release();
  EXPECT_EQ(close(number), 0);
}

TEST_F(OpenFileTest, MakesAFile) {
  EXPECT_EQ(refusal(path("new"), O_RDWR),
            "cannot write '" + path("new") + "': No such file or directory");
  { OpenFile file(path("new"), O_RDWR | O_CREAT); }
  EXPECT_EQ(refusal(path("new"), O_RDWR | O_CREAT), "");
}

TEST_F(OpenFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(refusal(path("none")), "cannot open '" + path("none") + "': No such file or directory");
  EXPECT_EQ(refusal(folder_.string()), "cannot read '" + folder_.string() + "': is a directory");
  EXPECT_EQ(refusal("/dev/zero"), "cannot read '/dev/zero': is not a regular file");
  EXPECT_EQ(refusal("/dev/zero", O_RDONLY, Accepted::files_and_pipes), refusal("/dev/zero"));
  const std::string fifo = pipe();
  EXPECT_EQ(refusal(fifo), "cannot read '" + fifo + "': is not a regular file");
  EXPECT_EQ(refusal(fifo, O_RDWR), "cannot write '" + fifo + "': is not a regular file");
  char letter;
  EXPECT_FALSE(read_beginning(fifo, &letter, 1));
  EXPECT_FALSE(read_beginning(path("none"), &letter, 1));
}

TEST_F(OpenFileTest, ReadsAPipeWhereThatIsAccepted) {
  const std::string fifo = pipe();
  EXPECT_EQ(read_all(fifo, 100, Accepted::files_and_pipes), "");  // it has no writer
  // A writer that takes its time. `held` keeps the pipe open until the writer has opened it.
  const int held = open(fifo.c_str(), O_RDWR);
  std::thread writer([&] {
    std::ofstream out(fifo);
    close(held);
    usleep(50000);
    out << "late words";
  });
  EXPECT_EQ(read_all(fifo, 100, Accepted::files_and_pipes), "late words");
  writer.join();
}

}  // namespace
}  // namespace knear::io
