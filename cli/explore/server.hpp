// cli/explore/server.hpp -- the page of `knear explore` over HTTP, for this machine alone.
//
//   PageServer server(explorer, 0);              // any free port of 127.0.0.1
//   server.show_places(places.view(), 0.1);      // the map so far
//   server.address()                             // "http://127.0.0.1:43211/"
//
// Answers GET /, the files that the page names and /api/..., and POST /api/search; nothing is ever
// changed by a request. The server is that of `knear serve` (cli/serve/http_server.hpp), and who is
// answered is in cli/serve/caller.hpp: no page of another site. Bodies above 4 MiB are refused.
// Every refusal is one JSON object {"error": "..."} of one line.
#pragma once
#include <memory>
#include <string>

#include "cli/explore/explorer.hpp"
#include "knear/core/matrix.hpp"

namespace knear::cli {

class PageServer {
 public:
  // Serves at once, in threads of its own, until destroyed. Throws IoError for a port that is
  // taken; InvalidArgument for one outside [0, 65535], and where this build cannot serve
  // (can_serve() of cli/serve/http_server.hpp).
  PageServer(const Explorer& explorer, std::int64_t port);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  std::string address() const;
  // Replaces the map that the page asks for. progress: in [0, 1]; 1 if it is the last.
  void show_places(MatrixView<float> places, double progress);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace knear::cli
