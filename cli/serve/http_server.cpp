// The one source that includes Boost.Beast, which takes long to compile.
#include "cli/serve/http_server.hpp"

#include "cli/port.hpp"
#include "knear/core/error.hpp"

#ifdef KNEAR_SERVE
#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/bind_handler.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <limits>
#include <new>
#include <unordered_set>
#include <utility>
#endif

namespace knear::cli {

#ifndef KNEAR_SERVE

struct HttpServer::State {
  MemoryBudget memory{0};
};
namespace {
[[noreturn]] void refuse() {
  throw InvalidArgument("this build serves no indexes (KNEAR_SERVE is off)");
}
}  // namespace
bool can_serve_indexes() { return false; }
bool is_loopback(const std::string&) { refuse(); }
HttpServer::HttpServer(const HttpOptions&) { refuse(); }
void HttpServer::listen(HttpHandler&, std::int64_t) { refuse(); }
HttpServer::~HttpServer() = default;
std::string HttpServer::url() const { return ""; }
MemoryBudget& HttpServer::memory() { return state_->memory; }
std::int64_t HttpServer::connections() const { return 0; }
void HttpServer::run(const std::function<bool()>&) {}

#else

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::uint32_t most_head_bytes = 16 << 10;
constexpr auto linger_time = std::chrono::seconds(2);
// For heads of requests that have begun to arrive when the server stops.
constexpr auto stop_time = std::chrono::seconds(2);
constexpr auto stop_interval = std::chrono::milliseconds(50);
// Connections beyond the limit that are told so at the same time.
constexpr std::int64_t most_turned_away = 256;
// What a body that comes in chunks is taken to be at first; more is reserved as it comes.
constexpr std::int64_t first_chunks = std::int64_t{64} << 10;

asio::ip::address parse_address(const std::string& text) {
  error_code error;
  const auto out = asio::ip::make_address(text == "localhost" ? "127.0.0.1" : text, error);
  if (error)
    throw InvalidArgument("--listen needs an address such as 127.0.0.1 or ::, but got '{}'", text);
  return out;
}

std::string text_of(boost::string_view view) { return {view.data(), view.size()}; }

// Each connection takes a descriptor.
void allow_descriptors(std::int64_t connections) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto wanted = static_cast<rlim_t>(connections + most_turned_away + 256);
  if (limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

bool can_serve_indexes() { return true; }

bool is_loopback(const std::string& address) { return parse_address(address).is_loopback(); }

class Session;

struct HttpServer::State {
  explicit State(const HttpOptions& wanted) : options(wanted), acceptor(io), timer(io), retry(io) {}

  void accept();
  void accept_later();
  void accepted(error_code error, tcp::socket socket);
  void watch(const std::function<bool()>& should_stop);
  void stop();
  std::int64_t open() const { return static_cast<std::int64_t>(sessions.size()) - turned_away; }

  const HttpOptions options;
  HttpHandler* handler = nullptr;  // none until it listens
  // Used by connections that go with the event loop, so before it.
  MemoryBudget memory{0};
  std::unordered_set<Session*> sessions;
  std::atomic<std::int64_t> count = 0;
  std::int64_t turned_away = 0;
  bool stopping = false;
  bool accepting = false, watching = false;  // whether a call of theirs is to come
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer timer, retry;
};

using State = HttpServer::State;

// A connection. It lives as long as an operation or an answer to come holds it.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(State& server, tcp::socket socket, bool turned_away)
      : server_(server), stream_(std::move(socket)), turned_away_(turned_away) {
    error_code ignored;
    stream_.socket().set_option(tcp::no_delay(true), ignored);
    server_.sessions.insert(this);
    if (turned_away_) ++server_.turned_away;
    server_.count = server_.open();
  }
  ~Session() {
    server_.sessions.erase(this);
    if (server_.stopping && server_.sessions.empty()) server_.timer.cancel();
    if (turned_away_) --server_.turned_away;
    server_.count = server_.open();
  }

  void start() {
    if (turned_away_)
      send(server_.handler->refusal(503, "too many connections are open"), true);
    else
      read_head();
  }
  // Of a server that stops: a connection that waits for a request is closed; unless it is the end,
  // one where a request begins is not.
  void stop(bool at_the_end) {
    if (!reading_head_) return;
    error_code ignored;
    if (!at_the_end &&
        (parser_->got_some() || buffer_.size() > 0 || stream_.socket().available(ignored) > 0))
      return;
    stream_.socket().close(ignored);
  }

 private:
  void read_head() {
    if (server_.stopping) return;
    parser_.emplace();
    parser_->header_limit(most_head_bytes);
    parser_->body_limit(static_cast<std::uint64_t>(server_.options.body));
    memory_.reset();
    reading_head_ = true;
    stream_.expires_after(server_.options.timeout);
    http::async_read_header(stream_, buffer_, *parser_,
                            beast::bind_front_handler(&Session::on_head, shared_from_this()));
  }

  void on_head(error_code error, std::size_t) {
    reading_head_ = false;
    if (error) return on_read_error(error);
    came_ = std::chrono::steady_clock::now();
    const auto& message = parser_->get();
    // An answer to HEAD would have no body; it is refused with one, which must be the last.
    // Programs of HTTP/1.0 would wait for a field that says it.
    keep_alive_ =
        message.keep_alive() && message.method() != http::verb::head && message.version() >= 11;
    HttpHead head{.method = text_of(message.method_string()),
                  .target = text_of(message.target()),
                  .host = text_of(message[http::field::host]),
                  .origin = text_of(message[http::field::origin]),
                  .authorization = text_of(message[http::field::authorization]),
                  .content_type = text_of(message[http::field::content_type])};
    head.many_hosts = message.count(http::field::host) != 1;
    head.packed = message.count(http::field::content_encoding) > 0;
    const auto length = parser_->content_length();
    head.length = parser_->chunked() ? -1
                  : !length          ? 0
                                     : static_cast<std::int64_t>(std::min<std::uint64_t>(
                                  *length, std::numeric_limits<std::int64_t>::max()));
    if (auto answer = server_.handler->refuse(head))
      return send(std::move(*answer), head.length != 0);
    if (head.length > server_.options.body) return send(too_large(), true);
    memory_ = std::make_shared<MemoryShare>(server_.memory);
    head_ = std::move(head);
    reserved_ = 0;
    if (!reserve(head_.length < 0 ? std::min(first_chunks, server_.options.body) : head_.length))
      return;
    const bool waits = beast::iequals(message[http::field::expect], "100-continue");
    stream_.expires_after(server_.options.timeout);
    if (!waits) return read_body();
    continue_.emplace(http::status::continue_, message.version());
    http::async_write(stream_, *continue_,
                      [self = shared_from_this()](error_code failed, std::size_t) {
                        if (!failed) self->read_body();
                      });
  }

  // Takes memory for a body of so many bytes; where there is none it answers, and returns false.
  bool reserve(std::int64_t length) {
    const std::int64_t limit = server_.memory.limit();
    if (length > 0 && server_.handler->memory_for(head_, length) > limit)
      send(server_.handler->refusal(
               413, fmt::format("a body of {} bytes is too large for --memory {}", length, limit)),
           true);
    else if (!memory_->grow(server_.handler->memory_for(head_, length) -
                            server_.handler->memory_for(head_, reserved_)))
      send(server_.handler->refusal(503, "there is no memory for another request now"),
           head_.length != 0);
    else
      return reserved_ = length, true;
    return false;
  }

  void read_body() {
    if (head_.length < 0)
      return http::async_read_some(
          stream_, buffer_, *parser_,
          beast::bind_front_handler(&Session::on_chunk, shared_from_this()));
    http::async_read(stream_, buffer_, *parser_,
                     beast::bind_front_handler(&Session::on_body, shared_from_this()));
  }

  void on_chunk(error_code error, std::size_t) {
    if (error) return on_read_error(error);
    if (parser_->is_done()) return on_body({}, 0);
    const std::int64_t so_far = std::ssize(parser_->get().body());
    if (so_far > reserved_ - first_chunks / 2 && reserved_ < server_.options.body &&
        !reserve(std::min(so_far + first_chunks, server_.options.body)))
      return;
    read_body();
  }

  void on_body(error_code error, std::size_t) {
    if (error) return on_read_error(error);
    stream_.expires_never();
    HttpRequest request{.head = std::move(head_),
                        .body = std::move(parser_->get().body()),
                        .came = came_,
                        .memory = memory_};
    auto promise = std::make_shared<Promise>(shared_from_this());
    server_.handler->handle(std::move(request), [promise](std::function<HttpAnswer()> answer) {
      promise->keep(std::move(answer));
    });
  }

  // An answer that is to come, from any thread; while there is one the loop does not end. A request
  // that is let go of without one, since memory is short, is answered too.
  class Promise {
   public:
    explicit Promise(std::shared_ptr<Session> session)
        : work_(session->server_.io.get_executor()), session_(std::move(session)) {}
    ~Promise() {
      if (session_) try {
          keep([handler = session_->server_.handler] {
            return handler->refusal(503, "memory is too short for this request");
          });
        } catch (const std::bad_alloc&) {  // not even for that: the connection is closed
        }
    }
    Promise(const Promise&) = delete;
    Promise& operator=(const Promise&) = delete;
    void keep(std::function<HttpAnswer()> answer) {
      asio::io_context& io = session_->server_.io;
      asio::post(io, [session = std::move(session_), answer = std::move(answer),
                      work = std::move(work_)] { session->send(answer(), false); });
    }

   private:
    asio::executor_work_guard<asio::io_context::executor_type> work_;
    std::shared_ptr<Session> session_;
  };

  HttpAnswer too_large() {
    return server_.handler->refusal(
        413, "the body is larger than " + std::to_string(server_.options.body) + " bytes");
  }

  void on_read_error(error_code error) {
    if (error == http::error::body_limit) return send(too_large(), true);
    if (error == http::error::header_limit)
      return send(server_.handler->refusal(400, "the head of the request is too long"), true);
    const bool ended = error == http::error::end_of_stream || error == http::error::partial_message;
    if (!ended && error.category() == http::make_error_code(http::error::bad_method).category())
      return send(server_.handler->refusal(400, "this is no HTTP request: " + error.message()),
                  true);
    // Closed by the peer, cut off, or too slow: nobody is there to be told.
  }

  // unread: whether the rest of the request is not going to be read.
  void send(HttpAnswer answer, bool unread) {
    auto response = std::make_shared<http::response<http::string_body> >(
        static_cast<http::status>(answer.status), 11);
    response->set(http::field::server, "knear");
    response->set(http::field::content_type, answer.type);
    response->set("X-Content-Type-Options", "nosniff");
    response->set("Cross-Origin-Resource-Policy", "same-origin");
    response->set("Referrer-Policy", "no-referrer");
    if (answer.type.starts_with("text/html"))
      response->set("Content-Security-Policy",
                    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                    "frame-ancestors 'none'");
    if (answer.status == 503) response->set(http::field::retry_after, "1");
    if (answer.status == 401) response->set(http::field::www_authenticate, "Bearer");
    const bool close = unread || !keep_alive_ || server_.stopping;
    response->keep_alive(!close);
    response->body() = std::move(answer.body);
    response->prepare_payload();
    stream_.expires_after(server_.options.timeout);
    auto& message = *response;
    http::async_write(
        stream_, message,
        [self = shared_from_this(), response, close, unread](error_code error, std::size_t) {
          self->memory_.reset();
          if (error) return;
          if (!close) return self->read_head();
          self->hang_up(unread);
        });
  }

  // Says that nothing more will be sent. What still comes of a body is read and dropped.
  void hang_up(bool unread) {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    if (!unread) return;
    buffer_.consume(buffer_.size());
    dropped_.resize(std::size_t{64} << 10);
    stream_.expires_after(linger_time);
    drop();
  }
  void drop() {
    stream_.async_read_some(asio::buffer(dropped_),
                            [self = shared_from_this()](error_code error, std::size_t) {
                              if (!error && !self->server_.stopping) self->drop();
                            });
  }

  State& server_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{most_head_bytes + (std::size_t{64} << 10)};
  std::optional<http::request_parser<http::string_body> > parser_;
  std::optional<http::response<http::empty_body> > continue_;
  HttpHead head_;
  std::chrono::steady_clock::time_point came_;
  std::shared_ptr<MemoryShare> memory_;
  std::int64_t reserved_ = 0;  // the length of a body that it is for
  std::string dropped_;
  const bool turned_away_;
  bool keep_alive_ = false, reading_head_ = false;
};

void State::accept() {
  // As many as may be told that there are too many are being told: others wait to be accepted.
  if (turned_away >= most_turned_away) return accept_later();
  acceptor.async_accept([this](error_code error, tcp::socket socket) {
    accepting = false;
    accepted(error, std::move(socket));
  });
  accepting = true;
}

void State::accept_later() {
  retry.expires_after(stop_interval);
  retry.async_wait([this](error_code) {
    accepting = false;
    if (!stopping) accept();
  });
  accepting = true;
}

void State::accepted(error_code error, tcp::socket socket) {
  if (stopping || error == asio::error::operation_aborted) return;
  if (error) return accept_later();  // no descriptor is free, say
  const bool full = open() >= options.connections;
  std::make_shared<Session>(*this, std::move(socket), full)->start();
  accept();
}

void State::watch(const std::function<bool()>& should_stop) {
  timer.expires_after(stop_interval);
  timer.async_wait([this, &should_stop](error_code) {
    watching = false;
    if (should_stop()) return stop();
    watch(should_stop);
  });
  watching = true;
}

void State::stop() {
  stopping = true;
  error_code ignored;
  acceptor.close(ignored);
  retry.cancel();
  for (Session* const session : sessions) session->stop(false);
  if (sessions.empty()) return;
  timer.expires_after(stop_time);
  timer.async_wait([this](error_code stopped) {
    if (stopped) return;
    for (Session* const session : sessions) session->stop(true);
  });
}

HttpServer::HttpServer(const HttpOptions& options) : state_(std::make_unique<State>(options)) {
  const tcp::endpoint at(parse_address(options.address), static_cast<std::uint16_t>(options.port));
  allow_descriptors(options.connections);
  error_code error;
  tcp::acceptor& acceptor = state_->acceptor;
  acceptor.open(at.protocol(), error);
  if (!error) acceptor.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(at, error);
  if (error)
    throw IoError("--port {} of {} is {}", options.port, options.address,
                  reason_of_no_port(error.value()));
}

void HttpServer::listen(HttpHandler& handler, std::int64_t memory) {
  state_->handler = &handler;
  state_->memory.set_limit(memory);
  error_code error;
  state_->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error)
    throw IoError("--port {} of {} is {}", state_->options.port, state_->options.address,
                  reason_of_no_port(error.value()));
}

HttpServer::~HttpServer() {
  state_->stopping =
      false;  // a connection that is left goes after the timer, and must not cancel it
}

std::string HttpServer::url() const {
  const auto at = state_->acceptor.local_endpoint();
  const std::string host = at.address().to_string();
  return at.address().is_v6() ? fmt::format("http://[{}]:{}", host, at.port())
                              : fmt::format("http://{}:{}", host, at.port());
}

MemoryBudget& HttpServer::memory() { return state_->memory; }

std::int64_t HttpServer::connections() const { return state_->count; }

void HttpServer::run(const std::function<bool()>& should_stop) {
  for (;;) try {
      if (!state_->stopping && !state_->accepting) state_->accept();
      if (!state_->stopping && !state_->watching) state_->watch(should_stop);
      state_->io.run();
      return;
    } catch (const std::bad_alloc&) {  // the connection that it was for is gone; others go on
    }
}

#endif

}  // namespace knear::cli
