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

Matrix<float> noise(std::int64_t rows, std::int64_t dim) {
  Random random(1);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = static_cast<float>(random.uniform());
  return out;
}

TEST(ChooseIndex, ComparesFewVectorsAndProbesListsOfMany) {
  EXPECT_EQ(chosen(10'000, 96, {.batch = 10'000}), "Flat");
  EXPECT_EQ(chosen(5'000, 96, {.batch = 1}), "Flat");
  EXPECT_EQ(chosen(10'000, 96, {.batch = 1}), "IVF256,Flat");
  EXPECT_EQ(chosen(1, 1, {}), "Flat");
  // Many queries at a time share longer lists.
  EXPECT_EQ(chosen(100'000, 96, {}), "IVF512,Flat");
  EXPECT_EQ(chosen(100'000, 96, {.batch = 999}), "IVF1024,Flat");
  EXPECT_EQ(chosen(1'000'000, 96, {.recall = 0.99}), "IVF1024,Flat");
  EXPECT_EQ(chosen(1'000'000, 96, {.recall = 1}), "Flat");
  EXPECT_EQ(chosen(1'000'000, 96, {.recall = 0.99, .batch = 1}), "IVF2048,Flat");
  EXPECT_EQ(chosen(100'000, 96, {.recall = 0.99, .batch = 1}), "IVF512,Flat");
  EXPECT_EQ(chosen(400'000, 128, {.recall = 0.99, .batch = 1}), "IVF1024,Flat");
  EXPECT_EQ(chosen(400'000, 128, {.recall = 0.99, .batch = 2}), "IVF2048,Flat");
  EXPECT_EQ(chosen(1'000'000'000, 96, {.batch = 10'000}), "IVF65536,Flat");
  EXPECT_EQ(chosen(1'000'000'000, 96, {.batch = 1}), "IVF65536(IVF512,Flat),Flat");
}

TEST(ChooseIndex, LosesMoreTheLessMemoryThereIs) {
  const auto for_bytes = [](std::int64_t each) {
    return chosen(1'000'000, 96, {.memory = each * 1'000'000, .recall = 0.9});
  };
  EXPECT_EQ(for_bytes(600), "IVF1024,Flat");
  EXPECT_EQ(for_bytes(400), "IVF1024,SQfp16");
  EXPECT_EQ(for_bytes(250), "IVF2048,PQ48x4,Refine(SQfp16)");
  EXPECT_EQ(for_bytes(150), "IVF2048,PQ48x4,Refine(SQ8)");
  EXPECT_EQ(for_bytes(120), "IVF2048,SQ8");
  EXPECT_EQ(for_bytes(70), "IVF2048,PQ48");
  EXPECT_EQ(for_bytes(60), "OPQ32,IVF2048,PQ32");
  EXPECT_EQ(for_bytes(34), "OPQ16,IVF2048,PQ16");
  EXPECT_EQ(for_bytes(20), "OPQ4,IVF2048,PQ4");
  // A byte a column is all that bytes have, so that codes come next.
  const IndexNeeds bytes{.type = ElementType::u8, .memory = 130'000'000};
  EXPECT_EQ(chosen(1'000'000, 96, bytes), "IVF1024,Flat");
  EXPECT_EQ(chosen(1'000'000, 96, {.type = ElementType::u8, .memory = 70'000'000}), "IVF2048,PQ48");
  // What recall of codes is measured by takes 1 MB, more than so few vectors.
  const bool in_floats = !has_byte_products(active_isa());
  EXPECT_EQ(chosen(1'000, 96, {.memory = in_floats ? 600'000 : 400'000}), "SQfp16");
  EXPECT_NE(refusal(1'000, 96, {.memory = 300'000})
                .find(in_floats ? "but 1000 x 96 take 592800 at least"
                                : "but 1000 x 96 take 302280 at least"),
            std::string::npos);
}

TEST(ChooseIndex, TakesWhatItSays) {
  const Matrix<float> base = noise(60'000, 32);
  for (const std::int64_t memory : {0, 8 << 20, 6 << 20, 4 << 20}) {
    const IndexChoice choice = choose_index(60'000, 32, {.memory = memory, .recall = 0.9});
    Index index = make_index(choice.factory, 32);
    if (!index.is_trained())
      index.train(base.view(), {.iterations = index.lists() > 0 ? 2 : TrainOptions().iterations});
    index.add(base.view());
    const auto bytes = static_cast<double>(index.memory_bytes());
    EXPECT_LE(bytes, 1.02 * static_cast<double>(choice.bytes)) << choice.reason;
    EXPECT_GE(bytes, 0.75 * static_cast<double>(choice.bytes)) << choice.reason;
  }
}

// Without fast products of bytes rows are kept in float32 beside their vectors, which was not
// counted.
TEST(ChooseIndex, FlatFitsTheMemoryOnEveryMachine) {
  struct Case {
    std::int64_t rows, dim, memory;
  };
  for (const auto& [rows, dim, memory] :
       {Case{5'000, 32, 0}, Case{20'000, 96, 0}, Case{3'000, 16, 0}, Case{5'000, 32, 1'050'000},
        Case{3'000, 16, 430'000}}) {
    const Matrix<float> base = noise(rows, dim);
    const IndexChoice choice = choose_index(rows, dim, {.memory = memory});
    Index index = make_index(choice.factory, dim);
    index.train(base.view());
    index.add(base.view());
    EXPECT_LE(index.memory_bytes(), choice.bytes) << choice.reason;
    EXPECT_TRUE(memory == 0 || index.memory_bytes() <= memory) << choice.reason;
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
