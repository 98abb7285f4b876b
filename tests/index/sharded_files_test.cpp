// tests/index/sharded_files_test.cpp -- an index in shards as files: what comes back, shards that
// are missing or altered, manifests that lie, and saves that are killed at every step.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "tests/index/sharded_cases.hpp"
#include "tests/io/file_cases.hpp"

namespace knear {
namespace {

using io::expect_error;

class ShardedFiles : public io::FileTest {
 protected:
  // Names of the files of shards, in their order.
  std::vector<std::string> shard_files() const {
    std::vector<std::string> out;
    for (const auto& file : std::filesystem::directory_iterator(folder_))
      if (file.path().extension() == ".shard") out.push_back(file.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }
};

// Only this thread: a process that has others cannot be forked.
const ChangeOptions one_thread{.threads = 1};

// First of all, before the process has threads.
TEST_F(ShardedFiles, AAKilledSaveLeavesTheOldOrTheNew) {
  const AnyMatrix first = rows_in_clusters(90, 4, 1), more = rows_in_clusters(30, 4, 2);
  const std::string file = path("base.knear");
  const auto save_again = [&](const Progress& progress) {
    Index index = Index::load(file);
    index.add(more, one_thread);
    index.save(file, progress);
  };
  const auto fork_and = [](auto child) {
    const pid_t pid = fork();
    if (pid == 0) {
      child();
      _exit(0);
    }
    return pid;
  };
  const auto killed = [](pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status);
  };
  std::int64_t rows = 90;
  {
    Index index = make_index("Flat", 4).divided({.shards = 3});
    index.add(first, one_thread);
    index.save(file);
  }
  // What is there is whole, whatever else lies beside it.
  const auto check = [&](bool may_be_new) {
    const Index index = Index::load(file);
    if (may_be_new && index.size() == rows + 30) rows += 30;
    ASSERT_EQ(index.size(), rows);
    ASSERT_EQ(std::ssize(index.ids()), rows);
    ASSERT_EQ(index.search(first, 5, {.threads = 1}).ids.row(89)[0], 89);
  };
  int kills = 0;
  for (int step = 1;; ++step) {
    const pid_t child = fork_and([&] {
      int calls = 0;
      save_again([&](std::string_view, double) {
        if (++calls == step) kill(getpid(), SIGKILL);
        return true;
      });
    });
    const bool was_killed = killed(child);
    kills += was_killed;
    check(true);
    if (!was_killed) break;
  }
  EXPECT_GT(kills, 20);
  EXPECT_EQ(file_count_after_kills(),
            4);  // the last save was not killed, and left nothing of the others
  // At any other moment.
  kills = 0;
  for (useconds_t wait = 0; wait < 12000; wait += 60) {
    const pid_t child = fork_and([&] { save_again({}); });
    usleep(wait);
    kill(child, SIGKILL);
    kills += killed(child);
    check(true);
  }
  EXPECT_GT(kills, 10);
  // What a file is called until it is whole, where the system has no files without a name.
  std::ofstream(file + ".0123456789abcdef.1.shard.tmp-abcdefghijkl") << "left";
  // A save that was killed when its manifest was whole and had not its name yet.
  std::filesystem::copy_file(file, file + ".tmp-0123456789ab");
  save_again({});
  rows += 30;
  check(false);
  EXPECT_EQ(file_count_after_kills(), 4);
}

// Each removes what the one before has left, but never what a manifest names.
TEST_F(ShardedFiles, SavesToOnePathFollowEachOther) {
  Index few = make_index("Flat", 4).divided({.shards = 2}),
        many = make_index("Flat", 4).divided({.shards = 3});
  few.add(rows_in_clusters(40, 4, 1)), many.add(rows_in_clusters(50, 4, 2));
  const std::string file = path("base.knear");
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (Index* index : {&few, &many, &few, &many})
      threads.emplace_back([&, index] { index->save(file); });
    for (std::thread& thread : threads) thread.join();
    const Index index = Index::load(file);
    ASSERT_TRUE(index.size() == 40 || index.size() == 50);
    ASSERT_EQ(file_count(), 1 + index.shards());
  }
}

TEST_F(ShardedFiles, OfAManifestThatWasRenamedOrCopiedStay) {
  Index index = make_index("Flat", 4).divided({.shards = 2});
  index.add(rows_in_clusters(40, 4, 1));
  const std::string file = path("base.knear");
  index.save(file);
  std::filesystem::rename(file, path("old.knear"));
  std::filesystem::copy_file(path("old.knear"), path("copy.knear"));
  index.add(rows_in_clusters(10, 4, 2));
  index.save(file);
  EXPECT_EQ(Index::load(path("old.knear")).size(), 40);
  EXPECT_EQ(Index::load(file).size(), 50);
  EXPECT_EQ(file_count(), 7);
  // The renamed one is replaced, but its copy names the files still.
  index.save(path("old.knear"));
  EXPECT_EQ(Index::load(path("copy.knear")).size(), 40);
  EXPECT_EQ(file_count(), 9);
  std::filesystem::remove(path("copy.knear"));
  index.save(file);
  EXPECT_EQ(file_count(), 6);
  EXPECT_EQ(Index::load(path("old.knear")).size(), 50);
}

TEST_F(ShardedFiles, MayBeReadByWhoMayReadTheManifest) {
  Index index = make_index("Flat", 4).divided({.shards = 2});
  index.add(rows_in_clusters(40, 4, 1));
  const std::string file = path("base.knear");
  index.save(file);
  namespace fs = std::filesystem;
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  index.save(file);
  for (const std::string& name : shard_files())
    EXPECT_EQ(fs::status(path(name)).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(ShardedFiles, ComeBackAsTheyWere) {
  const AnyMatrix vectors = rows_in_clusters(4000, 16, 1), queries = rows_in_clusters(100, 16, 2);
  for (const std::string kind :
       {"Flat", "IVF16,Flat", "IVF16,PQ4", "PQ4,RFlat", "PCA8,IVF16,SQ8", "Graph8"}) {
    const SearchOptions options{.method = {.probes = kind.find("IVF") != std::string::npos ? 4 : 0,
                                           .ef = kind == "Graph8" ? 64 : 0}};
    Index index = make_index(kind, 16).divided({.shards = 3});
    index.train(vectors), index.add(vectors);
    index.remove(std::vector<Id>{17, 4, 3999});
    const Neighbors wanted = index.search(queries, 10, options);
    index.save(path("base.knear"));
    EXPECT_EQ(file_count(), 4) << kind;
    Index same = Index::load(path("base.knear"), {.replicas = 2});
    EXPECT_EQ(same.shards(), 3);
    EXPECT_EQ(same.replicas(), 2);
    EXPECT_EQ(same.description(), kind);
    EXPECT_EQ(same.size(), 3997);
    EXPECT_EQ(same.next_id(), 4000);
    EXPECT_EQ(same.version(), index.version());
    EXPECT_EQ(same.ids(), index.ids());
    expect_same(same.search(queries, 10, options), wanted);
    // It goes on, over its own files, which stay as long as they are used.
    const std::vector<std::string> before = shard_files();
    same.add(vectors), index.add(vectors);
    same.save(path("base.knear"));
    EXPECT_EQ(file_count(), 4) << kind;
    for (const std::string& name : shard_files())
      EXPECT_EQ(std::count(before.begin(), before.end(), name), 0);
    same.add(vectors), index.add(vectors);
    if (kind != "Graph8")
      expect_same(same.search(queries, 10, options), index.search(queries, 10, options));
    EXPECT_EQ(same.memory_bytes() > 0, true);
  }
  // One shard, which is replicated.
  Index flat = make_index("Flat", 16);
  flat.add(vectors);
  flat.divided({.replicas = 2}).save(path("one.knear"));
  expect_same(Index::load(path("one.knear")).search(queries, 10), flat.search(queries, 10));
}

TEST_F(ShardedFiles, FewerRowsThanShards) {
  Index index = make_index("Flat", 4).divided({.shards = 5, .replicas = 3});
  for (int rows = 0; rows < 3; ++rows) {
    index.save(path("base.knear"));
    const Index same = Index::load(path("base.knear"));
    EXPECT_EQ(same.size(), rows);
    EXPECT_EQ(same.replicas(), 3);
    EXPECT_EQ(same.element_type(), rows > 0 ? ElementType::f64 : ElementType::f32);
    AnyMatrix one(ElementType::f64, 1, 4);
    std::fill_n(static_cast<double*>(one.row(0)), 4, 0.1);
    index.add(one);
  }
}

TEST_F(ShardedFiles, OfAnotherKindAreRefused) {
  Index flat = make_index("Flat", 4);
  flat.add(rows_in_clusters(9, 4, 1));
  flat.save(path("flat.knear"));
  expect_error<InvalidArgument>(
      [&] { Index::load(path("flat.knear"), {.allow_partial = true}); },
      "allow_partial is for an index in shards, but '" + path("flat.knear") + "' is one file");
  expect_error<InvalidArgument>([&] { Index::load(path("flat.knear"), {.replicas = 5000}); },
                                "replicas must be between 1 and 4096, but is 5000");
  EXPECT_EQ(Index::load(path("flat.knear"), {.replicas = 2}).replicas(), 2);
  expect_error<IoError>([&] { Index::load(path("none.knear")); }, "none.knear");
  write("text.knear", "no archive");
  expect_error<CorruptFile>([&] { Index::load(path("text.knear")); }, "no .knear file");
  expect_error<IoError>([&] { flat.divided({}).save(path("no/folder.knear")); }, "folder.knear");
}

TEST_F(ShardedFiles, StoppedSavesLeaveNothing) {
  Index index = make_index("Flat", 4).divided({.shards = 3});
  index.add(rows_in_clusters(90, 4, 1));
  index.save(path("base.knear"));
  const std::vector<std::string> before = shard_files();
  std::int64_t stops = 0;
  for (int after = 1;; ++after) {
    int calls = 0;
    try {
      index.save(path("base.knear"), [&](std::string_view, double fraction) {
        EXPECT_LE(fraction, 1);
        return ++calls < after;
      });
      break;
    } catch (const Cancelled&) {
      ++stops;
      ASSERT_EQ(shard_files(), before);
    }
  }
  EXPECT_GT(stops, 4);
  EXPECT_EQ(file_count(), 4);
}

TEST_F(ShardedFiles, OthersFilesStay) {
  Index index = make_index("Flat", 4).divided({.shards = 2});
  index.add(rows_in_clusters(9, 4, 1));
  const std::vector<std::string> others = {"base.knear.0123456789abcdef.1.sharp",
                                           "base.knear.0123456789abcde.1.shard",
                                           "base.knear.0123456789abcdeF.1.shard",
                                           "base.knear.0123456789abcdef.x.shard",
                                           "base.knear.0123456789abcdef..shard",
                                           "other.knear.0123456789abcdef.1.shard",
                                           "base.knear2",
                                           "base.shard"};
  for (const std::string& name : others) write(name, "precious");
  write("base.knear.0123456789abcdef.1.shard", "of a killed save");
  index.save(path("base.knear"));
  index.save(path("other.knear"));
  index.save(path("base.knear"));
  for (const std::string& name : others)
    EXPECT_EQ(std::filesystem::exists(path(name)), !name.starts_with("other")) << name;
  EXPECT_FALSE(std::filesystem::exists(path("base.knear.0123456789abcdef.1.shard")));
  EXPECT_EQ(file_count(), std::ssize(others) - 1 + 6);
  EXPECT_EQ(Index::load(path("other.knear")).size(), 9);
  // A link leads to the manifest, beside which the shards are.
  std::filesystem::create_directory(path("elsewhere"));
  std::filesystem::create_symlink(path("base.knear"), path("elsewhere/link.knear"));
  EXPECT_EQ(Index::load(path("elsewhere/link.knear")).size(), 9);
  index.save(path("elsewhere/link.knear"));
  EXPECT_TRUE(std::filesystem::is_symlink(path("elsewhere/link.knear")));
  EXPECT_EQ(Index::load(path("base.knear")).size(), 9);
}

TEST_F(ShardedFiles, MissingAndAlteredShardsAreNamed) {
  const AnyMatrix vectors = rows_in_clusters(900, 4, 1), queries = rows_in_clusters(100, 4, 2);
  Index index = make_index("Flat", 4).divided({.shards = 3});
  index.add(vectors);
  index.save(path("base.knear"));
  const std::string name = shard_files()[1], good = read(name);
  // What is left without the shard: ids 0 ... 299 and 600 ... 899.
  std::vector<Id> kept(600);
  std::iota(kept.begin(), kept.begin() + 300, 0);
  std::iota(kept.begin() + 300, kept.end(), 600);
  const Neighbors rest = index.search(queries, 10, {.filter = IdFilter::of_ids(kept)});
  const auto check = [&](const std::string& why) {
    const auto load = [&] { Index::load(path("base.knear")); };
    if (why == "is no file")
      expect_error<IoError>(load, name);
    else
      EXPECT_NE(expect_error<CorruptFile>(load, "shard " + name).find(why), std::string::npos);
    Index part = Index::load(path("base.knear"), {.replicas = 2, .allow_partial = true});
    EXPECT_EQ(part.size(), 600);
    EXPECT_EQ(part.shards(), 3);
    EXPECT_EQ(part.missing_shards(), std::vector<std::string>{name});
    EXPECT_EQ(part.shard_sizes(), (std::vector<std::int64_t>{300, 300, 300}));
    EXPECT_EQ(part.ids(), kept);
    KnnReport report;
    expect_same(part.search(queries, 10, {.threads = 2}, &report), rest);
    EXPECT_EQ(report.shards.unsearched_rows, 300);
    EXPECT_EQ(report.shards.unsearched_shards, std::vector<std::string>{name});
    EXPECT_EQ(report.rows, 600);
    EXPECT_EQ(report.shards.count, 2);
    EXPECT_EQ(report.promise.recall_argument, "none");
    EXPECT_EQ(report.promise.certified_queries, 0);
    EXPECT_NE(report.note.find("300 of 900 rows were not searched"), std::string::npos)
        << report.note;
    part.range_search(queries, 0.5, {}, &report);
    EXPECT_EQ(report.shards.unsearched_rows, 300);
    expect_error<InvalidArgument>([&] { part.add(vectors); }, "shard " + name + " is missing");
    expect_error<InvalidArgument>([&] { part.remove(std::vector<Id>{1}); }, "is missing");
    expect_error<InvalidArgument>([&] { part.save(path("base.knear")); }, "is missing");
    expect_error<InvalidArgument>([&] { part.reconstruct(std::vector<Id>{300}); }, "does not hold");
    // A list may name rows that are missing.
    part.search(queries, 3, {.filter = IdFilter::of_ids(std::vector<Id>{1, 300, 700})});
    if (HasFailure()) FAIL() << why;
  };
  std::filesystem::remove(path(name));
  check("is no file");
  write(name, good.substr(0, good.size() / 2));
  check("cut off");
  write(name, read(shard_files()[0]));
  check("not the file that was saved with the manifest");
  Index other = make_index("Flat", 4);
  other.add(vectors);
  other.save(path(name));
  check("not the file that was saved with the manifest");
  write(name, read("base.knear"));
  check("not the file");
  std::string altered = good;
  altered[40] ^= 1;  // in the header
  write(name, altered);
  check("altered");
  write(name, good);
  expect_same(Index::load(path("base.knear")).search(queries, 10), index.search(queries, 10));
  for (const std::string& file : shard_files()) std::filesystem::remove(path(file));
  expect_error<IoError>([&] { Index::load(path("base.knear"), {.allow_partial = true}); },
                        "shard ");
}

// Vectors are compared with their checksums when a search comes to them.
TEST_F(ShardedFiles, AShardThatIsFoundAlteredByASearch) {
  const AnyMatrix vectors = rows_in_clusters(9000, 16, 1), queries = rows_in_clusters(200, 16, 2);
  Index index = make_index("Flat", 16).divided({.shards = 3});
  index.add(vectors);
  index.save(path("base.knear"));
  const std::string name = shard_files()[2];
  std::string bytes = read(name);
  std::int64_t altered = 0;
  const auto archive = io::Archive::open(path(name));
  for (const io::Section& section : archive->sections())
    if (section.name.ends_with("vectors") || section.name.ends_with("codes")) {
      const std::string_view there(reinterpret_cast<const char*>(section.data), section.bytes);
      const std::size_t begin = bytes.find(there);
      for (std::size_t at = begin; at < begin + section.bytes; at += 4096)
        bytes[at] ^= 1, ++altered;
    }
  EXPECT_GT(altered, 0);
  write(name, bytes);
  const Index whole = Index::load(path("base.knear"), {.replicas = 2});
  expect_error<CorruptFile>([&] { whole.search(queries, 10); }, "shard " + name);
  expect_error<CorruptFile>([&] { whole.range_search(queries, 1); }, "shard " + name);
  const Index part = Index::load(path("base.knear"), {.replicas = 2, .allow_partial = true});
  EXPECT_TRUE(part.missing_shards().empty());
  std::vector<Id> kept(6000);
  std::iota(kept.begin(), kept.end(), 0);
  KnnReport report;
  expect_same(part.search(queries, 10, {.threads = 2}, &report),
              index.search(queries, 10, {.filter = IdFilter::of_ids(kept)}));
  EXPECT_EQ(report.shards.unsearched_rows, 3000);
  EXPECT_EQ(report.shards.unsearched_shards, std::vector<std::string>{name});
  EXPECT_EQ(report.shards.count, 2);
}

// Manifests with right checksums that somebody wrote to do harm.
TEST_F(ShardedFiles, HostileManifestsAreCorruptFiles) {
  Index index = make_index("Flat", 4).divided({.shards = 2});
  index.add(rows_in_clusters(10, 4, 1));
  index.save(path("base.knear"));
  const std::vector<std::string> files = shard_files();
  struct Fields {
    std::int64_t shards = 2, next_id = 10, rows = 10, version = 1, replicas = 1;
  };
  struct Of {
    std::int64_t rows = 5, bytes = 0;
    std::uint64_t checksum = 0;
  };
  std::vector<Of> right;
  for (const std::string& file : files) {
    const auto archive = io::Archive::open(path(file));
    right.push_back({5, archive->file_bytes(), archive->checksum()});
  }
  const auto load = [&](const Fields& fields, std::vector<std::string> names, std::vector<Of> of,
                        std::string_view extra = {}) {
    io::ArchiveWriter writer("Shards");
    writer.add_copy("shards", &fields, sizeof fields);
    for (std::size_t s = 0; s < names.size(); ++s) {
      writer.set_prefix(std::to_string(s) + "/");
      writer.add_copy("name", names[s].data(), names[s].size());
      writer.add_copy("fields", &of[s], sizeof of[s]);
    }
    if (!extra.empty()) writer.add_copy(extra, "x", 1);
    writer.write(path("base.knear"), {});
    return Index::load(path("base.knear"));
  };
  EXPECT_EQ(load({}, files, right).size(), 10);
  const auto refuse = [&](const std::string& part, const Fields& fields,
                          const std::vector<std::string>& names, const std::vector<Of>& of,
                          std::string_view extra = {}) {
    expect_error<CorruptFile>([&] { load(fields, names, of, extra); }, part);
  };
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t shards : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{4097}, huge})
    refuse("'shards'", {.shards = shards}, files, right);
  refuse("'2/name'", {.shards = 3}, files, right);
  refuse("'1/name' is unknown", {.shards = 1, .rows = 5}, files, right);
  refuse("'shards'", {.next_id = -1}, files, right);
  refuse("'shards'", {.next_id = 9}, files, right);
  refuse("'shards'", {.rows = -1}, files, right);
  refuse("'shards'", {.replicas = 0}, files, right);
  refuse("it counts 11 rows, its shards 10", {.next_id = 11, .rows = 11}, files, right);
  refuse("ids below 10, the manifest below 12", {.next_id = 12}, files, right);
  refuse("'1/extra' is unknown", {}, files, right, "extra");
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("../x"),
        std::string("/etc/passwd"), std::string("a/b"), std::string("a\\b"), std::string("a\nb"),
        std::string("a\0b", 3), std::string(256, 'a')})
    refuse("'1/name'", {}, {files[0], name}, right);
  refuse("two shards have the file", {}, {files[0], files[0]}, right);
  refuse("not the file that was saved", {}, {files[1], files[0]}, right);
  std::vector<Of> wrong = right;
  wrong[0].rows = 6, wrong[1].rows = 4;
  refuse("has 5 rows, the manifest says 6", {}, files, wrong);
  wrong[0].rows = huge, wrong[1].rows = huge;
  refuse("'0/fields'", {}, files, wrong);
  wrong = right, wrong[1].bytes = -1;
  refuse("'1/fields'", {}, files, wrong);
  // The manifest as its own shard, and shards that are of two indexes.
  const auto own = io::Archive::open(path("base.knear"));
  Index other = make_index("Flat", 4, Metric::ip).divided({.shards = 2});
  other.add(rows_in_clusters(10, 4, 1));
  other.save(path("other.knear"));
  std::string foreign;
  for (const std::string& file : shard_files())
    if (file.starts_with("other.knear") && file.ends_with(".1.shard")) foreign = file;
  const auto archive = io::Archive::open(path(foreign));
  wrong = right, wrong[1] = {5, archive->file_bytes(), archive->checksum()};
  refuse("does not go together with shard " + files[0], {}, {files[0], foreign}, wrong);
  // Bytes of a right one that are altered or cut off, everywhere.
  load({}, files, right);
  const std::string good = read("base.knear");
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] ^= 0x10;
    write("base.knear", bad);
    try {
      Index::load(path("base.knear"));
      ADD_FAILURE() << at;
    } catch (const CorruptFile& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
    if (at % 16 == 0) {
      write("base.knear", good.substr(0, at));
      expect_error<CorruptFile>([&] { Index::load(path("base.knear")); }, "base.knear");
    }
  }
}

// Somebody who opens what is saved again and again gets one of the states.
TEST_F(ShardedFiles, OpeningWhileAnotherSaves) {
  const AnyMatrix some = rows_in_clusters(30, 4, 1);
  Index index = make_index("Flat", 4).divided({.shards = 3});
  index.add(some);
  index.save(path("base.knear"));
  std::thread writer([&] {
    for (int i = 0; i < 60; ++i) {
      index.add(some);
      index.save(path("base.knear"));
    }
  });
  std::int64_t last = 0;
  for (int i = 0; i < 200; ++i) {
    const Index opened = Index::load(path("base.knear"), {.allow_partial = true});
    EXPECT_TRUE(opened.missing_shards().empty());
    EXPECT_GE(opened.size(), last);
    last = opened.size();
  }
  writer.join();
}

}  // namespace
}  // namespace knear
