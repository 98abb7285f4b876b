// The log of changes: what is read back, what is cut off and what is damage, byte by byte.
#include "knear/serve/change_log.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::serve {
namespace {

namespace fs = std::filesystem;

class ChangeLogTest : public io::FileTest {
 protected:
  std::string path() const { return folder_ + "/a.log-1"; }

  static Change add(std::vector<Id> ids, float value) {
    Change out{.kind = ChangeKind::add, .ids = std::move(ids)};
    out.vectors = AnyMatrix(ElementType::f32, std::ssize(out.ids), 3);
    for (std::int64_t i = 0; i < out.vectors.rows(); ++i)
      std::fill_n(static_cast<float*>(out.vectors.row(i)), 3, value + static_cast<float>(i));
    return out;
  }
  static Change remove(std::vector<Id> ids) {
    return {.kind = ChangeKind::remove, .ids = std::move(ids)};
  }
  std::vector<char> bytes() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::vector<char>& content) const {
    std::ofstream(path(), std::ios::binary).write(content.data(), std::ssize(content));
  }

  const std::string folder_ = FileTest::folder_.string();
};

TEST_F(ChangeLogTest, ChangesComeBackInOrder) {
  {
    ChangeLog log = ChangeLog::create(path(), {.number = 1, .origin = 5, .dim = 3}, 77);
    const Change first[] = {add({4, 9}, 1.5f), remove({4})};
    log.append(first);
    Change second = add({9}, -2);
    second.kind = ChangeKind::replace;
    log.append({&second, 1});
    EXPECT_EQ(log.changes(), 3);
    EXPECT_EQ(log.bytes(), static_cast<std::int64_t>(fs::file_size(path())));
  }
  std::vector<Change> found;
  const LogContent content = read_log(path(), [&](Change c) { found.push_back(std::move(c)); });
  EXPECT_EQ(content.head.number, 1u);
  EXPECT_EQ(content.head.origin, 5u);
  EXPECT_EQ(content.base, 77u);
  EXPECT_EQ(content.frames, 2);
  EXPECT_EQ(content.cut, 0);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].ids, (std::vector<Id>{4, 9}));
  EXPECT_EQ(static_cast<const float*>(found[0].vectors.view().row(1))[2], 2.5f);
  EXPECT_EQ(found[1].kind, ChangeKind::remove);
  EXPECT_EQ(found[2].kind, ChangeKind::replace);
}

TEST_F(ChangeLogTest, ABaseCanBeNamedLater) {
  ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, {});
  const Change change = add({1}, 0);
  log.append({&change, 1});
  EXPECT_FALSE(read_log(path()).base.has_value());
  log.set_base(99);
  EXPECT_EQ(read_log(path()).base, 99u);
  EXPECT_EQ(read_log(path()).changes, 1);
}

// Vectors are what callers say, and may be the bytes of a frame.
TEST_F(ChangeLogTest, AFrameInVectorsOfAnEndThatIsNotWholeIsNoDamage) {
  Change change = add({1, 2, 3, 4, 5, 6, 7, 8}, 0);
  {
    ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, 1);
    const Change one = remove({1});
    for (int i = 0; i < 2; ++i) log.append({&one, 1});
    const auto before = static_cast<std::size_t>(log.bytes());
    log.append({&one, 1});
    const std::vector<char> all = bytes();
    ASSERT_LE(all.size() - before, 8 * 3 * sizeof(float));
    std::memcpy(change.vectors.row(0), all.data() + before, all.size() - before);
  }
  ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, 1);
  const Change first = add({9}, 0);
  log.append({&first, 1});
  const std::int64_t whole = log.bytes();
  log.append({&change, 1});
  std::vector<char> cut = bytes();
  cut.pop_back();
  write(cut);
  const LogContent content = read_log(path());
  EXPECT_EQ(content.changes, 1);
  EXPECT_EQ(content.end, whole);
}

// A kill in the middle of writing leaves a beginning of the last frame, whole up to any byte.
TEST_F(ChangeLogTest, AnEndThatIsNotWholeIsCutOff) {
  std::int64_t whole = 0;
  {
    ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, 1);
    const Change a = add({1, 2}, 0), b = add({3}, 5);
    log.append({&a, 1});
    whole = log.bytes();
    log.append({&b, 1});
  }
  const std::vector<char> all = bytes();
  for (std::size_t size = static_cast<std::size_t>(whole); size < all.size(); ++size) {
    write({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size)});
    const LogContent content = read_log(path());
    ASSERT_EQ(content.changes, 1) << size;
    ASSERT_EQ(content.end, whole);
    ASSERT_EQ(content.cut, static_cast<std::int64_t>(size) - whole);
  }
  // Blocks of which only some reached the disk.
  for (std::size_t at = static_cast<std::size_t>(whole); at < all.size(); ++at) {
    std::vector<char> altered = all;
    altered[at] ^= 0x40;
    write(altered);
    ASSERT_EQ(read_log(path()).changes, 1) << at;
  }
  // It goes on where the whole part ends.
  write({all.begin(), all.end() - 3});
  {
    ChangeLog log = ChangeLog::open(path(), read_log(path()));
    EXPECT_EQ(static_cast<std::int64_t>(fs::file_size(path())), whole);
    const Change c = remove({2});
    log.append({&c, 1});
  }
  const LogContent content = read_log(path());
  EXPECT_EQ(content.changes, 2);
  EXPECT_EQ(content.cut, 0);
}

TEST_F(ChangeLogTest, DamageBeforeAWholeFrameIsAnError) {
  std::size_t first_end = 0;
  {
    ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, 1);
    const Change a = add({1, 2}, 0), b = add({3}, 5);
    log.append({&a, 1});
    first_end = static_cast<std::size_t>(log.bytes());
    log.append({&b, 1});
  }
  const std::vector<char> all = bytes();
  for (std::size_t at = 8192; at < first_end; ++at) {
    std::vector<char> altered = all;
    altered[at] ^= 0x10;
    write(altered);
    ASSERT_THROW(read_log(path()), CorruptFile) << at;
  }
  for (std::size_t at = 0; at < 40; ++at) {  // the head
    std::vector<char> altered = all;
    altered[at] ^= 0x10;
    write(altered);
    ASSERT_THROW(read_log(path()), CorruptFile) << at;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{39}, std::size_t{4096}}) {
    write({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size)});
    ASSERT_THROW(read_log(path()), CorruptFile) << size;
  }
  // The block that names the base: not written, as far as anybody can tell.
  std::vector<char> altered = all;
  altered[4096 + 17] ^= 1;
  write(altered);
  EXPECT_FALSE(read_log(path()).base.has_value());
  EXPECT_EQ(read_log(path()).changes, 2);
}

TEST_F(ChangeLogTest, ItCanBeMovedAndRefusesFoldersThatAreNotThere) {
  ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, 1);
  const Change a = add({1}, 0);
  log.append({&a, 1});
  ChangeLog moved = std::move(log);
  moved.append({&a, 1});
  EXPECT_EQ(read_log(path()).changes, 2);
  EXPECT_THROW(ChangeLog::create(folder_ + "/none/a.log-1", {.number = 1, .dim = 3}, 1), IoError);
  EXPECT_THROW(read_log(folder_ + "/none"), IoError);
}

}  // namespace
}  // namespace knear::serve
