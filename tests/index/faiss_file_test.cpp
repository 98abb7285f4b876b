// tests/index/faiss_file_test.cpp -- files of FAISS without FAISS: what is written is read back as
// it was, whichever lists rows are in; what is not read is refused by its name.
// python/tests/test_faiss_files.py does the same with the real one.
#include "knear/index/faiss_file.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

constexpr Clusters many{.count = 20, .spread = 0.5};

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
    } catch (const InvalidArgument& error) {  // a right file of something else
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
  const Matrix<float> base = clustered(3000, 12, 1, many), queries = clustered(100, 12, 2, many);
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
    some.method.lists.certify = true;
    KnnReport report;
    const Neighbors near = swapped.search(queries.view(), 10, some, &report);
    for (std::int64_t q = 0; q < queries.rows(); ++q) {
      if (std::find(report.promise.uncertified.begin(), report.promise.uncertified.end(), q) !=
          report.promise.uncertified.end())
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

// What is written is read back as the same index, but for the words for linear maps.
TEST_F(FaissFile, FormsComeBackAsTheyWere) {
  for (const Metric metric : {Metric::l2, Metric::ip})
    for (const std::string factory : {"Flat",
                                      "SQfp16",
                                      "SQbf16",
                                      "IVF20,SQfp16",
                                      "IVF20,SQbf16",
                                      "PQ6x4",
                                      "SQ8",
                                      "IVF20,PQ6x4",
                                      "IVF20,SQ4",
                                      "SQ8,RFlat",
                                      "SQ4,Refine(SQ8)",
                                      "IVF20,SQ4,Refine(SQfp16)",
                                      "IVF20,PQ6x4,Refine(SQbf16)",
                                      "SQ4,Refine(PQ12x4)",
                                      "PCA8,Flat",
                                      "RR14,IVF20,Flat",
                                      "RR6,PQ3x4",
                                      "L2norm,IVF20,SQfp16",
                                      "OPQ3_6,IVF20,PQ3x4",
                                      "PCAW6,SQ8,Refine(SQ4)"}) {
      SCOPED_TRACE(factory);
      Index index = filled(factory, metric);
      index.remove(std::vector<Id>{5, 17});
      index.add(clustered(4, 12, 3, many).view(), std::vector<Id>{9000, 5, 8000, 17});
      write_faiss(index, path);
      const Index again = Index::load(path);
      const auto transform_end = factory.find("PCA") == 0 ? factory.find(',') : 0;
      EXPECT_EQ(
          again.description().substr(again.description().size() - (factory.size() - transform_end)),
          factory.substr(transform_end));
      EXPECT_EQ(again.element_type(), index.element_type());
      EXPECT_EQ(again.ids(), index.ids());
      const SearchOptions options =
          factory.find("IVF") != factory.npos ? probing(20) : SearchOptions{};
      const Neighbors ours = index.search(queries.view(), 10, options),
                      theirs = again.search(queries.view(), 10, options);
      for (std::int64_t i = 0; i < 1000; ++i)
        ASSERT_NEAR(ours.distances.data()[i], theirs.distances.data()[i],
                    1e-5f * (1 + std::abs(ours.distances.data()[i])));
    }
}

// A random rotation was read as OPQ's, which no index of its own factory could be merged with.
TEST_F(FaissFile, RandomRotationsStayThat) {
  Index index = make_index("RR6,PQ3x4", 12, Metric::l2);
  const Matrix<float> x = clustered(400, 12, 3, many);
  index.train(x.view());
  index.save(path);
  Index other = Index::load(path);
  other.add(x.view().rows(200, 400));
  index.add(x.view().rows(0, 200));
  write_faiss(index, path);
  Index again = Index::load(path);
  EXPECT_EQ(again.description(), "RR6,PQ3x4");
  again.merge(other, MergeIds::shifted);
  EXPECT_EQ(again.size(), 400);
}

// A file's own bytes may be orders to a terminal.
TEST_F(FaissFile, LettersOfListsAreShownAsText) {
  write_faiss(filled("IVF20,Flat", Metric::l2), path);
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  bytes.replace(bytes.find("ilar"), 4, "i\x1b[J");
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    Index::load(path);
    FAIL() << "no error";
  } catch (const CorruptFile& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("'i\\x1b[J' is no type of inverted lists"), std::string::npos)
        << message;
    EXPECT_EQ(message.find('\x1b'), std::string::npos);
  }
}

TEST_F(FaissFile, WhatIsNotReadIsNamed) {
  for (const auto& [letters, name] : std::vector<std::pair<std::string, std::string>>{
           {"IwFd", "an IndexIVFFlatDedup"},
           {"IHNf", "an IndexHNSWFlat"},
           {"INSf", "an IndexNSGFlat"},
           {"NPRf", "an IndexIVFProductResidualQuantizerFastScan"},
           {"Imiq", "a MultiIndexQuantizer"},
           {"Irfn", "an IndexRaBitQFastScan"},
           {"ISVD", "an IndexSVSVamana"},
           {"IBxF", "an IndexBinaryFlat"},
           {"IvFl", "an IndexIVFFlat of an old format"}}) {
    set_bytes(letters + std::string(200, '\1'));
    EXPECT_TRUE(is_faiss_file(path));
    EXPECT_EQ(refusal(), path + " holds " + name + " (" + letters + "), which knear does not read");
  }
  set_bytes("IxZZ" + std::string(200, '\1'));
  EXPECT_EQ(refusal(),
            path + ", at byte 0: 'IxZZ' is no type of an index that knear knows of FAISS");
  set_bytes("");
  EXPECT_EQ(refusal(), "'" + path + "' is empty");
  set_bytes("not an index of anybody");  // whose name says that it is one of FAISS
  EXPECT_EQ(refusal(),
            path + ", at byte 0: 'not ' is no type of an index that knear knows of FAISS");
  for (const char* none : {"null", "LTra", "I am", "ABCD"}) {
    set_bytes(none + std::string(200, '\1'));
    EXPECT_FALSE(is_faiss_file(path)) << none;
  }
  // Within another: IxM2 and its header come before it.
  const Index index = filled("Flat", Metric::l2);
  write_faiss(index, path);
  const std::string flat = bytes();
  set_bytes("IxM2" + flat.substr(4, 33) + "IHNf" + flat.substr(4));
  EXPECT_EQ(refusal(),
            path + " holds an IndexHNSWFlat (IHNf) at byte 37, which knear does not read");
}

// IVFn,Flat,RFlat of FAISS's factory; with another vector behind it, it is not the same index.
TEST_F(FaissFile, VectorsRefinedByThemselvesAreVectors) {
  const Index lists = filled("IVF20,Flat", Metric::l2), flat = filled("Flat", Metric::l2);
  write_faiss(lists, path);
  std::string refined = "IxRF" + bytes().substr(4, 33) + bytes();
  write_faiss(flat, path);
  refined += bytes() + std::string(4, '\0');  // k_factor
  set_bytes(refined);
  const Index again = Index::load(path);
  EXPECT_EQ(again.description(), "IVF20,Flat");
  expect_equal(again.search(queries.view(), 10, probing(3)),
               lists.search(queries.view(), 10, probing(3)));
  refined[refined.size() - 10] ^= 1;
  set_bytes(refined);
  EXPECT_NE(refusal().find(
                "holds an IndexRefineFlat of an index without codes, which knear.Index does not "),
            std::string::npos)
      << refusal();
}

TEST_F(FaissFile, QuantizersThatAreNotReadAreNamed) {
  write_faiss(filled("SQ8", Metric::l2), path);
  std::string scalar = bytes();
  scalar[4 + 33] = 6;
  set_bytes(scalar);
  EXPECT_NE(
      refusal().find(
          "holds a ScalarQuantizer of type QT_6bit (6), which knear.Index does not read, but "),
      std::string::npos)
      << refusal();
  scalar[4 + 33] = 99;
  set_bytes(scalar);
  EXPECT_NE(refusal().find("of type 99,"), std::string::npos) << refusal();
  write_faiss(filled("PQ6x4", Metric::l2), path);
  std::string product = bytes();
  product[4 + 33 + 16] = 6;
  set_bytes(product);
  EXPECT_NE(
      refusal().find("holds a ProductQuantizer of 6 bits, which knear.Index does not read, but "),
      std::string::npos)
      << refusal();
}

// Bytes that stand for themselves hold no negative residuals, though FAISS writes them so; its own
// searches of such codes find other rows than these are.
TEST_F(FaissFile, ResidualsInBytesWithoutASignAreRefused) {
  const Index index = filled("IVF20,SQ8", Metric::l2);
  write_faiss(index, path);
  std::string all = bytes();
  // IwSq, header, two numbers; IxF2, header, a number, centroids; the map of ids; then the
  // quantiser: its type, how its range was found, columns, bytes, levels.
  const std::size_t kind = 4 + 33 + 16 + 4 + 33 + 8 + 20 * 12 * sizeof(float) + 9,
                    levels = kind + 4 + 8 + 16, residual = levels + 8 + 8;
  all[kind] = 5;  // QT_8bit_direct, which has no levels
  all[levels] = 0;
  all.erase(levels + 8, 2 * 12 * sizeof(float));
  ASSERT_EQ(all[residual], 1);
  set_bytes(all);
  EXPECT_NE(refusal().find("an IndexIVFScalarQuantizer of QT_8bit_direct with by_residual"),
            std::string::npos)
      << refusal();
  all[residual] = 0;
  set_bytes(all);
  EXPECT_EQ(refusal(), "none");
}

template <class T>
void append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The same codes one after another and in blocks, of 32 rows and more, the last one not full.
TEST_F(FaissFile, CodesInBlocksAreThoseOfTheirRows) {
  for (const std::int64_t parts : {6, 3})
    for (const std::size_t of_block : {32u, 64u}) {
      const Index index = filled("PQ" + std::to_string(parts) + "x4", Metric::l2);
      write_faiss(index, path);
      const std::string plain = bytes();
      // IxPq, header, three numbers, centroids, codes, 9 bytes.
      const std::size_t pairs = static_cast<std::size_t>(parts + 1) / 2,
                        codes = plain.size() - 9 - 3000 * pairs, blocks = 3000 / of_block + 1;
      std::string packed(blocks * of_block * pairs, '\0');
      for (std::size_t row = 0; row < 3000; ++row)
        for (std::size_t pair = 0; pair < pairs; ++pair) {
          const auto code = static_cast<unsigned char>(plain[codes + row * pairs + pair]);
          const std::size_t group = row % of_block / 32, place = row % 16;
          char* at = packed.data() + row / of_block * of_block * pairs + pair * of_block +
                     group * 32 + (place < 8 ? 2 * place : 2 * place - 15);
          const int shift = row % 32 < 16 ? 0 : 4;
          at[0] = static_cast<char>(at[0] | (code & 15) << shift);
          at[16] = static_cast<char>(at[16] | (code >> 4) << shift);
        }
      std::string all = "IPfs" + plain.substr(4, codes - 8 - 4);
      append(all, std::int32_t{0}), append(all, static_cast<std::int32_t>(of_block));
      append(all, std::int32_t{0}), append(all, static_cast<std::uint64_t>(blocks * of_block));
      append(all, static_cast<std::uint64_t>(2 * pairs));
      append(all, static_cast<std::uint64_t>(packed.size()));
      set_bytes(all + packed);
      const Index again = Index::load(path);
      EXPECT_EQ(again.description(), index.description());
      expect_equal(again.search(queries.view(), 10), index.search(queries.view(), 10));
      // None of its numbers may be another.
      for (std::size_t byte = codes - 8; byte < codes + 28; ++byte) {
        std::string wrong = all + packed;
        wrong[byte] = static_cast<char>(wrong[byte] + 1);
        if (byte < codes - 4 || (byte >= codes && byte < codes + 4)) continue;  // kinds of search
        set_bytes(wrong);
        EXPECT_NE(refusal(), "none") << byte;
      }
    }
}

// Cut off anywhere, it is refused.
TEST_F(FaissFile, CutFilesAreRefused) {
  for (const std::string factory :
       {"IVF20,SQfp16", "SQ4,Refine(SQ8)", "PCA8,IVF20,Flat", "IVF50(IVF5,Flat),PQ6x4"}) {
    const Index index = filled(factory, Metric::l2);
    write_faiss(index, path);
    const std::string all = bytes();
    for (std::size_t length = 4; length < all.size(); length += 1 + length / 8) {
      set_bytes(all.substr(0, length));
      EXPECT_NE(refusal(), "none") << factory << " " << length;
    }
  }
}

}  // namespace
}  // namespace knear
