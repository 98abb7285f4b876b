// knear/serve/durable_index.hpp -- an index in a file whose changes are on disk before anybody is
// told that they are made.
//
//   DurableIndex index("base.knear");
//   auto near = index.state()->search(queries, 10);
//   auto outcomes = index.apply(std::move(changes));     // of many callers: one sync for all
//   if (index.checkpoint_is_due()) index.checkpoint();   // beside searches and changes
//
// Files, beside the index file or in a folder of their own: base.knear.log-N (change_log.hpp),
// base.knear.log-N.cut (bytes of a change that a kill has cut short), base.knear.lock (a lock for
// one process), base.knear.checkpoint (a new file being written). Those
// that opening makes are removed in the end, or when it fails, if no change was made. The
// file of an index in shards is its manifest; new shards lie beside it until it names them.
//
// A change is applied to a copy of the index that shares all rows, appended to the log and synced,
// and only then is the copy what searches see. One whose log cannot be written has not happened. A
// log that another program has removed or altered takes no more changes, since a restart would not
// find them; a checkpoint then saves those that were made before and begins another log.
//
// A checkpoint begins log N + 1, marks that in log N, writes the rows that log N ends with to a new
// file, syncs it, writes its checksum into log N + 1, renames it to base.knear and removes the logs
// up to N. Opening replays, on the file that is there, the last log that names its checksum and
// those after it, so a kill between any two steps loses nothing and applies nothing twice.
//
// Threads: state() at any time; apply() by one caller at a time, checkpoint() and reload() by one
// caller at a time, beside it.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "knear/serve/change_log.hpp"
#include "knear/serve/stored_index.hpp"

namespace knear::serve {

struct DurableOptions {
  // The folder for logs and for the file that checkpoints write, which is then opened instead of
  // the one that was named as long as that stays the same; empty: beside the file, which
  // checkpoints replace. A missing folder is made; the folder that it stands in must exist.
  std::string data = {};
  std::string name = {};                                   // of the files in that folder
  std::int64_t checkpoint_bytes = std::int64_t{64} << 20;  // of a log, from which one is due
  int threads = 0;
  // Called with an index that was opened, before it is searched: may make what searches would.
  std::function<void(StoredIndex&)> prepare = {};
  // Called with one line if opening found a change that was cut short.
  std::function<void(const std::string&)> report = {};
  // Called between the steps of a checkpoint and of a reload, with what was done; for tests, which
  // end it by throwing.
  std::function<void(std::string_view)> after_step = {};
};

// What became of a change.
struct Outcome {
  std::exception_ptr error = {};  // Refusal, or an error of the index; then nothing was changed
  std::vector<Id> ids = {};       // of rows added
  std::int64_t removed = 0;       // rows taken out
};

class DurableIndex {
 public:
  // Opens the file and replays its logs. Throws IoError; CorruptFile; InvalidArgument where another
  // process has it, or where its logs follow another file, naming them.
  explicit DurableIndex(const std::string& path, DurableOptions options = {});
  ~DurableIndex();
  DurableIndex(const DurableIndex&) = delete;
  DurableIndex& operator=(const DurableIndex&) = delete;

  std::shared_ptr<const StoredIndex> state() const;

  // Applies changes in order, each whole or not at all, and returns what became of each, once those
  // that were made are on disk. Add: `ids` may be empty, then rows get those that come next; one
  // that is there or given twice is a Refusal (409). Remove: ids that are not there do not count;
  // one given twice is a Refusal (409). Replace: an id that is not there is a Refusal (404).
  std::vector<Outcome> apply(std::vector<Change> changes);

  bool checkpoint_is_due() const;
  // Makes the file hold all changes, and the logs none that were made before. Throws IoError; a
  // Refusal (409) where another file took the place of this one meanwhile. Then the logs stay, and
  // nothing is lost.
  void checkpoint();

  // Opens the file again if another took its place: returns whether one did. Throws a Refusal
  // (409), unless discard_changes, if changes were made since the file was read, which the other
  // one cannot have; and if its dim or metric differ.
  bool reload(bool discard_changes);

  std::int64_t log_bytes() const;                      // of all logs
  std::int64_t checkpoints() const;                    // made since it was opened
  std::int64_t replayed() const { return replayed_; }  // changes, when it was opened

 private:
  struct Lock;
  struct Made;

  std::string log_path(std::uint64_t number) const;
  void step(std::string_view done) const;
  void replay(Index& index, const std::vector<std::uint64_t>& logs, std::size_t from);
  std::shared_ptr<const StoredIndex> begin_log(std::optional<std::uint64_t> base);
  void remove_logs_before(std::uint64_t number);
  void count_log();  // requires mutex_, and change_mutex_ where apply() may run

  DurableOptions options_;
  std::string path_;  // as it was named, links resolved
  std::string kept_;  // what checkpoints write: path_, or a file in options_.data
  std::unique_ptr<Lock> lock_;
  std::unique_ptr<Made> made_;  // after lock_, so that its files go while that is held

  std::mutex change_mutex_;      // held by apply(), and to begin a log
  std::string lost_;             // why changes wait for a checkpoint; requires change_mutex_
  std::mutex checkpoint_mutex_;  // held by checkpoint() and reload()
  mutable std::mutex mutex_;     // of what follows, held for the time of a copy
  std::shared_ptr<const StoredIndex> state_;
  std::unique_ptr<ChangeLog> log_;
  std::vector<std::uint64_t> numbers_;  // of the logs that are there, ascending
  std::int64_t older_bytes_ = 0;        // of all but the last
  std::int64_t older_changes_ = 0;
  std::int64_t log_bytes_ = 0, log_changes_ = 0;  // of the last
  bool log_broken_ = false;
  std::int64_t due_bytes_ = 0;
  std::uint64_t file_sum_ = 0;  // of path_, when it was read or written
  std::uint64_t kept_sum_ = 0;  // of kept_
  std::int64_t checkpoints_ = 0, replayed_ = 0;
};

}  // namespace knear::serve
