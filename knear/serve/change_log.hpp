// knear/serve/change_log.hpp -- the changes of an index since its file was written, on disk before
// anybody is told that they are made.
//
//   ChangeLog log = ChangeLog::create(path, {.number = 1, .dim = 96}, base_checksum);
//   log.append(changes);                                    // returns once they are on disk
//   LogContent content = read_log(path, [&](Change change) { ... });   // after a kill
//   ChangeLog log = ChangeLog::open(path, content);         // and goes on
//
// A file: a block of 4,096 bytes that names the log, one that names the file whose rows it follows
// and holds the marks of the log, then frames. All changes of one append() are one frame, with a
// checksum of its head and one of its content; the next frame is begun once this one is on disk.
// The marks say how many changes the log had when the last append() returned, and whether the next
// log was begun.
//
// A kill leaves the last frame whole, cut short or missing. read_log() says where a frame that is
// cut short begins; open() moves its bytes to a file of their own, PATH.cut. Everything else is
// damage, and an error: a whole head whose content has another checksum, a frame out of turn, fewer
// changes than the marks say. Each log has a salt, a random number that seeds the checksums of its
// frames, so that vectors of a caller cannot look like a frame.
//
// Logs of the first version have neither marks nor a salt. They are read and continued.
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
#include "knear/io/open_file.hpp"

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
  bool base_altered = false;  // the log names no base, but its block for the name is not empty
  std::uint64_t salt = 0;     // seed of its checksums; 0: a log of the first version
  bool next_begun = false;    // the log after it was begun
  std::int64_t frames = 0, changes = 0;
  std::int64_t end = 0;  // of the last whole frame
  std::int64_t cut = 0;  // bytes after it, of a frame that is cut short
};

// Reads head and frames, and calls f with each change in order. Throws IoError; CorruptFile for a
// file that is no log, or is damaged, naming the byte.
LogContent read_log(const std::string& path, const std::function<void(Change)>& f = {});

class ChangeLog {
 public:
  // A new log, which appears under its name once it is whole and on disk; what has the name is
  // replaced.
  static ChangeLog create(const std::string& path, const LogHead& head,
                          std::optional<std::uint64_t> base);
  // Continues the log that read_log() has read. Moves the bytes of a frame that is cut short to a
  // new file, cut_file(). Returns once everything that was read is on disk. Throws IoError.
  static ChangeLog open(const std::string& path, const LogContent& content);

  // Returns once all changes are on disk, in the file that has the name of the log. Throws IoError;
  // then none of them is, unless is_broken(): the system could not say, or another program has
  // removed, replaced or shortened the log, and nothing more can be appended.
  void append(std::span<const Change> changes);
  // Says which file the log follows. Throws IoError.
  void set_base(std::uint64_t checksum);
  // Marks on disk that the next log was begun, which must be on disk by then. Throws IoError.
  void mark_next_begun();

  bool is_broken() const { return !why_broken_.empty(); }
  // Whether another program has removed, replaced or altered it: a log that begins after it, of a
  // file with all changes, is as good as one after a whole log.
  bool is_lost() const { return lost_; }
  // Looks at the file. Throws IoError if is_broken() now, with the reason.
  void check_whole();
  std::uint64_t number() const { return head_.number; }
  std::int64_t bytes() const { return end_; }  // of the file
  std::int64_t changes() const { return changes_; }
  // The file to which open() moved a frame that was cut short; empty if there was none.
  const std::string& cut_file() const { return cut_file_; }

 private:
  ChangeLog(std::string path, io::OpenFile file, const LogHead& head, std::uint64_t salt);
  [[noreturn]] void fail(const char* doing, int error) const;
  void break_for_writing();
  void write_at(std::int64_t at, const void* data, std::size_t bytes);
  void write_marks(bool next_begun);
  void keep_cut_bytes(const LogContent& content);
  // As check_whole(), for a file that should end at byte `end`.
  void check_file(std::int64_t end);

  std::string path_, cut_file_ = {};
  io::OpenFile file_;
  LogHead head_;
  std::uint64_t salt_ = 0;
  std::int64_t end_ = 0, frames_ = 0, changes_ = 0;
  std::string why_broken_;  // why; empty: it is not
  bool lost_ = false;
};

}  // namespace knear::serve
