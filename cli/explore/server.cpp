#include "cli/explore/server.hpp"

#ifdef KNEAR_EXPLORE
#include <httplib.h>

#include <mutex>
#include <set>
#include <thread>
#endif

#include <charconv>

#include "cli/explore/page_files.hpp"
#include "cli/port.hpp"
#include "knear/core/error.hpp"

namespace knear::cli {

#ifndef KNEAR_EXPLORE

struct PageServer::State {};
bool can_serve() { return false; }
PageServer::PageServer(const Explorer&, std::int64_t) {
  throw InvalidArgument("--port: this build serves no pages (KNEAR_EXPLORE is off); --html works");
}
PageServer::~PageServer() = default;
std::string PageServer::address() const { return ""; }
void PageServer::show_places(MatrixView<float>, double) {}

#else

namespace {

constexpr std::size_t most_body_bytes = std::size_t{4} << 20;
// Requests that are answered at once; one that is sent in part holds a thread for so many seconds.
constexpr std::size_t server_threads = 64;
constexpr time_t read_seconds = 2;
constexpr const char* json_type = "application/json; charset=utf-8";

// An answer that is no success, thrown by what finds out.
struct PageRefusal {
  int status;
  std::string message;
};

std::string dumped(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void answer(httplib::Response& response, const nlohmann::ordered_json& value) {
  response.set_content(dumped(value), json_type);
}

void refuse(httplib::Response& response, int status, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  response.status = status;
  response.set_content(dumped({{"error", message}}), json_type);
}

// A whole number of the query string. A row that is not there is for the Explorer to refuse.
Id whole(const std::string& name, const std::string& word) {
  Id value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || stop != word.data() + word.size())
    throw PageRefusal{400, fmt::format("{} needs a whole number, but got '{}'", name, word)};
  return value;
}

Id parameter(const httplib::Request& request, const char* name) {
  return whole(name, request.get_param_value(name));
}

// Refuses what is asked beside these names, and a name that is there twice.
void check_parameters(const httplib::Request& request, const std::vector<std::string>& names) {
  for (const auto& [name, value] : request.params) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw PageRefusal{400,
                        fmt::format("'{}' is not known here; there {}", name.substr(0, 40),
                                    names.empty() ? "are no parameters"
                                                  : fmt::format("are {}", fmt::join(names, ", ")))};
    if (request.get_param_value_count(name) > 1)
      throw PageRefusal{400, fmt::format("{} is there twice", name)};
  }
}

// A body as JSON, discarded if it is none. Refuses keys that are not known and those that are there
// twice.
nlohmann::ordered_json parse_body(const std::string& body) {
  std::set<std::string> seen;
  const auto look = [&](int depth, nlohmann::ordered_json::parse_event_t event,
                        nlohmann::ordered_json& parsed) {
    if (depth != 1 || event != nlohmann::ordered_json::parse_event_t::key) return true;
    const auto key = parsed.get<std::string>();
    if (key != "vector" && key != "k")
      throw PageRefusal{
          400, fmt::format("the key '{}' is not known; there are vector, k", key.substr(0, 40))};
    if (!seen.insert(key).second)
      throw PageRefusal{400, fmt::format("the key '{}' is there twice", key)};
    return true;
  };
  return nlohmann::ordered_json::parse(body, look, false);
}

// {"vector": [numbers], "k": N}
std::pair<std::vector<float>, std::int64_t> parse_search(const std::string& body,
                                                         std::int64_t dim) {
  const auto sent = parse_body(body);
  if (!sent.is_object() || !sent.contains("vector") || !sent["vector"].is_array())
    throw PageRefusal{400, "the body must be a JSON object with an array 'vector'"};
  std::vector<float> vector;
  for (const auto& number : sent["vector"]) {
    if (!number.is_number())
      throw PageRefusal{400, fmt::format("vector has no number at place {}", vector.size())};
    vector.push_back(number.get<float>());
  }
  if (std::ssize(vector) != dim)
    throw PageRefusal{400, fmt::format("vector has {} numbers, base has {}", vector.size(), dim)};
  std::int64_t k = 10;
  if (sent.contains("k")) {
    if (!sent["k"].is_number_integer() || sent["k"].get<std::int64_t>() < 1 ||
        sent["k"].get<std::int64_t>() > 100)
      throw PageRefusal{400, "k must be a whole number between 1 and 100"};
    k = sent["k"].get<std::int64_t>();
  }
  return {std::move(vector), k};
}

const char* reason_of(int status) {
  switch (status) {
    case 400:
      return "this is no request";
    case 404:
      return "there is nothing of this name";
    case 413:
      return "the body is larger than 4 MiB";
    case 414:
      return "the address is too long";
    default:
      return "this cannot be answered";
  }
}

}  // namespace

struct PageServer::State {
  State(const Explorer& asked, std::int64_t wanted);
  ~State() {
    server.stop();
    if (listener.joinable()) listener.join();
  }

  void check_request(const httplib::Request& request) const;
  void add_questions();
  // Calls f with request and response, and answers what it throws. The request may have parameters
  // of these names.
  template <class F>
  httplib::Server::Handler asking(F f, std::initializer_list<std::string> names = {}) const;

  const Explorer& explorer;
  httplib::Server server;
  int port = 0;
  std::thread listener;

  std::mutex mutex;
  std::string places;  // [n x 2] f32, little-endian
  double progress = 0;
  std::int64_t version = 0;
};

template <class F>
httplib::Server::Handler PageServer::State::asking(F f,
                                                   std::initializer_list<std::string> names) const {
  return [f, names = std::vector<std::string>(names)](const httplib::Request& request,
                                                      httplib::Response& response) {
    try {
      if (request.path.starts_with("/api/")) check_parameters(request, names);
      f(request, response);
    } catch (const PageRefusal& refusal) {
      refuse(response, refusal.status, refusal.message);
    } catch (const InvalidArgument& error) {
      refuse(response, 400, error.what());
    } catch (const std::exception& error) {
      refuse(response, 500, error.what());
    }
  };
}

// What is refused before a body is read.
void PageServer::State::check_request(const httplib::Request& request) const {
  if (request.get_header_value_count("Host") != 1)
    throw PageRefusal{400, "a request needs one Host"};
  const std::string host = request.get_header_value("Host");
  if (host != fmt::format("127.0.0.1:{}", port) && host != fmt::format("localhost:{}", port))
    throw PageRefusal{403, "this page is for 127.0.0.1 alone"};
  if (request.method != "GET" && request.method != "HEAD" && request.method != "POST")
    throw PageRefusal{405, "GET and POST are answered"};
  // Many ranges of a long answer would be an answer many times as long.
  if (request.has_header("Range")) throw PageRefusal{416, "no part of an answer is sent alone"};
  if (request.has_header("Transfer-Encoding"))
    throw PageRefusal{411, "a body needs a Content-Length"};
  if (request.has_header("Content-Encoding")) throw PageRefusal{415, "no body may be packed"};
  // Forms have a limit of the library's own, and `curl -d` says that it sends one.
  const std::string type = request.get_header_value("Content-Type");
  for (const char* form : {"multipart", "x-www-form-urlencoded"})
    if (type.find(form) != std::string::npos)
      throw PageRefusal{415, "the body must be JSON: send Content-Type: application/json"};
  if (request.has_header("Content-Length")) {
    const std::string length = request.get_header_value("Content-Length");
    if (whole("Content-Length", length) < 0 || request.get_header_value_count("Content-Length") > 1)
      throw PageRefusal{400, "Content-Length is no length"};
    if (request.method != "POST" && length != "0") throw PageRefusal{400, "only POST has a body"};
    if (whole("Content-Length", length) > static_cast<Id>(most_body_bytes))
      throw PageRefusal{413, reason_of(413)};
  }
}

void PageServer::State::add_questions() {
  for (const PageFile& file : page_files()) {
    const bool first = file.name == page_files()[0].name;
    const std::string address = first ? "/" : "/" + std::string(file.name);
    server.Get(address, asking([file](const auto&, auto& response) {
                 response.set_content(file.content.data(), file.content.size(),
                                      std::string(file.type));
               }));
  }
  server.Get("/api/info", asking([this](const auto&, auto& response) {
               nlohmann::ordered_json out = explorer.info();
               std::lock_guard lock(mutex);
               out["layout"] = {{"version", version}, {"progress", progress}};
               answer(response, out);
             }));
  server.Get("/api/progress", asking([this](const auto&, auto& response) {
               std::lock_guard lock(mutex);
               answer(response, {{"version", version}, {"progress", progress}});
             }));
  server.Get("/api/places", asking([this](const auto&, auto& response) {
               std::lock_guard lock(mutex);
               response.set_content(places, "application/octet-stream");
             }));
  server.Get("/api/classes", asking([this](const auto&, auto& response) {
               const auto& classes = explorer.items().classes;
               response.set_content(reinterpret_cast<const char*>(classes.data()),
                                    classes.size() * sizeof classes[0], "application/octet-stream");
             }));
  const auto row_of = [this](const httplib::Request& request) {
    const Id id = whole("item", std::string(request.matches[1]));
    if (id < 0 || id >= explorer.graph().rows())
      throw PageRefusal{404, fmt::format("item is row {}, but the base has {} rows", id,
                                         explorer.graph().rows())};
    return id;
  };
  server.Get("/api/item/([0-9]{1,18})", asking([this, row_of](const auto& request, auto& response) {
               answer(response, explorer.item(row_of(request)));
             }));
  server.Get("/api/picture/([0-9]{1,18})",
             asking([this, row_of](const auto& request, auto& response) {
               const Id id = row_of(request);
               const auto kind = explorer.items().kind;
               if (kind != Items::Kind::pixels && kind != Items::Kind::images)
                 throw PageRefusal{404, "the items are no pictures"};
               const std::string bytes = explorer.items().picture(id);
               response.set_content(bytes, picture_type(bytes));
               response.set_header("Cache-Control", "max-age=3600");
             }));
  const auto ends_of = [this](const httplib::Request& request) {
    const Id from = parameter(request, "from"), to = parameter(request, "to");
    for (const auto& [name, id] : {std::pair("from", from), std::pair("to", to)})
      if (id < 0 || id >= explorer.graph().rows())
        throw PageRefusal{404, fmt::format("{} is row {}, but the base has {} rows", name, id,
                                           explorer.graph().rows())};
    return std::pair(from, to);
  };
  server.Get("/api/path", asking(
                              [this, ends_of](const auto& request, auto& response) {
                                const auto [from, to] = ends_of(request);
                                answer(response, explorer.path(from, to));
                              },
                              {"from", "to"}));
  server.Get("/api/gap", asking(
                             [this, ends_of](const auto& request, auto& response) {
                               const auto [from, to] = ends_of(request);
                               answer(response, explorer.gap(from, to));
                             },
                             {"from", "to"}));
  server.Get("/api/find", asking(
                              [this](const auto& request, auto& response) {
                                answer(response, explorer.find(request.get_param_value("text")));
                              },
                              {"text"}));
  server.Post("/api/search", asking([this](const auto& request, auto& response) {
                const auto [vector, k] =
                    parse_search(request.body, explorer.graph().properties().base.dim);
                answer(response, explorer.search(vector, k));
              }));
}

PageServer::State::State(const Explorer& asked, std::int64_t wanted) : explorer(asked) {
  server.set_payload_max_length(most_body_bytes);
  server.set_keep_alive_timeout(1);
  server.set_read_timeout(read_seconds);
  server.new_task_queue = [] { return new httplib::ThreadPool(server_threads); };
  server.set_default_headers(
      {{"Content-Security-Policy",
        "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"},
       {"X-Content-Type-Options", "nosniff"},
       {"Cross-Origin-Resource-Policy", "same-origin"},
       {"Referrer-Policy", "no-referrer"}});
  // Not httplib's own, which has two servers share a port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_pre_routing_handler([this](const httplib::Request& request, auto& response) {
    try {
      check_request(request);
      return httplib::Server::HandlerResponse::Unhandled;
    } catch (const PageRefusal& refusal) {
      refuse(response, refusal.status, refusal.message);
      // It would send the ranges that were asked for of this answer.
      const_cast<httplib::Request&>(request).ranges.clear();
      response.set_header("Connection", "close");  // a body may follow that nobody reads
      return httplib::Server::HandlerResponse::Handled;
    }
  });
  server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (response.body.empty()) refuse(response, response.status, reason_of(response.status));
  });
  server.set_exception_handler([](const auto&, auto& response, std::exception_ptr) {
    refuse(response, 500, "this cannot be answered");
  });
  add_questions();
  if (wanted == 0) {
    port = server.bind_to_any_port("127.0.0.1");
    if (port <= 0) throw IoError("--port 0: no port of 127.0.0.1 is free");
  } else {
    port = static_cast<int>(wanted);
    if (!server.bind_to_port("127.0.0.1", port))
      throw IoError("--port {} of 127.0.0.1 is {}", wanted, reason_of_no_port(errno));
  }
  listener = std::thread([this] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool can_serve() { return true; }

PageServer::PageServer(const Explorer& explorer, std::int64_t port) {
  if (port < 0 || port > 65535)
    throw InvalidArgument("--port must be between 0 (any) and 65535, but is {}", port);
  state_ = std::make_unique<State>(explorer, port);
}
PageServer::~PageServer() = default;

std::string PageServer::address() const {
  return fmt::format("http://127.0.0.1:{}/", state_->port);
}

void PageServer::show_places(MatrixView<float> places, double progress) {
  std::lock_guard lock(state_->mutex);
  state_->places.assign(reinterpret_cast<const char*>(places.data()),
                        static_cast<std::size_t>(places.rows() * 2) * sizeof(float));
  state_->progress = progress;
  ++state_->version;
}

#endif

}  // namespace knear::cli
