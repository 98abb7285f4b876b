// cli/explore/lower.hpp -- text with its ASCII letters in lower case, for names and labels that are
// compared without regard to case.
#pragma once
#include <string>

namespace knear::cli {

inline std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace knear::cli
