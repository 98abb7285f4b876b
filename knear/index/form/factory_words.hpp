// knear/index/form/factory_words.hpp -- the words of a factory string, which stand between commas,
// and those that several forms have.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "knear/index/index_shape.hpp"

namespace knear::detail {

// Returns control characters as \n and \x00, so that a message is one line and not cut off.
std::string visible(std::string_view text);

// The words of a factory string, taken from the front.
class FactoryWords {
 public:
  struct Word {
    std::string_view text;
    std::size_t place;  // of its first character, from 1
  };

  explicit FactoryWords(std::string_view factory);
  // The words of a factory string that stand in one of its words.
  FactoryWords(std::string_view factory, const Word& word);

  bool at_end() const { return at_ == words_.size(); }
  // The next word. Requires that there is one.
  const Word& word() const { return words_[at_]; }
  const Word& last() const { return words_.back(); }
  bool is(std::string_view text) const { return !at_end() && word().text == text; }
  void take() { ++at_; }
  // Takes the next word if it is this one.
  bool take(std::string_view text) {
    const bool found = is(text);
    at_ += found;
    return found;
  }

  [[noreturn]] void refuse(const Word& word, std::string_view why) const;
  [[noreturn]] void refuse(std::string_view why) const { refuse(word(), why); }
  // Refuses a word, which has to stay.
  WrongWord wrong(const Word& word) const {
    return [this, &word](std::string_view why) { refuse(word, why); };
  }
  // Returns the content of the brackets that open behind the first `name` characters of a word.
  Word in_brackets(const Word& word, std::size_t name) const;
  std::string_view factory() const { return factory_; }

 private:
  std::vector<Word> split(std::string_view text, std::size_t offset) const;

  std::string_view factory_;
  std::vector<Word> words_;
  std::size_t at_ = 0;
};

// A message about a word that follows an index.
inline constexpr std::string_view only_map = "but only IDMap may follow";

// Takes Flat, SQfp16 or SQbf16: vectors as they are or rounded to halves. Refuses what refines
// codes behind them.
bool take_vectors(FactoryWords& words, IndexShape& shape);
inline constexpr const char* words_of_vectors = "Flat, SQfp16, SQbf16";
// The type that a word rounds vectors to, if it does.
std::optional<ElementType> halves_of(std::string_view word);
std::string_view name_of_halves(ElementType type);
// The word of vectors that are rounded to a type, or to none.
std::string words_of(std::optional<ElementType> rounded);
// The codes that a word names, of `columns` columns, or nothing.
std::optional<CodeShape> codes_of(const FactoryWords& words, const FactoryWords::Word& word,
                                  std::int64_t columns);
// Returns true for a word that names what refines codes: RFlat, Refine(form).
bool is_refinement(std::string_view word);
// Refuses such a word behind vectors.
void refuse_refinement(const FactoryWords& words);

}  // namespace knear::detail
