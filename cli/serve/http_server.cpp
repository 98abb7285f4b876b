// The one source that includes Boost.Beast, which takes long to compile.
#include "cli/serve/http_server.hpp"

#include "cli/output.hpp"
#include "cli/port.hpp"
#include "knear/core/error.hpp"
#include "knear/serve/refusal.hpp"

#ifdef KNEAR_SERVE
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/bind_handler.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
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
  throw InvalidArgument("this build has no server (KNEAR_SERVE is off)");
}
}  // namespace
bool can_serve() { return false; }
bool is_loopback(const std::string&) { refuse(); }
HttpServer::HttpServer(const HttpOptions&) { refuse(); }
void HttpServer::listen(HttpHandler&, std::int64_t) { refuse(); }
HttpServer::~HttpServer() = default;
std::string HttpServer::url() const { return ""; }
int HttpServer::port() const { return 0; }
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

// Limit on the bytes of all chunk extensions of a body.
constexpr std::size_t most_extension_bytes = std::size_t{16} << 10;
constexpr auto linger_time = std::chrono::seconds(2);
// When the server stops: the time for heads of requests that have begun to arrive, and the longest
// pause within a body.
constexpr auto stop_time = std::chrono::seconds(2), stuck_time = std::chrono::seconds(3);
constexpr auto stop_interval = std::chrono::milliseconds(50);
using Clock = std::chrono::steady_clock;
// Connections beyond the limit that are answered 503 at the same time, and descriptors reserved for
// files that are opened while the server runs. Both are lower where descriptors are short.
constexpr std::int64_t most_turned_away = 256, most_files = 256;

asio::ip::address parse_address(const std::string& text) {
  error_code error;
  const auto out = asio::ip::make_address(text == "localhost" ? "127.0.0.1" : text, error);
  if (error)
    throw InvalidArgument("--listen needs an address such as 127.0.0.1 or ::, but got '{}'", text);
  return out;
}

// A body that takes memory as it arrives, up to twice what has arrived and never more than the
// announced length.
struct ArrivingBody {
  using value_type = std::string;

  class reader {
   public:
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>& length, error_code& error) {
      if (length) length_ = static_cast<std::size_t>(*length);
      error = {};
    }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      std::size_t bytes = 0;
      for (const auto buffer : beast::buffers_range_ref(buffers)) {
        make_room(body_.size() + buffer.size());
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
        bytes += buffer.size();
      }
      error = {};
      return bytes;
    }
    void finish(error_code& error) { error = {}; }

   private:
    // A fresh string gets the capacity that it asks for; reserve() of a grown one may double it.
    void make_room(std::size_t needed) {
      if (needed <= body_.capacity()) return;
      std::string larger;
      larger.reserve(std::max(needed, std::min(length_, 2 * needed)));
      larger.append(body_);
      body_.swap(larger);
    }

    value_type& body_;
    std::size_t length_ = std::numeric_limits<std::size_t>::max();
  };
};

// Limits of simultaneous connections.
struct Places {
  std::int64_t connections, turned_away;
};

std::int64_t open_descriptors(std::int64_t limit) {
  std::int64_t out = 0;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(limit, 65536); ++i)
    out += fcntl(static_cast<int>(i), F_GETFD) != -1;
  return out;
}

// Raises the limit of open files, since each connection takes a descriptor. Returns the number of
// connections that fit, and warns if it is below what was asked for. Throws IoError if none fits.
Places allow_descriptors(std::int64_t connections) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return {connections, most_turned_away};
  const auto wanted = static_cast<rlim_t>(connections + most_turned_away + most_files);
  if (limit.rlim_cur >= wanted) return {connections, most_turned_away};
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  setrlimit(RLIMIT_NOFILE, &limit);
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= wanted) return {connections, most_turned_away};
  const auto there = static_cast<std::int64_t>(limit.rlim_cur);
  const std::int64_t open = open_descriptors(there), free = there - open;
  const std::int64_t turned_away = std::clamp<std::int64_t>(free / 8, 1, most_turned_away);
  const std::int64_t files = std::clamp<std::int64_t>(free / 4, 4, most_files);
  const std::int64_t fit = std::min(connections, free - turned_away - files);
  if (fit < 1)
    throw IoError(
        "no connection fits: this process may have {} open files (ulimit -n), and {} are open",
        there, open);
  if (fit < connections)
    warn("this process may have {} open files (ulimit -n): {} connections at a time, not {}", there,
         fit, connections);
  return {fit, turned_away};
}

}  // namespace

bool can_serve() { return true; }

bool is_loopback(const std::string& address) { return parse_address(address).is_loopback(); }

class Session;

struct HttpServer::State {
  explicit State(const HttpOptions& wanted)
      : options(wanted), acceptor(io), timer(io), retry(io), ticker(io) {}

  void accept();
  void accept_later();
  void accepted(error_code error, tcp::socket socket);
  void watch(const std::function<bool()>& should_stop);
  void tick();
  void stop();
  void end_stuck(std::chrono::steady_clock::duration after);
  std::int64_t open() const { return static_cast<std::int64_t>(sessions.size()) - turned_away; }

  const HttpOptions options;
  HttpHandler* handler = nullptr;  // none until it listens
  // Used by connections that go with the event loop, so before it.
  MemoryBudget memory{0};
  std::unordered_set<Session*> sessions;
  std::atomic<std::int64_t> count = 0;
  std::int64_t turned_away = 0;
  Places places{0, 0};
  bool stopping = false, short_of_descriptors = false;
  bool accepting = false, watching = false, ticking = false;  // whether a call of theirs is to come
  asio::io_context io{1};
  tcp::acceptor acceptor;
  asio::steady_timer timer, retry, ticker;
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
    if (server_.stopping && server_.sessions.empty()) {
      server_.timer.cancel();
      server_.ticker.cancel();
    }
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
    if (!at_the_end) end_if_stuck();
    if (!reading_head_) return;
    error_code ignored;
    if (!at_the_end && (buffer_.size() > 0 || stream_.socket().available(ignored) > 0)) return;
    stream_.socket().close(ignored);
  }
  // Closes the connection if the body that it reads has not grown since the last call. For a server
  // that stops.
  void end_if_stuck() {
    if (!reading_body_) return;
    const std::size_t there = parser_->get().body().size() + buffer_.size();
    error_code ignored;
    if (body_bytes_ == there) stream_.socket().close(ignored);
    body_bytes_ = there;
  }
  // Gives up a body that arrives too slowly. Called 20 times a second.
  void tick(Clock::time_point now) {
    if (!reading_body_ || !slow_.empty() || (now < next_check_ && now < body_end_)) return;
    const std::int64_t size = std::ssize(parser_->get().body());
    const auto seconds = std::chrono::duration<double>(check_interval()).count();
    const auto least = static_cast<std::int64_t>(static_cast<double>(least_body_rate) * seconds);
    if (now >= body_end_) {
      slow_ = fmt::format("the body was not whole after {} seconds",
                          std::chrono::duration<double>(server_.options.timeout).count());
    } else if (size - checked_size_ <
               (head_.length < 0 ? least : std::min(least, head_.length - checked_size_))) {
      slow_ = fmt::format("the body must arrive at {} bytes a second, but {} came in {} seconds",
                          least_body_rate, size - checked_size_, seconds);
    } else {
      checked_size_ = size, next_check_ = now + check_interval();
      return;
    }
    stream_.cancel();
  }

 private:
  std::chrono::milliseconds check_interval() const {
    return std::min(least_rate_interval, server_.options.timeout / 4);
  }

  void read_head() {
    if (server_.stopping) return;
    reader_.emplace();
    memory_.reset();
    reading_head_ = true;
    stream_.expires_after(server_.options.timeout);
    go_on_with_head();
  }

  void go_on_with_head() {
    std::optional<std::size_t> size;
    try {
      size = reader_->read(arrived());
    } catch (const serve::Refusal& refusal) {
      return refuse(refusal);
    }
    if (size) return on_head(*size);
    stream_.async_read_some(buffer_.prepare(std::size_t{4} << 10),
                            [self = shared_from_this()](error_code error, std::size_t bytes) {
                              self->buffer_.commit(bytes);
                              // Closed by the peer, or too slow: there is no caller to answer.
                              self->reading_head_ = !error;
                              if (!error) self->go_on_with_head();
                            });
  }

  std::string_view arrived() const {
    const auto data = buffer_.data();
    return {static_cast<const char*>(data.data()), data.size()};
  }

  // Refuses a malformed head and closes the connection, since it is unknown where the next request
  // would begin.
  void refuse(const serve::Refusal& refusal) {
    reading_head_ = false;
    without_body_ = reader_->method() == "HEAD";
    send(server_.handler->refusal(refusal.status(), refusal.what()), true);
  }

  void on_head(std::size_t size) {
    reading_head_ = false;
    came_ = Clock::now();
    HttpHead head = reader_->take();
    keep_alive_ = head.keep_alive;
    without_body_ = head.method == "HEAD";
    const bool understood = begin_body(head, size);
    if (auto answer = server_.handler->refuse(head)) {
      const bool closes = head.length != 0 || !understood || answer->status == 403;
      return send(std::move(*answer), closes);
    }
    if (head.length > server_.options.body) return send(too_large(), true);
    if (!understood) return send(server_.handler->refusal(400, "this is no HTTP request"), true);
    memory_ = std::make_shared<MemoryShare>(server_.memory);
    head_ = std::move(head);
    reserved_ = 0;
    if (!may_fit()) return;
    stream_.expires_never();  // tick() looks after the time
    reading_body_ = true;
    slow_.clear();
    checked_size_ = 0;
    body_end_ = Clock::now() + server_.options.timeout;
    next_check_ = Clock::now() + check_interval();
    if (!head_.expects_continue) return read_body();
    continue_.emplace(http::status::continue_, 11);
    http::async_write(stream_, *continue_,
                      [self = shared_from_this()](error_code failed, std::size_t) {
                        if (!self->slow_.empty()) return self->refuse_slow();
                        if (!failed) self->read_body();
                      });
  }

  // Takes the head out of the buffer and hands it to Beast, which reads the body. Returns false
  // unless Beast derives the same length of the body from it.
  bool begin_body(const HttpHead& head, std::size_t size) {
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(HeadReader::most_bytes));
    parser_->body_limit(static_cast<std::uint64_t>(server_.options.body));
    extension_bytes_ = 0;
    on_chunk_header_ = [this](std::uint64_t, beast::string_view extensions, error_code& error) {
      extension_bytes_ += extensions.size();
      const bool plain = std::all_of(extensions.begin(), extensions.end(), [](char c) {
        return c == '\t' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
      });
      if (!plain || extension_bytes_ > most_extension_bytes)
        error = http::error::bad_chunk_extension;
    };
    parser_->on_chunk_header(on_chunk_header_);
    buffer_.consume(reader_->skipped());
    size -= reader_->skipped();
    error_code error;
    const std::size_t used = parser_->put(asio::buffer(arrived().data(), size), error);
    buffer_.consume(size);
    if (error || used != size || !parser_->is_header_done()) return false;
    const auto length = parser_->content_length();
    return head.length < 0 ? parser_->chunked()
                           : !parser_->chunked() &&
                                 static_cast<std::int64_t>(length.value_or(0)) == head.length;
  }

  // Returns whether a body of the announced length would fit into memory now; otherwise refuses it
  // before it is sent.
  bool may_fit() {
    const MemoryBudget& memory = server_.memory;
    const std::int64_t bytes =
        head_.length > 0 ? server_.handler->memory_for(head_, head_.length) : 0;
    if (bytes <= memory.most_of_one() && memory.has(bytes)) return true;
    if (bytes <= memory.most_of_one())
      refuse_for_memory();
    else
      refuse_as_too_large(head_.length);
    return false;
  }

  // Reserves memory for the bytes of the body that have arrived. Answers and returns false if
  // memory is short.
  bool reserve(std::int64_t length) {
    const std::int64_t bytes = server_.handler->memory_for(head_, length);
    if (bytes > server_.memory.most_of_one()) return refuse_as_too_large(length), false;
    if (!memory_->grow(bytes - server_.handler->memory_for(head_, reserved_)))
      return refuse_for_memory(), false;
    reserved_ = length;
    return true;
  }

  void refuse_as_too_large(std::int64_t length) {
    reading_body_ = false;
    send(server_.handler->refusal(
             413,
             fmt::format(
                 "a body of {} bytes is too large for --memory {}: an eighth is for small requests",
                 length, server_.memory.limit())),
         true);
  }
  void refuse_for_memory() {
    reading_body_ = false;
    send(server_.handler->refusal(503, "there is no memory for another request now"),
         head_.length != 0);
  }
  void refuse_slow() {
    reading_body_ = false;
    send(server_.handler->refusal(408, slow_), true);
  }

  void read_body() {
    if (parser_->is_done()) return on_body();
    http::async_read_some(stream_, buffer_, *parser_,
                          beast::bind_front_handler(&Session::on_part, shared_from_this()));
  }

  void on_part(error_code error, std::size_t) {
    if (!slow_.empty() && !parser_->is_done()) return refuse_slow();
    if (error) return on_read_error(error);
    if (reserve(std::ssize(parser_->get().body()))) read_body();
  }

  void on_body() {
    reading_body_ = false;
    HttpRequest request{.head = std::move(head_),
                        .body = std::move(parser_->get().body()),
                        .came = came_,
                        .memory = memory_,
                        .hung_up = watch_client()};
    auto promise = std::make_shared<Promise>(shared_from_this());
    server_.handler->handle(std::move(request), [promise](std::function<HttpAnswer()> answer) {
      promise->keep(std::move(answer));
    });
  }

  // Returns a flag that is set when the client closes its side. A request that is sent behind this
  // one ends the watch.
  std::shared_ptr<const std::atomic<bool> > watch_client() {
    auto hung_up = std::make_shared<std::atomic<bool> >(false);
    stream_.socket().async_wait(
        tcp::socket::wait_read, [self = shared_from_this(), hung_up](error_code error) {
          if (error) return;  // the answer is about to be sent
          if (self->watched_ == hung_up) self->watched_.reset();
          char byte = 0;
          const ssize_t got =
              recv(self->stream_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
          const bool alive = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
          if (!alive) *hung_up = true;
        });
    watched_ = hung_up;
    return hung_up;
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
    reading_body_ = false;
    if (error == http::error::body_limit) return send(too_large(), true);
    const bool ended = error == http::error::end_of_stream || error == http::error::partial_message;
    if (!ended && error.category() == http::make_error_code(http::error::bad_method).category())
      return send(
          server_.handler->refusal(400, "the chunks of the body are malformed: " + error.message()),
          true);
    // The peer closed the connection: there is no caller to answer.
  }

  // unread: whether the rest of the request is not going to be read.
  void send(HttpAnswer answer, bool unread) {
    const bool close = unread || !keep_alive_ || server_.stopping;
    error_code ignored;
    if (std::exchange(watched_, nullptr)) stream_.socket().cancel(ignored);
    // The answer to HEAD is that to GET without the body.
    without_body_ ? write<http::empty_body>(std::move(answer), close, unread)
                  : write<http::string_body>(std::move(answer), close, unread);
  }

  template <class Body>
  void write(HttpAnswer answer, bool close, bool unread) {
    auto response =
        std::make_shared<http::response<Body> >(static_cast<http::status>(answer.status), 11);
    response->set(http::field::server, "knear");
    response->set(http::field::content_type, answer.type);
    response->set("X-Content-Type-Options", "nosniff");
    response->set("Cross-Origin-Resource-Policy", "same-origin");
    response->set("Referrer-Policy", "no-referrer");
    if (answer.type.starts_with("text/html"))
      response->set("Content-Security-Policy", server_.options.page_policy);
    if (answer.status == 503) response->set(http::field::retry_after, "1");
    if (answer.status == 401) response->set(http::field::www_authenticate, "Bearer");
    for (const HttpField& field : answer.fields) response->set(field.name, field.value);
    response->keep_alive(!close);
    response->content_length(answer.body.size());
    if constexpr (std::is_same_v<Body, http::string_body>)
      response->body() = std::move(answer.body);
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

  // Says that nothing more will be sent. What still comes is read and dropped for a moment: a
  // connection that is closed with bytes to read is reset, and the peer may not see the answer.
  void hang_up(bool unread) {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    if (server_.stopping && !unread) return;
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
  beast::flat_buffer buffer_{HeadReader::most_bytes + (std::size_t{64} << 10)};
  std::optional<HeadReader> reader_;
  std::optional<http::request_parser<ArrivingBody> > parser_;
  std::optional<http::response<http::empty_body> > continue_;
  std::function<void(std::uint64_t, beast::string_view, error_code&)> on_chunk_header_;
  std::size_t extension_bytes_ = 0;
  HttpHead head_;
  Clock::time_point came_;
  std::shared_ptr<MemoryShare> memory_;
  std::int64_t reserved_ = 0;  // the length of a body that it is for
  // While a body is read: when it has to be whole; when its rate is checked next, and its size at
  // the last check.
  Clock::time_point body_end_, next_check_;
  std::int64_t checked_size_ = 0;
  std::string slow_;  // why a body is given up; empty: it is not
  std::string dropped_;
  const bool turned_away_;
  bool keep_alive_ = false, reading_head_ = false, reading_body_ = false, without_body_ = false;
  std::optional<std::size_t> body_bytes_;        // size of the body at the last end_if_stuck()
  std::shared_ptr<std::atomic<bool> > watched_;  // set if the client hangs up; null: not watched
};

void State::accept() {
  // The limit of pending 503 responses is reached; further connections stay in the accept queue.
  if (turned_away >= places.turned_away) return accept_later();
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
  if (error) {
    if (!std::exchange(short_of_descriptors, true))
      warn("no connection can be taken for now: {}", error.message());
    return accept_later();
  }
  const bool full = open() >= places.connections;
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

void State::tick() {
  ticker.expires_after(stop_interval);
  ticker.async_wait([this](error_code stopped) {
    ticking = false;
    if (stopped || (stopping && sessions.empty())) return;
    const auto now = Clock::now();
    for (Session* const session : sessions) session->tick(now);
    handler->tick();
    tick();
  });
  ticking = true;
}

void State::stop() {
  stopping = true;
  error_code ignored;
  acceptor.close(ignored);
  retry.cancel();
  for (Session* const session : sessions) session->stop(false);
  if (sessions.empty()) {
    ticker.cancel();
    return;
  }
  timer.expires_after(stop_time);
  timer.async_wait([this](error_code stopped) {
    if (stopped) return;
    for (Session* const session : sessions) session->stop(true);
    end_stuck(stuck_time - stop_time);
  });
}

void State::end_stuck(std::chrono::steady_clock::duration after) {
  if (sessions.empty()) return;
  timer.expires_after(after);
  timer.async_wait([this](error_code stopped) {
    if (stopped) return;
    for (Session* const session : sessions) session->end_if_stuck();
    end_stuck(stuck_time);
  });
}

HttpServer::HttpServer(const HttpOptions& options) : state_(std::make_unique<State>(options)) {
  const tcp::endpoint at(parse_address(options.address), static_cast<std::uint16_t>(options.port));
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
  // Not before: the files of the indexes have been opened by now, and count.
  state_->places = allow_descriptors(state_->options.connections);
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

int HttpServer::port() const { return state_->acceptor.local_endpoint().port(); }

MemoryBudget& HttpServer::memory() { return state_->memory; }

std::int64_t HttpServer::connections() const { return state_->count; }

void HttpServer::run(const std::function<bool()>& should_stop) {
  for (;;) try {
      if (!state_->stopping && !state_->accepting) state_->accept();
      if (!state_->stopping && !state_->watching) state_->watch(should_stop);
      if (!state_->ticking) state_->tick();
      state_->io.run();
      return;
    } catch (const std::bad_alloc&) {  // the connection that it was for is gone; others go on
    }
}

#endif

}  // namespace knear::cli
