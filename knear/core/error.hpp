// knear/core/error.hpp -- every exception that knear throws.
//
//   throw InvalidArgument("k must be at least 1, but is {}", k);
//
// A message is one line, names the argument and shows the values on both sides of a comparison
// ("queries have 96 columns, base has 128"). Nothing in the library prints, exits or aborts. The
// Python package maps each class to an exception of the same name.
//
// A format that begins with `NAME must`, `NAME is` or `NAME are` is about the argument NAME, and so
// is each part of it after ` and `. NAME is a word of the format, or a {} whose value is one. These
// places are found when the format is compiled, so that no value is mistaken for a name; the error
// carries them, and argument() returns the first name.
#pragma once
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace knear {

namespace detail {
// The text with control characters as \n, \t, \r, \x1b or, of two bytes, \u009b: a path or a name
// in a message must not begin a line or change what a terminal shows.
std::string printable(std::string_view text);

// The characters begin, ..., end - 1 of a text are the name of an argument.
struct NamePlace {
  std::size_t begin = 0, end = 0;
  bool plural = false;  // " are " follows
};

constexpr bool is_name(std::string_view word) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (const char c : word)
    if (!is_letter(c) && c != '_' && c != '-' && !(c >= '0' && c <= '9')) return false;
  return !word.empty() && (is_letter(word[0]) || word[0] == '-');
}

// A format and the places of its arguments' names.
template <class... Args>
struct ErrorFormat {
  template <class Text>
  requires std::is_convertible_v<const Text&, std::string_view>
  consteval ErrorFormat(const Text& format) : text(format) {
    const std::string_view all = format;
    for (std::size_t at = 0; at < all.size() && count < names.size();) {
      const std::string_view rest = all.substr(at);
      const std::string_view word = rest.substr(0, rest.find(' '));
      const std::string_view after = rest.substr(word.size());
      const bool plural = after.starts_with(" are ");
      if ((is_name(word) || word == "{}") &&
          (plural || after.starts_with(" is ") || after.starts_with(" must ")))
        names[count++] = {at, at + word.size(), plural};
      const std::size_t next = rest.find(" and ");
      at = next == std::string_view::npos ? all.size() : at + next + 5;
    }
  }

  fmt::format_string<Args...> text;
  std::array<NamePlace, 3> names = {};
  std::size_t count = 0;
};

// A text and the places of its arguments' names.
struct Message {
  std::string text;
  std::vector<NamePlace> names;
};

// Formats the values and finds where the names of the format are in the text.
Message compose(fmt::string_view format, const NamePlace* names, std::size_t count,
                fmt::format_args values);
}  // namespace detail

class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view message) : std::runtime_error(detail::printable(message)) {}

  // Returns the name of the argument that the message begins with; empty if there is none.
  std::string_view argument() const;
  // Returns the message with option(name) in place of each argument's name; an empty option leaves
  // the name as it is. Options are singular: " are " after one becomes " is ".
  std::string with_options(const std::function<std::string(std::string_view name)>& option) const;

  const std::vector<detail::NamePlace>& names() const { return names_; }

 protected:
  explicit Error(detail::Message message)
      : std::runtime_error(message.text), names_(std::move(message.names)) {}

 private:
  std::vector<detail::NamePlace> names_;
};

// The classes differ in what the caller can do about the error, which stands beside each.
#define KNEAR_ERROR_CLASS(Name)                                                              \
  class Name : public Error {                                                                \
   public:                                                                                   \
    template <class... Args>                                                                 \
    explicit Name(detail::ErrorFormat<std::type_identity_t<Args>...> format, Args&&... args) \
        : Error(detail::compose(format.text, format.names.data(), format.count,              \
                                fmt::make_format_args(args...))) {}                          \
    explicit Name(detail::Message message) : Error(std::move(message)) {}                    \
  }

KNEAR_ERROR_CLASS(InvalidArgument);    // a value that no call accepts: pass another
KNEAR_ERROR_CLASS(ShapeMismatch);      // two arguments that do not fit each other
KNEAR_ERROR_CLASS(CorruptFile);        // a file that is not what it says: get another copy
KNEAR_ERROR_CLASS(MemoryBudgetError);  // more than the given budget, thrown before allocating
KNEAR_ERROR_CLASS(DeviceUnavailable);  // no such device here, or built without it
KNEAR_ERROR_CLASS(Cancelled);          // the progress callback asked to stop
#undef KNEAR_ERROR_CLASS

// What the system answered about a file, as an errno, for those who treat a file that is missing
// otherwise than one that may not be read. `number` is 0 where the system said nothing.
struct SystemError {
  int number = 0;
  std::string path;
};

// The system refused: permission, space, no such file.
class IoError : public Error {
 public:
  template <class... Args>
  explicit IoError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)) {}
  template <class... Args>
  explicit IoError(SystemError cause, fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)), cause_(std::move(cause)) {}
  const SystemError& cause() const { return cause_; }

 private:
  SystemError cause_;
};

}  // namespace knear
