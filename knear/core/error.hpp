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

namespace knear {

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
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
KNEAR_ERROR_CLASS(IoError);            // the system refused: permission, space, no such file
KNEAR_ERROR_CLASS(MemoryBudgetError);  // more than the given budget, thrown before allocating
KNEAR_ERROR_CLASS(DeviceUnavailable);  // no such device here, or built without it
KNEAR_ERROR_CLASS(Cancelled);          // the progress callback asked to stop
#undef KNEAR_ERROR_CLASS

}  // namespace knear
