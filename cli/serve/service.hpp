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
// Threads: the event loop parses small bodies and writes small answers; one thread searches (with
// as many of the library's as --threads says), one makes changes, one does what takes long: large
// bodies and answers, checkpoints, reloads have one each.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
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
};

class Service : public HttpHandler {
 public:
  Service(ServiceOptions options, std::vector<std::unique_ptr<ServedIndex>> indexes);
  ~Service() override;

  void start(HttpServer& server);
  // Ends its threads, once all that waits is done.
  void finish();

  std::optional<HttpAnswer> refuse(const HttpHead& head) override;
  std::int64_t memory_for(const HttpHead& head, std::int64_t length) override;
  void handle(HttpRequest request, Reply reply) override;
  HttpAnswer refusal(int status, const std::string& message) override;

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
  void search_batches();

  const ServiceOptions options_;
  std::map<std::string, std::unique_ptr<ServedIndex>, std::less<>> indexes_;
  HttpServer* server_ = nullptr;
  serve::Metrics metrics_;
  serve::SearchQueue queue_;

  mutable std::mutex mutex_;
  std::map<const void*, std::vector<Waiting>> changes_;  // that wait
  std::int64_t waiting_changes_ = 0;
  std::map<const void*, std::shared_ptr<const serve::Found>> last_;  // found, of each index
  std::map<const void*, double> last_seconds_;

  // Threads, after all that they use.
  std::unique_ptr<Worker> changer_, slow_, keeper_;
  std::thread searcher_;
};

}  // namespace knear::cli
