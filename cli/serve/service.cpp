#include "cli/serve/service.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <new>
#include <system_error>
#include <utility>

#include "cli/output.hpp"
#include "cli/serve/caller.hpp"
#include "cli/serve/serve_files.hpp"
#include "knear/core/error.hpp"
#include "knear/core/stop_check.hpp"
#include "knear/core/threads.hpp"
#include "knear/core/version.hpp"
#include "knear/serve/refusal.hpp"

namespace knear::cli {
namespace {

using serve::Clock;
using serve::Refusal;

// Bodies and answers from this size on are read and written by a thread of their own.
constexpr std::size_t large_bytes = std::size_t{64} << 10;
// Threads for these bodies and answers: one that takes long does not hold up the others.
constexpr int slow_threads = 4;
// Batches of this many queries and more may be calibrated by themselves (docs/recall.md), so that
// answers would depend on who else asks.
constexpr std::int64_t calibrated_batch = 256;
// Searches of more queries, or of more places in their answers, are large: they have a thread of
// their own.
constexpr std::int64_t large_queries = 64, large_places = std::int64_t{1} << 16;
// The largest part of a search that is answered at once.
constexpr std::int64_t part_queries = 1024, part_places = std::int64_t{1} << 18;
// How long a search waits for a calibration that it needs, before it is answered 503, and when the
// client should ask again.
constexpr std::chrono::seconds calibration_wait{5}, retry_after{5};
// A calibration does not depend on the recall. It is made by a search for one that is always
// reached, so that a search that asks for too much fails alone.
constexpr double least_recall = 1e-6;
// How long a calibration that failed is not tried again.
constexpr std::chrono::minutes failure_time{10};
// Memory that must stay free when rows are added.
constexpr std::int64_t spare_memory = std::int64_t{128} << 20;
constexpr const char* binary_type = "application/octet-stream";

BodyForm form_of(const HttpHead& head) {
  return body_type(head) == binary_type ? BodyForm::binary : BodyForm::json;
}

HttpAnswer in_form(std::string body, BodyForm form) {
  return {.body = std::move(body),
          .type = form == BodyForm::binary ? binary_type : "application/json"};
}

// In a time that does not tell how much of it is right.
bool same_text(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  return difference == 0;
}

// 405: the path exists, but not for this method.
class WrongMethod : public Refusal {
 public:
  WrongMethod(const char* methods, const std::string& method)
      : Refusal(405, "this path is for {}, but the method is {}", methods, method.substr(0, 20)),
        allowed(methods) {}
  const std::string allowed;
};

// 503 that says when to ask again.
class Later : public Refusal {
 public:
  template <class... Args>
  explicit Later(std::chrono::seconds after, fmt::format_string<Args...> format, Args&&... args)
      : Refusal(503, format, std::forward<Args>(args)...), seconds(after) {}
  const std::chrono::seconds seconds;
};

AnyMatrix first_queries(const AnyMatrix& queries, std::int64_t most) {
  AnyMatrix out(queries.type(), std::min(most, queries.rows()), queries.cols());
  if (out.rows() > 0)
    std::memcpy(out.row(0), queries.view().data(), static_cast<std::size_t>(out.view().bytes()));
  return out;
}

constexpr std::int64_t divided_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Returns the number of parts of a search. Each part gets at least `least` queries, unless the
// search has fewer.
std::int64_t parts_of(std::int64_t queries, std::int64_t k, std::int64_t least) {
  const std::int64_t wanted =
      std::max(divided_up(queries, part_queries), divided_up(queries * k, part_places));
  return std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(1, queries / least));
}

}  // namespace

struct Service::Call {
  HttpRequest request = {};
  Reply reply = {};
  Route route = {};
  std::atomic<bool> answered = false;
  // In deadlines_; guarded by mutex_.
  std::optional<std::multimap<Clock::time_point, std::weak_ptr<Call>>::iterator> deadline = {};
};

Service::Service(ServiceOptions options, std::vector<std::unique_ptr<ServedIndex>> indexes)
    : options_(std::move(options)),
      queue_({.waiting = options_.waiting, .batch = options_.batch}),
      large_queue_({.waiting = options_.waiting, .batch = options_.batch}) {
  for (auto& index : indexes) {
    const std::string name = index->name();
    indexes_.emplace(name, std::move(index));
  }
}

Service::~Service() { finish(); }

void Service::start(HttpServer& server) {
  server_ = &server;
  changer_ = std::make_unique<Worker>();
  slow_ = std::make_unique<Worker>(slow_threads);
  keeper_ = std::make_unique<Worker>();
  for (const auto& [name, index] : indexes_)
    preparers_.emplace(index.get(), std::make_unique<Worker>());
  searcher_ = std::thread([this] { search_batches(queue_); });
  large_searcher_ = std::thread([this] { search_batches(large_queue_); });
}

void Service::finish() {
  stop_preparing();
  // They put searches back into the queues, so they end first; the last call of tick() answers
  // those that need a preparation after that.
  for (const auto& [index, worker] : preparers_) worker->finish();
  queue_.close();
  large_queue_.close();
  for (std::thread* searcher : {&searcher_, &large_searcher_})
    if (searcher->joinable()) searcher->join();
  tick();
  for (auto* worker : {&slow_, &changer_, &keeper_})
    if (*worker) (*worker)->finish();
}

std::string_view Service::name_of_action(Action action) {
  static constexpr std::string_view names[] = {"search", "add",        "remove",  "replace",
                                               "reload", "checkpoint", "about",   "indexes",
                                               "health", "metrics",    "openapi", "page"};
  return names[static_cast<std::size_t>(action)];
}

Service::Route Service::route_of(const HttpHead& head) const {
  const std::string_view path = head.path;
  const auto get = [&] {
    if (head.method != "GET" && head.method != "HEAD") throw WrongMethod("GET, HEAD", head.method);
  };
  if (head.has_query) throw Refusal(400, "no path takes a query string");
  static constexpr std::pair<std::string_view, Action> plain[] = {
      {"/", Action::page},
      {"/health", Action::health},
      {"/metrics", Action::metrics},
      {"/openapi.json", Action::openapi},
      {"/indexes", Action::indexes}};
  for (const auto& [name, action] : plain)
    if (path == name) {
      get();
      return {action};
    }
  constexpr std::string_view folder = "/indexes/";
  if (path.starts_with(folder)) {
    const std::string_view rest = path.substr(folder.size());
    const std::size_t slash = rest.find('/');
    const auto found = indexes_.find(rest.substr(0, slash));
    if (found == indexes_.end()) throw Refusal(404, "there is no index of this name");
    if (slash == std::string_view::npos) {
      get();
      return {Action::about, found->second.get()};
    }
    for (const Action action : {Action::search, Action::add, Action::remove, Action::replace,
                                Action::reload, Action::checkpoint})
      if (rest.substr(slash + 1) == name_of_action(action)) {
        if (head.method != "POST") throw WrongMethod("POST", head.method);
        return {action, found->second.get()};
      }
  }
  throw Refusal(404, "there is nothing under this path");
}

void Service::check_caller(const HttpHead& head) const {
  if (options_.token.empty()) return check_local_caller(head, options_.listen);
  // These paths hold no data and need no token.
  for (const std::string_view open : {"/", "/health", "/openapi.json"})
    if (head.path == open) return;
  constexpr std::string_view scheme = "bearer ";  // in any case: RFC 9110, 11.1
  const std::string sent =
      head.count("authorization") == 1 ? head.value("authorization") : std::string();
  if (small_letters(sent.substr(0, scheme.size())) != scheme ||
      !same_text(std::string_view(sent).substr(scheme.size()), options_.token))
    throw Refusal(401, "the token of --token-file is needed: Authorization: Bearer TOKEN");
}

std::optional<HttpAnswer> Service::refuse(const HttpHead& head) {
  try {
    check_caller(head);
    const Route route = route_of(head);
    if (head.method != "POST" && head.length != 0) throw Refusal(400, "only POST has a body");
    if (head.method == "POST")
      check_body_type(head, route.action == Action::search || route.action == Action::add ||
                                route.action == Action::replace);
    if (route.action == Action::add || route.action == Action::remove ||
        route.action == Action::replace || route.action == Action::checkpoint)
      if (!route.index->durable())
        throw Refusal(409, "index {} takes no changes: --read-only is on", route.index->name());
    return {};
  } catch (...) {
    HttpAnswer out = answer_of(std::current_exception());
    metrics_.count_request("refused", out.status, 0, 0, std::ssize(out.body));
    return out;
  }
}

std::int64_t Service::memory_for(const HttpHead& head, std::int64_t length) {
  // The body, and its rows. A number of JSON may be two characters, "1,", and becomes four bytes in
  // an array that grows, and four in a matrix.
  return (form_of(head) == BodyForm::binary ? 2 : 8) * length;
}

HttpAnswer Service::refusal(int status, const std::string& message) {
  metrics_.count_request("refused", status, 0, 0, 0);
  return {.status = status, .body = fmt::format("{{\"error\":{}}}\n", json_text(message))};
}

HttpAnswer Service::answer_of(std::exception_ptr error) {
  int status = 500;
  std::string message;
  std::vector<HttpField> fields;
  try {
    std::rethrow_exception(error);
  } catch (const WrongMethod& refused) {
    status = refused.status(), message = refused.what();
    fields.push_back({"Allow", refused.allowed});
  } catch (const Later& refused) {
    status = refused.status(), message = refused.what();
    fields.push_back({"Retry-After", std::to_string(refused.seconds.count())});
  } catch (const Refusal& refused) {
    status = refused.status(), message = refused.what();
  } catch (const InvalidArgument& wrong) {
    status = 400, message = wrong.what();
  } catch (const ShapeMismatch& wrong) {
    status = 400, message = wrong.what();
  } catch (const MemoryBudgetError& short_of) {
    status = 503, message = short_of.what();
  } catch (const IoError& refused) {
    status = 503, message = refused.what();
  } catch (const std::system_error& refused) {  // of files too
    status = 503, message = refused.what();
  } catch (const std::bad_alloc&) {
    status = 503, message = "out of memory";
  } catch (const std::exception& other) {
    message = other.what();
  } catch (...) {
    message = "this cannot be answered";
  }
  std::replace(message.begin(), message.end(), '\n', ' ');
  if (status == 500) {
    metrics_.count_internal_error();
    warn("internal error: {}", message);
  }
  return {.status = status,
          .body = fmt::format("{{\"error\":{}}}\n", json_text(message)),
          .fields = std::move(fields)};
}

HttpAnswer Service::counted(Call& call, HttpAnswer answer) {
  const double seconds = std::chrono::duration<double>(Clock::now() - call.request.came).count();
  metrics_.count_request(name_of_action(call.route.action), answer.status, seconds,
                         std::max<std::int64_t>(0, call.request.head.length),
                         std::ssize(answer.body));
  return answer;
}

void Service::answer(const CallPointer& call, std::function<HttpAnswer()> f, bool large) {
  if (call->answered.exchange(true)) return;  // its time was over
  remove_deadline(*call);
  const auto guarded = [this, call, f = std::move(f)]() -> HttpAnswer {
    try {
      return counted(*call, f());
    } catch (...) {
      return counted(*call, answer_of(std::current_exception()));
    }
  };
  if (!large) return call->reply(guarded);
  slow_->push([call, guarded] {
    call->reply([ready = std::make_shared<HttpAnswer>(guarded())] { return std::move(*ready); });
  });
}

void Service::handle(HttpRequest request, Reply reply) {
  auto call = std::make_shared<Call>();
  call->request = std::move(request), call->reply = std::move(reply);
  try {
    call->route = route_of(call->request.head);
  } catch (...) {  // refuse() has been through this
    return call->reply([this, error = std::current_exception()] { return answer_of(error); });
  }
  if (call->request.body.size() < large_bytes) return parse(call);
  slow_->push([this, call] { parse(call); });
}

void Service::parse(const CallPointer& call) {
  const auto with = [&](std::function<HttpAnswer()> f) { answer(call, std::move(f)); };
  ServedIndex* const index = call->route.index;
  try {
    switch (call->route.action) {
      case Action::search:
        return search(call);
      case Action::add:
      case Action::remove:
      case Action::replace:
        return change(call);
      case Action::reload: {
        const bool discard = parse_reload(call->request.body);
        return keeper_->push([this, call, index, discard] {
          bool reloaded = false;
          std::exception_ptr error;
          try {
            reloaded = index->reload(discard);
            if (reloaded) forget_failures(index);
          } catch (...) {
            error = std::current_exception();
          }
          answer(call, [index, reloaded, error]() -> HttpAnswer {
            if (error) std::rethrow_exception(error);
            return {.body = fmt::format("{{\"reloaded\":{},\"rows\":{}}}\n", reloaded,
                                        index->about().rows)};
          });
        });
      }
      case Action::checkpoint: {
        parse_nothing(call->request.body);
        return keeper_->push([this, call, index] {
          std::exception_ptr error;
          try {
            index->durable()->checkpoint();
          } catch (...) {
            error = std::current_exception();
          }
          answer(call, [index, error]() -> HttpAnswer {
            if (error) std::rethrow_exception(error);
            return {.body = fmt::format("{{\"log_bytes\":{}}}\n", index->durable()->log_bytes())};
          });
        });
      }
      case Action::about:
        return with([this, index]() -> HttpAnswer { return {.body = about_text(*index) + "\n"}; });
      case Action::indexes:
        return with([this]() -> HttpAnswer {
          std::string out = "{\"indexes\":[";
          for (const auto& [name, each] : indexes_)
            out += (out.back() == '[' ? "" : ",") + about_text(*each);
          return {.body = out + "]}\n"};
        });
      case Action::health:
        return with([]() -> HttpAnswer {
          return {.body = "{\"status\":\"ok\",\"version\":\"" KNEAR_VERSION "\"}\n"};
        });
      case Action::metrics:
        return with([this]() -> HttpAnswer {
          return {.body = metrics_text(), .type = "text/plain; version=0.0.4; charset=utf-8"};
        });
      case Action::openapi:
        return with(
            []() -> HttpAnswer { return {.body = std::string(serve_file("openapi.json"))}; });
      case Action::page:
        return with([]() -> HttpAnswer {
          return {.body = std::string(serve_file("page.html")), .type = "text/html; charset=utf-8"};
        });
    }
  } catch (...) {
    answer(call,
           [error = std::current_exception()]() -> HttpAnswer { std::rethrow_exception(error); });
  }
}

void Service::search(const CallPointer& call) {
  ServedIndex* const index = call->route.index;
  const ServedIndex::Shape shape = index->shape();
  const BodyForm form = form_of(call->request.head);
  SearchBody body = parse_search(call->request.body, form, shape.rows, options_.limits);
  call->request.body = {};
  const bool below = body.recall && *body.recall < 1;
  const std::int64_t queries = body.queries.rows(), k = body.k;
  const std::int64_t bytes = answer_bytes(queries, below ? calibrated_k(k) : k, form);
  if (call->request.memory->bytes() + bytes > server_->memory().most_of_one())
    throw Refusal(
        413,
        "an answer of {} queries x k = {} takes {} bytes, but --memory is {}: an eighth is "
        "for small requests",
        queries, k, bytes, server_->memory().limit());
  if (!call->request.memory->grow(bytes))
    throw Refusal(503, "an answer of {} queries x k = {} takes {} bytes, which are not free now",
                  queries, k, bytes);
  const auto timeout =
      body.timeout_ms > 0 ? std::chrono::milliseconds(body.timeout_ms) : options_.timeout;
  const bool is_large = queries > large_queries || queries * k > large_places;
  const std::int64_t together = std::max<std::int64_t>(1, part_places / k);
  const auto deadline = call->request.came + timeout;
  const std::int64_t parts = parts_of(
      queries, k, below && queries >= calibrated_batch ? calibrated_batch : std::int64_t{1});
  // All parts of a search see the rows that the first one saw.
  const auto kept = parts > 1 ? std::make_shared<ServedIndex::State>() : nullptr;
  serve::SearchJob job{
      .search =
          [index, kept](AnyMatrixView rows, std::int64_t count, const SearchOptions& options,
                        KnnReport* report) {
            ServedIndex::State state = kept && *kept ? *kept : index->state();
            Neighbors near = ServedIndex::search(state, rows, count, options, report);
            if (kept) *kept = std::move(state);
            return near;
          },
      .index = index,
      .k = k,
      .probes = body.probes,
      .recall = body.recall,
      .certify = body.certify,
      .traffic = std::move(body.traffic),
      .filter = body.filter ? IdFilter::of_ids(*body.filter) : IdFilter(),
      .queries = std::move(body.queries),
      .may_go_together = !below || (shape.by_query && queries < calibrated_batch),
      .most_together = below ? std::min(together, calibrated_batch - 1) : together,
      .came = call->request.came,
      .deadline = deadline,
      .parts = parts,
      .is_over = [call] { return call->answered.load(); },
      .has_hung_up = [hung_up = call->request.hung_up] { return hung_up->load(); },
      .done =
          [this, call, form, queries, bytes](serve::JobAnswer found) {
            const bool large = static_cast<std::size_t>(bytes) >= 4 * large_bytes;
            answer(
                call,
                [found = std::move(found), form, queries]() -> HttpAnswer {
                  if (found.error) std::rethrow_exception(found.error);
                  return in_form(write_answer(found.found->near, found.found->certified,
                                              found.begin, found.begin + queries, form),
                                 form);
                },
                large);
          }};
  add_deadline(call, deadline);
  if (!(is_large ? large_queue_ : queue_).push(job))
    throw Refusal(503, "{} searches wait already", options_.waiting);
}

void Service::add_deadline(const CallPointer& call, Clock::time_point deadline) {
  std::lock_guard lock(mutex_);
  call->deadline = deadlines_.emplace(deadline, call);
}

void Service::remove_deadline(Call& call) {
  std::lock_guard lock(mutex_);
  if (call.deadline) deadlines_.erase(*call.deadline);
  call.deadline.reset();
}

void Service::tick() {
  std::vector<CallPointer> late;
  std::vector<Parked> waited;
  const auto now = Clock::now();
  {
    std::lock_guard lock(mutex_);
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      if (CallPointer call = deadlines_.begin()->second.lock()) {
        call->deadline.reset();
        late.push_back(std::move(call));
      }
      deadlines_.erase(deadlines_.begin());
    }
    if (parked_ > 0)
      for (auto& [key, preparation] : preparations_) {
        const auto stays = [&](const Parked& each) {
          return !stops_preparing_ && now < each.since + calibration_wait && !each.job.is_over();
        };
        auto& waiting = preparation.waiting;
        const auto gone = std::stable_partition(waiting.begin(), waiting.end(), stays);
        std::move(gone, waiting.end(), std::back_inserter(waited));
        waiting.erase(gone, waiting.end());
      }
    parked_ -= std::ssize(waited);
  }
  for (const CallPointer& call : late)
    answer(call, []() -> HttpAnswer {
      throw Refusal(504, "the search had not ended when its time was over");
    });
  for (Parked& each : waited)
    each.job.done({.error = std::make_exception_ptr(Later(
                       retry_after,
                       "recall of {} neighbours is being calibrated: ask again, or with recall 1",
                       each.job.k))});
}

ServedIndex* Service::index_at(const void* name) const {
  for (const auto& [own_name, index] : indexes_)
    if (index.get() == name) return index.get();
  return nullptr;
}

std::exception_ptr Service::too_slow_to_calibrate(std::int64_t k,
                                                  std::chrono::seconds after) const {
  return std::make_exception_ptr(
      Later(after,
            "recall of {} neighbours could not be calibrated in {} seconds (--max-calibration): "
            "'knear tune' does that beforehand, and recall 1 needs none",
            k, std::chrono::duration<double>(options_.calibration).count()));
}

void Service::park(serve::SearchJob job, serve::SearchQueue& queue) {
  ServedIndex* const index = index_at(job.index);
  const std::int64_t k = calibrated_k(job.k);
  std::exception_ptr refused;
  {
    std::lock_guard lock(mutex_);
    Preparation& preparation = preparations_[{job.index, k}];
    const auto left = preparation.not_before - Clock::now();
    if (!preparation.running && left > Clock::duration::zero()) {
      refused = too_slow_to_calibrate(k, std::chrono::ceil<std::chrono::seconds>(left));
    } else if (parked_ >= options_.waiting) {
      refused = std::make_exception_ptr(
          Later(retry_after, "{} searches wait for a calibration already", parked_));
    } else {
      SearchOptions options;
      options.method.recall = least_recall;
      options.method.traffic = job.traffic;
      PreparingSearch how{.key = {job.index, k},
                          .index = index,
                          .queries = first_queries(job.queries, 1),
                          .k = k,
                          .options = std::move(options),
                          .has_limit = true};
      preparation.waiting.push_back({std::move(job), &queue, Clock::now()});
      ++parked_;
      begin_preparing(preparation, std::move(how));
    }
  }
  if (refused) job.done({.error = refused});
}

void Service::begin_preparing(Preparation& preparation, PreparingSearch how) {
  if (preparation.running) return;
  preparation.running = true;
  how.options.threads = std::max(1, resolve_threads(options_.threads) / 2);
  preparers_.at(how.index)->push(
      [this, how = std::make_shared<PreparingSearch>(std::move(how))] { prepare(*how); });
}

void Service::forget_failures(const void* index) {
  std::lock_guard lock(mutex_);
  for (auto& [key, preparation] : preparations_)
    if (key.first == index) preparation.not_before = {};
}

// Runs a search that makes what others need, and drops its answer.
void Service::prepare(const PreparingSearch& how) {
  const auto start = Clock::now(), end = start + options_.calibration;
  bool late = false;
  std::exception_ptr error;
  try {
    const StopCheck check([&] {
      if (stops_preparing_) throw Later(retry_after, "the server ends");
      if (!how.has_limit || Clock::now() < end) return;
      late = true;
      std::rethrow_exception(too_slow_to_calibrate(how.k, failure_time));
    });
    ServedIndex::search(how.index->state(), how.queries, how.k, how.options, nullptr);
  } catch (...) {
    error = std::current_exception();
  }
  std::vector<Parked> waiting;
  {
    std::lock_guard lock(mutex_);
    Preparation& preparation = preparations_[how.key];
    preparation.running = false;
    ++prepared_;
    waiting.swap(preparation.waiting);
    parked_ -= std::ssize(waiting);
    const auto now = Clock::now();
    if (late || (error && !how.has_limit))
      preparation.not_before = now + failure_time;
    else if (!how.has_limit)  // It takes a tenth of the time at most, whatever comes of it.
      preparation.not_before = now + 9 * (now - start);
  }
  for (Parked& each : waiting)
    if (error)
      each.job.done({.error = error});
    else
      each.queue->put_back(std::move(each.job));
}

void Service::check_memory_for(std::int64_t bytes) const {
  const std::int64_t available = available_memory();
  // Rows, their packed form, and the log's frame while it is written.
  if (available < spare_memory + 4 * bytes)
    throw Refusal(503, "{} bytes of rows are too many for the memory that is free", bytes);
}

void Service::change(const CallPointer& call) {
  ServedIndex* const index = call->route.index;
  const Action action = call->route.action;
  Waiting waiting{.call = call};
  if (action == Action::remove) {
    waiting.change = {.kind = serve::ChangeKind::remove,
                      .ids = parse_ids(call->request.body, options_.limits)};
  } else {
    ChangeBody body =
        parse_vectors(call->request.body, form_of(call->request.head), index->shape().rows,
                      options_.limits, action == Action::replace);
    if (action == Action::add && body.ids && body.ids->empty() && body.vectors.rows() > 0)
      throw Refusal(400, "ids has 0 numbers, but vectors has {} rows", body.vectors.rows());
    check_memory_for(body.vectors.view().bytes());
    waiting.change = {
        .kind = action == Action::add ? serve::ChangeKind::add : serve::ChangeKind::replace,
        .ids = std::move(body.ids).value_or(std::vector<Id>{}),
        .vectors = std::move(body.vectors)};
  }
  call->request.body = {};
  {
    std::lock_guard lock(mutex_);
    if (waiting_changes_ >= options_.waiting)
      throw Refusal(503, "{} changes wait already", waiting_changes_);
    ++waiting_changes_;
    changes_[index].push_back(std::move(waiting));
  }
  changer_->push([this] { commit(); });
}

// All waiting changes go to disk together; later calls of this function find none.
void Service::commit() {
  std::map<const void*, std::vector<Waiting>> all;
  {
    std::lock_guard lock(mutex_);
    all.swap(changes_);
    waiting_changes_ = 0;
  }
  for (auto& [key, waiting] : all) {
    ServedIndex* const index = waiting.front().call->route.index;
    std::vector<serve::Change> changes;
    for (Waiting& each : waiting) changes.push_back(std::move(each.change));
    std::vector<serve::Outcome> outcomes;
    try {
      outcomes = index->durable()->apply(std::move(changes));
      metrics_.count_commit(std::ssize(outcomes));
    } catch (...) {
      outcomes.assign(waiting.size(), {.error = std::current_exception()});
    }
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      const CallPointer& call = waiting[i].call;
      auto outcome = std::make_shared<serve::Outcome>(std::move(outcomes[i]));
      answer(call, [call, outcome]() -> HttpAnswer {
        if (outcome->error) std::rethrow_exception(outcome->error);
        if (call->route.action == Action::add) {
          const BodyForm form = form_of(call->request.head);
          return in_form(write_ids(outcome->ids, form), form);
        }
        if (call->route.action == Action::remove)
          return {.body = fmt::format("{{\"removed\":{}}}\n", outcome->removed)};
        return {.body = "{}\n"};
      });
    }
    if (!index->durable()->checkpoint_is_due()) continue;
    keeper_->push([index] {
      if (!index->durable()->checkpoint_is_due()) return;
      try {
        index->durable()->checkpoint();
      } catch (const std::exception& error) {
        warn("no checkpoint of index {}: {}", index->name(), error.what());
      }
    });
  }
}

// Small searches that came in the last second leave a large one all threads but one, so that they
// find a processor.
int Service::threads_for(const serve::SearchQueue& queue) {
  const int threads = resolve_threads(options_.threads);
  const auto now = Clock::now().time_since_epoch().count();
  if (&queue != &large_queue_) {
    last_small_ = now;
    return options_.threads;
  }
  if (now - last_small_ > Clock::duration(std::chrono::seconds(1)).count()) return options_.threads;
  return std::max(1, threads - 1);
}

void Service::search_batches(serve::SearchQueue& queue) {
  while (std::optional<serve::Batch> batch = queue.take()) try {
      const void* const index = batch->jobs.empty() ? nullptr : batch->jobs.front().index;
      PreparingSearch how;
      if (index) {
        const serve::SearchJob& first = batch->jobs.front();
        how.index = index_at(index);
        // What pays for a batch, as a prefix, is not made for one query of it.
        const ServedIndex::Shape shape = how.index->shape();
        how.queries = first_queries(first.queries, shape.by_query ? 1 : part_queries);
        if (shape.has_graph) {  // which does not depend on k and recall
          how.key = {index, 0}, how.k = 1, how.options.method.ef = 8;
        } else {
          how.key = {index, first.k}, how.k = first.k;
          how.options.method.recall = first.recall;
          how.options.method.traffic = first.traffic;
        }
      }
      const auto start = Clock::now();
      serve::BatchReport report = serve::answer(std::move(*batch), threads_for(queue));
      if (report.jobs == 0) continue;
      for (serve::SearchJob& job : report.unfinished) queue.put_back(std::move(job));
      for (serve::SearchJob& job : report.unprepared) park(std::move(job), queue);
      if (!report.unprepared.empty()) continue;
      if (report.lacks_something) {
        std::lock_guard lock(mutex_);
        Preparation& preparation = preparations_[how.key];
        if (preparation.not_before <= Clock::now()) begin_preparing(preparation, std::move(how));
      }
      queue.finished(Clock::now() - start, report.answered);
      metrics_.count_batch(report.jobs, report.rows, report.seconds);
      if (!report.found) continue;
      // Not the answers, which may be large.
      auto plan = std::make_shared<serve::Found>();
      plan->report = report.found->report;
      plan->report.promise.uncertified.clear();
      std::lock_guard lock(mutex_);
      last_[index] = std::move(plan);
      last_seconds_[index] = report.seconds;
    } catch (const std::bad_alloc&) {  // what was not answered by now never will be
      warn("out of memory in a search");
    }
}

namespace {

// Returns one report for each traffic and k. Shards with a graph each, and queries of float64
// beside those of float32, have several: the one that measured the lowest recall counts.
std::vector<AuditReport> least_of_each(const std::vector<AuditReport>& audits) {
  std::vector<AuditReport> out;
  for (const AuditReport& one : audits) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const AuditReport& other) {
      return other.traffic == one.traffic && other.k == one.k;
    });
    if (same == out.end())
      out.push_back(one);
    else if (one.audited_queries > 0 &&
             (same->audited_queries == 0 || one.measured_recall < same->measured_recall))
      *same = one;
  }
  return out;
}

std::string audits_text(const std::vector<AuditReport>& audits) {
  std::string out;
  for (const AuditReport& one : audits)
    fmt::format_to(std::back_inserter(out),
                   "{}{{\"traffic\":{},\"k\":{},\"served_queries\":{},\"audited_queries\":{},"
                   "\"recall\":{},\"measured_recall\":{},\"low\":{},\"high\":{}}}",
                   out.empty() ? "" : ",", json_text(one.traffic), one.k, one.served_queries,
                   one.audited_queries, one.recall, one.measured_recall, one.low, one.high);
  return out;
}

}  // namespace

std::string Service::about_text(const ServedIndex& index) const {
  const ServedIndex::About about = index.about();
  std::string out = fmt::format(
      "{{\"name\":{},\"kind\":{},\"dim\":{},\"metric\":\"{}\",\"rows\":{},\"element_type\":\"{}\","
      "\"next_id\":{},\"version\":{},\"memory_bytes\":{},\"writable\":{},\"log_bytes\":{},"
      "\"checkpoints\":{},\"needs_recall\":{},\"audits\":[{}],\"last_search\":",
      json_text(index.name()), json_text(about.kind), about.dim, name_of(about.metric), about.rows,
      name_of(about.type), about.next_id, about.version, about.memory_bytes, about.writable,
      about.log_bytes, about.checkpoints, index.shape().by_query, audits_text(about.audits));
  std::lock_guard lock(mutex_);
  const auto found = last_.find(&index);
  if (found == last_.end()) return out + "null}";
  const KnnReport& report = found->second->report;
  const auto number = [](double value) {
    return std::isfinite(value) ? fmt::format("{}", value) : std::string("null");
  };
  return out +
         fmt::format(
             "{{\"queries\":{},\"k\":{},\"method\":{},\"first_pass\":{},\"isa\":{},\"threads\":{},"
             "\"seconds\":{},\"survivors_per_query\":{},\"certified_queries\":{},"
             "\"promised_recall\":{},\"expected_recall\":{},\"recall_argument\":{},\"probes\":{},"
             "\"probed_rows\":{},"
             "\"multiply_adds\":{},\"bytes_read\":{},\"memory_bytes\":{},\"note\":{}}}}}",
             report.queries, report.k, json_text(report.method), json_text(report.scan.first_pass),
             json_text(report.scan.isa), report.threads, number(last_seconds_.at(&index)),
             number(report.scan.survivors_per_query), report.promise.certified_queries,
             number(report.promise.promised_recall), number(report.promise.expected_recall),
             json_text(report.promise.recall_argument), number(report.lists.probes),
             number(report.scan.probed_rows), number(report.scan.multiply_adds),
             number(report.scan.bytes_read), report.memory_bytes, json_text(report.note));
}

std::string Service::metrics_text() const {
  using Gauge = serve::Metrics::Gauge;
  std::vector<Gauge> gauges;
  const auto add = [&](std::string name, std::string help, std::int64_t value) {
    gauges.push_back({std::move(name), std::move(help), "", static_cast<double>(value)});
  };
  add("knear_waiting_searches", "Searches that wait for a batch.",
      queue_.waiting() + large_queue_.waiting());
  {
    std::lock_guard lock(mutex_);
    add("knear_waiting_for_calibration", "Searches that wait for a calibration.", parked_);
    gauges.push_back({"knear_calibrations_total",
                      "Calibrations of recall that searches needed first, and graphs and lists.",
                      "", static_cast<double>(prepared_), true});
    add("knear_waiting_changes", "Changes that wait for the disk.", waiting_changes_);
  }
  add("knear_connections", "Open connections.", server_->connections());
  add("knear_reserved_bytes", "Memory that requests hold.", server_->memory().used());
  add("knear_reserved_limit_bytes", "What they may hold (--memory).", server_->memory().limit());
  std::vector<std::pair<std::string, ServedIndex::About>> all;
  for (const auto& [name, index] : indexes_)
    all.emplace_back(fmt::format("index=\"{}\"", serve::Metrics::escaped(name)), index->about());
  const auto of_each = [&](const char* name, const char* help, auto member,
                           bool counts_up = false) {
    for (const auto& [label, about] : all)
      gauges.push_back({name, help, label, static_cast<double>(about.*member), counts_up});
  };
  using About = ServedIndex::About;
  of_each("knear_rows", "Rows of an index.", &About::rows);
  of_each("knear_index_bytes", "Memory of an index.", &About::memory_bytes);
  of_each("knear_log_bytes", "Logs of changes that no checkpoint has folded in.",
          &About::log_bytes);
  of_each("knear_checkpoints_total", "Checkpoints since the start.", &About::checkpoints, true);
  const auto of_audits = [&](const char* name, const char* help, auto member,
                             bool counts_up = false) {
    for (const auto& [label, about] : all)
      for (const AuditReport& one : least_of_each(about.audits))
        if (counts_up || one.audited_queries > 0)
          gauges.push_back({name, help,
                            fmt::format("{},traffic=\"{}\",k=\"{}\"", label,
                                        serve::Metrics::escaped(one.traffic), one.k),
                            static_cast<double>(one.*member), counts_up});
  };
  of_audits("knear_traffic_queries_total", "Queries of a traffic for a recall below 1.",
            &AuditReport::served_queries, true);
  of_audits("knear_audited_queries", "Queries behind the measured recall.",
            &AuditReport::audited_queries);
  of_audits("knear_asked_recall", "Recall that the latest search of the traffic asked for.",
            &AuditReport::recall);
  of_audits("knear_measured_recall", "Mean recall of the audited queries.",
            &AuditReport::measured_recall);
  of_audits("knear_measured_recall_low", "Lower end of its 95 % interval.", &AuditReport::low);
  of_audits("knear_measured_recall_high", "Upper end of its 95 % interval.", &AuditReport::high);
  return metrics_.text(gauges);
}

}  // namespace knear::cli
