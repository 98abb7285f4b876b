// cli/serve/http_server.hpp -- HTTP/1.1 on Boost.Beast: connections, limits, back-pressure and a
// graceful end. What requests mean is the handler's.
//
//   HttpServer server({.address = "127.0.0.1", .port = 0});
//   server.listen(handler, 1 << 30);
//   print("{}\n", server.url());
//   server.run([] { return interrupted(); });   // the event loop, until that is true
//
// One thread, the one that calls run(), does all input and output; the handler answers from any
// thread, whenever it likes. A request that is not exactly HTTP is refused, and its connection
// closed (cli/serve/http_head.hpp). A request is read in two steps: the head alone decides whether
// it is refused, before a byte of its body is read. Memory for a body is reserved as it arrives,
// whatever length the head announces. An answer that leaves a body unread is followed by reading
// what comes and dropping it for a moment, so that the peer sees the answer and not a reset.
// Connections beyond the limit are answered 503. A head, and then a body, has to be whole within
// the timeout, and a body has to arrive at least_body_rate: a slower one is answered 408.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/serve/http_head.hpp"

namespace knear::cli {

// Memory that all requests hold together, in bytes. An eighth of the limit is for small requests
// alone, so that large ones cannot shut them out. Threads: any.
class MemoryBudget {
 public:
  explicit MemoryBudget(std::int64_t bytes) : limit_(bytes) {}
  // Takes the bytes for a request that holds `held` already. Returns false if they are not free.
  bool take(std::int64_t bytes, std::int64_t held) {
    if (used_.fetch_add(bytes) + bytes <= limit_for(held + bytes)) return true;
    used_ -= bytes;
    return false;
  }
  void give(std::int64_t bytes) { used_ -= bytes; }
  // Returns true if a request of this size would fit now.
  bool has(std::int64_t bytes) const { return used_ + bytes <= limit_for(bytes); }
  std::int64_t used() const { return used_; }
  std::int64_t limit() const { return limit_; }
  // The largest request that ever fits.
  std::int64_t most_of_one() const { return limit_ - limit_ / 8; }
  void set_limit(std::int64_t bytes) { limit_ = bytes; }  // before anything is taken

 private:
  std::int64_t limit_for(std::int64_t request) const {
    constexpr std::int64_t most_small = std::int64_t{1} << 20;
    return request <= std::min(most_small, limit_ / 64) ? limit_ : most_of_one();
  }

  std::int64_t limit_;
  std::atomic<std::int64_t> used_ = 0;
};

// The memory that one request holds, which is given back in the end. Threads: one at a time.
class MemoryShare {
 public:
  explicit MemoryShare(MemoryBudget& budget) : budget_(budget) {}
  ~MemoryShare() { budget_.give(bytes_); }
  MemoryShare(const MemoryShare&) = delete;
  MemoryShare& operator=(const MemoryShare&) = delete;
  bool grow(std::int64_t bytes) {
    if (!budget_.take(bytes, bytes_)) return false;
    bytes_ += bytes;
    return true;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  MemoryBudget& budget_;
  std::int64_t bytes_ = 0;
};

struct HttpRequest {
  HttpHead head = {};
  std::string body = {};
  std::chrono::steady_clock::time_point came = {};
  std::shared_ptr<MemoryShare> memory = {};
  // True once the client has closed its side of the connection. Never null in handle().
  std::shared_ptr<const std::atomic<bool>> hung_up = {};
};

struct HttpAnswer {
  int status = 200;
  std::string body = {};
  std::string type = "application/json";
  std::vector<HttpField> fields = {};  // beside those that every answer has
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Of a head alone: an answer instead of reading the body, or nothing. In the thread of the loop.
  virtual std::optional<HttpAnswer> refuse(const HttpHead& head) = 0;
  // Bytes that a request with a body of `length` holds until it is answered, but for the answer.
  virtual std::int64_t memory_for(const HttpHead& head, std::int64_t length) = 0;
  // Answers by calling reply once, from any thread, with a function that the loop calls for the
  // answer. In the thread of the loop, which it must not hold up. Throws nothing.
  using Reply = std::function<void(std::function<HttpAnswer()>)>;
  virtual void handle(HttpRequest request, Reply reply) = 0;
  // The answer to what is refused here: one line. Of requests that never reach handle().
  virtual HttpAnswer refusal(int status, const std::string& message) = 0;
  // Called 20 times a second by the thread of the loop, until all requests are answered.
  virtual void tick() {}
};

// The least bytes of a body that must arrive in a second, on average over least_rate_interval or a
// quarter of the timeout, whichever is shorter.
inline constexpr std::int64_t least_body_rate = 4096;
inline constexpr std::chrono::milliseconds least_rate_interval{5000};

struct HttpOptions {
  std::string address = "127.0.0.1";
  int port = 0;                  // 0: any that is free
  std::int64_t body = 64 << 20;  // bytes
  std::int64_t connections = 1024;
  // For a request to arrive, and for a connection to stay without one.
  std::chrono::milliseconds timeout{30000};
  // The Content-Security-Policy of answers in HTML.
  std::string page_policy =
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
      "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
};

class HttpServer {
 public:
  struct State;  // of the source alone
  // Binds the address and the port, which refuse connections until listen() is called. Throws
  // InvalidArgument for a malformed address, and IoError for a port that is taken or not allowed.
  explicit HttpServer(const HttpOptions& options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Begins to accept connections, whose requests run() passes to the handler. All requests and
  // answers together may take `memory` bytes. The handler must not answer once this object is
  // destroyed. If the process may open fewer descriptors than connections, a line on standard error
  // says so. Throws IoError if no descriptor is left for a connection, or if another process has
  // begun to listen on the port.
  void listen(HttpHandler& handler, std::int64_t memory);

  std::string url() const;  // "http://127.0.0.1:43211"
  int port() const;
  MemoryBudget& memory();
  std::int64_t connections() const;

  // Answers requests until should_stop() is true, which is asked 20 times a second; then takes no
  // more, finishes those that have begun to arrive, and returns. Heads get two seconds; a body of
  // which nothing comes for three seconds is given up.
  void run(const std::function<bool()>& should_stop);

 private:
  std::unique_ptr<State> state_;
};

// Returns true for an address of this machine alone. Throws InvalidArgument if it is malformed.
bool is_loopback(const std::string& address);

// Returns true if this build can serve (KNEAR_SERVE).
bool can_serve();

}  // namespace knear::cli
