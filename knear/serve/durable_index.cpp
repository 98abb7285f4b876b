#include "knear/serve/durable_index.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/index/options.hpp"
#include "knear/io/archive.hpp"
#include "knear/io/atomic_file.hpp"
#include "knear/io/open_file.hpp"
#include "knear/serve/refusal.hpp"

namespace knear::serve {
namespace {

namespace fs = std::filesystem;

std::uint64_t checksum_of(const std::string& path) { return io::Archive::open(path)->checksum(); }

std::string folder_of(const std::string& path) { return fs::path(path).parent_path().string(); }

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const fs::path out = fs::canonical(path, error);
  if (error) throw IoError("cannot open '{}': {}", path, error.message());
  return out.string();
}

// The numbers of files PATH.log-N, ascending; removes what a kill left of files being written.
std::vector<std::uint64_t> logs_of(const std::string& path) {
  const std::string own = fs::path(path).filename().string(), prefix = own + ".log-";
  std::vector<std::uint64_t> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_of(path))) {
    const std::string name = entry.path().filename().string();
    if (name == own + ".checkpoint" || name.starts_with(own + ".checkpoint.tmp-"))
      fs::remove(entry.path());
    if (!name.starts_with(prefix)) continue;
    std::uint64_t number = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, number);
    if (error == std::errc::invalid_argument) continue;
    if (stop == end) {
      if (error != std::errc() || number == std::numeric_limits<std::uint64_t>::max() ||
          name != fmt::format("{}{}", prefix, number))
        throw CorruptFile(
            "'{}' has a number that no log gets: 1 to 2^64 - 2, without leading zeros",
            entry.path().string());
      out.push_back(number);
    } else if (std::string_view(stop, end) == ".new")
      fs::remove(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

void check_once(const std::vector<Id>& ids, int status) {
  std::unordered_set<Id> seen;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0)
      throw Refusal(400, "ids must not be negative, but the one at place {} is {}", i, ids[i]);
    if (!seen.insert(ids[i]).second) throw Refusal(status, "ids holds {} twice", ids[i]);
  }
}

// Makes a change of the index. Returns what is to be logged: of removals the ids that were there,
// of rows without ids the ones that they got.
Outcome make(StoredIndex& index, Change& change, int threads) {
  Outcome out;
  const ChangeOptions options{.threads = threads};
  if (change.kind != ChangeKind::remove && change.vectors.rows() != std::ssize(change.ids) &&
      !(change.kind == ChangeKind::add && change.ids.empty()))
    throw Refusal(400, "there are {} ids for {} vectors", change.ids.size(), change.vectors.rows());
  check_once(change.ids, 409);
  if (change.kind != ChangeKind::remove) index.check_not_too_far(change.vectors);
  switch (change.kind) {
    case ChangeKind::add:
      if (change.ids.empty()) {
        const Id first = index.next_id();
        index.add(change.vectors, options);
        for (std::int64_t i = 0; i < change.vectors.rows(); ++i) change.ids.push_back(first + i);
      } else {
        for (const Id id : change.ids) {
          if (id > last_given_id)
            throw Refusal(400, "ids must be from 0 to 2^62 ({}), but holds {}", last_given_id, id);
          if (index.contains(id)) throw Refusal(409, "ids holds {}, which is there already", id);
        }
        index.add(change.vectors, change.ids, options);
      }
      out.ids = change.ids;
      break;
    case ChangeKind::remove:
      std::erase_if(change.ids, [&](Id id) { return !index.contains(id); });
      index.remove(change.ids, options);
      out.removed = std::ssize(change.ids);
      break;
    case ChangeKind::replace:
      for (const Id id : change.ids)
        if (!index.contains(id)) throw Refusal(404, "ids holds {}, which is not there", id);
      index.replace(change.ids, change.vectors, options);
      break;
  }
  return out;
}

bool follow_one_another(const std::vector<Id>& ids) {
  for (std::size_t i = 1; i < ids.size(); ++i)
    if (ids[i] - ids[i - 1] != 1) return false;
  return true;
}

// Makes changes of a log again; rows that were added one after the other are added at once.
class Replay {
 public:
  Replay(StoredIndex& index, int threads) : index_(index), options_{.threads = threads} {}

  void take(Change change) {
    const bool add = change.kind == ChangeKind::add;
    if (!waiting_.empty() &&
        (!add || bytes_ > most_bytes || change.vectors.type() != waiting_.back().vectors.type()))
      add_waiting();
    if (add) {
      bytes_ += change.vectors.view().bytes();
      waiting_.push_back(std::move(change));
    } else if (change.kind == ChangeKind::remove) {
      index_.remove(change.ids, options_);
    } else {
      index_.replace(change.ids, change.vectors, options_);
    }
  }
  void add_waiting() {
    if (waiting_.empty()) return;
    std::vector<Id> ids;
    std::int64_t rows = 0;
    for (const Change& change : waiting_) {
      ids.insert(ids.end(), change.ids.begin(), change.ids.end());
      rows += change.vectors.rows();
    }
    const AnyMatrix& first = waiting_.front().vectors;
    AnyMatrix all(first.type(), rows, first.cols());
    rows = 0;
    for (const Change& change : waiting_) {
      if (change.vectors.rows() > 0)
        std::memcpy(all.row(rows), change.vectors.view().data(), change.vectors.view().bytes());
      rows += change.vectors.rows();
    }
    waiting_.clear(), bytes_ = 0;
    // Rows whose ids count on take no memory for them.
    if (!ids.empty() && ids.front() == index_.next_id() && follow_one_another(ids) &&
        ids.back() < std::numeric_limits<Id>::max())
      index_.add(all, options_);
    else
      index_.add(all, ids, options_);
  }

 private:
  static constexpr std::int64_t most_bytes = std::int64_t{64} << 20;

  StoredIndex& index_;
  ChangeOptions options_;
  std::vector<Change> waiting_;
  std::int64_t bytes_ = 0;
};

}  // namespace

// Held as long as the index is: a process that was killed holds none.
struct DurableIndex::Lock {
  explicit Lock(const std::string& path, const std::string& about) {
    do {
      made = !fs::exists(path);
      try {
        file = std::make_unique<io::OpenFile>(path, O_RDWR | O_CREAT);
      } catch (const IoError& error) {
        throw IoError("{}; --data names another folder for what changes", error.what());
      }
      if (flock(file->number(), LOCK_EX | LOCK_NB) != 0)
        throw InvalidArgument("'{}' is served by another process, which holds {}", about, path);
      // The process that held it may have removed it since it was opened.
    } while (!has_name(path));
  }

  bool has_name(const std::string& path) const {
    struct stat held, named;
    return fstat(file->number(), &held) == 0 && stat(path.c_str(), &named) == 0 &&
           held.st_dev == named.st_dev && held.st_ino == named.st_ino;
  }

  std::unique_ptr<io::OpenFile> file;
  bool made = false;
};

// What opening made, by name. Removed in the end unless it is to be kept.
struct DurableIndex::Made {
  std::string folder = {}, lock = {}, log = {};
  bool keep = false;

  Made() = default;
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() {
    if (keep) return;
    std::error_code ignored;
    for (const std::string* path : {&log, &lock, &folder})  // a folder only if it is empty
      if (!path->empty()) fs::remove(*path, ignored);
  }
};

std::string DurableIndex::log_path(std::uint64_t number) const {
  return fmt::format("{}.log-{}", kept_, number);
}

void DurableIndex::step(std::string_view done) const {
  if (options_.after_step) options_.after_step(done);
}

DurableIndex::DurableIndex(const std::string& path, DurableOptions options)
    : options_(std::move(options)), path_(absolute_path(path)), kept_(path_) {
  if (!io::is_archive(path_)) {
    const io::OpenFile regular(path_);  // or an error that says what else it is
    throw CorruptFile("'{}' is no .knear file; 'knear convert' makes one of a file of FAISS", path);
  }
  made_ = std::make_unique<Made>();
  if (!options_.data.empty()) {
    std::error_code failed;
    if (fs::create_directory(options_.data, failed)) made_->folder = absolute_path(options_.data);
    if (failed) throw IoError("cannot make folder '{}': {}", options_.data, failed.message());
    kept_ = (fs::path(absolute_path(options_.data)) / (options_.name + ".knear")).string();
  }
  lock_ = std::make_unique<Lock>(kept_ + ".lock", path);
  if (lock_->made) made_->lock = kept_ + ".lock";
  file_sum_ = checksum_of(path_);
  const bool apart = kept_ != path_, has_kept = !apart || fs::exists(kept_);
  kept_sum_ = !apart ? file_sum_ : has_kept ? checksum_of(kept_) : 0;

  // From the last log that follows a file which is there, and whose first file is that of now.
  numbers_ = logs_of(kept_);
  std::vector<LogContent> contents;
  for (const std::uint64_t number : numbers_) contents.push_back(read_log(log_path(number)));
  const std::uint64_t origin = apart ? file_sum_ : 0;
  std::optional<std::size_t> start;
  std::int64_t changes = 0;
  bool from_kept = false;
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const LogContent& content = contents[i];
    changes += content.changes;
    if (content.head.number != numbers_[i])
      throw CorruptFile("'{}' is the log of another number, {}", log_path(numbers_[i]),
                        content.head.number);
    if (!content.base || content.head.origin != origin) continue;
    if (*content.base == file_sum_)
      start = i, from_kept = false;
    else if (has_kept && *content.base == kept_sum_)
      start = i, from_kept = true;
  }
  if (!start && apart && has_kept)
    throw InvalidArgument(
        "'{}' was changed since '{}' was made of it; remove {}* to give up what changed there",
        path, kept_, kept_);
  // The first log names a file when it is begun, and others once a checkpoint has written one.
  const auto altered = [&](std::uint64_t number) {
    throw CorruptFile("'{}' is altered at byte 4096, where it names the file that it follows",
                      log_path(number));
  };
  for (const LogContent& content : contents)
    if (!start && changes > 0 && content.base_altered) altered(content.head.number);
  const auto names_a_file = [](const LogContent& log) { return log.base || log.base_altered; };
  if (!start && !contents.empty() && std::none_of(contents.begin(), contents.end(), names_a_file)) {
    const std::uint64_t first = numbers_.front();
    if (first <= 1) altered(first);
    throw CorruptFile("'{}' is missing: '{}' follows it", log_path(first - 1), log_path(first));
  }
  if (!contents.empty() && contents.back().next_begun)
    throw CorruptFile("'{}' is missing: '{}' says that it was begun", log_path(numbers_.back() + 1),
                      log_path(numbers_.back()));
  if (!start && changes > 0)
    throw InvalidArgument(
        "'{}' is not the file that the {} changes in {}* were made to; remove these to give them "
        "up",
        path, changes, log_path(numbers_.front()).substr(0, kept_.size() + 5));

  const std::string& opened = from_kept ? kept_ : path_;
  auto index = std::make_shared<StoredIndex>(StoredIndex::load(opened));
  if (checksum_of(opened) != (from_kept ? kept_sum_ : file_sum_))
    throw IoError("another file took the place of '{}' while it was read: start again", opened);
  const auto dim = static_cast<std::uint64_t>(index->dim());
  if (!start) {
    const std::uint64_t next = numbers_.empty() ? 1 : numbers_.back() + 1;
    log_ = std::make_unique<ChangeLog>(
        ChangeLog::create(log_path(next), {next, origin, dim}, file_sum_));
    if (numbers_.empty()) made_->log = log_path(next);
    numbers_.push_back(next);
  } else {
    Replay replay(*index, options_.threads);
    for (std::size_t i = *start; i < numbers_.size(); ++i) {
      const std::string log = log_path(numbers_[i]);
      if (contents[i].head.dim != dim)
        throw CorruptFile("'{}' is for {} columns, but '{}' has {}", log, contents[i].head.dim,
                          opened, dim);
      if (i > *start && numbers_[i] != numbers_[i - 1] + 1)
        throw CorruptFile("'{}' is missing, between logs that are there",
                          log_path(numbers_[i - 1] + 1));
      if (contents[i].cut > 0 && i + 1 < numbers_.size())
        throw CorruptFile("'{}' is cut off at byte {}, but a later log is there", log,
                          contents[i].end);
      try {
        read_log(log, [&](Change change) { replay.take(std::move(change)); });
        replay.add_waiting();
      } catch (const InvalidArgument& error) {
        throw CorruptFile("'{}' does not fit '{}': {}", log, opened, error.what());
      }
      replayed_ += contents[i].changes;
      if (i + 1 == numbers_.size()) continue;
      older_bytes_ += contents[i].end, older_changes_ += contents[i].changes;
      // A kill came between writing the next log and marking that it was begun.
      if (!contents[i].next_begun) ChangeLog::open(log, contents[i]).mark_next_begun();
    }
    const LogContent& last = contents.back();
    log_ = std::make_unique<ChangeLog>(ChangeLog::open(log_path(numbers_.back()), last));
    if (last.cut > 0 && options_.report)
      options_.report(fmt::format(
          "'{}' ends at byte {} with {} bytes of a change that was not answered; they are kept in "
          "'{}'",
          log_path(numbers_.back()), last.end, last.cut, log_->cut_file()));
  }
  if (apart && !from_kept) kept_sum_ = 0;
  if (options_.prepare) options_.prepare(*index);
  state_ = std::move(index);
  // What a kill left: logs before the first that counts, a file that a reload gave up, and shards
  // of a checkpoint that did not come to its manifest. The name of the file that logs were folded
  // into may not be on disk yet.
  io::sync_folder(folder_of(kept_));
  remove_logs_before(start ? numbers_[*start] : numbers_.back());
  if (apart && !from_kept && has_kept) StoredIndex::remove_saved(kept_);
  StoredIndex::remove_left_by_kills(kept_);
  due_bytes_ = options_.checkpoint_bytes;
  count_log();
}

DurableIndex::~DurableIndex() = default;

std::shared_ptr<const StoredIndex> DurableIndex::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

void DurableIndex::count_log() {
  log_bytes_ = log_->bytes(), log_changes_ = log_->changes(), log_broken_ = log_->is_broken();
}

void DurableIndex::remove_logs_before(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> left;
  for (const std::uint64_t each : numbers_)
    if (each < number)
      fs::remove(log_path(each));
    else
      left.push_back(each);
  numbers_ = std::move(left);
}

std::vector<Outcome> DurableIndex::apply(std::vector<Change> changes) {
  std::lock_guard no_other(change_mutex_);
  const auto before = state();
  // It shares all rows with the one before, which is not changed again.
  const auto next = std::make_shared<StoredIndex>(before->next());
  std::vector<Outcome> out(changes.size());
  try {
    // Changes that read no rows would be taken, but no checkpoint could keep them.
    before->check_pages();
  } catch (const Error&) {
    for (Outcome& each : out) each = {.error = std::current_exception()};
    return out;
  }
  std::vector<Change> made;
  for (std::size_t i = 0; i < changes.size(); ++i) try {
      out[i] = make(*next, changes[i], options_.threads);
      if (changes[i].ids.empty()) continue;
      made.push_back(std::move(changes[i]));
    } catch (...) {
      out[i] = {.error = std::current_exception()};
    }
  if (made.empty()) return out;
  made_->keep = true;
  try {
    if (!lost_.empty()) throw IoError("{}", lost_);
    log_->append(made);
  } catch (const Error&) {
    // Nothing happened: what the others were told of rests on these changes too.
    for (Outcome& each : out) each = {.error = std::current_exception()};
    std::lock_guard lock(mutex_);
    count_log();
    return out;
  }
  std::shared_ptr<const StoredIndex> published = next;
  std::lock_guard lock(mutex_);
  state_.swap(published);
  count_log();
  return out;
}

std::int64_t DurableIndex::log_bytes() const {
  std::lock_guard lock(mutex_);
  return older_bytes_ + log_bytes_;
}

std::int64_t DurableIndex::checkpoints() const {
  std::lock_guard lock(mutex_);
  return checkpoints_;
}

bool DurableIndex::checkpoint_is_due() const {
  std::lock_guard lock(mutex_);
  return older_bytes_ + log_bytes_ > due_bytes_ && !log_broken_;
}

std::shared_ptr<const StoredIndex> DurableIndex::begin_log(std::optional<std::uint64_t> base) {
  std::lock_guard no_changes(change_mutex_);
  try {
    log_->check_whole();
  } catch (const IoError& why) {
    if (!log_->is_lost()) throw;
    lost_ = why.what();
  }
  const std::uint64_t number = log_->number() + 1;
  made_->keep = true;
  const LogHead head{number, kept_ == path_ ? 0 : file_sum_,
                     static_cast<std::uint64_t>(state()->dim())};
  auto log = std::make_unique<ChangeLog>(ChangeLog::create(log_path(number), head, base));
  // Before any change goes to the new log. If it fails, both logs take no more changes.
  log_->mark_next_begun();
  std::lock_guard lock(mutex_);
  older_bytes_ += log_bytes_, older_changes_ += log_changes_;
  numbers_.push_back(number);
  log_ = std::move(log);
  count_log();
  return state_;
}

void DurableIndex::checkpoint() {
  std::lock_guard only(checkpoint_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (older_changes_ + log_changes_ == 0 && !log_broken_) return;
    // If it fails, it is tried again once there is as much more.
    due_bytes_ = older_bytes_ + log_bytes_ + options_.checkpoint_bytes;
  }
  state()->check_pages();  // or each attempt would leave another log
  const auto rows = begin_log({});
  step("log begun");
  std::uint64_t sum = 0, number = 0;
  rows->save(kept_, path_, [&](std::uint64_t checksum) {
    step("file written");
    sum = checksum;
    {
      std::lock_guard no_changes(change_mutex_);
      log_->set_base(sum);
      number = log_->number();
    }
    step("base named");
    if (kept_ == path_ && checksum_of(path_) != file_sum_)
      throw Refusal(409, "another file took the place of '{}': reload it, or put the old one back",
                    path_);
  });
  step("file replaced");
  {
    std::lock_guard no_changes(change_mutex_);
    lost_.clear();
  }
  {
    std::lock_guard lock(mutex_);
    kept_sum_ = sum;
    if (kept_ == path_) file_sum_ = sum;
    older_bytes_ = older_changes_ = 0;
    due_bytes_ = options_.checkpoint_bytes;
    ++checkpoints_;
  }
  remove_logs_before(number);
  step("old logs removed");
}

bool DurableIndex::reload(bool discard_changes) {
  std::lock_guard only(checkpoint_mutex_);
  std::uint64_t sum = 0;
  std::shared_ptr<StoredIndex> next;
  try {
    sum = checksum_of(path_);
    if (sum == file_sum_) return false;
    next = std::make_shared<StoredIndex>(StoredIndex::load(path_));
  } catch (const CorruptFile& damaged) {
    throw Refusal(503, "{}", damaged.what());
  }
  // Changes to come are logged as those of the file with this checksum.
  if (checksum_of(path_) != sum)
    throw Refusal(409, "another file took the place of '{}' while it was read: try again", path_);
  const auto before = state();
  if (next->dim() != before->dim() || next->metric() != before->metric())
    throw Refusal(409, "'{}' has {} columns and is for {}, but what is served has {} and is for {}",
                  path_, next->dim(), name_of(next->metric()), before->dim(),
                  name_of(before->metric()));
  if (options_.prepare) options_.prepare(*next);
  std::lock_guard no_changes(change_mutex_);
  const bool apart = kept_ != path_;
  {
    std::lock_guard lock(mutex_);
    const std::int64_t changes = older_changes_ + log_changes_;
    if (!discard_changes && (changes > 0 || (apart && kept_sum_ != 0)))
      throw Refusal(409,
                    "changes were made since '{}' was read, which the new file does not have; "
                    "\"discard_changes\": true gives them up",
                    path_);
  }
  const std::uint64_t number = log_->number() + 1;
  made_->keep = true;
  auto log = std::make_unique<ChangeLog>(ChangeLog::create(
      log_path(number), {number, apart ? sum : 0, static_cast<std::uint64_t>(next->dim())}, sum));
  step("log begun");
  lost_.clear();
  {
    std::lock_guard lock(mutex_);
    numbers_.push_back(number);
    log_ = std::move(log);
    count_log();
    state_ = std::move(next);
    file_sum_ = sum, kept_sum_ = apart ? 0 : sum;
    older_bytes_ = older_changes_ = 0;
    due_bytes_ = options_.checkpoint_bytes;
  }
  if (apart) StoredIndex::remove_saved(kept_);
  step("kept file removed");
  remove_logs_before(number);
  step("old logs removed");
  return true;
}

}  // namespace knear::serve
