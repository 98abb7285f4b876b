// Sound files: every format, type and way of storing gives back the numbers that went in.
#include "knear/io/vectors.hpp"

#include <cmath>
#include <limits>

#include "knear/core/random.hpp"
#include "tests/io/file_cases.hpp"

namespace knear::io {
namespace {

class Vectors : public FileTest {};

// Random bits, NaN and infinity included.
AnyMatrix random_matrix(ElementType type, std::int64_t rows, std::int64_t cols,
                        std::uint64_t seed) {
  AnyMatrix matrix(type, rows, cols);
  Random random(seed);
  for (std::int64_t i = 0; i < rows; ++i) {
    auto* row = static_cast<unsigned char*>(matrix.row(i));
    for (std::int64_t j = 0; j < cols * size_of(type); ++j)
      row[j] = static_cast<unsigned char>(random.next());
  }
  return matrix;
}

void expect_same_bits(AnyMatrixView a, AnyMatrixView b) {
  ASSERT_EQ(a.type(), b.type());
  ASSERT_EQ(a.rows(), b.rows());
  ASSERT_EQ(a.cols(), b.cols());
  for (std::int64_t i = 0; i < a.rows(); ++i)
    ASSERT_EQ(std::memcmp(a.row(i), b.row(i), size_t(a.cols() * size_of(a.type()))), 0)
        << "row " << i;
}

double value(AnyMatrixView view, std::int64_t row, std::int64_t col) {
  return visit(view, [&](auto typed) { return to_double(typed.row(row)[col]); });
}

TEST_F(Vectors, RoundTripOfEveryFormatTypeAndShape) {
  const struct {
    const char* name;
    ElementType type;
  } cases[] = {{"a.fvecs", ElementType::f32}, {"a.bvecs", ElementType::u8},
               {"a.fbin", ElementType::f32},  {"a.u8bin", ElementType::u8},
               {"a.i8bin", ElementType::i8},  {"a.npy", ElementType::f32},
               {"a.npy", ElementType::f16},   {"a.npy", ElementType::u8},
               {"a.npy", ElementType::i8},    {"a.npy", ElementType::f64}};
  std::uint64_t seed = 1;
  for (const auto& c : cases) {
    for (std::int64_t rows : {1, 2, 3, 1000}) {
      for (std::int64_t cols : {1, 2, 3, 17, 128, 65536}) {
        if (rows * cols > 1000 * 128) continue;
        SCOPED_TRACE(fmt::format("{} {} {} x {}", c.name, name_of(c.type), rows, cols));
        const AnyMatrix matrix = random_matrix(c.type, rows, cols, seed++);
        write_vectors(path(c.name), matrix);
        const VectorFile file = VectorFile::open(path(c.name));
        expect_same_bits(file.view(), matrix);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.view().data()) % size_t(size_of(c.type)),
                  0u);

        const std::string zipped = write(c.name + std::string(".gz"), gzip(read(c.name)));
        expect_same_bits(VectorFile::open(zipped).view(), matrix);
        EXPECT_EQ(file_count(), 2);
        std::filesystem::remove(path(c.name));
        std::filesystem::remove(zipped);
      }
    }
  }
}

TEST_F(Vectors, FortranOrderOfEveryTypeMappedOrGzipped) {
  for (const auto& [descr, size] : {std::pair{"<f4", 4}, {"|u1", 1}, {"<f2", 2}, {">f8", 8}}) {
    const std::int64_t rows = 700, cols = 13;
    Random random(4);
    std::string by_rows, by_columns(rows * cols * size, '\0');
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) {
        // Whole numbers that all of the types hold.
        const auto number = static_cast<float>(random.below(200));
        const std::string element = size == 4   ? raw(number)
                                    : size == 8 ? big_endian(double{number})
                                    : size == 2 ? raw(to_f16(number))
                                                : raw(static_cast<std::uint8_t>(number));
        by_rows += element;
        by_columns.replace((c * rows + r) * size, size, element);
      }
    const VectorFile expected =
        VectorFile::open(write("c.npy", npy(npy_header(descr, "(700, 13)"), by_rows)));
    const std::string fortran = npy(npy_header(descr, "(700, 13)", "True"), by_columns);
    for (const std::string& file : {write("f.npy", fortran), write("f.npy.gz", gzip(fortran))}) {
      expect_same_bits(VectorFile::open(file).view(), expected.view());
      expect_same_bits(VectorFile::open(file, {.rows = {{100, 650}}}).view(),
                       expected.view().rows(100, 650));
      EXPECT_EQ(inspect(file).rows, rows);
    }
    for (const std::string& file :
         {write("g.npy", fortran + "x"), write("g.npy.gz", gzip(fortran + "x"))})
      expect_error<CorruptFile>([&] { VectorFile::open(file); }, "has bytes after its end");
    for (const std::string& file : {write("h.npy", fortran.substr(0, fortran.size() - 1)),
                                    write("h.npy.gz", gzip(fortran.substr(0, fortran.size() - 1)))})
      expect_error<CorruptFile>([&] { VectorFile::open(file); }, "is truncated");
  }
}

TEST_F(Vectors, GroundTruthOfBigAnn) {
  // Ids, then as many distances; or ids alone. Longer than a header, so that gzip is streamed.
  std::string ids, distances;
  for (std::int32_t i = 0; i < 9000 * 3; ++i)
    ids += raw(i * 7 % 1000), distances += raw(static_cast<float>(i));
  const std::string header = raw(9000) + raw(3);
  for (const std::string& content : {header + ids + distances, header + ids})
    for (const std::string& file :
         {write("truth.ibin", content), write("truth.ibin.gz", gzip(content))}) {
      const Matrix<Id> read = read_ids(file);
      ASSERT_EQ(read.rows(), 9000);
      ASSERT_EQ(read.cols(), 3);
      for (std::int64_t i = 0; i < 9000 * 3; ++i) ASSERT_EQ(read.data()[i], i * 7 % 1000);
      EXPECT_EQ(inspect(file).element_bytes, 9000 * 3 * 4);
    }
  for (const std::string& content : {header + ids + distances + "x", header + ids + "four",
                                     header + ids.substr(4), header + ids + distances.substr(1)})
    for (const std::string& file : {write("t.ibin", content), write("t.ibin.gz", gzip(content))})
      expect_error<CorruptFile>([&] { read_ids(file); }, "9000");
  Matrix<Id> own(2, 2);
  own.row(1)[0] = 5;
  write_ids(path("own.ibin"), own.view());
  EXPECT_EQ(read("own.ibin"), raw(2) + raw(2) + raw(0) + raw(0) + raw(5) + raw(0));
  own.row(1)[0] = std::int64_t{1} << 31;
  expect_error<InvalidArgument>([&] { write_ids(path("own.ibin"), own.view()); },
                                "32 bits of .ibin");
}

TEST_F(Vectors, HeadersOfTwoNumbersThatLie) {
  for (const char* name : {"a.fbin", "a.u8bin", "a.i8bin", "a.ibin"}) {
    expect_error<CorruptFile>([&] { VectorFile::open(write(name, raw(3))); }, "too few");
    expect_error<CorruptFile>([&] { VectorFile::open(write(name, raw(3) + raw(5) + "12345")); },
                              "is truncated: 3 x 5");
    expect_error<CorruptFile>([&] { VectorFile::open(write(name, raw(~0u) + raw(~0u) + "1234")); },
                              "4294967295 x 4294967295");
    expect_error<InvalidArgument>([&] { VectorFile::open(write(name, raw(3) + raw(0))); },
                                  "dimension 0");
    EXPECT_EQ(VectorFile::open(write(name, raw(0) + raw(5))).view().rows(), 0);
  }
}

TEST_F(Vectors, MappedRowsLieAsFarApartAsInTheFile) {
  write_vectors(path("a.fvecs"), random_matrix(ElementType::f32, 5, 7, 1));
  EXPECT_EQ(VectorFile::open(path("a.fvecs")).view().stride(), 8);
  write_vectors(path("a.bvecs"), random_matrix(ElementType::u8, 5, 7, 1));
  EXPECT_EQ(VectorFile::open(path("a.bvecs")).view().stride(), 11);
  write_vectors(path("a.npy"), random_matrix(ElementType::f16, 5, 7, 1));
  EXPECT_EQ(VectorFile::open(path("a.npy")).view().stride(), 7);
}

TEST_F(Vectors, StridedViewsAreWrittenWithoutTheirGaps) {
  const AnyMatrix wide = random_matrix(ElementType::f32, 10, 9, 3);
  const AnyMatrixView part(ElementType::f32, wide.view().data(), 10, 4, 9);
  for (const char* name : {"part.fvecs", "part.npy"}) {
    write_vectors(path(name), part);
    expect_same_bits(VectorFile::open(path(name)).view(), part);
  }
}

TEST_F(Vectors, MovingKeepsTheViewValid) {
  const AnyMatrix matrix = random_matrix(ElementType::f32, 5, 7, 1);
  write_vectors(path("a.fvecs"), matrix);
  write_vectors(path("b.npy"), random_matrix(ElementType::u8, 3, 2, 2));
  VectorFile file = VectorFile::open(path("a.fvecs"));
  const AnyMatrixView view = file.view();
  VectorFile other = VectorFile::open(path("b.npy"));
  other = std::move(file);
  expect_same_bits(view, matrix);
  expect_same_bits(other.view(), matrix);
  EXPECT_EQ(other.path(), path("a.fvecs"));
}

TEST_F(Vectors, NpyOfEveryNumberTypeInBothByteOrders) {
  const auto check = [&](auto zero, const std::string& code, std::optional<ElementType> kept) {
    using T = decltype(zero);
    for (const char order : {'<', '>', '=', '|'}) {
      if (order == '|' && sizeof(T) > 1) continue;
      SCOPED_TRACE(order + code);
      std::string data;
      for (int i = 0; i < 6; ++i)
        data += order == '>' ? big_endian(static_cast<T>(i * 21)) : raw(static_cast<T>(i * 21));
      for (const bool zipped : {false, true}) {
        const std::string bytes = npy(npy_header(order + code, "(2, 3)"), data);
        const std::string file_path =
            write(zipped ? "a.npy.gz" : "a.npy", zipped ? gzip(bytes) : bytes);
        const VectorFile file = VectorFile::open(file_path);
        ASSERT_EQ(file.view().type(), kept.value_or(ElementType::f32));
        for (int i = 0; i < 6; ++i) EXPECT_EQ(value(file.view(), i / 3, i % 3), float(i * 21));
      }
    }
  };
  check(float{}, "f4", {});
  check(double{}, "f8", ElementType::f64);
  check(std::int8_t{}, "i1", ElementType::i8);
  check(std::int16_t{}, "i2", {});
  check(std::int32_t{}, "i4", {});
  check(std::int64_t{}, "i8", {});
  check(std::uint8_t{}, "u1", ElementType::u8);
  check(std::uint16_t{}, "u2", {});
  check(std::uint32_t{}, "u4", {});
  check(std::uint64_t{}, "u8", {});
  const std::string halves = raw(std::uint16_t{0x3c00}) + raw(std::uint16_t{0xc500});  // 1, -5
  const VectorFile file =
      VectorFile::open(write("h.npy", npy(npy_header("<f2", "(1, 2)"), halves)));
  EXPECT_EQ(file.view().type(), ElementType::f16);
  EXPECT_EQ(value(file.view(), 0, 1), -5.0f);
  const std::string swapped{'\x3c', '\x00', '\xc5', '\x00'};
  EXPECT_EQ(
      value(VectorFile::open(write("g.npy", npy(npy_header(">f2", "(1, 2)"), swapped))).view(), 0,
            1),
      -5.0f);
}

TEST_F(Vectors, NpyHeadersAreReadInAnyOrderAndWithAnyBlanks) {
  const std::string data = raw(1.5f) + raw(2.5f);
  for (const std::string dictionary :
       {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }",
        "{\"shape\":(1,2),\"fortran_order\":False,\"descr\":\"<f4\"}",
        "  {  'fortran_order' :False ,'shape'  : ( 1 , 2 , ) , 'descr': '<f4' }   \t  ",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1L, 2L), }"}) {
    for (const char version : {1, 2, 3}) {
      const VectorFile file = VectorFile::open(write("a.npy", npy(dictionary, data, version)));
      EXPECT_EQ(value(file.view(), 0, 1), 2.5f) << dictionary;
    }
  }
}

TEST_F(Vectors, NpyDataAtAnyOffsetIsAlignedOnceOpen) {
  for (int blanks = 0; blanks < 8; ++blanks) {
    const std::string header = npy_header("<f4", "(2, 2)") + std::string(size_t(blanks), ' ');
    const VectorFile file = VectorFile::open(
        write("a.npy", npy(header, raw(1.0f) + raw(2.0f) + raw(3.0f) + raw(4.0f))));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.view().data()) % 4, 0u);
    EXPECT_EQ(value(file.view(), 1, 1), 4.0f);
  }
}

TEST_F(Vectors, NpyMayHaveNoRows) {
  write_vectors(path("none.npy"), AnyMatrix(ElementType::f32, 0, 96));
  const VectorFile file = VectorFile::open(path("none.npy"));
  EXPECT_EQ(file.view().rows(), 0);
  EXPECT_EQ(file.view().cols(), 96);
}

TEST_F(Vectors, IdxIsKnownByItsFirstBytesAndFlattened) {
  std::string bytes{'\0', '\0', '\x08', '\x03'};
  for (std::uint32_t dim : {2, 2, 3}) bytes += big_endian(dim);
  for (char i = 0; i < 12; ++i) bytes += i;
  for (const bool zipped : {false, true}) {
    const std::string file_path =
        write(zipped ? "x-idx3-ubyte.gz" : "x-idx3-ubyte", zipped ? gzip(bytes) : bytes);
    const VectorFile file = VectorFile::open(file_path);
    ASSERT_EQ(file.view().type(), ElementType::u8);
    ASSERT_EQ(file.view().rows(), 2);
    ASSERT_EQ(file.view().cols(), 6);
    EXPECT_EQ(value(file.view(), 1, 5), 11.0f);
    EXPECT_EQ(inspect(file_path).format, Format::idx);
  }
}

TEST_F(Vectors, IdxNumbersAreBigEndian) {
  std::string bytes{'\0', '\0', '\x0d', '\x02'};
  bytes += big_endian(std::uint32_t{1}) + big_endian(std::uint32_t{2});
  bytes += big_endian(0.5f) + big_endian(-3.0f);
  const VectorFile file = VectorFile::open(write("x", bytes));
  EXPECT_EQ(value(file.view(), 0, 0), 0.5f);
  EXPECT_EQ(value(file.view(), 0, 1), -3.0f);
}

TEST_F(Vectors, SeveralGzipMembersAreOneFile) {
  const AnyMatrix matrix = random_matrix(ElementType::f32, 50, 7, 1);
  write_vectors(path("a.fvecs"), matrix);
  const std::string bytes = read("a.fvecs");
  write("a.fvecs.gz", gzip(bytes.substr(0, 333)) + gzip("") + gzip(bytes.substr(333)));
  expect_same_bits(VectorFile::open(path("a.fvecs.gz")).view(), matrix);
}

TEST_F(Vectors, RowsAskedForAreAllThatIsOpened) {
  const AnyMatrix matrix = random_matrix(ElementType::f32, 20, 3, 1);
  for (const char* name : {"a.fvecs", "a.npy"}) {
    write_vectors(path(name), matrix);
    write(name + std::string(".gz"), gzip(read(name)));
    for (const std::string& file_path : {path(name), path(name) + ".gz"}) {
      expect_same_bits(VectorFile::open(file_path, {.rows = {{5, 9}}}).view(),
                       matrix.view().rows(5, 9));
      expect_same_bits(VectorFile::open(file_path, {.rows = {{19, {}}}}).view(),
                       matrix.view().rows(19, 20));
      for (const RowRange bad :
           {RowRange{5, 5}, RowRange{-1, 3}, RowRange{0, 21}, RowRange{20, {}}})
        expect_error<InvalidArgument>([&] { VectorFile::open(file_path, {.rows = bad}); },
                                      "has rows 0:20");
    }
  }
}

TEST_F(Vectors, IvecsAreVectorsWhereF32HoldsThemExactly) {
  const auto ivecs = [](std::int32_t a, std::int32_t b) {
    return raw(std::int32_t{2}) + raw(std::int32_t{1}) + raw(std::int32_t{-7}) +
           raw(std::int32_t{2}) + raw(a) + raw(b);
  };
  write("a.ivecs", ivecs(1 << 24, -(1 << 30)));
  EXPECT_EQ(value(VectorFile::open(path("a.ivecs")).view(), 1, 1), -1073741824.0f);
  write("b.ivecs", ivecs(3, (1 << 24) + 1));
  expect_error<InvalidArgument>([&] { VectorFile::open(path("b.ivecs")); },
                                "row 1, column 1 is 16777217, which f32 cannot hold exactly");
  const VectorFile rounded = VectorFile::open(path("b.ivecs"), {.type = ElementType::f32});
  EXPECT_EQ(value(rounded.view(), 1, 1), 16777216.0f);
}

TEST_F(Vectors, WideNumbersMustBeExactOrATypeAskedFor) {
  const auto open = [&](const std::string& code, const std::string& data,
                        std::optional<ElementType> type = {}) {
    const std::string shape = fmt::format("(1, {})", data.size() / 8);
    return VectorFile::open(write("a.npy", npy(npy_header("<" + code, shape), data)),
                            {.type = type});
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const VectorFile exact =
      open("f8", raw(0.25) + raw(-infinity) + raw(std::nan("")), ElementType::f32);
  EXPECT_EQ(value(exact.view(), 0, 0), 0.25f);
  EXPECT_EQ(value(exact.view(), 0, 1), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(value(exact.view(), 0, 2)));
  EXPECT_EQ(value(open("f8", raw(1.0) + raw(1e300)).view(), 0, 1), 1e300);
  expect_error<InvalidArgument>([&] { open("f8", raw(1e300), ElementType::f32); }, "1e+300");
  EXPECT_EQ(value(open("f8", raw(0.1), ElementType::f32).view(), 0, 0), 0.1f);
  EXPECT_EQ(value(open("i8", raw(std::int64_t{1} << 52 | 1), ElementType::f64).view(), 0, 0),
            0x1p52 + 1);
  const std::int64_t id = (std::int64_t{1} << 53) + 1;
  expect_error<InvalidArgument>([&] { open("i8", raw(id)); }, "9007199254740993");
  EXPECT_EQ(value(open("i8", raw(id), ElementType::f32).view(), 0, 0), 9007199254740992.0f);
  // The largest values convert to 2^63 and 2^64, which must not compare equal by wrapping around.
  expect_error<InvalidArgument>([&] { open("i8", raw(INT64_MAX)); }, "cannot hold");
  expect_error<InvalidArgument>([&] { open("u8", raw(UINT64_MAX)); }, "cannot hold");
  EXPECT_EQ(value(open("i8", raw(INT64_MIN)).view(), 0, 0), -9223372036854775808.0f);
}

TEST_F(Vectors, AskingForATypeConvertsAndRefusesWhatDoesNotFit) {
  const auto open = [&](float x, ElementType type) {
    return value(
        VectorFile::open(write("a.fvecs", raw(std::int32_t{1}) + raw(x)), {.type = type}).view(), 0,
        0);
  };
  EXPECT_EQ(open(255.0f, ElementType::u8), 255.0f);
  EXPECT_EQ(open(-0.0f, ElementType::u8), 0.0f);
  EXPECT_EQ(open(-128.0f, ElementType::i8), -128.0f);
  EXPECT_EQ(open(0.1f, ElementType::f16), to_float(to_f16(0.1f)));
  EXPECT_EQ(open(0.1f, ElementType::bf16), to_float(to_bf16(0.1f)));
  EXPECT_EQ(open(std::numeric_limits<float>::infinity(), ElementType::f16),
            std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(open(std::nanf(""), ElementType::bf16)));
  for (const auto& [x, type, text] :
       {std::tuple{300.0f, ElementType::u8, "row 0, column 0 is 300, which u8 cannot hold"},
        std::tuple{-1.0f, ElementType::u8, "is -1, which u8"},
        std::tuple{0.5f, ElementType::u8, "is 0.5, which u8"},
        std::tuple{128.0f, ElementType::i8, "is 128, which i8"},
        std::tuple{std::nanf(""), ElementType::i8, "is nan, which i8"},
        std::tuple{std::numeric_limits<float>::infinity(), ElementType::u8, "is inf, which u8"},
        std::tuple{70000.0f, ElementType::f16, "is 70000, which f16"}})
    expect_error<InvalidArgument>([&] { open(x, type); }, text);
}

TEST_F(Vectors, DoublesAreRoundedOnceToHalf) {
  // Just above the midpoint of two halves: float would round it to the midpoint, and that to even.
  const double above = 1.0 + 0x1p-11 + 0x1p-40;
  write("a.npy", npy(npy_header("<f8", "(1, 2)"), raw(above) + raw(-above)));
  const VectorFile file = VectorFile::open(path("a.npy"), {.type = ElementType::f16});
  EXPECT_EQ(value(file.view(), 0, 0), 1.0f + 0x1p-10f);
  EXPECT_EQ(value(file.view(), 0, 1), -1.0f - 0x1p-10f);
}

TEST_F(Vectors, IdsRoundTrip) {
  Matrix<Id> ids(3, 4);
  for (int i = 0; i < 12; ++i) ids.data()[i] = i * 1000003 - 1;
  for (const char* name : {"a.ivecs", "a.npy"}) {
    write_ids(path(name), ids);
    write(name + std::string(".gz"), gzip(read(name)));
    for (const std::string& file_path : {path(name), path(name) + ".gz"}) {
      const Matrix<Id> back = read_ids(file_path);
      ASSERT_EQ(back.rows(), 3);
      ASSERT_EQ(back.cols(), 4);
      for (int i = 0; i < 12; ++i) EXPECT_EQ(back.data()[i], ids.data()[i]);
    }
  }
}

TEST_F(Vectors, IdsBeyondInt32NeedNpy) {
  Matrix<Id> ids(2, 2);
  ids.row(1)[0] = std::int64_t{1} << 31;
  expect_error<InvalidArgument>([&] { write_ids(path("a.ivecs"), ids); },
                                "id 2147483648 in row 1, column 0");
  EXPECT_EQ(file_count(), 0);
  write_ids(path("a.npy"), ids);
  EXPECT_EQ(read_ids(path("a.npy")).row(1)[0], std::int64_t{1} << 31);
  ids.row(1)[0] = -(std::int64_t{1} << 31);
  write_ids(path("a.ivecs"), ids);
  EXPECT_EQ(read_ids(path("a.ivecs")).row(1)[0], -(std::int64_t{1} << 31));
}

TEST_F(Vectors, IdsAreWholeNumbersOf64Bits) {
  write_vectors(path("a.fvecs"), AnyMatrix(ElementType::f32, 1, 1));
  expect_error<InvalidArgument>([&] { read_ids(path("a.fvecs")); }, "holds f32");
  write("a.npy", npy(npy_header("<u8", "(1, 1)"), raw(UINT64_MAX)));
  expect_error<InvalidArgument>([&] { read_ids(path("a.npy")); }, "18446744073709551615");
}

TEST_F(Vectors, DistancesAreWrittenAsFloats) {
  Matrix<float> distances(1, 2);
  distances.row(0)[1] = std::numeric_limits<float>::infinity();
  for (const char* name : {"d.fvecs", "d.npy"}) {
    write_distances(path(name), distances);
    expect_same_bits(VectorFile::open(path(name)).view(), distances.view());
  }
  expect_error<InvalidArgument>([&] { write_distances(path("d.bvecs"), distances); },
                                ".bvecs stores u8, but these are f32");
}

TEST_F(Vectors, ProgressIsToldToItsEndAndStopsTheWork) {
  const AnyMatrix floats = random_matrix(ElementType::f32, 3000, 300, 1);  // several blocks
  const Matrix<Id> ids(3000, 300);
  std::vector<double> told;
  std::string stages;
  const Progress tell = [&](std::string_view stage, double share) {
    if (told.empty()) stages += stage;
    EXPECT_TRUE(told.empty() || share > told.back());
    told.push_back(share);
    return true;
  };
  const Progress stop = [](std::string_view, double) { return false; };
  const auto expect_progress = [&](auto call) {
    told.clear();
    call(tell);
    ASSERT_GT(told.size(), 2u);
    EXPECT_EQ(told.back(), 1);
    EXPECT_THROW(call(stop), Cancelled);
  };
  expect_progress([&](const Progress& p) { write_vectors(path("a.npy"), floats, p); });
  expect_progress([&](const Progress& p) { write_ids(path("ids.npy"), ids, p); });
  expect_progress([&](const Progress& p) {
    VectorFile::open(path("a.npy"), {.type = ElementType::f64, .progress = p});
  });
  expect_progress([&](const Progress& p) { read_ids(path("ids.npy"), p); });
  EXPECT_EQ(stages, "writewritereadread");
  expect_same_bits(VectorFile::open(path("a.npy")).view(), floats.view());  // a stop leaves the old
}

TEST_F(Vectors, WritersRefuseWhatTheFormatCannotHold) {
  const auto refused = [&](const char* name, ElementType type, std::int64_t rows, std::int64_t cols,
                           const std::string& part) {
    expect_error<InvalidArgument>([&] { write_vectors(path(name), AnyMatrix(type, rows, cols)); },
                                  part);
  };
  refused("a.npy", ElementType::bf16, 1, 1, "no format here stores bf16");
  refused("a.fvecs", ElementType::u8, 1, 1, ".fvecs stores f32, but these are u8");
  refused("a.fvecs", ElementType::f32, 0, 1, "no rows");
  refused("a.npy", ElementType::f32, 1, 0, "0 columns");
  refused("a.fvecs.gz", ElementType::f32, 1, 1, "leave .gz out");
  refused("a.txt", ElementType::f32, 1, 1, "must end in");
  refused("fvecs", ElementType::f32, 1, 1, "must end in");
  expect_error<InvalidArgument>([&] { write_ids(path("a.fvecs"), Matrix<Id>(1, 1)); },
                                "must end in .ivecs, .ibin or .npy");
  EXPECT_EQ(file_count(), 0);
}

TEST_F(Vectors, InspectSaysWhatTheHeaderSays) {
  write_vectors(path("a.bvecs"), AnyMatrix(ElementType::u8, 10, 3));
  const std::string zipped = write("a.bvecs.gz", gzip(read("a.bvecs")));
  for (const std::string& file_path : {path("a.bvecs"), zipped}) {
    const FileInfo info = inspect(file_path);
    EXPECT_EQ(info.path, file_path);
    EXPECT_EQ(info.format, Format::bvecs);
    EXPECT_EQ(info.type, "u8");
    EXPECT_EQ(info.rows, 10);
    EXPECT_EQ(info.dim, 3);
    EXPECT_EQ(info.element_bytes, 30);
    EXPECT_EQ(info.gzipped, file_path == zipped);
    EXPECT_EQ(info.file_bytes, std::int64_t(std::filesystem::file_size(file_path)));
  }
}

// NumPy's own bytes for np.save(np.arange(6, dtype='<f4').reshape(2, 3)).
TEST_F(Vectors, WritesTheBytesThatNumPyWrites) {
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  expected.resize(127, ' ');
  expected += '\n';
  Matrix<float> matrix(2, 3);
  for (int i = 0; i < 6; ++i) {
    matrix.data()[i] = float(i);
    expected += raw(float(i));
  }
  write_vectors(path("a.npy"), matrix.view());
  EXPECT_EQ(read("a.npy"), expected);
}

}  // namespace
}  // namespace knear::io
