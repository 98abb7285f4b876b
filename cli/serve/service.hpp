// cli/serve/service.hpp -- what requests to `knear serve` mean: paths, the token, searches in
// batches, changes that go to disk together, figures.
//
//   Service service(options);
//   HttpServer server({...});
//   server.listen(service, 1 << 30);
//   service.start(server);
//   server.run(interrupted);
//   service.finish();
//
// Threads: the event loop parses small bodies and writes small answers; one thread answers small
// searches and one large ones, in parts, each with as many of the library's threads as --threads
// says; one makes changes, a few parse large bodies and write large answers, one does checkpoints
// and reloads. What a search would have to make first for all that follow, such as a curve of
// recall, is made by one thread for each index, within a time limit.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/serve/http_server.hpp"
#include "cli/serve/requests.hpp"
#include "cli/serve/served_index.hpp"
#include "cli/serve/worker.hpp"
#include "knear/serve/metrics.hpp"
#include "knear/serve/search_batch.hpp"

namespace knear::cli {

struct ServiceOptions {
  std::string token = {};  // empty: none is asked for
  std::string listen = "127.0.0.1";
  int threads = 0;
  RequestLimits limits = {};
  std::int64_t waiting = 4096, batch = 1024;
  std::chrono::milliseconds timeout{30000};
  std::chrono::milliseconds calibration{60000};  // time limit of one
};

class Service : public HttpHandler {
 public:
  Service(ServiceOptions options, std::vector<std::unique_ptr<ServedIndex>> indexes);
  ~Service() override;

  void start(HttpServer& server);
  // Gives up what is being made for searches to come, and answers those that wait for it. Threads:
  // any.
  void stop_preparing() { stops_preparing_ = true; }
  // Ends its threads, once all that waits is done.
  void finish();

  std::optional<HttpAnswer> refuse(const HttpHead& head) override;
  std::int64_t memory_for(const HttpHead& head, std::int64_t length) override;
  void handle(HttpRequest request, Reply reply) override;
  HttpAnswer refusal(int status, const std::string& message) override;
  // Answers searches whose time is over, wherever they are, and those that have waited long enough
  // for a calibration.
  void tick() override;

 private:
  enum class Action {
    search,
    add,
    remove,
    replace,
    reload,
    checkpoint,
    about,
    indexes,
    health,
    metrics,
    openapi,
    page
  };
  struct Route {
    Action action;
    ServedIndex* index = nullptr;
  };
  // A request until it is answered.
  struct Call;
  using CallPointer = std::shared_ptr<Call>;
  struct Waiting {
    CallPointer call = {};
    serve::Change change = {};
    bool ids_given = false;
  };
  // What a search has to have made first: of an index, for calibrated_k() of its k, or 0 for a
  // graph, which does not depend on k.
  using PreparationKey = std::pair<const void*, std::int64_t>;
  struct Parked {
    serve::SearchJob job = {};
    serve::SearchQueue* queue = nullptr;  // where it came from
    serve::Clock::time_point since = {};
  };
  struct Preparation {
    bool running = false;
    std::vector<Parked> waiting = {};
    // After a failure: when it may be tried again.
    serve::Clock::time_point not_before = {};
  };
  // A search that makes it.
  struct PreparingSearch {
    PreparationKey key = {};
    ServedIndex* index = nullptr;
    AnyMatrix queries = {};
    std::int64_t k = 0;
    SearchOptions options = {};
    bool has_limit = false;
  };

  Route route_of(const HttpHead& head) const;
  void check_caller(const HttpHead& head) const;
  static std::string_view name_of_action(Action action);
  void parse(const CallPointer& call);
  void search(const CallPointer& call);
  void change(const CallPointer& call);
  void commit();
  void check_memory_for(std::int64_t bytes) const;
  // Answers with what f returns, called by the loop, or by a thread of its own if it is large.
  void answer(const CallPointer& call, std::function<HttpAnswer()> f, bool large = false);
  HttpAnswer answer_of(std::exception_ptr error);
  HttpAnswer counted(Call& call, HttpAnswer answer);
  std::string metrics_text() const;
  std::string about_text(const ServedIndex& index) const;
  ServedIndex* index_at(const void* name) const;  // of a job
  std::exception_ptr too_slow_to_calibrate(std::int64_t k, std::chrono::seconds after) const;
  int threads_for(const serve::SearchQueue& queue);
  void search_batches(serve::SearchQueue& queue);
  void park(serve::SearchJob job, serve::SearchQueue& queue);
  // Begins what is not begun yet; requires mutex_.
  void begin_preparing(Preparation& preparation, PreparingSearch how);
  void prepare(const PreparingSearch& how);
  void forget_failures(const void* index);
  void add_deadline(const CallPointer& call, serve::Clock::time_point deadline);
  void remove_deadline(Call& call);

  const ServiceOptions options_;
  std::map<std::string, std::unique_ptr<ServedIndex>, std::less<>> indexes_;
  HttpServer* server_ = nullptr;
  serve::Metrics metrics_;
  serve::SearchQueue queue_, large_queue_;
  std::atomic<bool> stops_preparing_ = false;
  std::atomic<std::int64_t> last_small_ = 0;  // when a small batch was begun, of Clock

  mutable std::mutex mutex_;
  std::map<const void*, std::vector<Waiting>> changes_;  // that wait
  std::int64_t waiting_changes_ = 0;
  std::map<const void*, std::shared_ptr<const serve::Found>> last_;  // found, of each index
  std::map<const void*, double> last_seconds_;
  std::multimap<serve::Clock::time_point, std::weak_ptr<Call>> deadlines_;  // of searches
  std::map<PreparationKey, Preparation> preparations_;
  std::int64_t parked_ = 0;    // searches in all of them
  std::int64_t prepared_ = 0;  // that ended

  // Threads, after all that they use.
  std::unique_ptr<Worker> changer_, slow_, keeper_;
  std::map<const void*, std::unique_ptr<Worker>> preparers_;  // of each index
  std::thread searcher_, large_searcher_;
};

}  // namespace knear::cli
