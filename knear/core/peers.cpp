#include "knear/core/peers.hpp"

#include <algorithm>
#include <exception>
#include <new>
#include <string>

#include "knear/core/error.hpp"

namespace knear {
namespace {

// The class of an error as a byte, before its message; 0: there is none.
enum class Kind : unsigned char {
  none,
  invalid_argument,
  shape_mismatch,
  corrupt_file,
  io_error,
  memory_budget_error,
  device_unavailable,
  cancelled,
  other
};

std::string failure_of(const std::function<void()>& work) {
  const auto of = [](Kind kind, const char* message) {
    return std::string(1, static_cast<char>(kind)) + message;
  };
  try {
    work();
  } catch (const InvalidArgument& error) {
    return of(Kind::invalid_argument, error.what());
  } catch (const ShapeMismatch& error) {
    return of(Kind::shape_mismatch, error.what());
  } catch (const CorruptFile& error) {
    return of(Kind::corrupt_file, error.what());
  } catch (const IoError& error) {
    return of(Kind::io_error, error.what());
  } catch (const MemoryBudgetError& error) {
    return of(Kind::memory_budget_error, error.what());
  } catch (const DeviceUnavailable& error) {
    return of(Kind::device_unavailable, error.what());
  } catch (const Cancelled& error) {
    return of(Kind::cancelled, error.what());
  } catch (const std::bad_alloc&) {
    return of(Kind::memory_budget_error, "the system has no memory left that this call needs");
  } catch (const std::exception& error) {
    return of(Kind::other, error.what());
  }
  return {};
}

[[noreturn]] void throw_again(Kind kind, const std::string& message) {
  switch (kind) {
    case Kind::invalid_argument:
      throw InvalidArgument("{}", message);
    case Kind::shape_mismatch:
      throw ShapeMismatch("{}", message);
    case Kind::corrupt_file:
      throw CorruptFile("{}", message);
    case Kind::io_error:
      throw IoError("{}", message);
    case Kind::memory_budget_error:
      throw MemoryBudgetError("{}", message);
    case Kind::device_unavailable:
      throw DeviceUnavailable("{}", message);
    case Kind::cancelled:
      throw Cancelled("{}", message);
    case Kind::none:
    case Kind::other:
      break;
  }
  throw Error(message);
}

}  // namespace

void together(Peers& peers, const std::function<void()>& work) {
  const std::string own = failure_of(work);
  // Few bytes in the usual case, where there is nothing to say.
  const auto all = peers.gather(std::as_bytes(std::span(own.data(), own.size())));
  const auto first =
      std::find_if(all.begin(), all.end(), [](const auto& bytes) { return !bytes.empty(); });
  if (first == all.end()) return;
  const auto* text = reinterpret_cast<const char*>(first->data());
  throw_again(static_cast<Kind>(text[0]), {text + 1, first->size() - 1});
}

}  // namespace knear
