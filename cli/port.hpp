// cli/port.hpp -- why a server cannot have its port, in words for one line.
#pragma once
#include <cerrno>
#include <string>
#include <system_error>

namespace knear::cli {

// "--port 80 of 127.0.0.1 is ...", for the errno of socket, bind or listen.
inline std::string reason_of_no_port(int error) {
  if (error == EADDRINUSE) return "taken";
  if (error == EACCES) return "not allowed to this user";
  return "not to be had: " + std::generic_category().message(error);
}

}  // namespace knear::cli
