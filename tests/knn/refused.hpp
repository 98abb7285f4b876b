// tests/knn/refused.hpp -- expects a call to be refused with a given message.
#pragma once
#include <gtest/gtest.h>

#include <string>

namespace knear::test {

// Expects that the call throws an E whose text contains these words.
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
