// The log of changes: what is read back, what is cut off and what is damage, byte by byte.
#include "knear/serve/change_log.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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
    fs::remove(path());  // a file that is truncated and written again may be flushed to disk
    std::ofstream(path(), std::ios::binary).write(content.data(), std::ssize(content));
  }

  // The bytes of a log whose process was killed before it answered the last change: its marks are
  // still those of `before`.
  static std::vector<char> unanswered(std::vector<char> all, const std::vector<char>& before) {
    std::copy(before.begin() + marks_at, before.begin() + marks_at + marks_bytes,
              all.begin() + marks_at);
    return all;
  }
  static std::vector<char> first_of(const std::vector<char>& all, std::size_t size) {
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size)};
  }
  // The log after 0, 1, ... changes: the bytes of all of them.
  template <class... Changes>
  std::vector<std::vector<char>> states(const Changes&... changes) const {
    ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, 1);
    std::vector<std::vector<char>> out{bytes()};
    for (const Change* const change : {&changes...}) {
      log.append({change, 1});
      out.push_back(bytes());
    }
    return out;
  }

  static constexpr std::ptrdiff_t marks_at = 5120, marks_bytes = 40;
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

// Vectors are what callers say, and may be the bytes of a frame of another log.
TEST_F(ChangeLogTest, AFrameInVectorsOfAnEndThatIsNotWholeIsNoDamage) {
  Change change = add({1, 2, 3, 4, 5, 6, 7, 8}, 0);
  {
    const std::vector<std::vector<char>> logs = states(remove({1}), remove({1}), remove({1}));
    const std::size_t before = logs[2].size(), count = logs[3].size() - before;
    ASSERT_LE(count, 8 * 3 * sizeof(float));
    std::memcpy(change.vectors.row(0), logs[3].data() + before, count);
  }
  const std::vector<std::vector<char>> logs = states(add({9}, 0), change);
  std::vector<char> cut = unanswered(logs[2], logs[1]);
  cut.pop_back();
  write(cut);
  const LogContent content = read_log(path());
  EXPECT_EQ(content.changes, 1);
  EXPECT_EQ(content.end, std::ssize(logs[1]));
}

// A kill in the middle of writing leaves a beginning of the last frame, of any length.
TEST_F(ChangeLogTest, AnEndThatIsCutShortIsKeptBesideTheLog) {
  const auto logs = states(add({1, 2}, 0), add({3}, 5));
  const std::vector<char> all = unanswered(logs[2], logs[1]);
  const std::size_t whole = logs[1].size();
  for (std::size_t size = whole; size < all.size(); ++size) {
    write(first_of(all, size));
    const LogContent content = read_log(path());
    ASSERT_EQ(content.changes, 1) << size;
    ASSERT_EQ(content.end, static_cast<std::int64_t>(whole));
    ASSERT_EQ(content.cut, static_cast<std::int64_t>(size - whole));
  }
  // The whole frame that was not answered counts.
  write(all);
  EXPECT_EQ(read_log(path()).changes, 2);
  // It goes on where the whole part ends, and what was cut off is kept, each time in a new file.
  for (const char* const ending : {".cut", ".cut-2", ".cut-3"}) {
    write(first_of(all, all.size() - 3));
    ChangeLog log = ChangeLog::open(path(), read_log(path()));
    EXPECT_EQ(fs::file_size(path()), whole);
    EXPECT_EQ(log.cut_file(), path() + ending);
    EXPECT_EQ(read("a.log-1" + std::string(ending)),
              std::string(all.begin() + std::ptrdiff_t(whole), all.end() - 3));
    const Change c = remove({2});
    log.append({&c, 1});
  }
  const LogContent content = read_log(path());
  EXPECT_EQ(content.changes, 2);
  EXPECT_EQ(content.cut, 0);
  EXPECT_EQ(ChangeLog::open(path(), content).cut_file(), "");
}

// What a kill cannot leave: the end was answered, and was on disk.
TEST_F(ChangeLogTest, AnEndThatWasAnsweredAndIsMissingIsDamage) {
  const auto logs = states(add({1, 2}, 0), add({3}, 5));
  for (std::size_t size = logs[0].size(); size < logs[2].size(); ++size) {
    write(first_of(logs[2], size));
    const std::string missing = size < logs[1].size() ? "has 0 changes, up to byte 8192, but 2 were"
                                                      : "has 1 changes, up to byte 83";
    io::expect_error<CorruptFile>([&] { read_log(path()); }, missing);
  }
}

TEST_F(ChangeLogTest, AnEndThatIsAlteredIsDamage) {
  const auto logs = states(add({1, 2}, 0), add({3}, 5));
  const std::vector<char> all = unanswered(logs[2], logs[1]);
  const std::size_t whole = logs[1].size();
  for (std::size_t at = whole; at < all.size(); ++at) {
    std::vector<char> altered = all;
    altered[at] ^= 0x40;
    write(altered);
    ASSERT_THROW(read_log(path()), CorruptFile) << at;
    // Bytes that a kill has cut short begin as a frame does.
    write(first_of(altered, std::min(at + 1, whole + 24)));
    if (at < whole + 24) {
      ASSERT_THROW(read_log(path()), CorruptFile) << at;
    }
  }
  for (std::size_t zeros = 1; zeros <= all.size() - whole; ++zeros) {
    std::vector<char> altered = all;
    std::fill(altered.end() - static_cast<std::ptrdiff_t>(zeros), altered.end(), 0);
    if (altered == all) continue;  // the last bytes are zeros
    write(altered);
    ASSERT_THROW(read_log(path()), CorruptFile) << zeros;
  }
  std::vector<char> more = all;
  more.resize(all.size() + 4096);
  write(more);
  io::expect_error<CorruptFile>([&] { read_log(path()); },
                                fmt::format("is altered at byte {}", all.size()));
}

// Of four frames the third is missing, or a part of it, or stands twice.
TEST_F(ChangeLogTest, BytesThatAreMissingOrThereTwiceAreDamage) {
  const auto logs = states(add({1, 2}, 0), add({3}, 5), add({4, 5, 6, 7, 8, 9}, 6), remove({1}));
  // The marks say nothing of the last three frames.
  const std::vector<char> all = unanswered(logs[4], logs[1]);
  const auto begin = static_cast<std::ptrdiff_t>(logs[2].size()),
             end = static_cast<std::ptrdiff_t>(logs[3].size());
  for (std::ptrdiff_t first = begin; first < end; ++first)
    for (const std::ptrdiff_t last : {first + 1, std::min(first + 8, end), end}) {
      std::vector<char> altered = all;
      altered.erase(altered.begin() + first, altered.begin() + last);
      write(altered);
      ASSERT_THROW(read_log(path()), CorruptFile) << first << " " << last;
    }
  // So much of it that the rest and the frame after it are shorter than it was: it seems cut short.
  std::vector<char> altered = all;
  altered.erase(altered.begin() + begin + 60, altered.begin() + end);
  write(altered);
  io::expect_error<CorruptFile>(
      [&] { read_log(path()); },
      fmt::format("lacks bytes of frame 2, which begins at byte {}: another one begins at byte {}",
                  begin, begin + 60));
  altered = all;
  altered.erase(altered.begin() + begin, altered.begin() + end);
  write(altered);
  io::expect_error<CorruptFile>([&] { read_log(path()); },
                                fmt::format("has frame 3 at byte {}, where frame 2 has", begin));
  // As the last frame, whole and cut short.
  write(first_of(altered, altered.size() - 3));
  io::expect_error<CorruptFile>([&] { read_log(path()); }, "has frame 3 at byte");
  altered = all;
  altered.insert(altered.begin() + end, all.begin() + begin, all.begin() + end);
  write(altered);
  io::expect_error<CorruptFile>([&] { read_log(path()); },
                                fmt::format("has frame 2 at byte {}, where frame 3 has", end));
}

TEST_F(ChangeLogTest, DamageBeforeAWholeFrameIsAnError) {
  const auto logs = states(add({1, 2}, 0), add({3}, 5));
  const std::vector<char>& all = logs[2];
  const auto refused = [&](std::size_t at) {
    std::vector<char> altered = all;
    altered[at] ^= 0x10;
    write(altered);
    ASSERT_THROW(read_log(path()), CorruptFile) << at;
  };
  for (std::size_t at = 8192; at < all.size(); ++at) refused(at);
  for (std::size_t at = 0; at < 48; ++at) refused(at);  // the head
  for (std::size_t at = marks_at; at < marks_at + marks_bytes; ++at) refused(at);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{39}, std::size_t{47}, std::size_t{4096}}) {
    write(first_of(all, size));
    ASSERT_THROW(read_log(path()), CorruptFile) << size;
  }
  // The block that names the base: not written, as far as anybody can tell.
  std::vector<char> altered = all;
  altered[4096 + 17] ^= 1;
  write(altered);
  EXPECT_FALSE(read_log(path()).base.has_value());
  EXPECT_TRUE(read_log(path()).base_altered);
  EXPECT_EQ(read_log(path()).changes, 2);
}

TEST_F(ChangeLogTest, TheMarkThatTheNextLogWasBegunStays) {
  {
    ChangeLog log = ChangeLog::create(path(), {.number = 1, .dim = 3}, 1);
    const Change a = add({1}, 0);
    log.append({&a, 1});
    EXPECT_FALSE(read_log(path()).next_begun);
    log.mark_next_begun();
  }
  EXPECT_TRUE(read_log(path()).next_begun);
  ChangeLog::open(path(), read_log(path()));
  EXPECT_TRUE(read_log(path()).next_begun);
}

// A log of the first version, without marks: the row (4.5, 5, 6) added as 9, and 9 removed.
TEST_F(ChangeLogTest, LogsOfTheFirstVersionAreReadAndGoneOnWith) {
  const std::pair<std::size_t, std::string> parts[] = {
      {0, "4e4541524c4f473101000000000000000000000000000000030000000000000094714a69134d16f8"},
      {4096, "4b4e415242415331010000000000000035a2508a0380ebf4b42d634764beefdb"},
      {8192,
       "4b4e415246524d310100000000000000000000000000000030000000000000000100000000000000"
       "2f05f7354abe8c6faebc4b5c0d57a6bb010000000000000001000000000000000100000000000000"
       "0900000000000000000090400000a0400000c04000000000"},
      {8296,
       "4b4e415246524d310100000000000000010000000000000020000000000000000100000000000000"
       "40c0fdc3056b6422c8472e7c2f59facd020000000000000001000000000000000000000000000000"
       "0900000000000000"}};
  std::vector<char> all(8384);
  for (const auto& [at, text] : parts)
    for (std::size_t i = 0; i < text.size(); i += 2)
      all[at + i / 2] = static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  write(all);
  std::vector<Change> found;
  const LogContent content = read_log(path(), [&](Change c) { found.push_back(std::move(c)); });
  EXPECT_EQ(content.salt, 0u);
  EXPECT_EQ(content.base, 0xf4eb80038a50a235u);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].ids, (std::vector<Id>{9}));
  EXPECT_EQ(static_cast<const float*>(found[0].vectors.view().row(0))[0], 4.5f);
  EXPECT_EQ(found[1].kind, ChangeKind::remove);
  for (std::size_t at = 8192; at < all.size(); ++at) {
    std::vector<char> altered = all;
    altered[at] ^= 0x08;
    write(altered);
    ASSERT_THROW(read_log(path()), CorruptFile) << at;
  }
  for (std::size_t size = 8296; size < all.size(); ++size) {
    write(first_of(all, size));
    ASSERT_EQ(read_log(path()).changes, 1) << size;
  }
  {
    ChangeLog log = ChangeLog::open(path(), read_log(path()));
    EXPECT_NE(log.cut_file(), "");
    const Change c = add({7}, 1);
    log.append({&c, 1});
    log.mark_next_begun();  // for which it has no place
  }
  EXPECT_EQ(read_log(path()).changes, 2);
  EXPECT_FALSE(read_log(path()).next_begun);
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
