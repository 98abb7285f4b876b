// tests/factory/choose_index_test.cpp -- that what is chosen exists, fits, and follows what is
// asked for. How fast it is beside others: bench/auto.
#include "knear/factory/choose_index.hpp"
#include "knear/core/cpu.hpp"

#include <gtest/gtest.h>

#include <string>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"
#include "knear/factory/factory.hpp"

namespace knear {
namespace {

std::string chosen(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs) {
  const IndexChoice choice = choose_index(rows, dim, needs);
  EXPECT_TRUE(choice.reason.starts_with(choice.factory + ": ")) << choice.reason;
  EXPECT_TRUE(needs.memory == 0 || choice.bytes <= needs.memory) << choice.reason;
  EXPECT_EQ(make_index(choice.factory, dim, needs.metric).description(),
            choice.factory.starts_with("OPQ")
                ? choice.factory.substr(0, choice.factory.find(',')) + "_" + std::to_string(dim) +
                      choice.factory.substr(choice.factory.find(','))
                : choice.factory);
  return choice.factory;
}

std::string refusal(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs) {
  try {
    return choose_index(rows, dim, needs).factory;
  } catch (const InvalidArgument& e) {
    return e.what();
  }
}

TEST(ChooseIndex, ComparesFewVectorsAndProbesListsOfMany) {
  EXPECT_EQ(chosen(10'000, 96, {.batch = 10'000}), "Flat");
  EXPECT_EQ(chosen(10'000, 96, {.batch = 1}), "Flat");
  EXPECT_EQ(chosen(1, 1, {}), "Flat");
  EXPECT_EQ(chosen(100'000, 96, {}), "IVF1024,Flat");
  EXPECT_EQ(chosen(1'000'000, 96, {.recall = 0.99}), "IVF2048,Flat");
  EXPECT_EQ(chosen(1'000'000, 96, {.recall = 1}), "Flat");
  EXPECT_EQ(chosen(1'000'000'000, 96, {.batch = 10'000}), "IVF65536,Flat");
  EXPECT_EQ(chosen(1'000'000'000, 96, {.batch = 1}), "IVF65536(IVF512,Flat),Flat");
}

TEST(ChooseIndex, LosesMoreTheLessMemoryThereIs) {
  const auto for_bytes = [](std::int64_t each) {
    return chosen(1'000'000, 96, {.memory = each * 1'000'000, .recall = 0.9});
  };
  EXPECT_EQ(for_bytes(600), "IVF2048,Flat");
  EXPECT_EQ(for_bytes(400), "IVF2048,SQfp16");
  EXPECT_EQ(for_bytes(250), "IVF2048,PQ48x4,Refine(SQfp16)");
  EXPECT_EQ(for_bytes(150), "IVF2048,PQ48x4,Refine(SQ8)");
  EXPECT_EQ(for_bytes(120), "IVF2048,SQ8");
  EXPECT_EQ(for_bytes(70), "IVF2048,PQ48");
  EXPECT_EQ(for_bytes(60), "OPQ32,IVF2048,PQ32");
  EXPECT_EQ(for_bytes(34), "OPQ16,IVF2048,PQ16");
  EXPECT_EQ(for_bytes(20), "OPQ3,IVF2048,PQ3");
  // A byte a column is all that bytes have, so that codes come next.
  const IndexNeeds bytes{.type = ElementType::u8, .memory = 130'000'000};
  EXPECT_EQ(chosen(1'000'000, 96, bytes), "IVF2048,Flat");
  EXPECT_EQ(chosen(1'000'000, 96, {.type = ElementType::u8, .memory = 70'000'000}), "IVF2048,PQ48");
  // What recall of codes is measured by takes 2 MB, more than so few vectors.
  EXPECT_EQ(chosen(1'000, 96, {.memory = 400'000}), "SQfp16");
  EXPECT_NE(refusal(1'000, 96, {.memory = 300'000}).find("but 1000 x 96 take 302280 at least"),
            std::string::npos);
}

TEST(ChooseIndex, TakesWhatItSays) {
  Random random(1);
  Matrix<float> base(60'000, 32);
  for (std::int64_t i = 0; i < 60'000 * 32; ++i)
    base.data()[i] = static_cast<float>(random.uniform());
  for (const std::int64_t memory : {0, 8 << 20, 6 << 20, 4 << 20}) {
    const IndexChoice choice = choose_index(60'000, 32, {.memory = memory, .recall = 0.9});
    Index index = make_index(choice.factory, 32);
    index.train(base.view(), {.iterations = 2});
    index.add(base.view());
    const auto bytes = static_cast<double>(index.memory_bytes());
    // Without fast products of bytes rows may be scored in float32, beside their vectors.
    const double more = active_isa() == Isa::avx512_vnni ? 0 : 60'000 * 32 * 4;
    EXPECT_LE(bytes, 1.02 * static_cast<double>(choice.bytes) + more) << choice.reason;
    EXPECT_GE(bytes, 0.75 * static_cast<double>(choice.bytes)) << choice.reason;
  }
}

TEST(ChooseIndex, SaysWhatIsWrong) {
  EXPECT_EQ(refusal(0, 4, {}), "rows must be at least 1, but is 0");
  EXPECT_THROW(choose_index(1, 0, {}), InvalidArgument);
  EXPECT_EQ(refusal(9, 4, {.memory = -1}), "memory must not be negative, but is -1");
  EXPECT_EQ(refusal(9, 4, {.recall = 1.5}), "recall must be in (0, 1], but is 1.5");
  EXPECT_EQ(refusal(9, 4, {.batch = 0}), "batch must be at least 1, but is 0");
  EXPECT_NE(refusal(1'000'000, 96, {.memory = 100'000'000, .recall = 1})
                .find("memory is 100000000 bytes, but 1000000 x 96 take "),
            std::string::npos);
  EXPECT_NE(refusal(1'000'000, 96, {.memory = 1'000'000}).find("at least"), std::string::npos);
  EXPECT_THROW(make_index("auto", 8), InvalidArgument);
}

}  // namespace
}  // namespace knear
