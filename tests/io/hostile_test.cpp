// Files whose headers are wrong: each is refused by an error of one line that says what was found,
// and none costs more memory than it has bytes.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "knear/core/matrix.hpp"
#include "knear/core/random.hpp"
#include "knear/io/statistics.hpp"
#include "knear/io/vectors.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

std::string fvecs_row(std::int32_t said, std::int32_t values) {
  std::string row = raw(said);
  for (std::int32_t i = 0; i < values; ++i) row += raw(float(i));
  return row;
}

class Hostile : public FileTest {
 protected:
  // Expects a file to be refused plain and gzipped, opened and inspected, with the same class of
  // error.
  template <class E>
  void refuse(const std::string& name, const std::string& bytes, const std::string& part) {
    SCOPED_TRACE(name);
    const std::string plain = write(name, bytes);
    const std::string message = expect_error<E>([&] { VectorFile::open(plain); }, part);
    EXPECT_NE(message.find(plain), std::string::npos) << message;
    const std::string zipped = write(name + ".gz", gzip(bytes));
    EXPECT_THROW(VectorFile::open(zipped), E);
    // Sound files that a search cannot use may be described nevertheless.
    if (std::is_same_v<E, CorruptFile>) {
      EXPECT_THROW(compute_statistics(zipped), E);
    }
  }
  template <class E>
  void refuse_npy(const std::string& dictionary, const std::string& part) {
    refuse<E>("a.npy", npy(dictionary, std::string(24, '\0')), part);
  }
};

TEST_F(Hostile, NoSuchFile) {
  expect_error<IoError>([&] { VectorFile::open(path("a.fvecs")); }, "No such file");
  expect_error<IoError>([&] { read_ids(path("a.ivecs")); }, "No such file");
}

TEST_F(Hostile, DirectoryInsteadOfFile) {
  std::filesystem::create_directory(path("a.fvecs"));
  expect_error<IoError>([&] { VectorFile::open(path("a.fvecs")); }, "is a directory");
}

TEST_F(Hostile, PipeInsteadOfFile) {
  ASSERT_EQ(mkfifo(path("a.fvecs").c_str(), 0600), 0);
  expect_error<IoError>([&] { VectorFile::open(path("a.fvecs")); }, "is not a regular file");
}

TEST_F(Hostile, NoPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write("a.fvecs", fvecs_row(2, 2));
  ASSERT_EQ(chmod(path("a.fvecs").c_str(), 0), 0);
  expect_error<IoError>([&] { VectorFile::open(path("a.fvecs")); }, "Permission denied");
}

TEST_F(Hostile, EmptyFile) {
  for (const char* name : {"a.fvecs", "a.bvecs", "a.ivecs", "a.npy", "a-idx3-ubyte", "a.fvecs.gz"})
    expect_error<CorruptFile>([&] { VectorFile::open(write(name, "")); }, "is empty");
  expect_error<CorruptFile>([&] { VectorFile::open(write("b.fvecs.gz", gzip(""))); },
                            "is empty once unpacked");
}

TEST_F(Hostile, UnknownFormat) {
  expect_error<InvalidArgument>([&] { VectorFile::open(write("a.txt", "1 2 3\n")); },
                                "unknown format");
  expect_error<InvalidArgument>([&] { VectorFile::open(write("a.gz", gzip("1 2 3\n"))); },
                                "unknown format");
}

TEST_F(Hostile, VecsShorterThanOneHeader) { refuse<CorruptFile>("a.fvecs", "abc", "3 bytes"); }

TEST_F(Hostile, VecsDimensionZero) {
  refuse<CorruptFile>("a.fvecs", raw(0) + raw(0), "row 0 says dimension 0");
}

TEST_F(Hostile, VecsDimensionNegative) {
  refuse<CorruptFile>("a.fvecs", raw(-5) + std::string(100, 'x'), "row 0 says dimension -5");
  refuse<CorruptFile>("a.bvecs", raw(INT32_MIN) + std::string(100, 'x'), "dimension -2147483648");
}

TEST_F(Hostile, VecsDimensionAboveTheLimit) {
  refuse<InvalidArgument>("a.bvecs", raw(65537) + std::string(65537, 'x'),
                          "dimension 65537, expected 1 to 65536");
}

TEST_F(Hostile, VecsDimensionBeyondTheFile) {
  refuse<CorruptFile>("a.fvecs", raw(INT32_MAX) + std::string(100, 'x'), "is truncated");
}

TEST_F(Hostile, VecsTruncated) {
  const std::string bytes = fvecs_row(3, 3) + fvecs_row(3, 3);
  for (std::size_t size = 1; size < bytes.size(); ++size) {
    if (size == bytes.size() / 2) continue;
    EXPECT_THROW(VectorFile::open(write("a.fvecs", bytes.substr(0, size))), CorruptFile) << size;
    EXPECT_THROW(VectorFile::open(write("a.fvecs.gz", gzip(bytes.substr(0, size)))), CorruptFile)
        << size;
  }
}

TEST_F(Hostile, VecsTrailingBytes) {
  refuse<CorruptFile>("a.fvecs", fvecs_row(3, 3) + "x", "no multiple of the 16 bytes");
}

TEST_F(Hostile, VecsRowsOfDifferentDimension) {
  // The size of the file fits rows of three nevertheless.
  refuse<CorruptFile>("a.fvecs", fvecs_row(3, 3) + fvecs_row(3, 3) + fvecs_row(2, 3),
                      "row 2 says dimension 2, expected 3");
}

TEST_F(Hostile, VecsFirstOfManyBadRowsIsNamedWhateverTheThreads) {
  std::string bytes;
  for (int i = 0; i < 100000; ++i) bytes += raw(i >= 20011 && i % 3 == 1 ? 2 : 1) + "x";
  for (int repeat = 0; repeat < 20; ++repeat)
    expect_error<CorruptFile>([&] { VectorFile::open(write("a.bvecs", bytes)); },
                              "row 20011 says dimension 2, expected 1");
}

TEST_F(Hostile, NpyWrongMagicOrVersion) {
  const std::string good = npy(npy_header("<f4", "(2, 3)"), std::string(24, '\0'));
  std::string bad = good;
  bad[1] = 'M';
  refuse<CorruptFile>("a.npy", bad, "does not begin like");
  bad = good;
  bad[6] = 4;
  refuse<CorruptFile>("a.npy", bad, "version 4.0");
  bad = good;
  bad[7] = 1;
  refuse<CorruptFile>("a.npy", bad, "version 1.1");
}

TEST_F(Hostile, NpyTruncatedAnywhere) {
  const std::string good = npy(npy_header("<f4", "(2, 3)"), std::string(24, '\0'));
  for (std::size_t size = 1; size < good.size(); ++size) {
    EXPECT_THROW(VectorFile::open(write("a.npy", good.substr(0, size))), CorruptFile) << size;
    EXPECT_THROW(VectorFile::open(write("a.npy.gz", gzip(good.substr(0, size)))), CorruptFile)
        << size;
  }
}

TEST_F(Hostile, NpyTrailingBytes) {
  refuse<CorruptFile>("a.npy", npy(npy_header("<f4", "(2, 3)"), std::string(25, '\0')),
                      "has bytes after its end");
}

TEST_F(Hostile, NpyAbsurdHeaderLength) {
  std::string bytes("\x93NUMPY\x02\x00", 8);
  refuse<CorruptFile>("a.npy", bytes + raw(UINT32_MAX) + std::string(100, ' '), "4294967295");
  refuse<CorruptFile>("a.npy", bytes + raw(65536) + std::string(100, ' '), "but only 100 follow");
}

TEST_F(Hostile, NpyShapeOverflows) {
  for (const char* shape :
       {"(4294967296, 4294967296)", "(9223372036854775807, 2)", "(2, 9223372036854775807)",
        "(2305843009213693952, 8)", "(9223372036854775807, 9223372036854775807)"})
    refuse_npy<CorruptFile>(npy_header("<f4", shape), "more than any file can");
  refuse_npy<CorruptFile>(npy_header("<f4", "(18446744073709551616, 1)"), "beyond 64 bits");
  refuse_npy<CorruptFile>(npy_header("<f4", "(99999999999999999999999999999999, 1)"),
                          "beyond 64 bits");
}

TEST_F(Hostile, NpyShapeBeyondTheFile) {
  refuse_npy<CorruptFile>(npy_header("<f4", "(1000000000000, 96)"), "");
  EXPECT_THROW(VectorFile::open(path("a.npy")), CorruptFile);
}

TEST_F(Hostile, NpyShapesThatAreNoMatrix) {
  refuse_npy<InvalidArgument>(npy_header("<f4", "(6,)"), "1 dimension, expected 2");
  refuse_npy<InvalidArgument>(npy_header("<f4", "()"), "0 dimensions, expected 2");
  refuse_npy<InvalidArgument>(npy_header("<f4", "(1, 2, 3)"), "3 dimensions, expected 2");
  refuse<InvalidArgument>("a.npy", npy(npy_header("<f4", "(6, 0)"), ""), "of dimension 0");
  refuse<InvalidArgument>("a.npy", npy(npy_header("|u1", "(1, 65537)"), std::string(65537, 'x')),
                          "dimension 65537");
}

TEST_F(Hostile, NpyFortranOrderOfTheWrongSize) {
  refuse_npy<CorruptFile>(npy_header("<f4", "(2, 300000)", "True"), "is truncated");
}

TEST_F(Hostile, NpyTypesThatAreNoPlainNumbers) {
  for (const char* descr : {"<c8", "|b1", "<U4", "|S4", "|O", "<M8", "f4", "<f3", "|f4", "<f16", "",
                            "<f4x", "\x01\x02"})
    refuse_npy<InvalidArgument>(npy_header(descr, "(2, 3)"), "holds numbers of type");
  refuse_npy<InvalidArgument>(
      "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2, 3), }", "records");
}

TEST_F(Hostile, NpyTypeTextDoesNotReachTheTerminalAsItIs) {
  const std::string message = expect_error<InvalidArgument>(
      [&] {
        VectorFile::open(
            write("a.npy", npy(npy_header("\x1b[31m\n", "(2, 3)"), std::string(24, '\0'))));
      },
      "'?[31m?'");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

TEST_F(Hostile, NpyHeadersThatAreNoDictionary) {
  for (const char* dictionary :
       {"",
        "{",
        "}",
        "{}",
        "[]",
        "{'descr': '<f4'}",
        "{'descr': '<f4', 'shape': (2, 3)}",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'more': 1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0x3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3.0)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, , 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [2, 3]}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': Falsehood, 'shape': (2, 3)}",
        "{'descr': '<f4' 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f\\x34', 'fortran_order': False, 'shape': (2, 3)}",
        "{descr: '<f4', 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': __import__('os'), 'fortran_order': False, 'shape': (2, 3)}"})
    refuse_npy<CorruptFile>(dictionary, "its header");
}

TEST_F(Hostile, IdxHeadersThatMakeNoSense) {
  const auto idx = [](char type, char dimensions, std::initializer_list<std::uint32_t> dims) {
    std::string bytes{'\0', '\0', type, dimensions};
    for (std::uint32_t dim : dims) bytes += big_endian(dim);
    return bytes;
  };
  refuse<CorruptFile>("a", idx(0x0a, 2, {1, 2}) + "xx", "type 0x0a");
  refuse<CorruptFile>("a", idx(0x08, 3, {1, 2}), "truncated within its idx header");
  refuse<InvalidArgument>("a", idx(0x08, 1, {3}) + "xxx", "labels");
  refuse<InvalidArgument>("a", idx(0x08, 2, {3, 0}), "dimension 0");
  refuse<CorruptFile>("a", idx(0x08, 2, {3, 2}) + "xxxxx", "is truncated");
  refuse<CorruptFile>("a", idx(0x08, 2, {3, 2}) + "xxxxxxx", "has bytes after its end");
  refuse<CorruptFile>("a", idx(0x0e, 3, {UINT32_MAX, UINT32_MAX, UINT32_MAX}) + "x",
                      "more numbers than any file can");
}

TEST_F(Hostile, GzipDamaged) {
  const std::string good = gzip(fvecs_row(3, 3) + fvecs_row(3, 3));
  const auto refused = [&](std::string bytes, const std::string& part) {
    expect_error<CorruptFile>([&] { VectorFile::open(write("a.fvecs.gz", bytes)); }, part);
  };
  for (std::size_t size = 2; size < good.size(); ++size) refused(good.substr(0, size), "truncated");
  refused(good + "x", "1 bytes after the end");
  refused(good + std::string(100, '\0'), "100 bytes after the end");
  refused(fvecs_row(3, 3), "does not begin like a gzip file");
  std::string wrong_checksum = good;
  wrong_checksum[good.size() - 8] ^= 1;
  refused(wrong_checksum, "is damaged");
}

TEST_F(Hostile, GzipWithMoreOrLessThanItsHeaderSays) {
  // Longer than any header, so that the end is not read at once.
  const std::string header = npy_header("|u1", "(1000, 1000)");
  std::string data;  // incompressible, so that its size is plausible until it is counted
  Random random(1);
  while (data.size() < 1000000) data += raw(random.next());
  for (const auto& [bytes, part] :
       {std::pair{npy(header, data + "x"), "has bytes after its end"},
        std::pair{npy(header, data + data), "has bytes after its end"},
        std::pair{npy(header, data.substr(1)), "is truncated"},
        std::pair{npy(header, data.substr(0, 500000)), "is truncated"}}) {
    const std::string zipped = write("a.npy.gz", gzip(bytes));
    expect_error<CorruptFile>([&] { VectorFile::open(zipped); }, part);
    expect_error<CorruptFile>([&] { inspect(zipped); }, part);
  }
  EXPECT_EQ(VectorFile::open(write("a.npy.gz", gzip(npy(header, data)))).view().rows(), 1000);
}

// Limits the address space: it has no room for what the files claim to hold.
class SmallMemory {
 public:
  SmallMemory() {
    getrlimit(RLIMIT_AS, &old_);
    rlimit small = old_;
    small.rlim_cur = rlim_t{4} << 30;
    setrlimit(RLIMIT_AS, &small);
  }
  ~SmallMemory() { setrlimit(RLIMIT_AS, &old_); }

 private:
  rlimit old_;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;  // which take terabytes of address space for themselves
#else
constexpr bool sanitized = false;
#endif

TEST_F(Hostile, GzipBombsEndBeforeMemoryIsTaken) {
  if (sanitized) GTEST_SKIP() << "the sanitiser needs the address space";
  const SmallMemory limit;
  // Says 64 TB, unpacks to less: refused by the ratio that gzip can reach at best.
  refuse<CorruptFile>("a.npy",
                      npy(npy_header("<f4", "(1000000000000, 16)"), std::string(1 << 20, 'x')),
                      "is truncated");
  // Zeros without end, which as rows have dimension 0 from the second on.
  const std::string zeros(std::size_t{64} << 20, '\0');
  expect_error<CorruptFile>(
      [&] { VectorFile::open(write("b.fvecs.gz", gzip(fvecs_row(4, 4) + zeros))); },
      "row 1 says dimension 0, expected 4");
  // More data than the header says.
  expect_error<CorruptFile>(
      [&] { VectorFile::open(write("c.npy.gz", gzip(npy(npy_header("|u1", "(1, 1)"), zeros)))); },
      "has bytes after its end");
}

// More numbers than 32 bits count, in a file that takes no space: 64-bit arithmetic everywhere, and
// opening costs nothing because nothing is read.
TEST_F(Hostile, MoreThan2To32NumbersOpenAtOnce) {
  const std::int64_t rows = (std::int64_t{1} << 32) / 128 + 12345, cols = 128;
  const std::string head = npy(npy_header("|u1", fmt::format("({}, {})", rows, cols)), "");
  write("big.npy", head);
  const std::int64_t size = std::int64_t(head.size()) + rows * cols;
  if (truncate(path("big.npy").c_str(), size) != 0)
    GTEST_SKIP() << "no sparse files of " << size << " bytes here: " << std::strerror(errno);
  {
    std::fstream file(path("big.npy"), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(size - 1);
    file.put('\x2a');
  }
  const auto start = std::chrono::steady_clock::now();
  const VectorFile file = VectorFile::open(path("big.npy"));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 1.0);
  ASSERT_EQ(file.view().rows(), rows);
  EXPECT_EQ(file.view().as<std::uint8_t>().row(rows - 1)[cols - 1], 0x2a);
  EXPECT_EQ(file.view().as<std::uint8_t>().row(rows - 1)[0], 0);
  EXPECT_EQ(inspect(path("big.npy")).element_bytes, rows * cols);

  const std::int64_t row = (std::int64_t{1} << 32) / 128 + 7;  // beyond 2^32 elements
  EXPECT_EQ(VectorFile::open(path("big.npy"), {.rows = {{row, {}}}}).view().rows(), rows - row);
}

TEST_F(Hostile, FvecsBeyond4GigabytesHasItsHeadersChecked) {
  // Rows as long as allowed, so that there are few headers to write and to check.
  const std::int64_t rows = 16500, row_bytes = 4 * 65536 + 4;
  write("big.fvecs", raw(65536));
  if (truncate(path("big.fvecs").c_str(), rows * row_bytes) != 0)
    GTEST_SKIP() << "no sparse files of " << rows * row_bytes << " bytes here";
  {
    std::fstream file(path("big.fvecs"), std::ios::binary | std::ios::in | std::ios::out);
    for (std::int64_t i = 0; i < rows; ++i) {
      file.seekp(i * row_bytes);
      file << raw(i == rows - 1 ? 65535 : 65536);
    }
    file.flush();
    if (!file) GTEST_SKIP() << "no room for the headers of a sparse file";
  }
  expect_error<CorruptFile>([&] { VectorFile::open(path("big.fvecs")); },
                            "row 16499 says dimension 65535, expected 65536");
  EXPECT_EQ(VectorFile::open(path("big.fvecs"), {.rows = {{0, rows - 1}}}).view().rows(), rows - 1);
}

}  // namespace
}  // namespace knear::io
