// knear/serve/refusal.hpp -- an answer that is no success: an error that knows its HTTP status.
#pragma once
#include <utility>

#include "knear/core/error.hpp"

namespace knear::serve {

// 400: a request that no state of the server accepts; 401: without the token; 404: of what is not
// there; 409: of what the present state does not allow; 413: too large; 503: not now, later; 504:
// its time went by before it had ended.
class Refusal : public Error {
 public:
  template <class... Args>
  explicit Refusal(int status, fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...)), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

}  // namespace knear::serve
