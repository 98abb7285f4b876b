// knear/serve/change_log.hpp -- the changes of an index since its file was written, on disk before
// anybody is told that they are made.
//
//   ChangeLog log = ChangeLog::create(path, {.number = 1, .dim = 96}, base_checksum);
//   log.append(changes);                                    // returns once they are on disk
//   LogContent content = read_log(path, [&](Change change) { ... });   // after a kill
//   ChangeLog log = ChangeLog::open(path, content);         // and goes on
//
// A file: a block of 4,096 bytes that names the log, one that names the file whose rows it follows,
// then frames. All changes of one append() are one frame, with a checksum of its head and one of
// its content; the next frame is begun once this one is on disk. So a frame that is not whole is
// the last one, which nobody was told of: read_log() says where it begins, and open() cuts it off.
// A frame that is not whole with a whole one behind it is damage, and an error.
//
// Numbers are little-endian, frames begin at multiples of 8 bytes. Threads: one caller at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "knear/core/matrix.hpp"
#include "knear/core/neighbors.hpp"

namespace knear::serve {

enum class ChangeKind : std::uint32_t { add = 1, remove = 2, replace = 3 };

struct Change {
  ChangeKind kind = ChangeKind::add;
  std::vector<Id> ids = {};  // one for each row; of remove, the rows to take out
  AnyMatrix vectors = {};    // [ids x dim]; none of remove
};

struct LogHead {
  std::uint64_t number = 0;  // logs of an index count up
  // The checksum of the file that all of it began with, where that is not the one that
  // checkpoints replace (DurableOptions::data); 0: it is.
  std::uint64_t origin = 0;
  std::uint64_t dim = 0;
};

struct LogContent {
  LogHead head = {};
  // The checksum of the file whose rows the log follows; none: that was not written yet, and the
  // log follows the one before it.
  std::optional<std::uint64_t> base = {};
  std::int64_t frames = 0, changes = 0;
  std::int64_t end = 0;  // of the last whole frame
  std::int64_t cut = 0;  // bytes after it
};

// Reads head and frames, and calls f with each change in order. Throws IoError; CorruptFile for a
// file that is no log, or is damaged anywhere but in its last frame.
LogContent read_log(const std::string& path, const std::function<void(Change)>& f = {});

class ChangeLog {
 public:
  // A new log, which appears under its name once it is whole and on disk; what has the name is
  // replaced.
  static ChangeLog create(const std::string& path, const LogHead& head,
                          std::optional<std::uint64_t> base);
  // The log that read_log() has read; what it says is not whole is cut off.
  static ChangeLog open(const std::string& path, const LogContent& content);
  ChangeLog(ChangeLog&& other) noexcept;
  ChangeLog& operator=(ChangeLog&& other) noexcept;
  ~ChangeLog();

  // Returns once all changes are on disk, in the file that has the name of the log. Throws IoError;
  // then none of them is, unless is_broken(): the system could not say, or another program has
  // removed, replaced or shortened the log, and nothing more can be appended.
  void append(std::span<const Change> changes);
  // Says which file the log follows. Throws IoError.
  void set_base(std::uint64_t checksum);

  bool is_broken() const { return !why_broken_.empty(); }
  // Whether another program has removed, replaced or altered it: a log that begins after it, of a
  // file with all changes, is as good as one after a whole log.
  bool is_lost() const { return lost_; }
  // Looks at the file. Throws IoError if is_broken() now, with the reason.
  void check_whole();
  std::uint64_t number() const { return head_.number; }
  std::int64_t bytes() const { return end_; }  // of the file
  std::int64_t changes() const { return changes_; }

 private:
  ChangeLog(std::string path, int file, const LogHead& head);
  [[noreturn]] void fail(const char* doing, int error) const;
  void break_for_writing();
  void write_at(std::int64_t at, const void* data, std::size_t bytes);
  // As check_whole(), for a file that should end at byte `end`.
  void check_file(std::int64_t end);

  std::string path_;
  int file_ = -1;
  LogHead head_;
  std::int64_t end_ = 0, frames_ = 0, changes_ = 0;
  std::string why_broken_;  // why; empty: it is not
  bool lost_ = false;
};

// Has the names in a folder survive a crash. Throws IoError.
void sync_folder(const std::string& folder);

}  // namespace knear::serve
