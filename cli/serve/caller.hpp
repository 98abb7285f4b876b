// cli/serve/caller.hpp -- refuses requests that a page of another site makes a browser send.
//
// A server of this machine without a token answers whoever reaches it. A page of another site
// reaches it in two ways: under a name of its own that leads to 127.0.0.1 (DNS rebinding), which
// Host shows, and by sending requests whose answers it cannot read, which Origin and Sec-Fetch-Site
// show. A form sends no other types of bodies than text/plain, multipart/form-data and
// application/x-www-form-urlencoded; the last has no JSON in it.
#pragma once
#include <string>
#include <string_view>

#include "cli/serve/http_head.hpp"

namespace knear::cli {

// Throws Refusal (403) unless the host is 127.0.0.1, localhost, ::1 or `listen`, on any port, since
// a tunnel or a container may have another one, and no page of another site asks.
void check_local_caller(const HttpHead& head, const std::string& listen);

// The Content-Type of a body, in small letters and without parameters. Empty if there is no such
// field; "several types" if there are several.
std::string body_type(const HttpHead& head);

// Throws Refusal (415) if a body has a Content-Encoding or a type that is not JSON. binary:
// application/octet-stream is allowed too. So is application/x-www-form-urlencoded, which `curl -d`
// sends.
void check_body_type(const HttpHead& head, bool binary);

}  // namespace knear::cli
