// Errors: control characters in a message, of a path or a name, are escaped.
#include "knear/core/error.hpp"

#include <gtest/gtest.h>

#include <string>

namespace knear {
namespace {

TEST(Error, MessagesHaveNoControlCharacters) {
  using detail::printable;
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("b\xc3\xa4r 'x' \\n"), "b\xc3\xa4r 'x' \\n");
  EXPECT_EQ(printable("a\nb\tc\rd"), "a\\nb\\tc\\rd");
  EXPECT_EQ(printable(std::string("\0\x1b[2J\x7f", 6)), "\\x00\\x1b[2J\\x7f");
  EXPECT_EQ(printable("\xc2\x9b\xc2\xa0\xc2"), "\\u009b\xc2\xa0\xc2");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string out = printable(std::string(1, static_cast<char>(byte)));
    for (const char c : out) EXPECT_FALSE(static_cast<unsigned char>(c) < 32 || c == 127) << byte;
  }
  const IoError error(SystemError{2, "a\n"}, "cannot open '{}'", "a\n");
  EXPECT_STREQ(error.what(), "cannot open 'a\\n'");
  EXPECT_EQ(error.cause().path, "a\n");  // as it is
  EXPECT_STREQ(InvalidArgument("{}", error.what()).what(), error.what());
}

std::string with_dashes(std::string_view name) { return fmt::format("--{}", name); }

TEST(Error, NamesItsArgument) {
  const InvalidArgument k("k must be at least 1, but is {}", 0);
  EXPECT_EQ(k.argument(), "k");
  EXPECT_EQ(k.with_options(with_dashes), "--k must be at least 1, but is 0");
  EXPECT_EQ(k.with_options([](auto) { return ""; }), k.what());
  const std::string name = "most_rows";
  EXPECT_EQ(InvalidArgument("{} is {}, and that is all", name, 3).argument(), name);
  // Several arguments; those of several are one option.
  const ShapeMismatch both("rows are {}, ef is {} and recall is {}", 1, "a\n and k is 3", .5);
  EXPECT_EQ(both.with_options(with_dashes),
            "--rows is 1, ef is a\\n and k is 3 and --recall is 0.5");
  // What a value says is no name.
  const InvalidArgument path("cannot read '{}' and {} is {}", "and ef is 3", "a file", 1);
  EXPECT_EQ(path.argument(), "");
  EXPECT_EQ(path.with_options(with_dashes), path.what());
  EXPECT_EQ(InvalidArgument("{} must be a word", 3).argument(), "");
}

}  // namespace
}  // namespace knear
