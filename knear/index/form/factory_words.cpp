#include "knear/index/form/factory_words.hpp"

#include <fmt/format.h>

#include "knear/core/error.hpp"

namespace knear::detail {

std::string visible(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (const auto byte = static_cast<unsigned char>(c); byte >= 32 && byte != 127)
      out += c;
    else
      out += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", byte);
  return out;
}

FactoryWords::FactoryWords(std::string_view factory)
    : factory_(factory), words_(split(factory, 0)) {}

FactoryWords::FactoryWords(std::string_view factory, const Word& word)
    : factory_(factory), words_(split(word.text, word.place - 1)) {}

void FactoryWords::refuse(const Word& word, std::string_view why) const {
  throw InvalidArgument("factory '{}' has '{}' at place {}, {}", visible(factory_),
                        visible(word.text), word.place, why);
}

// Splits a text of the factory string, which begins behind `offset` characters of it, at commas
// outside of brackets.
std::vector<FactoryWords::Word> FactoryWords::split(std::string_view text,
                                                    std::size_t offset) const {
  std::vector<Word> out;
  std::size_t begin = 0;
  int depth = 0;
  bool closes_too_much = false;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const bool end = i == text.size();
    const char c = end ? ',' : text[i];
    if (c == '(') ++depth;
    if (c == ')' && depth-- == 0) closes_too_much = true, depth = 0;
    if (c != ',' || (depth > 0 && !end)) continue;
    out.push_back({text.substr(begin, i - begin), offset + begin + 1});
    if (closes_too_much) refuse(out.back(), "where a bracket is closed that is not open");
    if (depth > 0) refuse(out.back(), "where a bracket is not closed");
    begin = i + 1;
  }
  return out;
}

FactoryWords::Word FactoryWords::in_brackets(const Word& word, std::size_t name) const {
  int depth = 0;
  for (std::size_t i = name; i < word.text.size(); ++i) {
    depth += (word.text[i] == '(') - (word.text[i] == ')');
    if (depth > 0) continue;
    if (i + 1 < word.text.size()) refuse(word, "where something follows the closing bracket");
    break;
  }
  return {word.text.substr(name + 1, word.text.size() - name - 2), word.place + name + 1};
}

bool take_vectors(FactoryWords& words, IndexShape& shape) {
  shape.rounded = halves_of(words.word().text);
  if (!shape.rounded && !words.is("Flat")) return false;
  words.take();
  refuse_refinement(words);
  return true;
}

void refuse_refinement(const FactoryWords& words) {
  if (!words.at_end() && is_refinement(words.word().text))
    words.refuse("but what is refined are codes, and there are vectors");
}

std::optional<ElementType> halves_of(std::string_view word) {
  for (const ElementType type : {ElementType::f16, ElementType::bf16})
    if (word == name_of_halves(type)) return type;
  return {};
}

std::string_view name_of_halves(ElementType type) {
  return type == ElementType::f16 ? "SQfp16" : "SQbf16";
}

std::string words_of(std::optional<ElementType> rounded) {
  return std::string(rounded ? name_of_halves(*rounded) : "Flat");
}

std::optional<CodeShape> codes_of(const FactoryWords& words, const FactoryWords::Word& word,
                                  std::int64_t columns) {
  for (const Codec* codec : all_codecs())
    if (auto codes = codec->parse(word.text, columns, words.wrong(word))) return codes;
  return {};
}

bool is_refinement(std::string_view word) {
  constexpr std::string_view refine = "Refine";
  return word == "RFlat" ||
         (word.starts_with(refine) && word.substr(refine.size()).starts_with("("));
}

}  // namespace knear::detail
