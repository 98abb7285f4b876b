// Files of more than 2^32 numbers, which take no disk: sparse, with something at their end.
#include <fcntl.h>
#include <unistd.h>

#include <vector>

#include "knear/io/convert.hpp"
#include "knear/io/statistics.hpp"
#include "knear/io/vectors.hpp"
#include "knear/knn/knn.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

class LargeFiles : public FileTest {
 protected:
  // `head`, zeros, and `tail` as the last bytes of `bytes`. Skips where the disk has no holes.
  void make(const std::string& name, const std::string& head, std::int64_t bytes,
            const std::string& tail) {
    const int file = open(path(name).c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600);
    ASSERT_GE(file, 0);
    const auto size = static_cast<std::int64_t>(tail.size());
    made_ = ftruncate(file, bytes) == 0 &&
            pwrite(file, head.data(), head.size(), 0) == static_cast<ssize_t>(head.size()) &&
            pwrite(file, tail.data(), tail.size(), bytes - size) == static_cast<ssize_t>(size);
    close(file);
  }
  bool made_ = false;
};

constexpr std::int64_t rows = 40'000'003, dim = 128;  // 5,120,000,384 numbers
static_assert(rows * dim > (std::int64_t{1} << 32));

std::string last_row(char first) {
  std::string out;
  for (int i = 0; i < dim; ++i) out += static_cast<char>(first + i % 50);
  return out;
}

TEST_F(LargeFiles, BytesBeyond2To32) {
  make("a.u8bin", raw(std::uint32_t(rows)) + raw(std::uint32_t(dim)), 8 + rows * dim, last_row(10));
  if (!made_) GTEST_SKIP() << "no sparse files here";
  const VectorFile file = VectorFile::open(path("a.u8bin"));
  ASSERT_EQ(file.view().rows(), rows);
  const auto view = file.view().as<std::uint8_t>();
  EXPECT_EQ(view.row(rows - 1)[0], 10);
  EXPECT_EQ(view.row(rows - 1)[dim - 1], 10 + 127 % 50);
  EXPECT_EQ(view.row(rows - 2)[dim - 1], 0);
  EXPECT_EQ(inspect(path("a.u8bin")).element_bytes, rows * dim);
  // Converts and searches the end alone.
  convert_file(path("a.u8bin"), path("end.fvecs"),
               {.type = ElementType::f32, .rows = RowRange{rows - 5, {}}});
  const VectorFile end = VectorFile::open(path("end.fvecs"));
  EXPECT_EQ(end.view().as<float>().row(4)[1], 11);
  const VectorFile tail =
      VectorFile::open(path("a.u8bin"), {.rows = RowRange{rows - 5, std::nullopt}});
  const Neighbors near = knn(end.view().rows(4, 5), tail.view(), 1);
  EXPECT_EQ(near.ids.row(0)[0], 4);
  EXPECT_EQ(near.distances.row(0)[0], 0);
  // One byte too few or too many is noticed as elsewhere.
  ASSERT_EQ(truncate(path("a.u8bin").c_str(), 8 + rows * dim - 1), 0);
  expect_error<CorruptFile>([&] { VectorFile::open(path("a.u8bin")); }, "is truncated");
}

TEST_F(LargeFiles, FloatsInEitherOrderBeyond2To34Bytes) {
  const std::string value = raw(1.5f);
  for (bool fortran : {false, true}) {
    const std::string head =
        npy(npy_header("<f4", fmt::format("({}, {})", rows, dim), fortran ? "True" : "False"), "");
    make("a.npy", head, static_cast<std::int64_t>(head.size()) + 4 * rows * dim, value);
    if (!made_) GTEST_SKIP() << "no sparse files here";
    const VectorFile end =
        VectorFile::open(path("a.npy"), {.rows = RowRange{rows - 3, std::nullopt}});
    ASSERT_EQ(end.view().rows(), 3);
    EXPECT_EQ(end.view().as<float>().row(2)[dim - 1], 1.5f);
    EXPECT_EQ(end.view().as<float>().row(2)[dim - 2], 0.0f);
    VectorBlocks blocks(path("a.npy"), {.rows = RowRange{rows - 3, std::nullopt}});
    EXPECT_EQ(blocks.next(100).as<float>().row(2)[dim - 1], 1.5f);
  }
}

TEST_F(LargeFiles, SizesBeyond63BitsAreRefused) {
  const std::int64_t huge = std::int64_t{1} << 62;
  write("a.npy", npy(npy_header("<f4", fmt::format("({}, {})", huge, 4)), "data"));
  expect_error<CorruptFile>([&] { VectorFile::open(path("a.npy")); }, "a.npy");
  write("a.fbin", raw(0xffffffffu) + raw(0xffffffffu) + "data");
  expect_error<CorruptFile>([&] { VectorFile::open(path("a.fbin")); }, "a.fbin");
}

}  // namespace
}  // namespace knear::io
