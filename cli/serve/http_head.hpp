// cli/serve/http_head.hpp -- reads the head of an HTTP/1.1 request strictly. No sockets here.
//
//   HeadReader reader;
//   if (reader.read(bytes_so_far)) HttpHead head = reader.take();   // again as bytes arrive
//
// A proxy and a server that read the same bytes as different requests let a caller smuggle one past
// the proxy. So everything that is not exactly RFC 9112 is refused rather than repaired: lines end
// in CR LF, fields are not folded, a name stands directly before its colon, Content-Length is one
// field of digits, and Transfer-Encoding is `chunked` or absent.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace knear::cli {

struct HttpField {
  std::string name, value;  // the name in small letters
};

struct HttpHead {
  std::string method;
  // The target, which is "/path?query" or "http://host/path?query". In the path, escaped letters,
  // digits and "-._~" are decoded (%61); the query is as it was sent.
  std::string path, query;
  bool has_query = false;
  // The host of the target, or else that of the field Host, in small letters. host: without the
  // port. authority: with it.
  std::string host, authority;
  std::vector<HttpField> fields;
  std::int64_t length = 0;  // bytes of the body; -1: it arrives in chunks
  bool keep_alive = true, expects_continue = false;

  std::int64_t count(std::string_view name) const;
  // The value of the only field of this name, or an empty string. Throws Refusal (400) if there are
  // several such fields.
  std::string value(std::string_view name) const;
};

class HeadReader {
 public:
  static constexpr std::size_t most_bytes = std::size_t{16} << 10;

  // Takes all bytes that have arrived so far, including those of earlier calls. Returns the size of
  // the head once it is complete. Throws Refusal: 400, 414 (the first line is longer than
  // most_bytes), 417, 431 (the head is). Nothing may be read after that.
  std::optional<std::size_t> read(std::string_view bytes);
  // Bytes before the first line: an empty line is skipped.
  std::size_t skipped() const { return skipped_; }
  // The method, as soon as the first line has been read.
  const std::string& method() const { return head_.method; }
  HttpHead take() { return std::move(head_); }

 private:
  void check_bytes(std::string_view bytes);
  void read_first_line(std::string_view line);
  void read_target(std::string_view target);
  void read_field(std::string_view line);
  void finish();

  HttpHead head_;
  std::size_t line_ = 0, checked_ = 0, skipped_ = 0;  // offsets: this line, checked bytes
  bool in_fields_ = false, old_ = false;              // old: HTTP/1.0
  bool target_has_host_ = false;
};

// Splits a query "a=b&c=d" and decodes its names and values. Throws Refusal (400) for a bad escape.
std::vector<std::pair<std::string, std::string>> decoded_query(std::string_view query);

std::string small_letters(std::string_view text);

}  // namespace knear::cli
