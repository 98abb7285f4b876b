// Product quantisers against plain loops: codes, what they stand for, distances; and that nothing
// but the arguments changes a bit.
#include "knear/quantize/product_quantizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "knear/cluster/k_means.hpp"
#include "knear/core/error.hpp"
#include "knear/scan/packing/code_book.hpp"
#include "tests/knn/knn_cases.hpp"

namespace knear {
namespace {

using namespace test;

template <class T>
bool same_bits(const Matrix<T>& a, const Matrix<T>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         std::memcmp(a.data(), b.data(),
                     static_cast<std::size_t>(a.rows() * a.cols()) * sizeof(T)) == 0;
}

// The centroid of code `code` in part m, by the layout that the header promises.
std::int64_t sub_code(const std::uint8_t* code, std::int64_t m, int bits) {
  if (bits == 8) return code[m];
  return m % 2 == 0 ? code[m / 2] % 16 : code[m / 2] / 16;
}

// Part m of a row, as a row of its own.
AnyMatrixView part_of(AnyMatrixView rows, std::int64_t i, std::int64_t m, std::int64_t width) {
  const auto* row = static_cast<const std::byte*>(rows.row(i));
  return {rows.type(), row + m * width * size_of(rows.type()), 1, width, width};
}

double part_distance(AnyMatrixView part, const float* centroid, Metric metric = Metric::l2) {
  return visit(part, [&](auto typed) {
    return reference_distance(metric, typed.row(0), centroid, typed.cols());
  });
}

void expect_nearest_codes(const ProductQuantizer& pq, AnyMatrixView rows,
                          const Matrix<std::uint8_t>& codes) {
  const std::int64_t width = pq.dim() / pq.sub_quantizers();
  ASSERT_EQ(codes.rows(), rows.rows());
  ASSERT_EQ(codes.cols(), pq.code_size());
  for (std::int64_t i = 0; i < rows.rows(); ++i)
    for (std::int64_t m = 0; m < pq.sub_quantizers(); ++m) {
      const AnyMatrixView part = part_of(rows, i, m, width);
      const MatrixView<float> centroids = pq.centroids(m);
      std::int64_t best = 0;
      for (std::int64_t c = 1; c < centroids.rows(); ++c)
        if (part_distance(part, centroids.row(c)) < part_distance(part, centroids.row(best)))
          best = c;
      ASSERT_EQ(sub_code(codes.row(i), m, pq.bits()), best) << "row " << i << ", part " << m;
    }
}

TEST(ProductQuantizer, CodesAreTheNearestCentroids) {
  struct Case {
    std::int64_t dim, parts;
    int bits;
  };
  std::uint64_t seed = 1;
  // Parts of 1 column; an odd number of parts of 4 bits; parts too wide for the scan of few rows.
  for (const Case c : {Case{16, 4, 8}, {16, 16, 8}, {21, 7, 4}, {6, 3, 4}, {8, 1, 4}, {130, 1, 8}})
    for (const ElementType type : all_element_types) {
      Random random(++seed);
      const AnyMatrix rows = make(type, 300, c.dim, [&](auto, auto) {
        return std::floor(60 * random.uniform() * random.uniform());
      });
      const auto pq = ProductQuantizer::train(rows.view(), c.parts, c.bits, {.iterations = 3});
      EXPECT_EQ(pq.dim(), c.dim);
      EXPECT_EQ(pq.sub_quantizers(), c.parts);
      EXPECT_EQ(pq.code_size(), (c.parts * c.bits + 7) / 8);
      expect_nearest_codes(pq, rows.view().rows(0, 40), pq.encode(rows.view().rows(0, 40)));
    }
}

TEST(ProductQuantizer, ThePartsAreKMeansOfTheirColumns) {
  const AnyMatrix rows = gaussians(700, 12, 5);
  const auto pq = ProductQuantizer::train(rows.view(), 3, 4, {.iterations = 7, .seed = 11});
  for (std::int64_t m = 0; m < 3; ++m) {
    Matrix<float> part(700, 4);
    for (std::int64_t i = 0; i < 700; ++i)
      std::memcpy(part.row(i), rows.view().as<float>().row(i) + 4 * m, 16);
    KMeansOptions options{.iterations = 7, .seed = 11 + static_cast<std::uint64_t>(m)};
    const KMeans wanted = k_means(part.view(), 16, options);
    EXPECT_EQ(std::memcmp(wanted.centroids.data(), pq.centroids(m).data(), 16 * 4 * 4), 0) << m;
  }
  EXPECT_EQ(pq.all_centroids().rows(), 48);
  const auto again = ProductQuantizer::from_centroids(pq.all_centroids(), 3, 4);
  EXPECT_TRUE(same_bits(again.encode(rows.view()), pq.encode(rows.view())));
}

// Parts of one column, as scalar quantizers have them: a float and a byte for each centroid.
TEST(ProductQuantizer, CentroidsOfOneColumnAreKeptOnce) {
  Matrix<float> levels(40 * 256, 1);
  for (std::int64_t c = 0; c < levels.rows(); ++c) levels.row(c)[0] = static_cast<float>(c % 256);
  const auto copied = ProductQuantizer::from_centroids(levels.view(), 40, 8);
  const auto moved = ProductQuantizer::from_centroids(std::move(levels), 40, 8);
  EXPECT_TRUE(same_bits(copied.all_centroids(), moved.all_centroids()));
  EXPECT_LE(moved.book().bytes(), 5 * 256 * 40);
}

TEST(ProductQuantizer, DecodesAndMeasuresByTheDefinition) {
  const AnyMatrix rows = gaussians(500, 20, 6), queries = gaussians(9, 20, 7);
  for (const int bits : {4, 8}) {
    const auto pq = ProductQuantizer::train(rows.view(), 5, bits, {.iterations = 4});
    const Matrix<std::uint8_t> codes = pq.encode(rows.view());
    const Matrix<float> rough = pq.decode(codes.view());
    for (std::int64_t i = 0; i < 500; ++i)
      for (std::int64_t m = 0; m < 5; ++m)
        ASSERT_EQ(std::memcmp(rough.row(i) + 4 * m,
                              pq.centroids(m).row(sub_code(codes.row(i), m, bits)), 16),
                  0);
    for (const Metric metric : {Metric::l2, Metric::ip}) {
      const Matrix<float> tables = pq.tables(queries.view(), metric),
                          near = pq.distances(queries.view(), codes.view(), metric);
      const std::int64_t count = std::int64_t{1} << bits;
      ASSERT_EQ(tables.cols(), 5 * count);
      for (std::int64_t q = 0; q < 9; ++q) {
        for (std::int64_t m = 0; m < 5; ++m)
          for (std::int64_t c = 0; c < count; ++c) {
            const double wanted =
                part_distance(part_of(queries.view(), q, m, 4), pq.centroids(m).row(c), metric);
            ASSERT_NEAR(tables.row(q)[m * count + c], wanted, 1e-6 * (1 + std::fabs(wanted)));
          }
        for (std::int64_t i = 0; i < 500; ++i) {
          float sum = 0;
          for (std::int64_t m = 0; m < 5; ++m)
            sum += tables.row(q)[m * count + sub_code(codes.row(i), m, bits)];
          ASSERT_EQ(near.row(q)[i], sum);  // to the bit
          ASSERT_NEAR(
              sum, reference_distance(metric, queries.view().as<float>().row(q), rough.row(i), 20),
              1e-4);
        }
      }
      const Matrix<float> between =
          pq.code_distances(codes.view().rows(0, 7), codes.view(), metric);
      for (std::int64_t a = 0; a < 7; ++a)
        for (std::int64_t b = 0; b < 500; ++b)
          ASSERT_NEAR(between.row(a)[b], reference_distance(metric, rough.row(a), rough.row(b), 20),
                      1e-4);
    }
  }
}

TEST(ProductQuantizer, NothingButTheArgumentsChangesABit) {
  const AnyMatrix rows = gaussians(5000, 24, 8);
  const ProductQuantizerOptions options{
      .iterations = 4, .seed = 3, .most_rows = 2000, .threads = 1};
  const auto pq = ProductQuantizer::train(rows.view(), 6, 8, options);
  const Matrix<std::uint8_t> codes = pq.encode(rows.view(), 1);
  const Matrix<float> near = pq.distances(rows.view().rows(0, 5), codes.view(), Metric::l2, 1);
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    for (const int threads : {1, 2, 7, 9}) {
      ProductQuantizerOptions other = options;
      other.threads = threads;
      const auto again = ProductQuantizer::train(rows.view(), 6, 8, other);
      ASSERT_EQ(std::memcmp(again.all_centroids().data(), pq.all_centroids().data(), 6 * 256 * 16),
                0);
      ASSERT_TRUE(same_bits(again.encode(rows.view(), threads), codes));
      ASSERT_TRUE(same_bits(
          again.distances(rows.view().rows(0, 5), codes.view(), Metric::l2, threads), near));
    }
  }
  // Rows one by one have the codes that they have together.
  for (const std::int64_t i : {0, 1, 4999})
    EXPECT_EQ(std::memcmp(pq.encode(rows.view().rows(i, i + 1)).data(), codes.row(i), 6), 0);
  ProductQuantizerOptions other = options;
  other.seed = 4;
  EXPECT_NE(std::memcmp(ProductQuantizer::train(rows.view(), 6, 8, other).all_centroids().data(),
                        pq.all_centroids().data(), 6 * 256 * 16),
            0);
}

TEST(ProductQuantizer, MoreBytesLeaveLess) {
  const AnyMatrix rows = gaussians(4000, 32, 9);
  double before = 1e300;
  for (const std::int64_t parts : {1, 2, 4, 8, 16, 32}) {
    const auto pq = ProductQuantizer::train(rows.view(), parts, 8, {.iterations = 5});
    const Matrix<float> rough = pq.decode(pq.encode(rows.view()).view());
    double left = 0;
    for (std::int64_t i = 0; i < 4000; ++i)
      left += reference_distance(Metric::l2, rows.view().as<float>().row(i), rough.row(i), 32);
    EXPECT_LT(left, 0.9 * before) << parts;
    before = left;
  }
}

TEST(ProductQuantizer, BadArgumentsAreNamed) {
  const AnyMatrix rows = gaussians(300, 12, 10);
  const auto says = [](const std::string& words, auto call) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const auto refuses = [&](const std::string& words, AnyMatrixView x, std::int64_t parts, int bits,
                           const ProductQuantizerOptions& options = {}) {
    says(words, [&] { ProductQuantizer::train(x, parts, bits, options); });
  };
  refuses("bits must be 4 or 8, but is 6", rows.view(), 3, 6);
  refuses("sub_quantizers must divide the columns, which are 12, but is 5", rows.view(), 5, 8);
  refuses("but is 0", rows.view(), 0, 8);
  refuses("but is 24", rows.view(), 24, 8);
  refuses("rows are 255, but 8 bits take 256 at least", rows.view().rows(0, 255), 3, 8);
  refuses("iterations must not be negative, but is -1", rows.view(), 3, 8, {.iterations = -1});
  refuses("most_rows must be 0 or at least 256, but is 255", rows.view(), 3, 8, {.most_rows = 255});
  refuses("threads", rows.view(), 3, 8, {.threads = -1});
  AnyMatrix bad = gaussians(300, 12, 11);
  static_cast<float*>(bad.row(7))[5] = std::nanf("");
  refuses("row 7", bad.view(), 3, 8);

  const auto pq = ProductQuantizer::train(rows.view(), 3, 4);
  const Matrix<std::uint8_t> codes = pq.encode(rows.view());
  says("row 7", [&] { pq.encode(bad.view()); });
  says("row 7", [&] { pq.tables(bad.view(), Metric::l2); });
  const AnyMatrix wide = gaussians(3, 13, 12);
  says("rows have 13 columns, the quantizer 12", [&] { pq.encode(wide.view()); });
  says("queries have 13 columns, the quantizer 12", [&] { pq.tables(wide.view(), Metric::ip); });
  const Matrix<std::uint8_t> odd(4, 3);
  says("codes have 3 columns, the quantizer's codes 2", [&] { pq.decode(odd.view()); });
  says("codes have 3 columns", [&] { pq.distances(rows.view(), odd.view(), Metric::l2); });
  says("from have 3 columns", [&] { pq.code_distances(odd.view(), codes.view(), Metric::l2); });
  says("metric must be l2 or ip", [&] { pq.tables(rows.view(), Metric::cosine); });
  says("sub-quantizer must be from 0 to 2, but is 3", [&] { pq.centroids(3); });
  says("centroids are 4, but 2 sub-quantizers of 4 bits have 32",
       [&] { ProductQuantizer::from_centroids(Matrix<float>(4, 2).view(), 2, 4); });
  says("sub_quantizers must be at least 1, but is 0",
       [&] { ProductQuantizer::from_centroids(Matrix<float>(4, 2).view(), 0, 4); });
  Matrix<float> infinite(32, 2);
  infinite.row(30)[1] = INFINITY;
  says("row 30", [&] { ProductQuantizer::from_centroids(infinite.view(), 2, 4); });
}

TEST(ProductQuantizer, StopsWhenAskedTo) {
  const AnyMatrix rows = gaussians(20000, 16, 13);
  double last = -1;
  int calls = 0;
  const Progress watch = [&](std::string_view stage, double done) {
    EXPECT_EQ(stage, "train quantizer");
    EXPECT_GE(done, last);
    EXPECT_LE(done, 1);
    last = done, ++calls;
    return true;
  };
  ProductQuantizer::train(rows.view(), 4, 8, {.iterations = 5, .threads = 3, .progress = watch});
  EXPECT_GT(calls, 10);
  EXPECT_GT(last, 0.9);
  const Progress stop = [](std::string_view, double done) { return done < 0.3; };
  EXPECT_THROW(ProductQuantizer::train(rows.view(), 4, 8, {.threads = 2, .progress = stop}),
               Cancelled);
  const auto pq = ProductQuantizer::train(rows.view(), 4, 8, {.iterations = 1});
  EXPECT_THROW(pq.encode(rows.view(), 2, stop), Cancelled);
}

}  // namespace
}  // namespace knear
