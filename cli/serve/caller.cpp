#include "cli/serve/caller.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "knear/serve/refusal.hpp"

namespace knear::cli {

using serve::Refusal;

void check_local_caller(const HttpHead& head, const std::string& listen) {
  const std::string& host = head.host;
  if (host != "127.0.0.1" && host != "localhost" && host != "::1" && host != listen)
    throw Refusal(403, "only 127.0.0.1 and localhost are answered here, but the host is '{}'",
                  host.substr(0, 100));
  for (const HttpField& field : head.fields)
    if (field.name == "origin") {
      const std::string origin = small_letters(field.value);
      if (head.count("origin") > 1 ||
          (origin != "http://" + head.authority && origin != "https://" + head.authority))
        throw Refusal(403, "pages of other sites are not answered: Origin must be http://{}",
                      head.authority.substr(0, 100));
    } else if (field.name == "sec-fetch-site" && head.method != "GET" && head.method != "HEAD" &&
               field.value != "same-origin" && field.value != "none") {
      throw Refusal(403,
                    "pages of other sites are not answered: Sec-Fetch-Site must be same-origin "
                    "or none");
    }
}

std::string body_type(const HttpHead& head) {
  if (head.count("content-type") > 1) return "several types";
  std::string type = head.value("content-type");
  type.erase(std::min(type.find(';'), type.size()));
  type.erase(type.find_last_not_of(" \t") + 1);
  return small_letters(type);
}

void check_body_type(const HttpHead& head, bool binary) {
  if (head.count("content-encoding") > 0)
    throw Refusal(415, "no body may be packed: send no Content-Encoding");
  const std::string type = body_type(head);
  if (type.empty() || type == "application/json" || type == "application/x-www-form-urlencoded" ||
      (binary && type == "application/octet-stream"))
    return;
  throw Refusal(415, "the body must be JSON: send Content-Type: application/json{}",
                binary ? ", or application/octet-stream for the binary form" : "");
}

}  // namespace knear::cli
