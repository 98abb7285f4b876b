#include "cli/serve/http_head.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "knear/serve/refusal.hpp"

namespace knear::cli {
namespace {

using serve::Refusal;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// RFC 9110, 5.6.2.
bool is_token_char(char c) {
  return is_digit(c) || is_letter(c) ||
         (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}
bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

// Returns -1 for what is no digit.
int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// Decodes the escape at offset `percent`. Throws Refusal unless two hexadecimal digits follow, and
// for control characters.
char escaped(std::string_view text, std::size_t percent) {
  const int high = percent + 2 < text.size() ? hex_value(text[percent + 1]) : -1;
  const int low = high < 0 ? -1 : hex_value(text[percent + 2]);
  if (low < 0) throw Refusal(400, "the target has a '%' without two hexadecimal digits");
  const int value = high * 16 + low;
  if (value < 0x20 || value == 0x7f) throw Refusal(400, "the target has a control character");
  return static_cast<char>(value);
}

// Decodes the characters that RFC 3986, 2.3 calls unreserved, so that a path has one form. %2F
// stays escaped, since it is part of a name and not a separator.
std::string one_form(std::string_view path) {
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      out += path[i];
      continue;
    }
    const char c = escaped(path, i);
    if (is_digit(c) || is_letter(c) || c == '-' || c == '.' || c == '_' || c == '~') {
      out += c;
    } else {
      out += '%';
      for (const char digit : path.substr(i + 1, 2))
        out += digit >= 'a' ? static_cast<char>(digit - 'a' + 'A') : digit;
    }
    i += 2;
  }
  return out;
}

// Returns the host of "host:port" and "[::1]:port". A host is a name of letters, digits, '-', '_'
// and
// '.', or an address. Throws Refusal (400) for all else, such as a user or a path.
std::string host_of(std::string_view authority) {
  const auto refuse = [] {
    throw Refusal(400, "a host must be a name or an address, with a port or without");
  };
  std::size_t end = 0;
  if (authority.starts_with('[')) {
    end = authority.find(']');
    if (end == std::string_view::npos || end < 3) refuse();
    for (const char c : authority.substr(1, end - 1))
      if (hex_value(c) < 0 && c != ':' && c != '.') refuse();
    ++end;
  } else {
    while (end < authority.size() &&
           (is_digit(authority[end]) || is_letter(authority[end]) || authority[end] == '-' ||
            authority[end] == '_' || authority[end] == '.'))
      ++end;
    if (end == 0) refuse();
  }
  const std::string_view port = authority.substr(end);
  if (!port.empty()) {
    int number = 0;
    if (port[0] != ':' || port.size() > 6 || !std::all_of(port.begin() + 1, port.end(), is_digit))
      refuse();
    std::from_chars(port.data() + 1, port.data() + port.size(), number);
    if (number > 65535) refuse();
  }
  return small_letters(authority.starts_with('[') ? authority.substr(1, end - 2)
                                                  : authority.substr(0, end));
}

std::int64_t length_of(std::string_view text) {
  if (text.empty() || !std::all_of(text.begin(), text.end(), is_digit))
    throw Refusal(400, "Content-Length must be digits alone");
  std::int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  // A number beyond 63 bits is above every limit.
  return error == std::errc() ? out : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

std::string small_letters(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::int64_t HttpHead::count(std::string_view name) const {
  return std::count_if(fields.begin(), fields.end(),
                       [&](const HttpField& field) { return field.name == name; });
}

std::string HttpHead::value(std::string_view name) const {
  const auto named = [&](const HttpField& field) { return field.name == name; };
  const auto found = std::find_if(fields.begin(), fields.end(), named);
  if (found == fields.end()) return "";
  if (std::any_of(found + 1, fields.end(), named))
    throw Refusal(400, "there are several fields {}", name);
  return found->value;
}

std::optional<std::size_t> HeadReader::read(std::string_view bytes) {
  for (;;) {
    const std::size_t end = bytes.find('\n', line_);
    const std::size_t so_far = end == std::string_view::npos ? bytes.size() : end + 1;
    check_bytes(bytes.substr(0, std::min(so_far, most_bytes)));
    if (so_far > most_bytes) {
      if (in_fields_)
        throw Refusal(431, "the head of the request is longer than {} bytes", most_bytes);
      throw Refusal(414, "the first line of the request is longer than {} bytes", most_bytes);
    }
    if (end == std::string_view::npos) return {};
    const std::string_view line = bytes.substr(line_, end - 1 - line_);  // without CR LF
    line_ = end + 1;
    if (!line.empty()) {
      in_fields_ ? read_field(line) : read_first_line(line);
    } else if (in_fields_) {
      finish();
      return line_;
    } else if (skipped_ == 0) {
      skipped_ = line_;  // RFC 9112, 2.2: some send an empty line after a body
    } else {
      throw Refusal(400, "the request begins with empty lines");
    }
  }
}

// Checks each byte once, also in incomplete lines, so that a bad byte is refused as it arrives.
void HeadReader::check_bytes(std::string_view bytes) {
  for (; checked_ < bytes.size(); ++checked_) {
    const char c = bytes[checked_];
    if (c == '\r') {
      if (checked_ + 1 == bytes.size()) return;
      if (bytes[checked_ + 1] != '\n')
        throw Refusal(400, "a CR without a LF behind it stands in the head of the request");
    } else if (c == '\n') {
      if (checked_ == 0 || bytes[checked_ - 1] != '\r')
        throw Refusal(400, "lines of the head must end in CR LF, but one ends in LF alone");
    } else if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) {
      throw Refusal(400, "a control character stands in the head of the request");
    }
  }
}

void HeadReader::read_first_line(std::string_view line) {
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  const std::string_view method = line.substr(0, first);
  if (!is_token(method) || first == last)
    throw Refusal(400, "the first line must be a method, a target and HTTP/1.1");
  head_.method = method;
  const std::string_view version = line.substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    throw Refusal(400, "only HTTP/1.1 and HTTP/1.0 are answered");
  old_ = version == "HTTP/1.0";
  read_target(line.substr(first + 1, last - first - 1));
  in_fields_ = true;
}

void HeadReader::read_target(std::string_view target) {
  for (const char c : target)
    if (c <= ' ' || c > '~' || c == '#')
      throw Refusal(400, "the target has a character that must be written as %XX, or none");
  if (head_.method == "OPTIONS" && target == "*") {
    head_.path = target;
    return;
  }
  // RFC 9112, 3.2.2: the host of the target replaces that of the field Host.
  const std::string small = small_letters(target);
  for (const std::string_view scheme : {"http://", "https://"})
    if (small.starts_with(scheme)) {
      const std::size_t end = std::min(small.find_first_of("/?", scheme.size()), small.size());
      head_.authority = small.substr(scheme.size(), end - scheme.size());
      head_.host = host_of(head_.authority);
      target_has_host_ = true;
      target.remove_prefix(end);
    }
  const std::size_t sign = target.find('?');
  const std::string_view path = target.substr(0, sign);
  if (!(path.starts_with('/') || (target_has_host_ && path.empty())))
    throw Refusal(400, "a target must begin with '/', http:// or https://");
  head_.path = path.empty() ? "/" : one_form(path);
  head_.has_query = sign != std::string_view::npos;
  if (head_.has_query) head_.query = target.substr(sign + 1);
  decoded_query(head_.query);  // throws for a malformed escape
}

void HeadReader::read_field(std::string_view line) {
  if (line[0] == ' ' || line[0] == '\t')
    throw Refusal(400, "a line of the head begins with a blank: fields must not be folded");
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) throw Refusal(400, "a field of the head has no colon");
  if (!is_token(line.substr(0, colon)))
    throw Refusal(400, "the name of a field must be a token with the colon directly behind it");
  head_.fields.push_back(
      {small_letters(line.substr(0, colon)), std::string(trimmed(line.substr(colon + 1)))});
}

// Checks the fields that must occur once or exclude each other.
void HeadReader::finish() {
  const std::int64_t codings = head_.count("transfer-encoding");
  const std::int64_t lengths = head_.count("content-length");
  if (lengths > 1) throw Refusal(400, "a request may have one Content-Length");
  if (codings > 0) {
    if (lengths > 0)
      throw Refusal(400, "a request may have Content-Length or Transfer-Encoding, but has both");
    if (codings > 1 || small_letters(head_.value("transfer-encoding")) != "chunked")
      throw Refusal(400, "Transfer-Encoding must be chunked, and there once");
    if (old_) throw Refusal(400, "HTTP/1.0 has no Transfer-Encoding");
    head_.length = -1;
  } else if (lengths > 0) {
    head_.length = length_of(head_.value("content-length"));
  }
  if (head_.count("host") != 1) throw Refusal(400, "a request needs one Host");
  const std::string authority = small_letters(head_.value("host"));
  const std::string host = host_of(authority);
  if (!target_has_host_) head_.authority = authority, head_.host = host;
  head_.keep_alive = !old_;
  for (const HttpField& field : head_.fields) {
    if (field.name == "connection")
      for (std::string_view rest = field.value; !rest.empty();) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        if (small_letters(trimmed(rest.substr(0, comma))) == "close") head_.keep_alive = false;
        rest.remove_prefix(std::min(comma + 1, rest.size()));
      }
    if (field.name == "expect" && !old_) {
      if (small_letters(field.value) != "100-continue")
        throw Refusal(417, "Expect must be 100-continue");
      head_.expects_continue = true;
    }
  }
}

std::vector<std::pair<std::string, std::string>> decoded_query(std::string_view query) {
  const auto decoded = [](std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      out += c == '%' ? escaped(text, i) : c == '+' ? ' ' : c;
      if (c == '%') i += 2;
    }
    return out;
  };
  std::vector<std::pair<std::string, std::string>> out;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view part = query.substr(0, end);
    const std::size_t sign = std::min(part.find('='), part.size());
    out.emplace_back(decoded(part.substr(0, sign)),
                     decoded(part.substr(std::min(sign + 1, part.size()))));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return out;
}

}  // namespace knear::cli
