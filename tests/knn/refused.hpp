// tests/knn/refused.hpp -- that a call is refused, in the words that are meant.
#pragma once
#include <gtest/gtest.h>

#include <string>

namespace knear::test {

// The call throws an E whose text has these words.
template <class E, class F>
void expect_refused(F call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << words;
  } catch (const E& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

}  // namespace knear::test
