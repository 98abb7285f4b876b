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

}  // namespace
}  // namespace knear
