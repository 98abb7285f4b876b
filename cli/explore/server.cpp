#include "cli/explore/server.hpp"

#include <atomic>
#include <charconv>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "cli/explore/page_files.hpp"
#include "cli/explore/picture_files.hpp"
#include "cli/serve/caller.hpp"
#include "cli/serve/http_server.hpp"
#include "cli/serve/worker.hpp"
#include "knear/core/error.hpp"
#include "knear/serve/refusal.hpp"

namespace knear::cli {
namespace {

using serve::Refusal;

constexpr std::int64_t most_body_bytes = std::int64_t{4} << 20;
// Number of questions answered at the same time. A gap may take a minute, and the page needs many
// small answers meanwhile.
constexpr int question_threads = 16;
// Time limit for a head to arrive, then for a body, and for an answer to be read.
constexpr auto most_time = std::chrono::seconds(5);
constexpr const char* json_type = "application/json; charset=utf-8";
constexpr const char* bytes_type = "application/octet-stream";

HttpAnswer in_json(const nlohmann::ordered_json& value, int status = 200) {
  return {.status = status,
          .body = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace),
          .type = json_type};
}

HttpAnswer error_answer(int status, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  return in_json({{"error", message}}, status);
}

using Parameters = std::vector<std::pair<std::string, std::string>>;

// A whole number of the query. A row that is not there is for the Explorer to refuse.
Id whole(const std::string& name, const std::string& word) {
  Id value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || error != std::errc() || stop != word.data() + word.size())
    throw Refusal(400, "{} needs a whole number, but got '{}'", name, word);
  return value;
}

std::string parameter(const Parameters& parameters, std::string_view name) {
  for (const auto& [each, value] : parameters)
    if (each == name) return value;
  return "";
}

// Refuses parameters with other names, and a name that is given twice.
void check_parameters(const Parameters& parameters, const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const auto& [name, value] : parameters) {
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Refusal(
          400, "'{}' is not known here; there {}", name.substr(0, 40),
          names.empty() ? "are no parameters" : fmt::format("are {}", fmt::join(names, ", ")));
    if (!seen.insert(name).second) throw Refusal(400, "{} is there twice", name);
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
      throw Refusal(400, "the key '{}' is not known; there are vector, k", key.substr(0, 40));
    if (!seen.insert(key).second) throw Refusal(400, "the key '{}' is there twice", key);
    return true;
  };
  return nlohmann::ordered_json::parse(body, look, false);
}

// {"vector": [numbers], "k": N}
std::pair<std::vector<float>, std::int64_t> parse_question(const std::string& body,
                                                           std::int64_t dim) {
  const auto sent = parse_body(body);
  if (!sent.is_object() || !sent.contains("vector") || !sent["vector"].is_array())
    throw Refusal(400, "the body must be a JSON object with an array 'vector'");
  std::vector<float> vector;
  for (const auto& number : sent["vector"]) {
    if (!number.is_number()) throw Refusal(400, "vector has no number at place {}", vector.size());
    vector.push_back(number.get<float>());
  }
  if (std::ssize(vector) != dim)
    throw Refusal(400, "vector has {} numbers, base has {}", vector.size(), dim);
  std::int64_t k = 10;
  if (sent.contains("k")) {
    if (!sent["k"].is_number_integer() || sent["k"].get<std::int64_t>() < 1 ||
        sent["k"].get<std::int64_t>() > 100)
      throw Refusal(400, "k must be a whole number between 1 and 100");
    k = sent["k"].get<std::int64_t>();
  }
  return {std::move(vector), k};
}

struct Question {
  std::string body;
  Parameters parameters;
  Id item = no_id;  // of a path that names one
};

// The handler of a path.
struct Place {
  std::string_view allowed = "GET, HEAD";
  std::function<HttpAnswer(const Question&)> answer;
  std::vector<std::string> parameters = {};
};

}  // namespace

struct PageServer::State : HttpHandler {
  State(const Explorer& asked, std::int64_t port);
  ~State() override {
    stopping = true;
    listener.join();
    worker.finish();
  }

  std::optional<HttpAnswer> refuse(const HttpHead& head) override;
  std::int64_t memory_for(const HttpHead&, std::int64_t length) override { return 8 * length; }
  void handle(HttpRequest request, Reply reply) override;
  HttpAnswer refusal(int status, const std::string& message) override {
    return error_answer(status, message);
  }

  void add_places();
  std::pair<const Place*, Id> place_of(std::string_view path) const;
  HttpAnswer answer(const HttpRequest& request) const;

  const Explorer& explorer;
  std::map<std::string, Place, std::less<>> places_of_paths;

  std::mutex mutex;
  std::string places;  // [n x 2] f32, little-endian
  double progress = 0;
  std::int64_t version = 0;

  HttpServer server;
  std::atomic<bool> stopping = false;
  Worker worker{question_threads};
  std::thread listener;
};

// Finds the handler of a path. Keys that end in '/', except "/" itself, take a row number after
// them.
std::pair<const Place*, Id> PageServer::State::place_of(std::string_view path) const {
  if (const auto found = places_of_paths.find(path);
      found != places_of_paths.end() && (path == "/" || !path.ends_with('/')))
    return {&found->second, no_id};
  const std::size_t slash = path.rfind('/');
  const std::string_view row = path.substr(slash + 1);
  const auto found = places_of_paths.find(path.substr(0, slash + 1));
  if (slash == 0 || found == places_of_paths.end() || row.empty() || row.size() > 18 ||
      row.find_first_not_of("0123456789") != std::string_view::npos)
    throw Refusal(404, "there is nothing of this name");
  return {&found->second, whole("item", std::string(row))};
}

std::optional<HttpAnswer> PageServer::State::refuse(const HttpHead& head) {
  try {
    check_local_caller(head, "127.0.0.1");
    const auto [place, item] = place_of(head.path);
    if (place->allowed != head.method &&
        !(place->allowed == "GET, HEAD" && (head.method == "GET" || head.method == "HEAD"))) {
      HttpAnswer out = error_answer(405, fmt::format("this path is for {}, but the method is {}",
                                                     place->allowed, head.method.substr(0, 20)));
      out.fields.push_back({"Allow", std::string(place->allowed)});
      return out;
    }
    if (head.method != "POST" && head.length != 0) throw Refusal(400, "only POST has a body");
    if (head.method == "POST") check_body_type(head, false);
    if (head.path.starts_with("/api/"))
      check_parameters(decoded_query(head.query), place->parameters);
    return {};
  } catch (const Refusal& refusal) {
    return error_answer(refusal.status(), refusal.what());
  }
}

HttpAnswer PageServer::State::answer(const HttpRequest& request) const {
  try {
    const auto [place, item] = place_of(request.head.path);
    return place->answer({request.body, decoded_query(request.head.query), item});
  } catch (const Refusal& refusal) {
    return error_answer(refusal.status(), refusal.what());
  } catch (const InvalidArgument& error) {
    return error_answer(400, error.what());
  } catch (const std::exception& error) {
    return error_answer(500, error.what());
  }
}

void PageServer::State::handle(HttpRequest request, Reply reply) {
  worker.push([this, request = std::make_shared<HttpRequest>(std::move(request)), reply] {
    auto out = std::make_shared<HttpAnswer>(answer(*request));
    if (!request->memory->grow(std::ssize(out->body)))
      *out = error_answer(503, "there is no memory for another answer now");
    reply([out] { return std::move(*out); });
  });
}

void PageServer::State::add_places() {
  const auto get = [this](const std::string& path, auto f, std::vector<std::string> names = {}) {
    places_of_paths[path] = {.answer = f, .parameters = std::move(names)};
  };
  for (const PageFile& file : page_files()) {
    const bool first = file.name == page_files()[0].name;
    get(first ? "/" : "/" + std::string(file.name), [file](const Question&) -> HttpAnswer {
      return {.body = std::string(file.content), .type = std::string(file.type)};
    });
  }
  get("/api/info", [this](const Question&) {
    nlohmann::ordered_json out = explorer.info();
    std::lock_guard lock(mutex);
    out["layout"] = {{"version", version}, {"progress", progress}};
    return in_json(out);
  });
  get("/api/progress", [this](const Question&) {
    std::lock_guard lock(mutex);
    return in_json({{"version", version}, {"progress", progress}});
  });
  get("/api/places", [this](const Question&) -> HttpAnswer {
    std::lock_guard lock(mutex);
    return {.body = places, .type = bytes_type};
  });
  get("/api/classes", [this](const Question&) -> HttpAnswer {
    const auto& classes = explorer.items().classes;
    return {.body = std::string(reinterpret_cast<const char*>(classes.data()),
                                classes.size() * sizeof classes[0]),
            .type = bytes_type};
  });
  const auto check_row = [this](std::string_view name, Id id) {
    if (id < 0 || id >= explorer.graph().rows())
      throw Refusal(404, "{} is row {}, but the base has {} rows", name, id,
                    explorer.graph().rows());
  };
  get("/api/item/", [this, check_row](const Question& question) {
    check_row("item", question.item);
    return in_json(explorer.item(question.item));
  });
  get("/api/picture/", [this, check_row](const Question& question) -> HttpAnswer {
    check_row("item", question.item);
    const auto kind = explorer.items().kind;
    if (kind != Items::Kind::pixels && kind != Items::Kind::images)
      throw Refusal(404, "the items are no pictures");
    std::string bytes = explorer.items().picture(question.item);
    std::string type = picture_type(bytes);
    return {.body = std::move(bytes),
            .type = std::move(type),
            .fields = {{"Cache-Control", "max-age=3600"}}};
  });
  const auto ends_of = [check_row](const Question& question) {
    std::pair<Id, Id> out;
    for (const auto& [name, id] : {std::pair("from", &out.first), std::pair("to", &out.second)})
      *id = whole(name, parameter(question.parameters, name));
    check_row("from", out.first);
    check_row("to", out.second);
    return out;
  };
  get("/api/path",
      [this, ends_of](const Question& question) {
        const auto [from, to] = ends_of(question);
        return in_json(explorer.path(from, to));
      },
      {"from", "to"});
  get("/api/gap",
      [this, ends_of](const Question& question) {
        const auto [from, to] = ends_of(question);
        return in_json(explorer.gap(from, to));
      },
      {"from", "to"});
  get("/api/find",
      [this](const Question& question) {
        return in_json(explorer.find(parameter(question.parameters, "text")));
      },
      {"text"});
  places_of_paths["/api/search"] = {.allowed = "POST", .answer = [this](const Question& question) {
                                      const auto [vector, k] = parse_question(
                                          question.body, explorer.graph().properties().base.dim);
                                      return in_json(explorer.search(vector, k));
                                    }};
}

PageServer::State::State(const Explorer& asked, std::int64_t wanted)
    : explorer(asked),
      server({.port = static_cast<int>(wanted),
              .body = most_body_bytes,
              .timeout = most_time,
              .page_policy = "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; "
                             "form-action 'none'; frame-ancestors 'none'"}) {
  add_places();
  // The map and the classes of all rows are the largest answers.
  server.listen(*this, (std::int64_t{256} << 20) + 64 * asked.graph().rows());
  listener = std::thread([this] { server.run([this] { return stopping.load(); }); });
}

PageServer::PageServer(const Explorer& explorer, std::int64_t port) {
  if (port < 0 || port > 65535)
    throw InvalidArgument("--port must be between 0 (any) and 65535, but is {}", port);
  state_ = std::make_unique<State>(explorer, port);
}
PageServer::~PageServer() = default;

std::string PageServer::address() const { return state_->server.url() + "/"; }

void PageServer::show_places(MatrixView<float> places, double progress) {
  std::lock_guard lock(state_->mutex);
  state_->places.assign(reinterpret_cast<const char*>(places.data()),
                        static_cast<std::size_t>(places.rows() * 2) * sizeof(float));
  state_->progress = progress;
  ++state_->version;
}

}  // namespace knear::cli
