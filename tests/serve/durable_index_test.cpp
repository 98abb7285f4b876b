// An index with its logs: what is there after a stop between any two steps, and what is refused.
#include "knear/serve/durable_index.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "knear/serve/refusal.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::serve {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t dim = 4;

struct Stopped {};  // in place of a kill

AnyMatrix row(float value) {
  AnyMatrix out(ElementType::f32, 1, dim);
  for (std::int64_t j = 0; j < dim; ++j)
    static_cast<float*>(out.row(0))[j] = value + static_cast<float>(j);
  return out;
}

Change add(std::vector<Id> ids, float value) {
  return {.kind = ChangeKind::add, .ids = std::move(ids), .vectors = row(value)};
}
Change remove(std::vector<Id> ids) { return {.kind = ChangeKind::remove, .ids = std::move(ids)}; }
Change replace(Id id, float value) {
  return {.kind = ChangeKind::replace, .ids = {id}, .vectors = row(value)};
}

std::vector<Outcome> apply(DurableIndex& index, Change change) {
  std::vector<Change> changes;
  changes.push_back(std::move(change));
  return index.apply(std::move(changes));
}

int status_of(const Outcome& outcome) {
  if (!outcome.error) return 200;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const Refusal& refusal) {
    return refusal.status();
  } catch (const Error&) {
    return 0;
  }
}

// Of one index, and of one in shards.
class DurableIndexTest : public io::FileTest, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    fs::create_directory(folder_ + "/data");
    write_base(path(), 10);
  }
  std::string path() const { return folder_ + "/base.knear"; }

  // Rows 0, ..., rows - 1, each with its id as its first number.
  static void write_base(const std::string& path, int rows, float shift = 0) {
    if (GetParam() == 1) return write_rows(make_index("Flat", dim), path, rows, shift);
    write_rows(make_index("Flat", dim).divided({.shards = GetParam()}), path, rows, shift);
  }
  template <class AnyIndex>
  static void write_rows(AnyIndex index, const std::string& path, int rows, float shift) {
    for (int i = 0; i < rows; ++i) index.add(row(static_cast<float>(i) + shift), {.threads = 1});
    index.save(path);
  }
  // The first number of each row, by id.
  static std::map<Id, float> content(const DurableIndex& index) {
    std::map<Id, float> out;
    const auto state = index.state();
    const std::vector<Id> ids = state->ids();
    const AnyMatrix rows = state->reconstruct(ids);
    for (std::size_t i = 0; i < ids.size(); ++i)
      out[ids[i]] = static_cast<const float*>(rows.view().row(static_cast<std::int64_t>(i)))[0];
    return out;
  }
  // Those of shards are not named, but there are as many as one manifest or two name.
  std::vector<std::string> files(int manifests = 1) const {
    std::vector<std::string> out;
    int shards = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
      if (entry.path().extension() == ".shard")
        ++shards;
      else if (entry.is_regular_file())
        out.push_back(entry.path().filename().string());
    EXPECT_EQ(shards, GetParam() == 1 ? 0 : manifests * GetParam());
    std::sort(out.begin(), out.end());
    return out;
  }

  // The only log that there is.
  std::string log_path() const {
    std::string out;
    for (const auto& entry : fs::directory_iterator(folder_))
      if (entry.path().string().starts_with(path() + ".log-")) {
        EXPECT_EQ(out, "");
        out = entry.path().string();
      }
    return out;
  }

  const std::string folder_ = FileTest::folder_.string();
};

// These two first, with one thread: a process that has others cannot be forked.

TEST_P(DurableIndexTest, WhereTheLogCannotBeWrittenNothingHappens) {
  DurableIndex index(path(), {.threads = 1});
  const auto before = content(index);
  // No file of this process may grow beyond what the log has.
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    const rlim_t before_limit =
        std::exchange(limit.rlim_cur, static_cast<rlim_t>(index.log_bytes() + 20));
    setrlimit(RLIMIT_FSIZE, &limit);
    const bool refused = apply(index, add({}, 1))[0].error && content(index) == before;
    // And the next one is made as if there had been none before.
    limit.rlim_cur = before_limit;
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto next = apply(index, add({}, 2))[0];
    auto wanted = before;
    wanted[10] = 2;
    _exit(refused && next.ids == std::vector<Id>{10} && content(index) == wanted ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_log(path() + ".log-1").changes, 1);
}

TEST_P(DurableIndexTest, KilledAtAnyMomentNothingAnsweredIsLost) {
  std::mt19937 random(7);
  std::map<Id, float> known;  // answered
  {
    DurableIndex index(path(), {.threads = 1});
    known = content(index);
  }
  for (int round = 0; round < 30; ++round) {
    int answers[2];
    ASSERT_EQ(pipe(answers), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(answers[0]);
      DurableIndex index(path(), {.checkpoint_bytes = 3000, .threads = 1});
      for (float value = static_cast<float>(round * 1000);; ++value) {
        const Id id = apply(index, add({}, value))[0].ids[0];
        const std::pair<Id, float> told{id, value};
        if (::write(answers[1], &told, sizeof told) != sizeof told) _exit(1);
        if (index.checkpoint_is_due()) index.checkpoint();
      }
    }
    close(answers[1]);
    usleep(5000 + random() % 40000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    std::pair<Id, float> told;
    while (::read(answers[0], &told, sizeof told) == sizeof told) known[told.first] = told.second;
    close(answers[0]);
    DurableIndex index(path(), {.threads = 1});
    const auto found = content(index);
    for (const auto& [id, value] : known) {
      ASSERT_TRUE(found.count(id)) << "round " << round << " lost id " << id;
      ASSERT_EQ(found.at(id), value);
    }
    ASSERT_LE(found.size(), known.size() + 1);  // one may have been made and not answered
    known = found;
    files();  // of one manifest, whenever a checkpoint was killed
  }
  EXPECT_GT(known.size(), 10u);
}

TEST_P(DurableIndexTest, ChangesAreThereWhenItIsOpenedAgain) {
  std::map<Id, float> wanted;
  {
    DurableIndex index(path());
    std::vector<Change> changes;
    changes.push_back(add({}, 100));
    changes.push_back(add({50}, 200));
    changes.push_back(remove({3, 999}));
    changes.push_back(replace(4, 300));
    changes.push_back(add({}, 400));
    const auto outcomes = index.apply(std::move(changes));
    EXPECT_EQ(outcomes[0].ids, (std::vector<Id>{10}));
    EXPECT_EQ(outcomes[1].ids, (std::vector<Id>{50}));
    EXPECT_EQ(outcomes[2].removed, 1);
    EXPECT_EQ(status_of(outcomes[3]), 200);
    EXPECT_EQ(outcomes[4].ids, (std::vector<Id>{51}));
    wanted = content(index);
    EXPECT_EQ(wanted.at(4), 300);
    EXPECT_EQ(wanted.count(3), 0u);
    EXPECT_EQ(wanted.size(), 12u);
  }
  DurableIndex again(path());
  EXPECT_EQ(content(again), wanted);
  EXPECT_EQ(again.replayed(), 5);
  EXPECT_EQ(again.state()->next_id(), 52);
}

TEST_P(DurableIndexTest, WhatIsRefusedChangesNothing) {
  DurableIndex index(path());
  const auto before = content(index);
  std::vector<Change> changes;
  changes.push_back(add({3}, 0));     // there already
  changes.push_back(remove({1, 1}));  // twice
  changes.push_back(replace(77, 0));  // not there
  changes.push_back(add({-1}, 0));
  changes.push_back({.kind = ChangeKind::add, .ids = {60}, .vectors = {ElementType::f32, 1, 3}});
  changes.push_back({.kind = ChangeKind::add, .ids = {60, 61}, .vectors = row(0)});
  const auto outcomes = index.apply(std::move(changes));
  const int wanted[] = {409, 409, 404, 400, 0, 400};
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    EXPECT_EQ(status_of(outcomes[i]), wanted[i]) << i;
  EXPECT_EQ(content(index), before);
  const std::int64_t bytes = index.log_bytes();
  apply(index, remove({500}));  // nothing to write
  EXPECT_EQ(index.log_bytes(), bytes);
}

TEST_P(DurableIndexTest, ACheckpointEmptiesTheLogs) {
  std::map<Id, float> wanted;
  {
    DurableIndex index(path(), {.checkpoint_bytes = 1000});
    EXPECT_TRUE(index.checkpoint_is_due());  // 8,192 bytes of head
    index.checkpoint();                      // of nothing
    EXPECT_EQ(index.checkpoints(), 0);
    apply(index, add({}, 100));
    index.checkpoint();
    EXPECT_EQ(index.checkpoints(), 1);
    apply(index, remove({0}));
    wanted = content(index);
    EXPECT_EQ(files(),
              (std::vector<std::string>{"base.knear", "base.knear.lock", "base.knear.log-2"}));
  }
  EXPECT_EQ(StoredIndex::load(path()).size(), 11);
  DurableIndex again(path());
  EXPECT_EQ(content(again), wanted);
  EXPECT_EQ(again.replayed(), 1);
}

// A stop after each step of a checkpoint, of one beside the file and of one in a folder of its own,
// with changes before, during and after: everything is there again, and once.
TEST_P(DurableIndexTest, AStopAfterAnyStepOfACheckpointLosesNothing) {
  const std::vector<std::string> steps = {"log begun", "file written", "base named",
                                          "file replaced", "old logs removed"};
  for (const bool apart : {false, true})
    for (const std::string& first : steps)
      for (const std::string& second : steps) {
        if (GetParam() > 1 && second != first) continue;  // each takes a second's syncs
        fs::remove_all(folder_);
        fs::create_directories(folder_ + "/data");
        write_base(path(), 10);
        SCOPED_TRACE(first + ", " + second + (apart ? ", apart" : ""));
        const std::string data = apart ? folder_ + "/data" : "";
        std::map<Id, float> wanted;
        for (const std::string& stop : {first, second, std::string("never")}) {
          DurableOptions options{.data = data, .name = "base"};
          DurableIndex* running = nullptr;
          options.after_step = [&](std::string_view done) {
            // Somebody else's change, in between.
            EXPECT_EQ(status_of(apply(*running, add({}, 1000))[0]), 200);
            if (done == stop) throw Stopped();
          };
          DurableIndex index(path(), options);
          running = &index;
          if (!wanted.empty()) {
            ASSERT_EQ(content(index), wanted);
          }
          apply(index, add({}, 500));
          apply(index, remove({index.state()->ids().front()}));
          try {
            index.checkpoint();
          } catch (const Stopped&) {
          }
          apply(index, add({}, 2000));
          wanted = content(index);
        }
        DurableIndex last(path(), {.data = data, .name = "base"});
        EXPECT_EQ(content(last), wanted);
        // Nothing is left of what was begun, once there was another checkpoint.
        apply(last, add({}, 3000));
        last.checkpoint();
        EXPECT_EQ(files(apart ? 2 : 1).size(), apart ? 4u : 3u);
      }
}

TEST_P(DurableIndexTest, AStopAfterAnyStepOfAReloadLeavesTheOldOrTheNew) {
  for (const bool apart : {false, true})
    for (const std::string stop : {"log begun", "kept file removed", "old logs removed"}) {
      fs::remove_all(folder_);
      fs::create_directories(folder_ + "/data");
      write_base(path(), 10);
      SCOPED_TRACE(stop + (apart ? ", apart" : ""));
      DurableOptions options{.data = apart ? folder_ + "/data" : "", .name = "base"};
      {
        DurableOptions stopping = options;
        bool reloading = false;
        stopping.after_step = [&](std::string_view done) {
          if (reloading && done == stop) throw Stopped();
        };
        DurableIndex index(path(), stopping);
        apply(index, add({}, 500));
        index.checkpoint();
        apply(index, add({}, 600));
        EXPECT_FALSE(index.reload(false));  // it is the same file
        write_base(path(), 7, 0.5f);
        try {
          index.reload(false);
          ADD_FAILURE() << "changes were given up";
        } catch (const Refusal& refusal) {
          EXPECT_EQ(refusal.status(), 409);
        }
        EXPECT_EQ(content(index).size(), 12u);
        reloading = true;
        EXPECT_THROW(index.reload(true), Stopped);
      }
      DurableIndex again(path(), options);
      EXPECT_EQ(files().size(), 3u);
      EXPECT_EQ(content(again).size(), 7u);
      EXPECT_EQ(content(again).at(6), 6.5f);
      apply(again, add({}, 1));
      EXPECT_EQ(content(again).size(), 8u);
    }
}

TEST_P(DurableIndexTest, AnotherFileThanTheOneThatWasChangedIsRefused) {
  for (const std::string& data : {std::string(), folder_ + "/data"}) {
    write_base(path(), 10);
    const DurableOptions options{.data = data, .name = "base"};
    {
      DurableIndex index(path(), options);
      apply(index, add({}, 500));
      index.checkpoint();
      apply(index, add({}, 600));
    }
    write_base(path(), 7, 0.5f);
    EXPECT_THROW(DurableIndex(path(), options), InvalidArgument);
  }
}

TEST_P(DurableIndexTest, AReloadTakesTheNewFile) {
  DurableIndex index(path());
  write_base(path(), 5, 0.25f);
  EXPECT_TRUE(index.reload(false));
  EXPECT_EQ(content(index).size(), 5u);
  apply(index, remove({0}));
  index.checkpoint();
  EXPECT_EQ(StoredIndex::load(path()).size(), 4);
  Index other = make_index("Flat", dim + 1);
  other.save(path());
  EXPECT_THROW(index.reload(true), Refusal);
  EXPECT_EQ(content(index).size(), 4u);
  // And no checkpoint writes over a file that it does not know.
  apply(index, add({}, 1));
  EXPECT_THROW(index.checkpoint(), Refusal);
  EXPECT_EQ(StoredIndex::load(path()).dim(), dim + 1);
}

// What is made ahead is made of the rows that will be searched: after the logs are replayed, and of
// the file that a reload takes.
TEST_P(DurableIndexTest, PreparesWhatItOpens) {
  std::vector<std::int64_t> sizes;
  const auto prepare = [&](StoredIndex& index) { sizes.push_back(index.size()); };
  {
    DurableIndex index(path(), {.prepare = prepare});
    apply(index, add({}, 1));
    index.checkpoint();
    apply(index, add({}, 2));
  }
  DurableIndex index(path(), {.prepare = prepare});
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{10, 12}));
  index.checkpoint();
  EXPECT_FALSE(index.reload(false));
  EXPECT_EQ(sizes.size(), 2u);
  write_base(path(), 20);
  EXPECT_TRUE(index.reload(false));
  EXPECT_EQ(sizes.back(), 20);
  EXPECT_EQ(index.state()->size(), 20);
}

TEST_P(DurableIndexTest, AFolderOfItsOwnLeavesTheFileAsItIs) {
  const auto before = fs::last_write_time(path());
  std::map<Id, float> wanted;
  const DurableOptions options{.data = folder_ + "/data", .name = "name"};
  for (int round = 0; round < 3; ++round) {
    DurableIndex index(path(), options);
    if (round > 0) {
      EXPECT_EQ(content(index), wanted);
    }
    apply(index, add({}, static_cast<float>(round)));
    index.checkpoint();
    apply(index, remove({round}));
    wanted = content(index);
  }
  EXPECT_EQ(fs::last_write_time(path()), before);
  EXPECT_EQ(files(2).size(), 4u);  // two index files, lock and log
  EXPECT_EQ(StoredIndex::load(path()).size(), 10);
  EXPECT_TRUE(fs::exists(folder_ + "/data/name.knear"));
  EXPECT_FALSE(fs::exists(path() + ".lock"));
}

TEST_P(DurableIndexTest, WithoutAChangeNoFileIsLeft) {
  const auto before = files();
  {
    DurableIndex index(path());
    EXPECT_EQ(files().size(), before.size() + 2);  // lock and log
    apply(index, remove({500}));                   // nothing to write
  }
  // Nor if it cannot be opened in the end.
  EXPECT_THROW(DurableIndex(path(), {.prepare = [](StoredIndex&) { throw Stopped(); }}), Stopped);
  { DurableIndex index(path(), {.data = folder_ + "/new", .name = "x"}); }
  EXPECT_FALSE(fs::exists(folder_ + "/new"));
  EXPECT_THROW(DurableIndex(path(), {.data = folder_ + "/none/new", .name = "x"}), IoError);
  EXPECT_EQ(files(), before);
  // A lock that is held stays, and so do files that others made.
  {
    DurableIndex index(path());
    EXPECT_THROW(DurableIndex second(path()), InvalidArgument);
    EXPECT_EQ(files().size(), before.size() + 2);
  }
  std::ofstream(path() + ".lock") << "";
  { DurableIndex index(path()); }
  EXPECT_TRUE(fs::exists(path() + ".lock"));
  // With a change they stay.
  {
    DurableIndex index(path());
    apply(index, add({}, 1));
  }
  EXPECT_EQ(files().size(), before.size() + 2);
  EXPECT_EQ(DurableIndex(path()).state()->size(), 11);
  EXPECT_EQ(files().size(), before.size() + 2);
}

TEST_P(DurableIndexTest, WhatIsNotItsOwnIsRefused) {
  {
    DurableIndex index(path());
    EXPECT_THROW(DurableIndex second(path()), InvalidArgument);
    apply(index, add({}, 1));
  }
  EXPECT_THROW(DurableIndex(folder_ + "/none.knear"), IoError);
  std::ofstream(folder_ + "/text.knear") << "words";
  EXPECT_THROW(DurableIndex(folder_ + "/text.knear"), CorruptFile);
  // A log between others that is missing.
  fs::copy(path() + ".log-1", path() + ".log-3");
  EXPECT_THROW(DurableIndex{path()}, CorruptFile);
  fs::remove(path() + ".log-3");
  EXPECT_EQ(DurableIndex(path()).state()->size(), 11);
  // A log that follows no file that is there, with nothing in it, means nothing.
  fs::remove(path() + ".log-1");
  ChangeLog::create(path() + ".log-4", {.number = 4, .dim = dim}, 12345);
  EXPECT_EQ(DurableIndex(path()).state()->size(), 10);
  EXPECT_FALSE(fs::exists(path() + ".log-4"));
}

// A checkpoint that stopped half-way leaves two logs with changes.
TEST_P(DurableIndexTest, ALogThatIsMissingOrHasNoNumberIsRefused) {
  {
    DurableOptions options;
    options.after_step = [](std::string_view done) {
      if (done == "log begun") throw Stopped();
    };
    DurableIndex index(path(), options);
    apply(index, add({}, 1));
    EXPECT_THROW(index.checkpoint(), Stopped);
    apply(index, add({}, 2));
  }
  const std::string first = path() + ".log-1", last = path() + ".log-2", away = folder_ + "/away";
  const auto refused = [&](const std::string& says) {
    io::expect_error<CorruptFile>([&] { DurableIndex{path()}; }, says);
  };
  fs::rename(last, away);
  refused(fmt::format("'{}' is missing: '{}' says that it was begun", last, first));
  fs::rename(away, last);
  // A kill between a log and its mark: the mark is made up for, so that it counts from then on.
  const auto marks_of = [&](const std::string& log) {
    std::ifstream in(log, std::ios::binary);
    std::string out(40, '\0');
    in.seekg(5120).read(out.data(), 40);
    return out;
  };
  fs::rename(first, away);
  refused(fmt::format("'{}' is missing: '{}' follows it", first, last));
  // Without a change in the last one too, which then says nothing of what is gone.
  const std::string changed = folder_ + "/changed";
  fs::rename(last, changed);
  ChangeLog::create(last, {.number = 2, .dim = dim}, {});
  refused(fmt::format("'{}' is missing: '{}' follows it", first, last));
  fs::rename(changed, last);
  fs::rename(away, first);
  const std::string marked = marks_of(first);
  EXPECT_TRUE(read_log(first).next_begun);
  {
    // As the last append() left them.
    const std::string like = folder_ + "/like.log-1";
    fs::copy(first, like);
    ChangeLog::open(like, [&] {
      LogContent content = read_log(like);
      content.next_begun = false;
      return content;
    }());
    const std::string unmarked = marks_of(like);
    ASSERT_NE(unmarked, marked);
    std::fstream(first, std::ios::in | std::ios::out | std::ios::binary).seekp(5120) << unmarked;
  }
  EXPECT_FALSE(read_log(first).next_begun);
  EXPECT_EQ(DurableIndex(path()).state()->size(), 12);
  EXPECT_EQ(marks_of(first), marked);
  // Numbers that are none.
  for (const std::string number :
       {"18446744073709551616", "99999999999999999999999", "18446744073709551615", "02", "00"}) {
    std::ofstream(path() + ".log-" + number) << "";
    refused(".log-" + number + "' has a number that no log gets");
    fs::remove(path() + ".log-" + number);
  }
  for (const std::string other : {"2.cut", "2.bak", "", "x", "-1"})  // of others
    std::ofstream(path() + ".log-" + other) << "";
  EXPECT_EQ(DurableIndex(path()).state()->size(), 12);
}

TEST_P(DurableIndexTest, AChangeThatIsCutShortIsReportedAndKept) {
  {
    DurableIndex index(path());
    apply(index, add({}, 1));
  }
  const std::string log = path() + ".log-1";
  const auto whole = static_cast<std::int64_t>(fs::file_size(log));
  // The frame after it, of which a kill has left a part.
  fs::copy(log, folder_ + "/like");
  {
    ChangeLog like = ChangeLog::open(folder_ + "/like", read_log(folder_ + "/like"));
    const Change change = remove({1});
    like.append({&change, 1});
  }
  std::ifstream in(folder_ + "/like", std::ios::binary);
  std::string part(70, '\0');
  in.seekg(whole).read(part.data(), 70);
  std::ofstream(log, std::ios::binary | std::ios::app) << part;
  std::vector<std::string> lines;
  const DurableOptions options{.report = [&](const std::string& line) { lines.push_back(line); }};
  EXPECT_EQ(DurableIndex(path(), options).state()->size(), 11);
  EXPECT_EQ(lines, (std::vector<std::string>{fmt::format(
                       "'{}' ends at byte {} with 70 bytes of a change that was not answered; they "
                       "are kept in '{}.cut'",
                       log, whole, log)}));
  EXPECT_EQ(fs::file_size(log + ".cut"), 70u);
  EXPECT_EQ(DurableIndex(path(), options).state()->size(), 11);
  EXPECT_EQ(lines.size(), 1u);
  // The same of what was answered is an error, and alters no file.
  fs::resize_file(log, static_cast<std::uintmax_t>(whole - 3));
  io::expect_error<CorruptFile>([&] { DurableIndex(path(), options); }, "its end is missing");
  EXPECT_EQ(fs::file_size(log), static_cast<std::uintmax_t>(whole - 3));
  EXPECT_FALSE(fs::exists(log + ".cut-2"));
}

TEST_P(DurableIndexTest, ALogWhoseBaseIsAlteredIsDamagedAndNotOfAnotherFile) {
  {
    DurableIndex index(path());
    apply(index, add({}, 1));
  }
  std::fstream(path() + ".log-1", std::ios::in | std::ios::out | std::ios::binary).seekp(4112)
      << "x";
  io::expect_error<CorruptFile>([&] { DurableIndex{path()}; }, "is altered at byte 4096");
  std::fstream(path() + ".log-1", std::ios::in | std::ios::out | std::ios::binary).seekp(4096)
      << std::string(32, '\0');
  io::expect_error<CorruptFile>([&] { DurableIndex{path()}; }, "is altered at byte 4096");
}

TEST_P(DurableIndexTest, PipesInPlaceOfItsFilesAreRefused) {
  for (const char* ending : {".log-1", ".lock"}) {
    ASSERT_EQ(mkfifo((path() + ending).c_str(), 0600), 0);
    EXPECT_THROW(DurableIndex{path()}, IoError) << ending;
    fs::remove(path() + ending);
  }
  EXPECT_EQ(DurableIndex(path()).state()->size(), 10);
  ASSERT_EQ(mkfifo((folder_ + "/pipe.knear").c_str(), 0600), 0);
  io::expect_error<IoError>([&] { DurableIndex(folder_ + "/pipe.knear"); }, "regular file");
  io::expect_error<IoError>([&] { DurableIndex{folder_}; }, "directory");
}

TEST_P(DurableIndexTest, TheLargestIdIsReplayedToo) {
  const Id last = std::numeric_limits<Id>::max();
  const std::uint64_t sum = io::Archive::open(path())->checksum();
  ChangeLog log = ChangeLog::create(path() + ".log-1", {.number = 1, .dim = dim}, sum);
  const Change changes[] = {add({last}, 1)};
  log.append(changes);
  for (int round = 0; round < 3; ++round) {
    DurableIndex index(path());
    EXPECT_EQ(index.state()->size(), 11);
    EXPECT_EQ(status_of(apply(index, add({last - 1}, 1))[0]), 400);
    EXPECT_NE(status_of(apply(index, add({}, 1))[0]), 200);  // no id is left
  }
}

TEST_P(DurableIndexTest, ALogThatIsTakenAwayTakesNoMoreChanges) {
  const std::string other = path() + ".other";
  const std::vector<std::pair<const char*, std::function<void(const std::string&)>>> ways = {
      {"was removed", [](const std::string& log) { fs::remove(log); }},
      {"was removed or renamed", [&](const std::string& log) { fs::rename(log, other); }},
      {"was replaced",
       [&](const std::string& log) {
         fs::copy_file(log, other, fs::copy_options::overwrite_existing);
         fs::rename(other, log);
       }},
      {"was shortened", [](const std::string& log) { fs::resize_file(log, 4096); }},
      {"written to", [](const std::string& log) { std::ofstream(log, std::ios::app) << "words"; }},
  };
  Id next = 100;
  for (const auto& [says, take_away] : ways) {
    DurableIndex index(path());
    const std::int64_t rows = index.state()->size();
    EXPECT_EQ(status_of(apply(index, add({next}, 1))[0]), 200);
    const std::string path_of_log = log_path();
    take_away(path_of_log);
    for (int again = 0; again < 2; ++again) {
      const Outcome outcome = apply(index, add({next + 1}, 1))[0];
      ASSERT_TRUE(outcome.error) << says;
      try {
        std::rethrow_exception(outcome.error);
      } catch (const IoError& error) {
        EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(path_of_log), std::string::npos) << error.what();
      }
      EXPECT_EQ(index.state()->size(), rows + 1);
      EXPECT_FALSE(index.checkpoint_is_due());
    }
    index.checkpoint();
    EXPECT_EQ(status_of(apply(index, add({next + 1}, 1))[0]), 200);
    next += 2;
  }
  EXPECT_EQ(DurableIndex(path()).state()->size(), 20);
  fs::remove(other);
}

TEST_P(DurableIndexTest, NoChangeIsTakenUntilTheCheckpointAfterALostLogIsWhole) {
  std::string stop;
  std::int64_t rows = 10;
  for (const char* const step : {"log begun", "file written", "base named"}) {
    DurableIndex index(path(), {.after_step = [&](std::string_view done) {
                         if (done == stop) throw Stopped{};
                       }});
    EXPECT_EQ(status_of(apply(index, add({}, 1))[0]), 200);
    fs::remove(log_path());
    stop = step;  // and not known to be lost before
    EXPECT_THROW(index.checkpoint(), Stopped);
    EXPECT_TRUE(apply(index, add({}, 1))[0].error) << "a kill now would lose it";
    stop.clear();
    index.checkpoint();
    EXPECT_EQ(status_of(apply(index, add({}, 1))[0]), 200);
    rows += 2;
    EXPECT_EQ(index.state()->size(), rows);
  }
  EXPECT_EQ(DurableIndex(path()).state()->size(), rows);
}

TEST_P(DurableIndexTest, GivenIdsLeaveSomeForRowsWithout) {
  for (int round = 0; round < 2; ++round) {
    DurableIndex index(path());
    EXPECT_EQ(index.state()->size(), 10 + 2 * round);
    for (const Id wrong : {last_given_id + 1, std::numeric_limits<Id>::max()})
      EXPECT_EQ(status_of(apply(index, add({wrong}, 1))[0]), 400);
    if (round > 0) break;
    EXPECT_EQ(status_of(apply(index, add({last_given_id}, 1))[0]), 200);
    const auto added = apply(index, add({}, 1));
    EXPECT_EQ(added[0].ids, (std::vector<Id>{last_given_id + 1}));
  }
}

TEST_P(DurableIndexTest, OtherKindsOfIndexToo) {
  Matrix<float> base(2000, dim);
  for (std::int64_t i = 0; i < base.rows(); ++i)
    for (std::int64_t j = 0; j < dim; ++j)
      base.row(i)[j] = static_cast<float>((i * 37 + j * 11) % 101);
  const auto build = [&](auto index) {
    index.train(base.view());
    index.add(base.view());
    index.save(path());
  };
  if (GetParam() == 1)
    build(make_index("IVF8,Flat", dim));
  else
    build(make_index("IVF8,Flat", dim).divided({.shards = GetParam()}));
  DurableIndex index(path());
  apply(index, add({}, 5000));
  apply(index, remove({5}));
  index.checkpoint();
  apply(index, replace(6, 7000));
  const SearchOptions options{.method = {.probes = 8}};
  const AnyMatrix query = row(5000);
  const auto wanted = index.state()->search(query, 3, options);
  EXPECT_EQ(wanted.ids.row(0)[0], 2000);
  EXPECT_EQ(wanted.ids.row(0)[1], 6);
  EXPECT_EQ(index.state()->description(), "IVF8,Flat");
}

// f64 rows that float32 cannot tell apart are refused, but a log may hold some that were taken.
TEST_P(DurableIndexTest, FarRowsAreRefusedUnlessALogHoldsThem) {
  Matrix<double> near(300, dim), far(300, dim);
  std::mt19937 random(1);
  for (std::int64_t i = 0; i < 300 * dim; ++i) {
    near.data()[i] = static_cast<double>(random() % 1000) / 500;
    far.data()[i] = near.data()[i] + 1e9;
  }
  Index codes = make_index("SQ8,RFlat", dim);
  if (GetParam() > 1) codes = codes.divided({.shards = GetParam()});
  codes.train(near.view());
  codes.add(near.view());
  codes.save(path());
  DurableIndex index(path(), {.threads = 1});
  const auto outcome = [&](ChangeKind kind, std::vector<Id> ids) {
    Change change{.kind = kind, .ids = std::move(ids)};
    change.vectors = AnyMatrix(ElementType::f64, 300, dim);
    std::copy_n(far.data(), 300 * dim, static_cast<double*>(change.vectors.row(0)));
    return apply(index, std::move(change)).front();
  };
  std::vector<Id> ids(300);
  std::iota(ids.begin(), ids.end(), 0);
  for (const auto& found : {outcome(ChangeKind::add, {}), outcome(ChangeKind::replace, ids)}) {
    ASSERT_TRUE(found.error);
    EXPECT_THROW(std::rethrow_exception(found.error), InvalidArgument);
  }
  StoredIndex replayed = StoredIndex::load(path());
  replayed.add(far.view());
  EXPECT_EQ(replayed.size(), 600);
}

INSTANTIATE_TEST_SUITE_P(Shards, DurableIndexTest, testing::Values(1, 3));

}  // namespace
}  // namespace knear::serve
