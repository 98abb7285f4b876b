// Exact on real vectors: searches of Fashion-MNIST, SIFT, GloVe and BGE equal, in every place,
// measuring every pair in float64. Looks in $KNEAR_DATA, then ../shared/data beside the repository.
#include <gtest/gtest.h>

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/distance/reference.hpp"
#include "knear/io/vectors.hpp"
#include "knear/knn/knn.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t most_queries = 200;  // sanitisers make float64 brute force too slow
#else
constexpr std::int64_t most_queries = 10000;
#endif

namespace knear {
namespace {

std::string data_directory() {
  const char* variable = std::getenv("KNEAR_DATA");
  return variable && *variable ? variable : "../shared/data";
}

// Places in which two answers differ, by id or by the bits of the distance.
std::int64_t differences(const Neighbors& a, const Neighbors& b) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < a.ids.rows() * a.ids.cols(); ++i)
    count += a.ids.data()[i] != b.ids.data()[i] ||
             std::bit_cast<std::uint32_t>(a.distances.data()[i]) !=
                 std::bit_cast<std::uint32_t>(b.distances.data()[i]);
  return count;
}

void check(const std::string& base_name, const std::string& queries_name, std::int64_t k,
           Metric metric, std::int64_t by_reference) {
  const std::filesystem::path directory = data_directory();
  if (!std::filesystem::exists(directory / base_name))
    GTEST_SKIP() << "no " << base_name << " in " << directory << ": set KNEAR_DATA";
  const io::VectorFile base = io::VectorFile::open((directory / base_name).string());
  const io::VectorFile all = io::VectorFile::open((directory / queries_name).string());
  const AnyMatrixView queries =
      all.view().rows(0, std::min<std::int64_t>(most_queries, all.view().rows()));
  // Every pair in float64, by the vectorised kernel; the plain reference confirms the first few.
  const Neighbors expected =
      knn(queries, base.view(), k, {.metric = metric, .first_pass = FirstPass::direct});
  const AnyMatrixView few = queries.rows(0, std::min(by_reference, queries.rows()));
  EXPECT_EQ(differences(reference_knn(few, base.view(), k, metric),
                        knn(few, base.view(), k, {.metric = metric})),
            0);
  for (Isa isa : available_isas()) {
    setenv("KNEAR_ISA", std::string(name_of(isa)).c_str(), 1);
    KnnReport report;
    // The lower levels are slower, and search a part of the queries.
    const std::int64_t part =
        isa == best_isa() ? queries.rows() : std::min<std::int64_t>(600, queries.rows());
    const Neighbors got = knn(queries.rows(0, part), base.view(), k, {.metric = metric}, &report);
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < part * k; ++i)
      different += got.ids.data()[i] != expected.ids.data()[i] ||
                   std::bit_cast<std::uint32_t>(got.distances.data()[i]) !=
                       std::bit_cast<std::uint32_t>(expected.distances.data()[i]);
    EXPECT_EQ(different, 0) << name_of(isa) << ' ' << report.scan.first_pass;
    for (FirstPass pass : {FirstPass::int8, FirstPass::int16, FirstPass::fp32}) {
      const AnyMatrixView some = queries.rows(0, std::min<std::int64_t>(120, queries.rows()));
      const Neighbors forced = knn(some, base.view(), k, {.metric = metric, .first_pass = pass});
      different = 0;
      for (std::int64_t i = 0; i < some.rows() * k; ++i)
        different += forced.ids.data()[i] != expected.ids.data()[i];
      EXPECT_EQ(different, 0) << name_of(isa) << " forced " << name_of(pass);
    }
    unsetenv("KNEAR_ISA");
  }
}

// The recall that is asked for, over all queries, whatever the order of the base: as it is, by
// class and by the distance from a query. Full recall, and threshold-heap, are exact.
TEST(RealData, FashionMnistByPartialReduce) {
  const std::filesystem::path directory = std::filesystem::path(data_directory()) / "fashion-mnist";
  if (!std::filesystem::exists(directory))
    GTEST_SKIP() << "no fashion-mnist in " << data_directory() << ": set KNEAR_DATA";
  const io::VectorFile base =
      io::VectorFile::open((directory / "train-images-idx3-ubyte.gz").string());
  const io::VectorFile all =
      io::VectorFile::open((directory / "t10k-images-idx3-ubyte.gz").string());
  const AnyMatrixView queries =
      all.view().rows(0, std::min<std::int64_t>(most_queries, all.view().rows()));
  const std::int64_t n = base.view().rows(), dim = base.view().cols(), k = 10;
  std::vector<unsigned char> labels(static_cast<std::size_t>(n) + 8);
  gzFile file = gzopen((directory / "train-labels-idx1-ubyte.gz").c_str(), "rb");
  ASSERT_EQ(gzread(file, labels.data(), static_cast<unsigned>(labels.size())),
            static_cast<int>(labels.size()));
  gzclose(file);
  std::vector<Id> given(static_cast<std::size_t>(n));
  std::iota(given.begin(), given.end(), 0);
  std::vector<Id> by_class = given;
  std::stable_sort(by_class.begin(), by_class.end(), [&](Id a, Id b) {
    return labels[8 + static_cast<std::size_t>(a)] < labels[8 + static_cast<std::size_t>(b)];
  });
  const Neighbors far = knn(queries.rows(0, 1), base.view(), n);
  const std::vector<Id> by_distance(far.ids.row(0), far.ids.row(0) + n);
  for (const std::vector<Id>* order :
       std::initializer_list<const std::vector<Id>*>{&given, &by_class, &by_distance}) {
    AnyMatrix rows(base.view().type(), n, dim);
    for (Id i = 0; i < n; ++i)
      std::memcpy(rows.row(i), base.view().row((*order)[static_cast<std::size_t>(i)]),
                  static_cast<std::size_t>(dim * size_of(rows.type())));
    const Neighbors exact = knn(queries, rows.view(), k);
    for (double recall : {0.9, 0.99, 1.0}) {
      KnnReport report;
      const Neighbors got =
          knn(queries, rows.view(), k,
              {.method = {.kind = Method::partial_reduce, .recall = recall}}, &report);
      double found = 0;
      for (std::int64_t q = 0; q < queries.rows(); ++q)
        for (std::int64_t j = 0; j < k; ++j)
          found += got.distances.row(q)[j] <= exact.distances.row(q)[k - 1];
      EXPECT_GE(found / static_cast<double>(queries.rows() * k), recall);
      EXPECT_TRUE(recall < 1 || differences(got, exact) == 0);
    }
    const KnnOptions heap{.method = {.kind = Method::threshold_heap}};
    EXPECT_EQ(differences(knn(queries, rows.view(), k, heap), exact), 0);
  }
}

TEST(RealData, FashionMnistInAllSixHundredThousandPlaces) {
  check("fashion-mnist/train-images-idx3-ubyte.gz", "fashion-mnist/t10k-images-idx3-ubyte.gz", 60,
        Metric::l2, 10);
}
TEST(RealData, SiftDescriptors) {
  check("sift-5k/base.bvecs", "sift-5k/queries.bvecs", 100, Metric::l2, 50);
}
TEST(RealData, GloveWordsByCosine) {
  check("glove-twitter-25/base.npy", "glove-twitter-25/queries.npy", 100, Metric::cosine, 50);
}
TEST(RealData, GloveWordsByL2AndProduct) {
  check("glove-twitter-25/base.npy", "glove-twitter-25/queries.npy", 10, Metric::l2, 50);
  check("glove-twitter-25/base.npy", "glove-twitter-25/queries.npy", 10, Metric::ip, 50);
}
TEST(RealData, BgePassagesByProduct) {
  check("bge-bible/base.npy", "bge-bible/queries.npy", 100, Metric::ip, 20);
}
TEST(RealData, BgePassagesByL2AndCosine) {
  check("bge-bible/base.npy", "bge-bible/queries.npy", 10, Metric::l2, 20);
  check("bge-bible/base.npy", "bge-bible/queries.npy", 10, Metric::cosine, 20);
}

}  // namespace
}  // namespace knear
