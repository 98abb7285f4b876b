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
#include "knear/io/open_file.hpp"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace knear::serve {
namespace {

constexpr std::uint64_t head_magic = 0x31474f4c5241454e;   // "NEARLOG1"
constexpr std::uint64_t base_magic = 0x3153414252414e4b;   // "KNARBAS1"
constexpr std::uint64_t frame_magic = 0x314d524652414e4b;  // "KNARFRM1"
constexpr std::int64_t block = 4096, first_frame = 2 * block;

struct HeadBlock {
  std::uint64_t magic, number, origin, dim, sum;
  std::uint64_t right_sum() const { return XXH3_64bits(this, offsetof(HeadBlock, sum)); }
};

struct BaseBlock {
  std::uint64_t magic, number, base, sum;
  std::uint64_t right_sum() const { return XXH3_64bits(this, offsetof(BaseBlock, sum)); }
};

struct FrameHead {
  std::uint64_t magic, log, number;  // of the log; in it
  std::uint64_t bytes, changes;      // that follow
  std::uint64_t content_sum, sum;
  std::uint64_t right_sum() const { return XXH3_64bits(this, offsetof(FrameHead, sum)); }
};

// Before the ids and the vectors of a change, each of which is filled up to 8 bytes.
struct ChangeHead {
  std::uint32_t kind, type;
  std::int64_t ids, rows;
};

constexpr std::size_t filled_up(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

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
      to += got, at += got, bytes -= static_cast<std::size_t>(got);
    }
    return true;
  }

  bool read_frame_head(std::int64_t at, std::uint64_t log, FrameHead& head) const {
    return read(at, &head, sizeof head) && head.magic == frame_magic && head.log == log &&
           head.sum == head.right_sum();
  }
  // Where the next frame would begin if the head of one is whole here; else here.
  std::int64_t after_frame(std::int64_t at, std::uint64_t log) const {
    FrameHead head;
    if (!read_frame_head(at, log, head)) return at;
    const std::int64_t from = at + std::int64_t{sizeof head};
    return head.bytes > static_cast<std::uint64_t>(size() - from)
               ? size()
               : from + static_cast<std::int64_t>(head.bytes);
  }
  // Whether a whole frame of this log begins here; its content, if that is asked for.
  bool read_frame(std::int64_t at, std::uint64_t log, FrameHead& head,
                  std::vector<std::byte>& content) const {
    if (!read_frame_head(at, log, head)) return false;
    const std::int64_t from = at + std::int64_t{sizeof head};
    if (head.bytes > static_cast<std::uint64_t>(size() - from)) return false;
    content.resize(head.bytes);
    return read(from, content.data(), content.size()) &&
           XXH3_64bits(content.data(), content.size()) == head.content_sum;
  }

  // Whether a whole frame with at least this number begins anywhere from here on.
  bool has_frame_after(std::int64_t at, std::uint64_t log, std::uint64_t number) const {
    std::vector<std::uint64_t> words(std::size_t{1} << 16);
    std::vector<std::byte> content;
    FrameHead head;
    for (at = (at + 7) / 8 * 8; at + std::int64_t{sizeof head} <= size();) {
      const std::size_t count = std::min<std::size_t>(
          words.size(), static_cast<std::size_t>(size() - at) / sizeof words[0]);
      if (!read(at, words.data(), count * sizeof words[0])) return false;
      for (std::size_t i = 0; i < count; ++i)
        if (words[i] == frame_magic &&
            read_frame(at + static_cast<std::int64_t>(i * 8), log, head, content) &&
            head.number >= number)
          return true;
      at += static_cast<std::int64_t>(count * 8);
    }
    return false;
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
    Change out{.kind = kind, .ids = std::vector<Id>(static_cast<std::size_t>(head.ids))};
    take(out.ids.data(), out.ids.size() * sizeof(Id));
    if (!has_vectors) return out;
    const auto type = static_cast<ElementType>(head.type);
    if (static_cast<std::uint64_t>(head.rows) >
        (bytes_.size() - at_) / static_cast<std::uint64_t>(dim_ * size_of(type)))
      refuse();
    out.vectors = AnyMatrix(type, head.rows, dim_);
    take(out.vectors.row(0), static_cast<std::size_t>(out.vectors.view().bytes()));
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

void sync_folder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int error = file < 0 || detail::sync_file(file) != 0 ? errno : 0;
  if (file >= 0) close(file);
  // Some file systems refuse to sync a folder; they keep names all the same.
  if (error != 0 && error != EINVAL)
    throw IoError("cannot sync the folder '{}': {}", folder, std::strerror(error));
}

LogContent read_log(const std::string& path, const std::function<void(Change)>& f) {
  const LogReader in(path);
  HeadBlock head;
  if (!in.read(0, &head, sizeof head) || head.magic != head_magic)
    throw CorruptFile("'{}' is no log of changes", path);
  if (head.sum != head.right_sum() || head.dim < 1 || head.dim > 65536 || in.size() < first_frame)
    throw CorruptFile("'{}' is cut off or altered in its head", path);
  LogContent out{.head = {head.number, head.origin, head.dim}, .end = first_frame};
  BaseBlock base;
  in.read(block, &base, sizeof base);
  // One that was being written when the process was killed counts as not written: the file that it
  // names takes its place only afterwards.
  if (base.magic == base_magic && base.number == head.number && base.sum == base.right_sum())
    out.base = base.base;

  FrameHead frame;
  std::vector<std::byte> content;
  while (in.read_frame(out.end, head.number, frame, content) &&
         frame.number == static_cast<std::uint64_t>(out.frames)) {
    FrameContent changes(path, head.dim, content);
    for (std::uint64_t i = 0; i < frame.changes; ++i) {
      Change change = changes.next();
      if (f) f(std::move(change));
    }
    if (!changes.at_end()) throw CorruptFile("'{}' holds a change that is none", path);
    ++out.frames, out.changes += static_cast<std::int64_t>(frame.changes);
    out.end += static_cast<std::int64_t>(sizeof frame + content.size());
  }
  out.cut = in.size() - out.end;
  // Behind the frame that is not whole: what it holds came from callers, and may look like a frame.
  if (out.cut > 0 && in.has_frame_after(in.after_frame(out.end, head.number), head.number,
                                        static_cast<std::uint64_t>(out.frames)))
    throw CorruptFile("'{}' is altered at byte {}, before changes that are whole", path, out.end);
  return out;
}

ChangeLog::ChangeLog(std::string path, int file, const LogHead& head)
    : path_(std::move(path)), file_(file), head_(head) {}

ChangeLog::ChangeLog(ChangeLog&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      head_(other.head_),
      end_(other.end_),
      frames_(other.frames_),
      changes_(other.changes_),
      why_broken_(std::move(other.why_broken_)),
      lost_(other.lost_) {}

ChangeLog& ChangeLog::operator=(ChangeLog&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  std::swap(head_, other.head_);
  std::swap(end_, other.end_);
  std::swap(frames_, other.frames_);
  std::swap(changes_, other.changes_);
  std::swap(why_broken_, other.why_broken_);
  std::swap(lost_, other.lost_);
  return *this;
}

ChangeLog::~ChangeLog() {
  if (file_ >= 0) close(file_);
}

void ChangeLog::fail(const char* doing, int error) const {
  throw IoError("cannot {} '{}': {}", doing, path_, std::strerror(error));
}

void ChangeLog::break_for_writing() {
  why_broken_ = fmt::format("'{}' could not be written to before: start the server again", path_);
}

void ChangeLog::write_at(std::int64_t at, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t written = pwrite(file_, from, std::min(bytes, std::size_t{1} << 30), at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written < 0 ? errno : ENOSPC);
    from += written, at += written, bytes -= static_cast<std::size_t>(written);
  }
}

void ChangeLog::check_whole() { check_file(end_); }

void ChangeLog::check_file(std::int64_t end) {
  if (is_broken()) throw IoError("{}", why_broken_);
  struct stat held, named;
  const char* what = nullptr;
  if (fstat(file_, &held) != 0)
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
  const int file = io::OpenFile(beginning, O_RDWR | O_CREAT | O_TRUNC).release();
  ChangeLog out(path, file, head);
  std::vector<std::byte> blocks(first_frame);
  HeadBlock first{head_magic, head.number, head.origin, head.dim, 0};
  first.sum = first.right_sum();
  std::memcpy(blocks.data(), &first, sizeof first);
  if (base) {
    BaseBlock second{base_magic, head.number, *base, 0};
    second.sum = second.right_sum();
    std::memcpy(blocks.data() + block, &second, sizeof second);
  }
  out.write_at(0, blocks.data(), blocks.size());
  if (detail::sync_file(file) != 0) out.fail("sync", errno);
  if (rename(beginning.c_str(), path.c_str()) != 0) out.fail("name", errno);
  const std::size_t slash = path.rfind('/');
  sync_folder(slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash));
  out.end_ = first_frame;
  return out;
}

ChangeLog ChangeLog::open(const std::string& path, const LogContent& content) {
  const int file = io::OpenFile(path, O_RDWR).release();
  ChangeLog out(path, file, content.head);
  out.end_ = content.end, out.frames_ = content.frames, out.changes_ = content.changes;
  if (content.cut > 0 && (ftruncate(file, content.end) != 0 || detail::sync_file(file) != 0))
    out.fail("cut off the end of", errno);
  return out;
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
    put(frame, vectors.data(), static_cast<std::size_t>(vectors.bytes()));
  }
  const std::byte* const content = frame.data() + sizeof(FrameHead);
  const std::size_t bytes = frame.size() - sizeof(FrameHead);
  FrameHead head{frame_magic,
                 head_.number,
                 static_cast<std::uint64_t>(frames_),
                 bytes,
                 changes.size(),
                 XXH3_64bits(content, bytes),
                 0};
  head.sum = head.right_sum();
  std::memcpy(frame.data(), &head, sizeof head);
  try {
    write_at(end_, frame.data(), frame.size());
  } catch (const IoError&) {
    // What was written of it must not stand before a frame that is whole.
    if (ftruncate(file_, end_) != 0) break_for_writing();
    throw;
  }
  if (detail::sync_data(file_) != 0) {
    // Which pages reached the disk is not known, nor whether a second try would tell.
    const int error = errno;
    break_for_writing();
    fail("sync", error);
  }
  check_file(end_ + std::ssize(frame));
  end_ += std::ssize(frame);
  ++frames_, changes_ += std::ssize(changes);
}

void ChangeLog::set_base(std::uint64_t checksum) {
  BaseBlock base{base_magic, head_.number, checksum, 0};
  base.sum = base.right_sum();
  write_at(block, &base, sizeof base);
  if (detail::sync_file(file_) != 0) {
    const int error = errno;
    break_for_writing();
    fail("sync", error);
  }
  check_file(end_);
}

}  // namespace knear::serve
