// tests/index/codec_test.cpp -- what each codec has to keep: its words, and what it has learned.
#include "knear/index/codecs/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/random.hpp"

namespace knear {
namespace {

using detail::Codec;
using detail::CodeShape;
using detail::RowQuantizer;

constexpr std::int64_t columns = 12;

void refuse(std::string_view why) { throw InvalidArgument("{}", why); }

struct Word {
  std::string_view word;
  const Codec* codec;
  CodeShape shape;
};

// The words of all codecs, with a number for m.
std::vector<Word> words() {
  std::vector<Word> out;
  for (const std::string_view word : {"PQ4", "PQ3x4", "SQ8", "SQ4"})
    for (const Codec* codec : detail::all_codecs())
      if (const auto shape = codec->parse(word, columns, refuse))
        out.push_back({word, codec, *shape});
  return out;
}

TEST(Codec, WordsNameOneShape) {
  EXPECT_EQ(words().size(), 4u);
  for (const Word& one : words()) {
    EXPECT_EQ(one.shape.name(), one.word);
    EXPECT_EQ(&detail::codec_of(one.shape), one.codec);
    EXPECT_TRUE(one.codec->is_valid(one.shape, columns));
  }
  EXPECT_EQ(detail::words_of_codecs(), "PQm, PQmx4, SQ8, SQ4");
  for (const Codec* codec : detail::all_codecs())
    EXPECT_FALSE(codec->parse("Flat", columns, refuse)) << codec->kind();
  const Codec& product = detail::product_codec();
  EXPECT_THROW(product.parse("PQx", columns, refuse), InvalidArgument);
  EXPECT_THROW(product.parse("PQ5", columns, refuse), InvalidArgument);
  EXPECT_TRUE(product.parse("PQ5", 0, refuse));  // the columns are not known
}

TEST(Codec, NumbersMakeItAgain) {
  Random random(1);
  Matrix<float> rows(300, columns);
  for (std::int64_t i = 0; i < rows.rows() * columns; ++i)
    rows.data()[i] = static_cast<float>(random.uniform());
  for (const Word& one : words()) {
    SCOPED_TRACE(one.word);
    const Codec::Quantizer learned = one.codec->train(one.shape, rows.view(), {.threads = 1});
    const std::vector<Codec::Numbers> sections = one.codec->numbers(one.shape, columns);
    ASSERT_EQ(learned->numbers().size(), sections.size());
    std::vector<float> all;
    for (std::size_t i = 0; const std::span<const float> some : learned->numbers()) {
      EXPECT_EQ(std::ssize(some), sections[i++].count);
      all.insert(all.end(), some.begin(), some.end());
    }
    const Codec::Quantizer again = one.codec->of_numbers(one.shape, columns, all);
    EXPECT_TRUE(again->equals(*learned));
    const Matrix<std::uint8_t> codes = learned->encode(rows.view());
    EXPECT_EQ(codes.cols(), one.codec->code_size(one.shape, columns));
    const Matrix<std::uint8_t> same = again->encode(rows.view());
    EXPECT_TRUE(std::equal(codes.data(), codes.data() + rows.rows() * codes.cols(), same.data()));

    // Bytes may lie anywhere; what codes stand for is near the rows.
    Matrix<float> decoded(2, columns), apart(1, columns);
    const std::uint8_t* const two[] = {codes.row(7), codes.row(8)};
    learned->decode(two, 1, decoded.data());
    std::vector<std::uint8_t> spread(static_cast<std::size_t>(codes.cols() * 3));
    for (std::int64_t b = 0; b < codes.cols(); ++b)
      spread[static_cast<std::size_t>(3 * b)] = codes.row(8)[b];
    const std::uint8_t* const at = spread.data();
    again->decode({&at, 1}, 3, apart.data());
    EXPECT_TRUE(std::equal(apart.data(), apart.data() + columns, decoded.row(1)));
    double off = 0;
    for (std::int64_t j = 0; j < columns; ++j)
      off = std::max(off, std::abs(double{decoded.row(0)[j]} - double{rows.row(7)[j]}));
    EXPECT_LT(off, 0.8);
  }
}

}  // namespace
}  // namespace knear
