// knear/core/error.hpp -- every exception that knear throws.
//
//   throw InvalidArgument("k must be at least 1, but is {}", k);
//
// A message is one line, names the argument and shows the values on both sides of a comparison
// ("queries have 96 columns, base has 128"). Nothing in the library prints, exits or aborts. The
// Python package maps each class to an exception of the same name.
#pragma once
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace knear {

namespace detail {
// The text with control characters as \n, \t, \r, \x1b or, of two bytes, \u009b: a path or a name
// in a message must not begin a line or change what a terminal shows.
std::string printable(std::string_view text);
}  // namespace detail

class Error : public std::runtime_error {
 public:
  explicit Error(std::string_view message) : std::runtime_error(detail::printable(message)) {}
};

// The classes differ in what the caller can do about the error, which stands beside each.
#define KNEAR_ERROR_CLASS(Name)                                       \
  class Name : public Error {                                         \
   public:                                                            \
    template <class... Args>                                          \
    explicit Name(fmt::format_string<Args...> format, Args&&... args) \
        : Error(fmt::format(format, std::forward<Args>(args)...)) {}  \
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
