// tests/factory/factory_test.cpp -- which strings name an index, and what the others are told.
#include "knear/factory/factory.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

std::string refusal(std::string_view factory, std::int64_t dim = 8) {
  try {
    make_index(factory, dim);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "made";
}

TEST(Factory, MakesWhatIsNamed) {
  for (const char* name : {"Flat",
                           "IVF1,Flat",
                           "IVF1024,Flat",
                           "IVF16777216,Flat",
                           "IVF64(IVF8,Flat),Flat",
                           "IVF64(IVF8,SQfp16),PQ2",
                           "IVF64(SQbf16),SQ8",
                           "PQ4",
                           "PQ8x4",
                           "SQ8",
                           "SQ4",
                           "SQfp16",
                           "IVF16,SQbf16",
                           "IVF64,PQ2",
                           "IVF64,PQ2x4,RFlat",
                           "PCA4,PQ2",
                           "PCAWR4,Flat",
                           "OPQ2_4,IVF8,PQ2",
                           "RR16,PQ16",
                           "L2norm,Flat",
                           "PQ2,Refine(SQ8)",
                           "PQ2,Refine(SQfp16)",
                           "SQ4,Refine(PQ8)",
                           "PCAR6,L2norm,RR6,IVF3,SQ8,Refine(SQ4)"}) {
    const Index index = make_index(name, 8, Metric::ip);
    EXPECT_EQ(index.description(), name);
    EXPECT_EQ(index.dim(), 8);
    EXPECT_EQ(index.metric(), Metric::ip);
    const bool flat = std::string(name) == "Flat" || std::string(name) == "SQfp16";
    EXPECT_EQ(index.is_trained(), flat) << name;
    EXPECT_EQ(learns(name), !flat) << name;
  }
  // Other words for the same.
  for (const auto& [name, same] :
       {std::pair("PQ4x8", "PQ4"), std::pair("PQ4x4fs", "PQ4x4"), std::pair("IDMap,Flat", "Flat"),
        std::pair("PQ4,IDMap2", "PQ4"), std::pair("OPQ4,PQ4", "OPQ4_8,PQ4"),
        std::pair("RR,Flat", "RR8,Flat"), std::pair("IVF64(Flat),PQ4", "IVF64,PQ4"),
        std::pair("PQ4,Refine(Flat)", "PQ4,RFlat")})
    EXPECT_EQ(make_index(name, 8).description(), same);
}

// A rotation may lengthen rows, which changes no distance but for its rounding: that of rows within
// 1, squared, in float32. Components cannot be made of less.
TEST(Factory, RotationsToMoreColumnsKeepDistances) {
  constexpr std::int64_t dim = 32, k = 5;
  const Matrix<float> rows = clustered(300, dim, 1);
  for (const Metric metric : {Metric::l2, Metric::ip, Metric::cosine}) {
    Index flat = make_index("Flat", dim, metric), turned = make_index("RR64,Flat", dim, metric);
    turned.train(rows.view());
    flat.add(rows.view()), turned.add(rows.view());
    const Neighbors near = flat.search(rows.view(), k), far = turned.search(rows.view(), k);
    for (std::int64_t i = 0; i < rows.rows() * k; ++i)
      ASSERT_NEAR(far.distances.data()[i], near.distances.data()[i], 64 * 0x1p-23) << i;
    EXPECT_EQ(turned.reconstruct(std::vector<Id>{7}).cols(), dim);
  }
  EXPECT_EQ(refusal("PCA64,Flat", dim),
            "factory 'PCA64,Flat' has 'PCA64' at place 1, but there are 32 columns to make 64 of");
}

TEST(Factory, RefusesTheRestByNameAndPlace) {
  const std::string none =
      ", which is none of the indexes Flat, PQm, PQmx4, SQ8, SQ4, SQfp16, SQbf16 and IVFn,...";
  EXPECT_EQ(refusal(""), "factory '' has '' at place 1" + none);
  EXPECT_EQ(refusal("flat"), "factory 'flat' has 'flat' at place 1" + none);
  EXPECT_EQ(refusal("Flat,Flat"),
            "factory 'Flat,Flat' has 'Flat' at place 6, which may not follow there");
  EXPECT_EQ(
      refusal("IVF16"),
      "factory 'IVF16' has 'IVF16' at place 1, after which the form of the vectors is missing, "
      "as in ',Flat'");
  EXPECT_EQ(refusal("IVF16,PQ3"),
            "factory 'IVF16,PQ3' has 'PQ3' at place 7, but 3 parts do not divide 8 columns");
  EXPECT_EQ(refusal("IVF16,LSH"),
            "factory 'IVF16,LSH' has 'LSH' at place 7, which is no form of vectors in inverted "
            "lists: Flat, PQm, PQmx4, SQ8, SQ4, SQfp16 and SQbf16 are");
  EXPECT_EQ(refusal("IVF16,Flat,"),
            "factory 'IVF16,Flat,' has '' at place 12, which may not follow there");
  EXPECT_EQ(refusal("IVF0,Flat"),
            "factory 'IVF0,Flat' has 'IVF0' at place 1, but there can be 1 to 16777216 lists");
  const std::string far = "IVF99999999999999999999";
  EXPECT_EQ(refusal(far + ",Flat"), "factory '" + far + ",Flat' has '" + far +
                                        "' at place 1, but there can be 1 to 16777216 lists");
  EXPECT_NE(refusal("IVF-99999999999999999999,Flat").find("none of the indexes"),
            std::string::npos);
  EXPECT_EQ(refusal("PCA9,Flat"),
            "factory 'PCA9,Flat' has 'PCA9' at place 1, but there are 8 columns to make 9 of");
  EXPECT_EQ(refusal("PCAx,Flat"),
            "factory 'PCAx,Flat' has 'PCAx' at place 1, which is no PCA: PCAn, PCAWn, PCARn, "
            "PCAWRn are");
  EXPECT_EQ(refusal("OPQ3_8,PQ4"),
            "factory 'OPQ3_8,PQ4' has 'OPQ3_8' at place 1, but 3 parts do not divide 8 columns");
  EXPECT_EQ(refusal("PCA4,PQ8"),
            "factory 'PCA4,PQ8' has 'PQ8' at place 6, but 8 parts do not divide 4 columns");
  EXPECT_EQ(refusal("PCA4"),
            "factory 'PCA4' has 'PCA4' at place 1, after which an index is missing");
  EXPECT_EQ(refusal("Flat,RFlat"),
            "factory 'Flat,RFlat' has 'RFlat' at place 6, but what is refined are codes, and there "
            "are vectors");
  EXPECT_EQ(refusal("PQ4,Refine(HNSW)"),
            "factory 'PQ4,Refine(HNSW)' has 'Refine(HNSW)' at place 5, but codes are refined by "
            "Flat, SQfp16, SQbf16, SQ8, SQ4, PQm or PQmx4");
  EXPECT_EQ(refusal("PQ4x6"),
            "factory 'PQ4x6' has 'PQ4x6' at place 1, which is no product quantizer: PQm, PQmx4, "
            "PQmx8 are");
  EXPECT_EQ(refusal("IVF64(IVF8,Foo),Flat"),
            "factory 'IVF64(IVF8,Foo),Flat' has 'Foo' at place 12, which is no form of vectors in "
            "inverted lists: Flat, PQm, PQmx4, SQ8, SQ4, SQfp16 and SQbf16 are");
  EXPECT_EQ(refusal("PCA4,IVF64(PQ8),Flat"),
            "factory 'PCA4,IVF64(PQ8),Flat' has 'PQ8' at place 12, but 8 parts do not divide 4 "
            "columns");
  EXPECT_EQ(refusal("IVF64(),Flat"), "factory 'IVF64(),Flat' has '' at place 7" + none);
  EXPECT_EQ(refusal("IVF64(Flat,Flat"),
            "factory 'IVF64(Flat,Flat' has 'IVF64(Flat,Flat' at place 1, where a bracket is not "
            "closed");
  EXPECT_EQ(refusal("IVF64(IVF65,Flat),Flat"),
            "factory 'IVF64(IVF65,Flat),Flat' has 'IVF64(IVF65,Flat)' at place 1, but 64 centroids "
            "do not fill 65 lists");
  EXPECT_EQ(refusal("IVF64(PQ2),Flat"),
            "factory 'IVF64(PQ2),Flat' has 'IVF64(PQ2)' at place 1, but PQ2 takes 256 centroids at "
            "least, not 64");
  EXPECT_EQ(refusal("IVF64(IVF8(IVF2,Flat),Flat),Flat"),
            "factory 'IVF64(IVF8(IVF2,Flat),Flat),Flat' has 'IVF64(IVF8(IVF2,Flat),Flat)' at place "
            "1, but an index over centroids has none over its own");
  EXPECT_THROW(make_index("IVF64(SQ8),Flat", 8, Metric::ip), InvalidArgument);
  for (const char* name : {"IVF,Flat", "IVF-3,Flat", "IVF1e3,Flat", "IVF64_HNSW32,Flat", "HNSW32",
                           " Flat", "Flat)", "(Flat"})
    EXPECT_NE(refusal(name).find("at place 1, which is none of the indexes"), std::string::npos)
        << refusal(name);
  EXPECT_THROW(make_index("Flat", 0), InvalidArgument);
  EXPECT_THROW(learns("Flat,Flat"), InvalidArgument);
  EXPECT_TRUE(learns("IVF16,PQ3"));  // whatever the columns
}

}  // namespace
}  // namespace knear
