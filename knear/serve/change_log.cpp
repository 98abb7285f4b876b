#include "knear/serve/change_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/core/system.hpp"
#include "knear/io/atomic_file.hpp"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace knear::serve {
namespace {

constexpr std::uint64_t old_magic = 0x31474f4c5241454e;    // "NEARLOG1"
constexpr std::uint64_t head_magic = 0x32474f4c5241454e;   // "NEARLOG2"
constexpr std::uint64_t base_magic = 0x3153414252414e4b;   // "KNARBAS1"
constexpr std::uint64_t frame_magic = 0x314d524652414e4b;  // "KNARFRM1"
constexpr std::uint64_t marks_magic = 0x314b524d52414e4b;  // "KNARMRK1"
constexpr std::int64_t block = 4096, first_frame = 2 * block;
// The marks lie in a sector of their own, which a disk writes as a whole.
constexpr std::int64_t marks_at = block + 1024;

struct OldHeadBlock {
  std::uint64_t magic, number, origin, dim, sum;
  std::uint64_t right_sum() const { return XXH3_64bits(this, offsetof(OldHeadBlock, sum)); }
};

struct HeadBlock {
  std::uint64_t magic, number, origin, dim, salt, sum;
  std::uint64_t right_sum() const { return XXH3_64bits(this, offsetof(HeadBlock, sum)); }
};

struct Marks {
  std::uint64_t magic, number, changes, next_begun, sum;
  std::uint64_t right_sum(std::uint64_t salt) const {
    return XXH3_64bits_withSeed(this, offsetof(Marks, sum), salt);
  }
};

struct BaseBlock {
  std::uint64_t magic, number, base, sum;
  std::uint64_t right_sum() const { return XXH3_64bits(this, offsetof(BaseBlock, sum)); }
};

struct FrameHead {
  std::uint64_t magic, log, number;  // of the log; in it
  std::uint64_t bytes, changes;      // that follow
  std::uint64_t content_sum, sum;
  std::uint64_t right_sum(std::uint64_t salt) const {
    return XXH3_64bits_withSeed(this, offsetof(FrameHead, sum), salt);
  }
};

// Before the ids and the vectors of a change, each of which is filled up to 8 bytes.
struct ChangeHead {
  std::uint32_t kind, type;
  std::int64_t ids, rows;
};

constexpr std::size_t filled_up(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

void write_all(const std::string& path, int file, std::int64_t at, const void* data,
               std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = pwrite(file, from, std::min(bytes, std::size_t{1} << 30), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0)
      throw IoError("cannot write '{}': {}", path, std::strerror(written < 0 ? errno : ENOSPC));
    from += written, at += written, bytes -= written;
  }
}

std::string folder_of_file(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

void put(std::vector<std::byte>& out, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + bytes);
  out.resize(filled_up(out.size()));
}

class LogReader {
 public:
  explicit LogReader(const std::string& path) : path_(path), file_(path) {}

  std::int64_t size() const { return file_.size(); }
  // Whether there are so many bytes from here on, which are read.
  bool read(std::int64_t at, void* out, std::size_t bytes) const {
    if (at > size() || static_cast<std::uint64_t>(size() - at) < bytes) return false;
    auto* to = static_cast<std::byte*>(out);
    while (bytes > 0) {
      const ssize_t got = pread(file_.number(), to, std::min(bytes, std::size_t{1} << 30), at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw IoError("cannot read '{}': {}", path_, std::strerror(errno));
      if (got == 0) return false;
      to += got, at += got, bytes -= got;
    }
    return true;
  }

  // Whether the head of a frame of this log begins here, which is read.
  bool read_frame_head(std::int64_t at, const LogContent& log, FrameHead& head) const {
    return read(at, &head, sizeof head) && head.magic == frame_magic &&
           head.log == log.head.number && head.sum == head.right_sum(log.salt);
  }
  bool is_cut_short(std::int64_t at, const FrameHead& head) const {
    return head.bytes > static_cast<std::uint64_t>(size() - at - std::int64_t{sizeof head});
  }
  // Whether a whole frame of this log begins here, which is read.
  bool read_frame(std::int64_t at, const LogContent& log, FrameHead& head,
                  std::vector<std::byte>& content) const {
    if (!read_frame_head(at, log, head) || is_cut_short(at, head)) return false;
    content.resize(head.bytes);
    return read(at + std::int64_t{sizeof head}, content.data(), content.size()) &&
           XXH3_64bits_withSeed(content.data(), content.size(), log.salt) == head.content_sum;
  }

  // Returns where the next whole frame of this log begins, from `at` on, if there is one. Looks at
  // every byte, since the bytes that are missing before it may be of any number.
  std::optional<std::int64_t> next_frame(std::int64_t at, const LogContent& log) const {
    std::vector<std::byte> part(std::size_t{1} << 20), content;
    FrameHead head;
    while (at + std::int64_t{sizeof head} <= size()) {
      const std::size_t count = std::min<std::size_t>(part.size(), size() - at);
      if (!read(at, part.data(), count)) return {};
      for (std::size_t i = 0; i + sizeof head <= count; ++i)
        if (std::memcmp(part.data() + i, &frame_magic, sizeof frame_magic) == 0 &&
            read_frame(at + static_cast<std::int64_t>(i), log, head, content))
          return at + static_cast<std::int64_t>(i);
      at += static_cast<std::int64_t>(count - sizeof head + 1);
    }
    return {};
  }

  // Throws CorruptFile unless the bytes behind the last whole frame are the beginning of the next.
  void check_end(const LogContent& log) const {
    if (log.cut == 0) return;
    const auto frame = static_cast<std::uint64_t>(log.frames);
    const std::uint64_t begin[] = {frame_magic, log.head.number, frame};
    FrameHead head{};
    const std::size_t there = std::min<std::size_t>(sizeof head, std::size_t(log.cut));
    read(log.end, &head, there);
    if (there < sizeof head) {
      if (std::memcmp(&head, begin, std::min(there, sizeof begin)) != 0)
        throw CorruptFile("'{}' is altered at byte {}: the {} bytes there begin no frame", path_,
                          log.end, there);
      return;
    }
    if (!read_frame_head(log.end, log, head))
      throw CorruptFile("'{}' is altered at byte {}, in the head of frame {}", path_, log.end,
                        frame);
    if (head.number != frame)
      throw CorruptFile("'{}' has frame {} at byte {}, where frame {} has to be: bytes are missing",
                        path_, head.number, log.end, frame);
    if (!is_cut_short(log.end, head))
      throw CorruptFile(
          "'{}' is altered in the {} bytes from byte {} on: frame {} has another "
          "checksum",
          path_, head.bytes, log.end + std::int64_t{sizeof head}, frame);
    // Without a salt, vectors may look like a frame.
    const auto next = log.salt != 0 ? next_frame(log.end + 1, log) : std::nullopt;
    if (next)
      throw CorruptFile(
          "'{}' lacks bytes of frame {}, which begins at byte {}: another one begins "
          "at byte {}",
          path_, frame, log.end, *next);
  }

 private:
  std::string path_;
  io::OpenFile file_;
};

// The changes of a frame whose checksums are right; a file that was made to deceive has them too.
class FrameContent {
 public:
  FrameContent(const std::string& path, std::uint64_t dim, const std::vector<std::byte>& bytes)
      : path_(path), dim_(static_cast<std::int64_t>(dim)), bytes_(bytes) {}

  bool at_end() const { return at_ == bytes_.size(); }
  Change next() {
    ChangeHead head;
    take(&head, sizeof head);
    const auto kind = static_cast<ChangeKind>(head.kind);
    const bool has_vectors = kind == ChangeKind::add || kind == ChangeKind::replace;
    if ((!has_vectors && kind != ChangeKind::remove) ||
        head.type > static_cast<std::uint32_t>(ElementType::f64) || head.ids < 0 ||
        head.rows != (has_vectors ? head.ids : 0) ||
        static_cast<std::uint64_t>(head.ids) > bytes_.size() / sizeof(Id))
      refuse();
    Change out{.kind = kind, .ids = std::vector<Id>(head.ids)};
    take(out.ids.data(), out.ids.size() * sizeof(Id));
    if (!has_vectors) return out;
    const auto type = static_cast<ElementType>(head.type);
    if (static_cast<std::uint64_t>(head.rows) >
        (bytes_.size() - at_) / static_cast<std::uint64_t>(dim_ * size_of(type)))
      refuse();
    out.vectors = AnyMatrix(type, head.rows, dim_);
    take(out.vectors.row(0), out.vectors.view().bytes());
    return out;
  }

 private:
  [[noreturn]] void refuse() const { throw CorruptFile("'{}' holds a change that is none", path_); }
  void take(void* out, std::size_t bytes) {
    if (bytes > bytes_.size() - at_) refuse();
    if (bytes > 0) std::memcpy(out, bytes_.data() + at_, bytes);
    at_ = std::min(bytes_.size(), filled_up(at_ + bytes));
  }

  const std::string& path_;
  const std::int64_t dim_;
  const std::vector<std::byte>& bytes_;
  std::size_t at_ = 0;
};

}  // namespace

LogContent read_log(const std::string& path, const std::function<void(Change)>& f) {
  const LogReader in(path);
  OldHeadBlock old;
  HeadBlock head;
  if (!in.read(0, &old, sizeof old) || (old.magic != head_magic && old.magic != old_magic))
    throw CorruptFile("'{}' is no log of changes", path);
  const bool is_old = old.magic == old_magic;
  const bool whole = is_old ? old.sum == old.right_sum()
                            : in.read(0, &head, sizeof head) && head.sum == head.right_sum();
  if (!whole || old.dim < 1 || old.dim > 65536 || in.size() < first_frame)
    throw CorruptFile("'{}' is cut off or altered in its head", path);
  LogContent out{.head = {old.number, old.origin, old.dim},
                 .salt = is_old ? 0 : head.salt,
                 .end = first_frame};
  BaseBlock base;
  in.read(block, &base, sizeof base);
  // One that was being written when the process was killed counts as not written: the file that it
  // names takes its place only afterwards.
  if (base.magic == base_magic && base.number == old.number && base.sum == base.right_sum())
    out.base = base.base;
  out.base_altered = !out.base && (base.magic | base.number | base.base | base.sum) != 0;
  Marks marks{};
  if (!is_old) {
    in.read(marks_at, &marks, sizeof marks);
    if (marks.magic != marks_magic || marks.number != old.number || marks.next_begun > 1 ||
        marks.sum != marks.right_sum(out.salt))
      throw CorruptFile("'{}' is altered at byte {}, in its marks", path, marks_at);
    out.next_begun = marks.next_begun == 1;
  }

  FrameHead frame;
  std::vector<std::byte> content;
  while (in.read_frame(out.end, out, frame, content) &&
         frame.number == static_cast<std::uint64_t>(out.frames)) {
    FrameContent changes(path, old.dim, content);
    for (std::uint64_t i = 0; i < frame.changes; ++i) {
      Change change = changes.next();
      if (f) f(std::move(change));
    }
    if (!changes.at_end()) throw CorruptFile("'{}' holds a change that is none", path);
    ++out.frames, out.changes += static_cast<std::int64_t>(frame.changes);
    out.end += static_cast<std::int64_t>(sizeof frame + content.size());
  }
  out.cut = in.size() - out.end;
  in.check_end(out);
  if (static_cast<std::uint64_t>(out.changes) < marks.changes)
    throw CorruptFile(
        "'{}' has {} changes, up to byte {}, but {} were answered: its end is missing", path,
        out.changes, out.end, marks.changes);
  return out;
}

ChangeLog::ChangeLog(std::string path, io::OpenFile file, const LogHead& head, std::uint64_t salt)
    : path_(std::move(path)), file_(std::move(file)), head_(head), salt_(salt) {}

void ChangeLog::fail(const char* doing, int error) const {
  throw IoError("cannot {} '{}': {}", doing, path_, std::strerror(error));
}

void ChangeLog::break_for_writing() {
  why_broken_ = fmt::format("'{}' could not be written to before: start the server again", path_);
}

void ChangeLog::write_at(std::int64_t at, const void* data, std::size_t bytes) {
  write_all(path_, file_.number(), at, data, bytes);
}

void ChangeLog::check_whole() { check_file(end_); }

void ChangeLog::check_file(std::int64_t end) {
  if (is_broken()) throw IoError("{}", why_broken_);
  struct stat held, named;
  const char* what = nullptr;
  if (fstat(file_.number(), &held) != 0)
    what = "cannot be looked at";
  else if (stat(path_.c_str(), &named) != 0)
    what = "was removed or renamed by another program";
  else if (named.st_dev != held.st_dev || named.st_ino != held.st_ino)
    what = "was replaced by another program";
  else if (held.st_size != end)
    what = "was shortened or written to by another program";
  if (!what) return;
  lost_ = true;
  why_broken_ = fmt::format(
      "the log '{}' {}, so no change can be kept: a checkpoint writes all changes to the index "
      "file "
      "and begins another log",
      path_, what);
  throw IoError("{}", why_broken_);
}

ChangeLog ChangeLog::create(const std::string& path, const LogHead& head,
                            std::optional<std::uint64_t> base) {
  const std::string beginning = path + ".new";
  ChangeLog out(path, io::OpenFile(beginning, O_RDWR | O_CREAT | O_TRUNC), head,
                detail::random_number() | 1);
  std::vector<std::byte> blocks(first_frame);
  HeadBlock first{head_magic, head.number, head.origin, head.dim, out.salt_, 0};
  first.sum = first.right_sum();
  std::memcpy(blocks.data(), &first, sizeof first);
  if (base) {
    BaseBlock second{base_magic, head.number, *base, 0};
    second.sum = second.right_sum();
    std::memcpy(blocks.data() + block, &second, sizeof second);
  }
  out.write_at(0, blocks.data(), blocks.size());
  out.write_marks(false);
  if (detail::sync_file(out.file_.number()) != 0) out.fail("sync", errno);
  if (rename(beginning.c_str(), path.c_str()) != 0) out.fail("name", errno);
  io::sync_folder(folder_of_file(path));
  out.end_ = first_frame;
  return out;
}

ChangeLog ChangeLog::open(const std::string& path, const LogContent& content) {
  ChangeLog out(path, io::OpenFile(path, O_RDWR), content.head, content.salt);
  out.end_ = content.end, out.frames_ = content.frames, out.changes_ = content.changes;
  if (content.cut > 0) {
    out.keep_cut_bytes(content);
    if (ftruncate(out.file_.number(), content.end) != 0) out.fail("cut off the end of", errno);
  }
  // A process that was killed may not have synced the changes that searches will see from now on.
  if (detail::sync_file(out.file_.number()) != 0) out.fail("sync", errno);
  out.write_marks(content.next_begun);
  return out;
}

// Keeps the files of earlier starts.
void ChangeLog::keep_cut_bytes(const LogContent& content) {
  std::string path = path_ + ".cut";
  for (int i = 2; access(path.c_str(), F_OK) == 0; ++i) path = fmt::format("{}.cut-{}", path_, i);
  const io::OpenFile file(path, O_RDWR | O_CREAT | O_EXCL);
  std::vector<std::byte> part(std::size_t{1} << 20);
  const LogReader in(path_);
  for (std::int64_t at = content.end, left = content.cut; left > 0;) {
    const std::size_t count = std::min(part.size(), static_cast<std::size_t>(left));
    if (!in.read(at, part.data(), count))
      throw IoError("cannot read '{}': it became shorter", path_);
    write_all(path, file.number(), at - content.end, part.data(), count);
    at += std::int64_t(count), left -= std::int64_t(count);
  }
  if (detail::sync_file(file.number()) != 0)
    throw IoError("cannot sync '{}': {}", path, std::strerror(errno));
  io::sync_folder(folder_of_file(path));
  cut_file_ = path;
}

// The changes that they count are on disk already. The marks may come there later, since fewer
// changes than there are do no harm.
void ChangeLog::write_marks(bool next_begun) {
  if (salt_ == 0) return;  // a log of the first version has no place for them
  Marks marks{marks_magic, head_.number, static_cast<std::uint64_t>(changes_),
              static_cast<std::uint64_t>(next_begun), 0};
  marks.sum = marks.right_sum(salt_);
  write_at(marks_at, &marks, sizeof marks);
}

void ChangeLog::mark_next_begun() {
  try {
    write_marks(true);
  } catch (const IoError&) {
    break_for_writing();
    throw;
  }
  if (detail::sync_file(file_.number()) != 0) {
    break_for_writing();
    fail("sync", errno);
  }
}

void ChangeLog::append(std::span<const Change> changes) {
  check_whole();
  std::vector<std::byte> frame(sizeof(FrameHead));
  for (const Change& change : changes) {
    const AnyMatrixView vectors = change.vectors;
    const ChangeHead head{static_cast<std::uint32_t>(change.kind),
                          static_cast<std::uint32_t>(vectors.type()), std::ssize(change.ids),
                          vectors.rows()};
    put(frame, &head, sizeof head);
    put(frame, change.ids.data(), change.ids.size() * sizeof(Id));
    put(frame, vectors.data(), vectors.bytes());
  }
  const std::byte* const content = frame.data() + sizeof(FrameHead);
  const std::size_t bytes = frame.size() - sizeof(FrameHead);
  FrameHead head{frame_magic,
                 head_.number,
                 static_cast<std::uint64_t>(frames_),
                 bytes,
                 changes.size(),
                 XXH3_64bits_withSeed(content, bytes, salt_),
                 0};
  head.sum = head.right_sum(salt_);
  std::memcpy(frame.data(), &head, sizeof head);
  try {
    write_at(end_, frame.data(), frame.size());
  } catch (const IoError&) {
    // What was written of it must not stand before a frame that is whole.
    if (ftruncate(file_.number(), end_) != 0) break_for_writing();
    throw;
  }
  if (detail::sync_data(file_.number()) != 0) {
    // Which pages reached the disk is not known, nor whether a second try would tell.
    const int error = errno;
    break_for_writing();
    fail("sync", error);
  }
  check_file(end_ + std::ssize(frame));
  end_ += std::ssize(frame);
  ++frames_, changes_ += std::ssize(changes);
  try {
    write_marks(false);
  } catch (const IoError&) {
    break_for_writing();  // these changes are on disk, but nothing more can be promised
  }
}

void ChangeLog::set_base(std::uint64_t checksum) {
  BaseBlock base{base_magic, head_.number, checksum, 0};
  base.sum = base.right_sum();
  write_at(block, &base, sizeof base);
  if (detail::sync_file(file_.number()) != 0) {
    const int error = errno;
    break_for_writing();
    fail("sync", error);
  }
  check_file(end_);
}

}  // namespace knear::serve
