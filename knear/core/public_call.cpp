#include "knear/core/public_call.hpp"

#include "knear/core/error.hpp"

namespace knear::detail {
namespace {

// Its words lie in the program, since a string of them might find no memory either.
class OutOfMemory final : public MemoryBudgetError {
 public:
  OutOfMemory() : MemoryBudgetError("") {}
  const char* what() const noexcept override {
    return "the system has no memory left that this call needs";
  }
};

}  // namespace

void throw_out_of_memory() { throw OutOfMemory(); }

}  // namespace knear::detail
