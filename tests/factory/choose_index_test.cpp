// tests/factory/choose_index_test.cpp -- that what is chosen exists, fits, and follows what is
// asked for. How fast it is beside others: bench/auto.
#include "knear/factory/choose_index.hpp"
#include "knear/core/cpu.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
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

// Rows like embeddings of text: directions of sums of a few of many words, some much more frequent.
Matrix<float> sentences(std::int64_t rows, std::int64_t dim) {
  Random random(7);
  const auto normal = [&] {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.uniform();
    return static_cast<float>(sum);
  };
  constexpr std::int64_t words = 4000, length = 8;
  Matrix<float> of_word(words, dim), out(rows, dim);
  for (std::int64_t i = 0; i < words * dim; ++i) of_word.data()[i] = normal();
  for (std::int64_t row = 0; row < rows; ++row) {
    float* to = out.data() + row * dim;
    std::fill_n(to, dim, 0.f);
    for (std::int64_t i = 0; i < length; ++i) {
      const double rank = std::exp(random.uniform() * std::log(double{words}));
      const float* word = of_word.data() + (static_cast<std::int64_t>(rank) - 1) * dim;
      for (std::int64_t j = 0; j < dim; ++j) to[j] += word[j];
    }
    double square = 0;
    for (std::int64_t j = 0; j < dim; ++j) square += double{to[j]} * to[j];
    for (std::int64_t j = 0; j < dim; ++j) to[j] /= static_cast<float>(std::sqrt(square));
  }
  return out;
}

IndexNeeds with(AnyMatrixView sample, IndexNeeds needs) {
  needs.sample = sample;
  return needs;
}

TEST(ChooseIndex, GuessesAGraphForText) {
  const IndexNeeds text{.metric = Metric::ip, .batch = 1};
  EXPECT_EQ(chosen(693'000, 256, text), "Graph32");
  EXPECT_EQ(chosen(20'000, 384, {.metric = Metric::cosine, .recall = 0.99, .batch = 1}), "Graph32");
  EXPECT_TRUE(choose_index(693'000, 256, text).guessed);
  EXPECT_TRUE(choose_index(693'000, 256, text)
                  .reason.ends_with("guessed without a sample of the "
                                    "vectors"));
  // Many queries a call share lists; descriptors are bytes or compared by l2; words have fewer
  // columns; and a graph needs its memory.
  EXPECT_EQ(chosen(693'000, 256, {.metric = Metric::ip, .batch = 10'000}), "IVF1024,Flat");
  EXPECT_EQ(chosen(693'000, 256, {.batch = 1}), "IVF2048,Flat");
  EXPECT_EQ(chosen(693'000, 64, text), "IVF2048,Flat");
  EXPECT_EQ(chosen(693'000, 256, {.metric = Metric::ip, .type = ElementType::u8, .batch = 1}),
            "IVF2048,Flat");
  EXPECT_EQ(chosen(693'000, 256,
                   {.metric = Metric::ip, .memory = std::int64_t{693'000} * 1400, .batch = 1}),
            "IVF2048,Flat");
  EXPECT_EQ(chosen(4'000, 256, text), "IVF128,Flat");
}

TEST(ChooseIndex, MeasuresASample) {
  const Matrix<float> text = sentences(6'000, 128);
  const IndexNeeds alone{.metric = Metric::ip, .batch = 1};
  const IndexChoice choice = choose_index(240'000, 128, with(text.view(), alone));
  EXPECT_TRUE(choice.factory.starts_with("Graph")) << choice.reason;
  EXPECT_FALSE(choice.guessed);
  EXPECT_TRUE(choice.reason.starts_with(
      choice.factory +
      ": measured on 5800 vectors for 240000 x 128, a recall of 0.95 and 1 query a call, "))
      << choice.reason;
  ASSERT_EQ(choice.forecasts.size(), 8u) << choice.reason;
  for (std::size_t i = 1; i < 8; ++i)
    EXPECT_LE(choice.forecasts[i - 1].seconds, choice.forecasts[i].seconds);
  // Counts of a part, by other threads, are the same.
  const IndexChoice again = choose_index(240'000, 128, with(text.view(), alone), {.threads = 1});
  EXPECT_EQ(again.reason, choice.reason);
  // The metric alone would have been taken for that of descriptors, and named lists.
  const IndexNeeds l2{.batch = 1};
  EXPECT_EQ(choose_index(240'000, 128, with(text.view(), l2)).factory, choice.factory);
  EXPECT_EQ(choose_index(240'000, 128, l2).factory, "IVF1024,Flat");
  // Many queries at a time share lists, which pays where products of bytes are fast.
  if (!has_byte_products(active_isa())) return;
  const IndexChoice many =
      choose_index(240'000, 128, with(text.view(), {.recall = 0.9, .batch = 10'000}));
  EXPECT_TRUE(many.factory.starts_with("IVF")) << many.reason;
}

bool in_two_lists(const FormForecast& form) {
  return form.factory.find("_SOAR,") != std::string::npos;
}

TEST(ChooseIndex, TakesWhatIsSimplerWhereLittleIsLost) {
  // The more rows, the more lists save against comparing all: somewhere they save a little.
  const Matrix<float> base = noise(2'000, 24);
  for (double rows = 5'000; rows < 60'000; rows *= 1.4) {
    const IndexChoice choice =
        choose_index(static_cast<std::int64_t>(rows), 24, {.batch = 10'000, .sample = base.view()});
    const auto flat = std::find_if(choice.forecasts.begin(), choice.forecasts.end(),
                                   [](const FormForecast& form) { return form.factory == "Flat"; });
    ASSERT_NE(flat, choice.forecasts.end());
    const FormForecast& fastest =
        *std::find_if_not(choice.forecasts.begin(), choice.forecasts.end(), in_two_lists);
    if (in_two_lists(choice.forecasts.front())) {
      EXPECT_TRUE(!in_two_lists({.factory = choice.factory}) ||
                  choice.forecasts.front().seconds <= 0.8 * fastest.seconds)
          << choice.reason;
    } else if (fastest.factory != "Flat") {
      EXPECT_EQ(choice.factory == "Flat", fastest.seconds > 0.8 * flat->seconds) << choice.reason;
    }
    if (choice.factory == choice.forecasts.front().factory) continue;
    EXPECT_TRUE(
        choice.reason.ends_with("; " + choice.factory + " takes little longer and is preferred"));
  }
}

TEST(ChooseIndex, MeasuresWhatFitsTheMemory) {
  const Matrix<float> text = sentences(3'000, 128);
  IndexNeeds needs{.metric = Metric::ip, .memory = 100'000 * 680, .batch = 1};
  const IndexChoice choice = choose_index(100'000, 128, with(text.view(), needs));
  EXPECT_FALSE(choice.factory.starts_with("Graph")) << choice.reason;
  EXPECT_FALSE(choice.forecasts.empty());
  for (const FormForecast& form : choice.forecasts)
    EXPECT_LE(form.bytes, needs.memory) << form.factory;
  EXPECT_LE(choice.bytes, needs.memory);
}

TEST(ChooseIndex, MeasuresTwoListsWhereClustersOverlap) {
  const Matrix<float> text = sentences(6'000, 128);
  const IndexNeeds needs{.metric = Metric::ip, .batch = 10'000};
  const IndexChoice choice = choose_index(6'000, 128, with(text.view(), needs));
  const auto twice = std::find_if(choice.forecasts.begin(), choice.forecasts.end(), in_two_lists);
  ASSERT_NE(twice, choice.forecasts.end()) << choice.reason;
  Index index = make_index(twice->factory, 128, Metric::ip);
  index.train(text.view(), {.iterations = 2});
  index.add(text.view());
  const auto bytes = static_cast<double>(index.memory_bytes());
  EXPECT_LE(bytes, 1.02 * static_cast<double>(twice->bytes)) << twice->factory;
  EXPECT_GE(bytes, 0.75 * static_cast<double>(twice->bytes)) << twice->factory;
  // Rows of clusters that lie apart are found in their first lists.
  Random random(3);
  Matrix<float> apart(6'000, 32);
  for (std::int64_t i = 0; i < 6'000; ++i)
    for (std::int64_t j = 0; j < 32; ++j)
      apart.row(i)[j] = static_cast<float>(random.uniform() + 1000 * ((i % 100 >> j % 8) & 1));
  const IndexChoice clear = choose_index(100'000, 32, with(apart.view(), {.batch = 10'000}));
  EXPECT_FALSE(clear.forecasts.empty());
  EXPECT_TRUE(std::none_of(clear.forecasts.begin(), clear.forecasts.end(), in_two_lists))
      << clear.reason;
}

TEST(ChooseIndex, MeasuresCodesWhereVectorsDoNotFit) {
  const Matrix<float> text = sentences(3'000, 128);
  IndexNeeds needs{.metric = Metric::ip, .memory = 100'000 * 300, .recall = 0.8, .batch = 1};
  const IndexChoice choice = choose_index(100'000, 128, with(text.view(), needs));
  EXPECT_FALSE(choice.guessed);
  EXPECT_TRUE(choice.reason.starts_with(choice.factory + ": measured on 2300 vectors"))
      << choice.reason;
  EXPECT_LE(choice.bytes, needs.memory);
  const auto measured = [&](const std::string& form) {
    return std::any_of(choice.forecasts.begin(), choice.forecasts.end(),
                       [&](const FormForecast& one) { return one.factory.ends_with(form); });
  };
  EXPECT_TRUE(measured(",SQ8")) << choice.reason;
  EXPECT_TRUE(measured(",PQ64x4,Refine(SQ8)")) << choice.reason;
  EXPECT_FALSE(measured(",PQ64x4,Refine(SQfp16)")) << choice.reason;  // 332 bytes a row
  EXPECT_EQ(make_index(choice.factory, 128, Metric::ip).description(), choice.factory);
  EXPECT_TRUE(choose_index(100'000, 128, needs).guessed);
  // Halves are searched as vectors are.
  needs.memory = 100'000 * 420;
  const IndexChoice halves = choose_index(100'000, 128, with(text.view(), needs));
  EXPECT_TRUE(std::any_of(halves.forecasts.begin(), halves.forecasts.end(),
                          [](const FormForecast& one) { return one.factory.ends_with(",SQfp16"); }))
      << halves.reason;
  // Codes of 40 bytes are not measured, and go by rules.
  needs.memory = 100'000 * 60;
  const IndexChoice few = choose_index(100'000, 128, with(text.view(), needs));
  EXPECT_TRUE(few.guessed && few.forecasts.empty());
  EXPECT_TRUE(
      few.reason.ends_with("as no form that was measured reaches the recall within the "
                           "memory"))
      << few.reason;
}

TEST(ChooseIndex, MeasuresNothingThatVectorsDoNotDecide) {
  const Matrix<float> text = sentences(3'000, 128);
  const auto of_sample = [&](std::int64_t rows, const IndexNeeds& needs, std::int64_t given) {
    return choose_index(rows, 128, with(text.view().rows(0, given), needs));
  };
  const IndexChoice exact = of_sample(100'000, {.recall = 1}, 3'000);
  EXPECT_EQ(exact.factory, "Flat");
  EXPECT_TRUE(!exact.guessed && exact.forecasts.empty());
  EXPECT_TRUE(of_sample(4'000, {}, 3'000).forecasts.empty());
  const IndexChoice few = of_sample(100'000, {.metric = Metric::ip, .batch = 1}, 1'999);
  EXPECT_TRUE(few.guessed && few.forecasts.empty());
  EXPECT_EQ(few.factory, "Graph32");
  EXPECT_TRUE(few.reason.ends_with("as 1999 vectors are too few to measure: 2000 are needed"))
      << few.reason;
  EXPECT_FALSE(of_sample(100'000, {.batch = 1}, 2'000).guessed);
}

TEST(ChooseIndex, SaysWhatIsWrongWithASample) {
  Matrix<float> text = sentences(2'000, 16);
  try {
    choose_index(100'000, 96, {.sample = text.view()});
    ADD_FAILURE() << "a sample of another number of columns was taken";
  } catch (const ShapeMismatch& e) {
    EXPECT_STREQ(e.what(), "sample has 16 columns, but dim is 96");
  }
  text.data()[1234 * 16 + 5] = std::numeric_limits<float>::quiet_NaN();
  try {
    choose_index(100'000, 16, {.sample = text.view()});
    ADD_FAILURE() << "a NaN was taken";
  } catch (const InvalidArgument& e) {
    EXPECT_STREQ(e.what(), "sample must be finite, but row 1234 column 5 is nan");
  }
  EXPECT_THROW(choose_index(0, 16, {.sample = text.view()}), InvalidArgument);
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
