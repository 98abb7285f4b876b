// tests/index/flat_file_test.cpp -- .knear files: a saved index is the same when loaded, a killed
// save leaves the old file, and a file that was cut off or altered is refused by the name of its
// section.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/io/archive.hpp"
#include "tests/io/file_cases.hpp"

namespace knear {
namespace {

using io::expect_error;

class FlatFiles : public io::FileTest {
 protected:
  // An index with every kind of section: panels and a matrix, own ids, an order, removed rows,
  // equal rows, a mean.
  static Index varied(Metric metric = Metric::l2) {
    Random random(11);
    Index index = make_index("Flat", 9, metric);
    Matrix<float> real(900, 9), whole(700, 9);
    for (std::int64_t i = 0; i < 900 * 9; ++i)
      real.data()[i] = static_cast<float>(random.uniform() + (i % 9 == 2 ? 5 : 0));
    for (std::int64_t i = 100; i < 400; ++i) std::copy_n(real.row(5), 9, real.row(i));
    for (std::int64_t i = 0; i < 700 * 9; ++i)
      whole.data()[i] = static_cast<float>(random.below(200));
    index.add(real.view());
    std::vector<Id> ids;
    for (Id i = 0; i < 700; ++i) ids.push_back(5000 - 3 * i);
    index.add(whole.view(), ids);
    index.add(real.view().rows(0, 30));
    for (Id& id : ids) id += 100000;
    index.add(real.view().rows(0, 700), ids);
    index.remove(std::vector<Id>{3, 7, 4994, 100000 + 5000});
    return index;
  }
  static Matrix<float> queries() {
    Random random(12);
    Matrix<float> out(40, 9);
    for (std::int64_t i = 0; i < 40 * 9; ++i)
      out.data()[i] =
          static_cast<float>(i < 180 ? random.uniform() * 6 : double(random.below(200)));
    return out;
  }
  static void expect_same(const Index& got, const Index& want) {
    EXPECT_EQ(got.size(), want.size());
    EXPECT_EQ(got.dim(), want.dim());
    EXPECT_EQ(got.metric(), want.metric());
    EXPECT_EQ(got.next_id(), want.next_id());
    EXPECT_EQ(got.element_type(), want.element_type());
    const auto ids = want.ids();
    EXPECT_EQ(got.ids(), ids);
    const AnyMatrix a = got.reconstruct(ids), b = want.reconstruct(ids);
    ASSERT_EQ(a.view().bytes(), b.view().bytes());
    EXPECT_EQ(std::memcmp(a.view().data(), b.view().data(), std::size_t(b.view().bytes())), 0);
    const Matrix<float> q = queries();
    const Neighbors near = got.search(q.view(), 20), known = want.search(q.view(), 20);
    for (std::int64_t i = 0; i < 800; ++i) {
      ASSERT_EQ(near.ids.data()[i], known.ids.data()[i]);
      ASSERT_EQ(near.distances.data()[i], known.distances.data()[i]);
    }
  }
};

TEST_F(FlatFiles, WhatIsSavedComesBack) {
  for (Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    const Index index = varied(metric);
    index.save(path("a.knear"));
    Index loaded = Index::load(path("a.knear"));
    expect_same(loaded, index);
    KnnReport report;
    Matrix<float> whole = queries();  // both kinds of codes can score these
    for (std::int64_t i = 0; i < whole.rows() * whole.cols(); ++i)
      whole.data()[i] = std::round(whole.data()[i]);
    loaded.search(whole.view(), 5, {}, &report);
    EXPECT_EQ(report.prepare_seconds, 0);  // the packed codes are in the file
    // Saved over its own file, twice.
    loaded.save(path("a.knear"));
    expect_same(Index::load(path("a.knear")), index);
    expect_same(loaded, index);
    loaded.compact();
    loaded.save(path("a.knear"));
    expect_same(Index::load(path("a.knear")), index);
    EXPECT_EQ(file_count(), 1);
  }
}

TEST_F(FlatFiles, AnEmptyIndexAndOneEmptiedComeBack) {
  Index index = make_index("Flat", 4, Metric::ip);
  index.save(path("a.knear"));
  EXPECT_EQ(Index::load(path("a.knear")).size(), 0);
  index.add(Matrix<std::uint8_t>(3, 4).view());
  index.remove(std::vector<Id>{0, 1, 2});
  index.save(path("a.knear"));
  Index loaded = Index::load(path("a.knear"));
  EXPECT_EQ(loaded.next_id(), 3);
  EXPECT_EQ(loaded.element_type(), ElementType::u8);
  EXPECT_EQ(loaded.metric(), Metric::ip);
  EXPECT_EQ(loaded.search(Matrix<float>(1, 4).view(), 1).ids.row(0)[0], no_id);
}

TEST_F(FlatFiles, EveryFirstPassServesALoadedIndex) {
  const Index index = varied();
  index.save(path("a.knear"));
  const Matrix<float> q = queries();
  const Neighbors want = index.search(q.view(), 30);
  for (FirstPass pass : {FirstPass::int8, FirstPass::int16, FirstPass::fp32, FirstPass::direct}) {
    const Index loaded = Index::load(path("a.knear"));
    const Neighbors near = loaded.search(q.view(), 30, {.first_pass = pass});
    for (std::int64_t i = 0; i < 1200; ++i) ASSERT_EQ(near.ids.data()[i], want.ids.data()[i]);
  }
}

TEST_F(FlatFiles, EveryCutIsRefused) {
  varied().save(path("a.knear"));
  const std::string whole = read("a.knear");
  std::set<std::string> named;
  for (std::size_t size = 0; size < whole.size();
       size += size < 5000 ? 61 : 1 + whole.size() / 400) {
    write("b.knear", whole.substr(0, size));
    if (size == 0) {
      expect_error<CorruptFile>([&] { Index::load(path("b.knear")); }, "empty");
      continue;
    }
    const std::string message = expect_error<CorruptFile>([&] { Index::load(path("b.knear")); },
                                                          size < 8 ? "no .knear file" : "cut off");
    if (size < 8) continue;
    const auto from = message.find("section '");
    ASSERT_NE(from, std::string::npos) << message;
    named.insert(message.substr(from + 9, message.find('\'', from + 9) - from - 9));
  }
  EXPECT_GT(named.size(), 15u);
  write("b.knear", whole + "x");
  expect_error<CorruptFile>([&] { Index::load(path("b.knear")); }, "its header says");
}

// Loading, searching and reading all rows of an altered file gives an error that names a section.
TEST_F(FlatFiles, EveryAlteredByteIsNoticedBeforeItIsUsed) {
  const Index index = varied();
  index.save(path("a.knear"));
  const std::string whole = read("a.knear");
  const Matrix<float> q = queries();
  const auto ids = index.ids();
  Random random(5);
  for (int round = 0; round < 600; ++round) {
    std::string bytes = whole;
    // Header and table are near the beginning.
    const std::size_t at = round % 3 == 0 ? random.below(4000) : random.below(whole.size());
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
    write("b.knear", bytes);
    try {
      const Index loaded = Index::load(path("b.knear"));
      loaded.search(q.view(), 20);
      loaded.reconstruct(ids);
      // A block of which nothing is asked for is looked at by verify() alone.
      EXPECT_THROW(io::Archive::open(path("b.knear"))->verify({}), CorruptFile) << "byte " << at;
    } catch (const CorruptFile& error) {
      const std::string message = error.what();
      EXPECT_TRUE(at < 8 || (at >= 8 && at < 12) || message.find("section '") != std::string::npos)
          << message;
      // What the search noticed, verify() notices too.
      EXPECT_THROW(io::Archive::open(path("b.knear"))->verify({}), CorruptFile);
    }
  }
}

// Each byte that no section has, found by the table as docs/knear-files.md describes it.
TEST_F(FlatFiles, BytesBetweenSectionsAreZeros) {
  varied().save(path("a.knear"));
  const std::string whole = read("a.knear");
  const auto number = [&](std::size_t at) {
    std::uint64_t out = 0;
    std::memcpy(&out, whole.data() + at, sizeof out);
    return static_cast<std::ptrdiff_t>(out);
  };
  std::vector<bool> known(whole.size(), false);
  const auto take = [&](std::ptrdiff_t begin, std::ptrdiff_t bytes) {
    std::fill_n(known.begin() + begin, bytes, true);
  };
  take(0, 64 + number(48));
  for (std::ptrdiff_t i = 0; i < number(40); ++i) {
    const auto entry = static_cast<std::size_t>(64 + 64 * i);
    take(number(entry + 48), number(entry + 56));
  }
  EXPECT_GT(std::count(known.begin(), known.end(), false), 100);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    if (known[at]) continue;
    std::string bytes = whole;
    bytes[at] = 1;
    write("b.knear", bytes);
    expect_error<CorruptFile>(
        [&] { io::Archive::open(path("b.knear")); },
        fmt::format("is followed by bytes that have been altered: byte {}", at));
  }
}

// A file whose checksums are right but whose numbers are not: nothing may crash.
TEST_F(FlatFiles, WrongNumbersWithRightChecksumsAreHarmless) {
  varied().save(path("a.knear"));
  const auto archive = io::Archive::open(path("a.knear"));
  const Matrix<float> q = queries();
  Random random(6);
  int refused = 0;
  for (int round = 0; round < 400; ++round) {
    io::ArchiveWriter writer("Flat");
    const std::size_t chosen = random.below(archive->sections().size());
    for (std::size_t i = 0; i < archive->sections().size(); ++i) {
      const io::Section& section = archive->sections()[i];
      if (i != chosen) {
        writer.add(std::string(section.name), section.data, section.bytes);
        continue;
      }
      std::vector<std::byte> bytes(section.data, section.data + section.bytes);
      const auto kind = random.below(5);
      if (kind == 0 && bytes.size() >= 8) {  // one field or element
        const std::int64_t values[] = {0,
                                       -1,
                                       1,
                                       255,
                                       1 << 20,
                                       std::int64_t{1} << 40,
                                       std::numeric_limits<std::int64_t>::max(),
                                       std::numeric_limits<std::int64_t>::min()};
        const std::int64_t value = values[random.below(8)];
        std::memcpy(bytes.data() + random.below(bytes.size() / 8) * 8, &value, 8);
      } else if (kind == 1) {
        bytes[random.below(bytes.size())] = static_cast<std::byte>(random.below(256));
      } else if (kind == 2) {
        for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
      } else if (kind == 3) {
        bytes.resize(random.below(bytes.size()));
      } else {
        continue;  // missing
      }
      writer.add_copy(std::string(section.name), bytes.data(), bytes.size());
    }
    if (random.below(20) == 0) writer.add_copy("surprise", "x", 1);
    writer.write(path("b.knear"), {});
    try {
      Index loaded = Index::load(path("b.knear"));
      loaded.search(q.view(), 20);
      loaded.reconstruct(loaded.ids());
      loaded.compact();
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
}

// Panels of fewer rows than their segment once led to a write out of bounds when it was merged.
TEST_F(FlatFiles, PanelsOfFewerRowsThanTheirSegmentAreRefused) {
  Matrix<std::uint8_t> small(300, 4);
  Index index = make_index("Flat", 4);
  index.add(small.view());
  index.save(path("a.knear"));
  const auto archive = io::Archive::open(path("a.knear"));
  io::ArchiveWriter writer("Flat");
  for (const io::Section& section : archive->sections()) {
    std::vector<std::byte> bytes(section.data, section.data + section.bytes);
    const std::int64_t fewer = 299;
    if (section.name == "0/integer/fields") std::memcpy(bytes.data(), &fewer, 8);
    writer.add_copy(std::string(section.name), bytes.data(), bytes.size());
  }
  writer.write(path("b.knear"), {});
  expect_error<CorruptFile>([&] { Index::load(path("b.knear")); },
                            "section '0/integer/fields' is wrong");
}

TEST_F(FlatFiles, AKilledSaveLeavesAWholeFile) {
  Random random(7);
  Index old_one = make_index("Flat", 16), new_one = make_index("Flat", 16);
  Matrix<float> x(20000, 16);
  for (std::int64_t i = 0; i < 20000 * 16; ++i) x.data()[i] = static_cast<float>(random.uniform());
  old_one.add(x.view().rows(0, 15000));
  new_one.add(x.view());
  old_one.save(path("a.knear"));
  // The time of a save differs a hundredfold between disks: the child reports when one is done, and
  // is killed within about the time of the next.
  int killed = 0, saw_old = 0, saw_new = 0;
  const auto start = std::chrono::steady_clock::now();
  old_one.save(path("a.knear"));
  const std::chrono::duration<double, std::micro> save_time =
      std::chrono::steady_clock::now() - start;
  const auto longest = std::clamp<std::int64_t>(std::llround(1.5 * save_time.count()), 100, 30000);
  for (int round = 0; round < 300; ++round) {
    int done[2];
    ASSERT_EQ(pipe(done), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int i = 0;; ++i) {
        (i % 2 ? old_one : new_one).save(path("a.knear"));
        if (::write(done[1], "", 1) != 1) _exit(1);
      }
    }
    close(done[1]);
    for (std::size_t left = random.below(3); left > 0; --left) {
      char byte;
      ASSERT_EQ(::read(done[0], &byte, 1), 1);
    }
    usleep(static_cast<useconds_t>(random.below(static_cast<std::size_t>(longest))));
    kill(child, SIGKILL);
    close(done[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status);
    const auto archive = io::Archive::open(path("a.knear"));
    archive->verify({});
    const std::int64_t size = Index::load(path("a.knear")).size();
    ASSERT_TRUE(size == 15000 || size == 20000) << size;
    (size == 15000 ? saw_old : saw_new) += 1;
  }
  EXPECT_EQ(killed, 300);
  EXPECT_GT(saw_old, 0);
  EXPECT_GT(saw_new, 0);
  // Beside it there are at most the few complete files whose saves were killed between naming and
  // renaming.
  EXPECT_LE(file_count_after_kills(), 30);
}

// A segment costs every search some time, so their number must not grow with the changes made.
TEST_F(FlatFiles, SegmentsStayFewThroughManyChanges) {
  const auto segments = [&](const Index& index) {
    index.save(path("s.knear"));
    std::set<std::string> numbers;  // sections of a segment are called NUMBER/NAME
    const auto archive = io::Archive::open(path("s.knear"));
    for (const io::Section& section : archive->sections())
      if (const auto slash = section.name.find('/'); slash != std::string_view::npos)
        numbers.emplace(section.name.substr(0, slash));
    return std::ssize(numbers);
  };
  Random random(5);
  for (const bool whole : {false, true}) {
    Matrix<float> x(600, 9);
    for (std::int64_t i = 0; i < 600 * 9; ++i)
      x.data()[i] = whole ? static_cast<float>(random.below(200)) : float(random.uniform());
    Index index = make_index("Flat", 9);
    std::vector<Id> live;
    for (int round = 0; round < 600; ++round) {
      const std::int64_t rows = 1 + static_cast<std::int64_t>(random.below(600));
      for (Id id = 0; id < rows; ++id) live.push_back(index.next_id() + id);
      index.add(x.view().rows(0, rows));
      std::vector<Id> gone;
      for (std::size_t i = random.below(live.size()); i < live.size() && std::ssize(gone) < rows;
           ++i)
        gone.push_back(live[i]);
      index.remove(gone);
      std::erase_if(live, [&](Id id) { return id >= gone.front() && id <= gone.back(); });
      if (round % 3 == 0) {
        Index other = make_index("Flat", 9);
        other.add(x.view().rows(0, 1 + static_cast<std::int64_t>(random.below(20))));
        const Id first = index.next_id();
        index.merge(other, MergeIds::shifted);
        for (Id id = first; id < index.next_id(); ++id) live.push_back(id);
      }
      if (round % 50 == 49) {
        ASSERT_LE(segments(index), 60) << "after " << round + 1 << " rounds";
      }
    }
    EXPECT_EQ(index.ids(), live);
  }
}

TEST_F(FlatFiles, ErrorsNameTheFile) {
  expect_error<IoError>([&] { Index::load(path("none.knear")); }, "none.knear");
  write("text.knear", std::string(200, 'x'));
  expect_error<CorruptFile>([&] { Index::load(path("text.knear")); }, "is no .knear file");
  expect_error<CorruptFile>([&] { Index::load(path("text.knear")); }, "is no .knear file");
  write("text", std::string(200, 'x'));
  expect_error<CorruptFile>([&] { Index::load(path("text")); },
                            "is neither a .knear file nor a FAISS index file");
  expect_error<IoError>([&] { Index::load(path("none")); }, "No such file");
  write("bytes.faiss", std::string(200, '\7'));
  expect_error<CorruptFile>([&] { Index::load(path("bytes.faiss")); },
                            "no index of FAISS begins like this");
  expect_error<IoError>([&] { varied().save(path("none/a.knear")); }, "No such file");
  std::string whole = (varied().save(path("a.knear")), read("a.knear"));
  whole[8] = 2;
  write("later.knear", whole);
  expect_error<CorruptFile>([&] { Index::load(path("later.knear")); },
                            "has format version 2, this program reads version 1");
  io::ArchiveWriter other("IVF");
  other.write(path("ivf.knear"), {});
  expect_error<CorruptFile>([&] { Index::load(path("ivf.knear")); }, "kind 'IVF'");
  const Progress stop = [](std::string_view, double) { return false; };
  EXPECT_THROW(varied().save(path("a.knear"), stop), Cancelled);
  EXPECT_EQ(Index::load(path("a.knear")).size(), varied().size());
}

}  // namespace
}  // namespace knear
