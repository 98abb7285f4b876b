#include "knear/core/peers.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "knear/core/error.hpp"

namespace knear {
namespace {

// The class of an error as a byte, before the count of names in its message, their places and the
// message; 0: there is none.
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
  const auto of = [](Kind kind, const Error& error) {
    std::string out = {static_cast<char>(kind), static_cast<char>(error.names().size())};
    for (const detail::NamePlace& place : error.names())
      out.append(reinterpret_cast<const char*>(&place), sizeof(place));
    return out + error.what();
  };
  try {
    work();
  } catch (const InvalidArgument& error) {
    return of(Kind::invalid_argument, error);
  } catch (const ShapeMismatch& error) {
    return of(Kind::shape_mismatch, error);
  } catch (const CorruptFile& error) {
    return of(Kind::corrupt_file, error);
  } catch (const IoError& error) {
    return of(Kind::io_error, error);
  } catch (const MemoryBudgetError& error) {
    return of(Kind::memory_budget_error, error);
  } catch (const DeviceUnavailable& error) {
    return of(Kind::device_unavailable, error);
  } catch (const Cancelled& error) {
    return of(Kind::cancelled, error);
  } catch (const std::bad_alloc&) {
    return of(Kind::memory_budget_error,
              Error("the system has no memory left that this call needs"));
  } catch (const std::exception& error) {
    return of(Kind::other, Error(error.what()));
  }
  return {};
}

[[noreturn]] void throw_again(std::string_view bytes) {
  const auto kind = static_cast<Kind>(bytes[0]);
  detail::Message message;
  message.names.resize(static_cast<unsigned char>(bytes[1]));
  const std::size_t size = message.names.size() * sizeof(detail::NamePlace);
  if (size > 0) std::memcpy(message.names.data(), bytes.data() + 2, size);
  message.text = bytes.substr(2 + size);
  switch (kind) {
    case Kind::invalid_argument:
      throw InvalidArgument(std::move(message));
    case Kind::shape_mismatch:
      throw ShapeMismatch(std::move(message));
    case Kind::corrupt_file:
      throw CorruptFile(std::move(message));
    case Kind::io_error:
      throw IoError("{}", message.text);
    case Kind::memory_budget_error:
      throw MemoryBudgetError(std::move(message));
    case Kind::device_unavailable:
      throw DeviceUnavailable(std::move(message));
    case Kind::cancelled:
      throw Cancelled(std::move(message));
    case Kind::none:
    case Kind::other:
      break;
  }
  throw Error(message.text);
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
  throw_again({text, first->size()});
}

}  // namespace knear
