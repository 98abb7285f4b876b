// compute_statistics() and convert_file().
#include "knear/io/statistics.hpp"

#include <cmath>
#include <limits>

#include "knear/core/matrix.hpp"
#include "knear/io/convert.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

class StatisticsTest : public FileTest {};
class Convert : public FileTest {
 protected:
  // [rows x 3] of i * 3 + j.
  static Matrix<float> counting(std::int64_t rows) {
    Matrix<float> matrix(rows, 3);
    for (std::int64_t i = 0; i < rows * 3; ++i) matrix.data()[i] = float(i);
    return matrix;
  }
  static float value(const VectorFile& file, std::int64_t row, std::int64_t col) {
    return visit(file.view(), [&](auto typed) { return to_double(typed.row(row)[col]); });
  }
};

TEST_F(StatisticsTest, CountsWhatIsThere) {
  Matrix<float> matrix(4, 2);
  const float values[4][2] = {{3, 4}, {0.5f, 0}, {NAN, INFINITY}, {-INFINITY, 1000}};
  for (int i = 0; i < 4; ++i) std::copy_n(values[i], 2, matrix.row(i));
  write_vectors(path("a.fvecs"), matrix.view());
  const Statistics got = compute_statistics(path("a.fvecs"));
  EXPECT_FALSE(got.whole_numbers);
  EXPECT_EQ(got.least, 0);
  EXPECT_EQ(got.greatest, 1000);
  EXPECT_EQ(got.nan_count, 1);
  EXPECT_EQ(got.infinity_count, 2);
  EXPECT_EQ(got.first_bad_row, 2);
  EXPECT_EQ(got.finite_rows, 2);
  EXPECT_EQ(got.least_norm, 0.5);
  EXPECT_EQ(got.greatest_norm, 5);
}

TEST_F(StatisticsTest, WholeNumbersOfAnyType) {
  write("a.npy",
        npy(npy_header("<i8", "(1, 2)"), raw(std::int64_t{-1}) + raw(std::int64_t{1} << 40)));
  const Statistics got = compute_statistics(path("a.npy"));
  EXPECT_TRUE(got.whole_numbers);
  EXPECT_EQ(got.least, -1);
  EXPECT_EQ(got.greatest, double(std::int64_t{1} << 40));
  EXPECT_EQ(got.first_bad_row, -1);
  EXPECT_EQ(got.info.type, "i64");
}

TEST_F(StatisticsTest, ChecksumIsOfTheMatrixNotOfTheFormat) {
  Matrix<float> matrix(1000, 50);
  for (int i = 0; i < 50000; ++i) matrix.data()[i] = float(i) * 0.37f;
  write_vectors(path("a.fvecs"), matrix.view());
  write_vectors(path("a.npy"), matrix.view());
  write("b.fvecs.gz", gzip(read("a.fvecs")));
  std::string swapped;
  for (int i = 0; i < 50000; ++i) swapped += big_endian(matrix.data()[i]);
  write("c.npy", npy(npy_header(">f4", "(1000, 50)"), swapped));
  const std::uint64_t checksum = compute_statistics(path("a.fvecs")).checksum;
  for (const char* name : {"a.npy", "b.fvecs.gz", "c.npy"})
    EXPECT_EQ(compute_statistics(path(name)).checksum, checksum) << name;
  matrix.row(999)[49] += 1;
  write_vectors(path("a.npy"), matrix.view());
  EXPECT_NE(compute_statistics(path("a.npy")).checksum, checksum);
}

TEST_F(StatisticsTest, ChecksumIsXxh3) {
  // XXH3, 64 bits, seed 0, of the three bytes "abc", as xxhsum -H3 prints it.
  write("a.npy", npy(npy_header("|u1", "(1, 3)"), "abc"));
  EXPECT_EQ(compute_statistics(path("a.npy")).checksum, 0x78af5f94892f3950u);
}

TEST_F(StatisticsTest, CanBeStopped) {
  write_vectors(path("a.npy"), AnyMatrix(ElementType::f32, 1000, 1000));
  int calls = 0;
  EXPECT_THROW(
      compute_statistics(path("a.npy"), [&](std::string_view, double) { return ++calls < 2; }),
      Cancelled);
  EXPECT_EQ(calls, 2);
}

TEST_F(Convert, FollowsTheEndingOfTheName) {
  write_vectors(path("a.fvecs"), counting(50).view());
  EXPECT_EQ(convert_file(path("a.fvecs"), path("b.bvecs")).type, "u8");
  EXPECT_EQ(convert_file(path("b.bvecs"), path("c.npy")).type, "u8");
  EXPECT_EQ(convert_file(path("c.npy"), path("d.fvecs")).type, "f32");
  EXPECT_EQ(read("d.fvecs"), read("a.fvecs"));
}

TEST_F(Convert, TakesRowsAndTypes) {
  write_vectors(path("a.fvecs"), counting(50).view());
  const Converted made =
      convert_file(path("a.fvecs"), path("b.npy"), {.type = ElementType::i8, .rows = {{10, 20}}});
  EXPECT_EQ(made.rows, 10);
  EXPECT_EQ(made.dim, 3);
  EXPECT_EQ(made.type, "i8");
  const VectorFile file = VectorFile::open(path("b.npy"));
  EXPECT_EQ(file.view().type(), ElementType::i8);
  EXPECT_EQ(value(file, 9, 2), 59);
}

TEST_F(Convert, NeverScales) {
  Matrix<float> matrix = counting(50);
  matrix.row(40)[1] = 300;
  write_vectors(path("a.fvecs"), matrix.view());
  expect_error<InvalidArgument>([&] { convert_file(path("a.fvecs"), path("b.bvecs")); },
                                "row 40, column 1 is 300, which u8 cannot hold");
  // Rows are counted in the input, not from the first one asked for.
  expect_error<InvalidArgument>(
      [&] {
        convert_file(path("a.fvecs"), path("b.bvecs"), {.rows = {{30, {}}}});
      },
      "row 40, column 1 is 300");
  EXPECT_EQ(file_count(), 1);
  matrix.row(40)[1] = 0.1f;
  write_vectors(path("a.fvecs"), matrix.view());
  EXPECT_THROW(convert_file(path("a.fvecs"), path("b.bvecs")), InvalidArgument);
  convert_file(path("a.fvecs"), path("b.npy"), {.type = ElementType::f16});
  EXPECT_EQ(value(VectorFile::open(path("b.npy")), 40, 1), to_float(to_f16(0.1f)));
}

TEST_F(Convert, IdsStayWhole) {
  Matrix<Id> ids(3, 2);
  ids.row(1)[1] = (1 << 24) + 1;
  ids.row(2)[0] = -1;
  write_ids(path("a.ivecs"), ids);
  EXPECT_EQ(convert_file(path("a.ivecs"), path("b.npy")).type, "i64");
  EXPECT_EQ(read_ids(path("b.npy")).row(1)[1], (1 << 24) + 1);
  convert_file(path("b.npy"), path("c.ivecs"));
  EXPECT_EQ(read("c.ivecs"), read("a.ivecs"));
  ids.row(0)[0] = std::int64_t{1} << 40;
  write_ids(path("b.npy"), ids);
  EXPECT_THROW(convert_file(path("b.npy"), path("c.ivecs")), InvalidArgument);
  EXPECT_EQ(read("c.ivecs"), read("a.ivecs"));
}

TEST_F(Convert, RefusesWhatNoFormatStores) {
  write_vectors(path("a.fvecs"), counting(1).view());
  expect_error<InvalidArgument>(
      [&] { convert_file(path("a.fvecs"), path("b.npy"), {.type = ElementType::bf16}); },
      "no format here stores it");
  expect_error<InvalidArgument>(
      [&] { convert_file(path("a.fvecs"), path("b.bvecs"), {.type = ElementType::i8}); },
      ".bvecs stores u8, but these are i8");
  write("half.fvecs", raw(1) + raw(0.5f));
  expect_error<InvalidArgument>([&] { convert_file(path("half.fvecs"), path("b.ivecs")); },
                                "is 0.5, which an id of 64 bits cannot hold");
}

TEST_F(Convert, AFileCanReplaceItself) {
  write_vectors(path("a.npy"), counting(500).view());
  convert_file(path("a.npy"), path("a.npy"), {.type = ElementType::f16});
  const VectorFile file = VectorFile::open(path("a.npy"));
  EXPECT_EQ(file.view().type(), ElementType::f16);
  EXPECT_EQ(value(file, 499, 2), 1499);
}

TEST_F(Convert, CanBeStopped) {
  write_vectors(path("a.npy"), AnyMatrix(ElementType::f32, 1000, 1000));
  EXPECT_THROW(convert_file(path("a.npy"), path("b.fvecs"),
                            {.progress = [](std::string_view, double) { return false; }}),
               Cancelled);
  EXPECT_EQ(file_count(), 1);
}

}  // namespace
}  // namespace knear::io
