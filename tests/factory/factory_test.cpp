// tests/factory/factory_test.cpp -- which strings name an index, and what the others are told.
#include "knear/factory/factory.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "knear/core/error.hpp"
#include "tests/index/index_test.hpp"

namespace knear {
namespace {

std::string refusal(std::string_view factory, std::int64_t dim = 8, Metric metric = Metric::l2) {
  try {
    make_index(factory, dim, metric);
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

// By products lists are found by their lifted centroids, which have a column more.
TEST(Factory, IndexesOverCentroidsFitProducts) {
  const std::string why =
      ", but for ip an index over centroids takes them with a column more too, which transforms "
      "and product quantizers do not fit: Flat, SQ8, SQ4, SQfp16, SQbf16 and IVFn of these do";
  for (const std::string inner :
       {"PQ4x4", "PCA4,Flat", "RR,Flat", "IVF8,PQ4x4", "SQ8,Refine(PQ4x4)", "L2norm,SQ8"}) {
    const std::string part = "IVF512(" + inner + ")", factory = part + ",Flat";
    EXPECT_EQ(refusal(factory, 8, Metric::ip),
              "factory '" + factory + "' has '" + part + "' at place 1" + why);
    EXPECT_NE(make_index(factory, 8).description(), "") << "by l2";
  }
  for (const std::string inner : {"SQ8", "IVF8,SQ4", "SQ4,RFlat", "SQ8,Refine(SQfp16)"})
    EXPECT_EQ(make_index("IVF512(" + inner + "),PQ4", 8, Metric::ip).description(),
              "IVF512(" + inner + "),PQ4");
}

TEST(Factory, RefusesTheRestByNameAndPlace) {
  const std::string none =
      ", which is none of the indexes Flat, SQfp16, SQbf16, PQm, PQmx4, SQ8, SQ4, Graphn and "
      "IVFn,...";
  EXPECT_EQ(refusal(""), "factory '' has '' at place 1" + none);
  EXPECT_EQ(refusal("flat"), "factory 'flat' has 'flat' at place 1" + none);
  // One line, whatever was read from where.
  EXPECT_EQ(refusal("Flat\n"), "factory 'Flat\\n' has 'Flat\\n' at place 1" + none);
  using namespace std::string_view_literals;
  EXPECT_EQ(refusal("F\0lat\x7f"sv),
            "factory 'F\\x00lat\\x7f' has 'F\\x00lat\\x7f' at place 1" + none);
  EXPECT_EQ(refusal("Flat,Flat"),
            "factory 'Flat,Flat' has 'Flat' at place 6, but only IDMap may follow");
  EXPECT_EQ(
      refusal("IVF16"),
      "factory 'IVF16' has 'IVF16' at place 1, after which the form of the vectors is missing, "
      "as in ',Flat'");
  EXPECT_EQ(refusal("IVF16,PQ3"),
            "factory 'IVF16,PQ3' has 'PQ3' at place 7, but 3 parts do not divide 8 columns");
  EXPECT_EQ(refusal("IVF16,LSH"),
            "factory 'IVF16,LSH' has 'LSH' at place 7, which is no form of vectors in inverted "
            "lists: Flat, SQfp16, SQbf16, PQm, PQmx4, SQ8 and SQ4 are");
  EXPECT_EQ(refusal("IVF16,Flat,"),
            "factory 'IVF16,Flat,' has '' at place 12, where a part is missing");
  EXPECT_EQ(refusal("IVF0,Flat"),
            "factory 'IVF0,Flat' has 'IVF0' at place 1, but there can be 1 to 16777216 lists");
  const std::string far = "IVF99999999999999999999";
  EXPECT_EQ(refusal(far + ",Flat"), "factory '" + far + ",Flat' has '" + far +
                                        "' at place 1, but there can be 1 to 16777216 lists");
  EXPECT_NE(refusal("IVF-99999999999999999999,Flat").find("no inverted lists"), std::string::npos);
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
            "factory 'PQ4,Refine(HNSW)' has 'HNSW' at place 12, but codes are refined by Flat, "
            "PQm, PQmx4, SQ8, SQ4, SQfp16 or SQbf16");
  EXPECT_EQ(refusal("PQ4x6"),
            "factory 'PQ4x6' has 'PQ4x6' at place 1, which is no product quantizer: PQm, PQmx4, "
            "PQmx8 are");
  EXPECT_EQ(refusal("IVF64(IVF8,Foo),Flat"),
            "factory 'IVF64(IVF8,Foo),Flat' has 'Foo' at place 12, which is no form of vectors in "
            "inverted lists: Flat, SQfp16, SQbf16, PQm, PQmx4, SQ8 and SQ4 are");
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
  for (const char* name : {"IVF,Flat", "IVF-3,Flat", "IVF1e3,Flat", "IVF64_HNSW32,Flat"})
    EXPECT_NE(refusal(name).find(
                  "at place 1, which names no inverted lists: IVFn, IVFn_SOAR and IVFn(index) do"),
              std::string::npos)
        << refusal(name);
  for (const char* name : {"HNSW32", " Flat", "()", "L2norm8,Flat"})
    EXPECT_NE(refusal(name).find("at place 1, which is none of the indexes"), std::string::npos)
        << refusal(name);
  EXPECT_THROW(make_index("Flat", 0), InvalidArgument);
  EXPECT_THROW(learns("Flat,Flat"), InvalidArgument);
  EXPECT_TRUE(learns("IVF16,PQ3"));  // whatever the columns
}

// A bracket that was left open was said to be a part that may not follow, a number too large for 64
// bits to be another one.
TEST(Factory, SaysWhatIsWrongWithAString) {
  struct Wrong {
    std::string factory, part;
    int place;
    std::string why;
  };
  const std::string open = "where a bracket is not closed",
                    closed = "where a bracket is closed that is not open",
                    behind = "where something follows the closing bracket",
                    refined =
                        "but codes are refined by Flat, PQm, PQmx4, SQ8, SQ4, SQfp16 or "
                        "SQbf16",
                    after_codes = "but codes may be followed by RFlat, Refine(form) and IDMap only",
                    columns = "but there can be 1 to 65536 columns",
                    parts = "but there can be 1 to 65536 parts",
                    lists = "but there can be 1 to 16777216 lists",
                    no_opq = "which is no OPQ: OPQm and OPQm_d are";
  for (const auto& [factory, part, place, why] : std::vector<Wrong>{
           {"PQ4,Refine(", "Refine(", 5, open},
           {"PQ4,Refine(SQ8", "Refine(SQ8", 5, open},
           {"(Flat", "(Flat", 1, open},
           {"PCA4,IVF16(IVF4,Flat", "IVF16(IVF4,Flat", 6, open},
           {"IVF16(IVF4(Flat,Flat),Flat", "IVF16(IVF4(Flat,Flat),Flat", 1, open},
           {"Flat)", "Flat)", 1, closed},
           {"IVF16(Flat)),Flat", "IVF16(Flat))", 1, closed},
           {"IVF16)Flat(,Flat", "IVF16)Flat(,Flat", 1, closed},
           {"PQ4,Refine(SQ8))", "Refine(SQ8))", 5, closed},
           {"IVF16(IVF4,Flat)x,Flat", "IVF16(IVF4,Flat)x", 1, behind},
           {"IVF16()Flat", "IVF16()Flat", 1, behind},
           {"IVF16(Flat)(Flat),Flat", "IVF16(Flat)(Flat)", 1, behind},
           {"PQ4,Refine(SQ8)x", "Refine(SQ8)x", 5, behind},
           {"PQ4,Refine()", "", 12, refined},
           {"PQ4,Refine(SQ8,SQ4)", "SQ8,SQ4", 12, refined},
           {"PQ4,Refine(PQ3)", "PQ3", 12, "but 3 parts do not divide 8 columns"},
           {"PQ4,Refine", "Refine", 5, after_codes},
           {"PQ4,PCA4", "PCA4", 5, after_codes},
           {"PQ4,,RFlat", "", 5, "where a part is missing"},
           {"PQ4,RFlat,RFlat", "RFlat", 11, "but only IDMap may follow"},
           {"PQ4,IDMap,RFlat", "RFlat", 11, "but nothing may follow IDMap"},
           {"RR0,Flat", "RR0", 1, columns},
           {"RR65537,Flat", "RR65537", 1, columns},
           {"PCA99999999999999999999,Flat", "PCA99999999999999999999", 1, columns},
           {"OPQ2_99999999999999999999,PQ2", "OPQ2_99999999999999999999", 1, columns},
           {"PQ0", "PQ0", 1, parts},
           {"PQ99999999999999999999x4", "PQ99999999999999999999x4", 1, parts},
           {"OPQ99999999999999999999,PQ2", "OPQ99999999999999999999", 1, parts},
           {"IVF16777217,Flat", "IVF16777217", 1, lists},
           {"OPQ2_,PQ2", "OPQ2_", 1, no_opq},
           {"OPQ2_4_2,PQ2", "OPQ2_4_2", 1, no_opq},
           {"PQ4x4x8", "PQ4x4x8", 1, "which is no product quantizer: PQm, PQmx4, PQmx8 are"},
           {"RR-1,Flat", "RR-1", 1, "which is no random rotation: RR and RRn are"},
           {"IVF+1,Flat", "IVF+1", 1,
            "which names no inverted lists: IVFn, IVFn_SOAR and IVFn(index) do"}})
    EXPECT_EQ(refusal(factory),
              fmt::format("factory '{}' has '{}' at place {}, {}", factory, part, place, why));
}

}  // namespace
}  // namespace knear
