// tests/index/faiss_file_test.cpp -- files of FAISS without FAISS: what is written is read back as
// it was, whichever lists rows are in; what is not read is refused by its name.
// python/tests/test_faiss_files.py does the same with the real one.
#include "knear/index/faiss_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"

namespace knear {
namespace {

Matrix<float> clustered(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(7), around(seed);
  Matrix<float> centres(20, dim), out(rows, dim);
  for (std::int64_t i = 0; i < 20 * dim; ++i)
    centres.data()[i] = static_cast<float>(random.uniform() - 0.5);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* centre = centres.row(static_cast<std::int64_t>(around.below(20)));
    for (std::int64_t j = 0; j < dim; ++j)
      out.row(i)[j] = centre[j] + static_cast<float>(0.5 * (around.uniform() - 0.5));
  }
  return out;
}

void expect_equal(const Neighbors& a, const Neighbors& b) {
  ASSERT_EQ(a.ids.rows(), b.ids.rows());
  ASSERT_EQ(a.ids.cols(), b.ids.cols());
  for (std::int64_t i = 0; i < a.ids.rows() * a.ids.cols(); ++i) {
    ASSERT_EQ(a.ids.data()[i], b.ids.data()[i]) << "place " << i;
    ASSERT_EQ(a.distances.data()[i], b.distances.data()[i]) << "place " << i;
  }
}

SearchOptions probing(std::int64_t probes) {
  SearchOptions out;
  out.method.probes = probes;
  return out;
}

SearchOptions finding_all() {
  SearchOptions out;
  out.method.recall = 1;
  return out;
}

class FaissFile : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path); }

  std::string bytes() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set_bytes(const std::string& all) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << all;
  }
  std::string refusal() const {
    try {
      Index::load(path);
    } catch (const CorruptFile& error) {
      return error.what();
    }
    return "none";
  }
  Index filled(const std::string& factory, Metric metric) const {
    Index index = make_index(factory, 12, metric);
    index.train(base.view());
    index.add(base.view());
    return index;
  }

  const std::string path =
      (std::filesystem::temp_directory_path() / ("faiss_" + std::to_string(getpid()) + ".faiss"))
          .string();
  const Matrix<float> base = clustered(3000, 12, 1), queries = clustered(100, 12, 2);
};

// Lists of products were learned anew when they were read, by other centroids.
TEST_F(FaissFile, CentroidsAndListsStayAsTheyAre) {
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    Index index = filled("IVF20,Flat", metric);
    write_faiss(index, path);
    Index again = Index::load(path);
    const Matrix<float> ours = index.centroids(), theirs = again.centroids();
    ASSERT_EQ(0, std::memcmp(ours.data(), theirs.data(), 20 * 12 * sizeof(float)));
    const std::vector<Id> ids = index.ids();
    EXPECT_EQ(again.lists_of(ids), index.lists_of(ids));
    expect_equal(again.search(queries.view(), 10, probing(20)),
                 index.search(queries.view(), 10, probing(20)));
    expect_equal(again.search(queries.view(), 10, finding_all()),
                 index.search(queries.view(), 10, finding_all()));
    // The same rows in the same lists once it was written again.
    const std::string first = bytes();
    write_faiss(again, path);
    EXPECT_EQ(bytes(), first);
  }
}

// Two centroids change places and none of their rows: nothing certain may depend on a row being in
// the list of its nearest centroid.
TEST_F(FaissFile, RowsInTheListsOfFarCentroidsAreFound) {
  for (const Metric metric : {Metric::l2, Metric::ip}) {
    const Index index = filled("IVF20,Flat", metric), flat = filled("Flat", metric);
    write_faiss(index, path);
    std::string all = bytes();
    // IwFl, header, two numbers; IxF2, header, a number: then centroids of 12 columns.
    const std::size_t centroids = 4 + 33 + 16 + 4 + 33 + 8, row = 12 * sizeof(float);
    for (std::size_t list = 0; list + 1 < 20; list += 2)
      std::swap_ranges(all.begin() + static_cast<std::ptrdiff_t>(centroids + list * row),
                       all.begin() + static_cast<std::ptrdiff_t>(centroids + (list + 1) * row),
                       all.begin() + static_cast<std::ptrdiff_t>(centroids + (list + 1) * row));
    set_bytes(all);
    Index swapped = Index::load(path);
    EXPECT_EQ(swapped.list_sizes(), index.list_sizes());
    const Neighbors truth = flat.search(queries.view(), 10);
    expect_equal(swapped.search(queries.view(), 10, finding_all()), truth);
    expect_equal(swapped.search(queries.view(), 10, probing(20)), truth);
    SearchOptions some = probing(3);
    some.method.certify = true;
    KnnReport report;
    const Neighbors near = swapped.search(queries.view(), 10, some, &report);
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      if (std::find(report.uncertified.begin(), report.uncertified.end(), q) !=
          report.uncertified.end())
        continue;
      for (std::int64_t i = 0; i < 10; ++i) ASSERT_EQ(near.ids.row(q)[i], truth.ids.row(q)[i]);
    }
    // And they stay found when rows come and go, and in a file of our own.
    const std::vector<Id> gone{3, 4, 5};
    swapped.remove(gone);
    Matrix<float> back(3, 12);
    std::copy_n(base.row(3), 3 * 12, back.data());
    swapped.add(back.view(), gone);
    swapped.compact();
    swapped.save(path);
    expect_equal(Index::load(path).search(queries.view(), 10, finding_all()), truth);
  }
}

}  // namespace
}  // namespace knear
