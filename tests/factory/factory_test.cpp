// tests/factory/factory_test.cpp -- which strings name an index, and what the others are told.
#include "knear/factory/factory.hpp"

#include <gtest/gtest.h>

#include <string>

#include "knear/core/error.hpp"

namespace knear {
namespace {

std::string refusal(std::string_view factory) {
  try {
    make_index(factory, 8);
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "made";
}

TEST(Factory, MakesWhatIsNamed) {
  for (const char* name : {"Flat", "IVF1,Flat", "IVF1024,Flat", "IVF16777216,Flat"}) {
    const Index index = make_index(name, 8, Metric::ip);
    EXPECT_EQ(index.description(), name);
    EXPECT_EQ(index.dim(), 8);
    EXPECT_EQ(index.metric(), Metric::ip);
    EXPECT_EQ(index.is_trained(), std::string(name) == "Flat");
  }
}

TEST(Factory, RefusesTheRestByNameAndPlace) {
  EXPECT_EQ(refusal(""),
            "factory '' has '' at place 1, which is none of the indexes Flat and IVFn,Flat");
  EXPECT_EQ(
      refusal("flat"),
      "factory 'flat' has 'flat' at place 1, which is none of the indexes Flat and IVFn,Flat");
  EXPECT_EQ(refusal("Flat,Flat"),
            "factory 'Flat,Flat' has 'Flat' at place 6, which may not follow there");
  EXPECT_EQ(
      refusal("IVF16"),
      "factory 'IVF16' has 'IVF16' at place 1, after which the form of the vectors is missing, "
      "as in ',Flat'");
  EXPECT_EQ(refusal("IVF16,PQ4x8"),
            "factory 'IVF16,PQ4x8' has 'PQ4x8' at place 7, which is no form of vectors in inverted "
            "lists: only Flat is");
  EXPECT_EQ(refusal("IVF16,Flat,"),
            "factory 'IVF16,Flat,' has '' at place 12, which may not follow there");
  EXPECT_EQ(refusal("IVF0,Flat"),
            "factory 'IVF0,Flat' has 'IVF0' at place 1, but there can be 1 to 16777216 lists");
  for (const char* name : {"IVF,Flat", "IVF-3,Flat", "IVF1e3,Flat", "IVF99999999999999999999,Flat",
                           "IVF64(IVF8,Flat),Flat", "HNSW32", " Flat", "Flat)", "(Flat"})
    EXPECT_NE(refusal(name).find("at place 1, which is none of the indexes"), std::string::npos)
        << refusal(name);
  EXPECT_THROW(make_index("Flat", 0), InvalidArgument);
}

}  // namespace
}  // namespace knear
