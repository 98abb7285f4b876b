// cli/explore/server.hpp -- the page of `knear explore` over HTTP, for this machine alone.
//
//   PageServer server(explorer, 0);              // any free port of 127.0.0.1
//   server.show_places(places.view(), 0.1);      // the map so far
//   server.address()                             // "http://127.0.0.1:43211/"
//
// Answers GET /, the files that the page names and /api/..., and POST /api/search; nothing is ever
// changed by a request. Requests whose Host is not this address are refused, so that no page of
// another site reaches it by a name of its own; bodies above 4 MiB and those that are packed or of
// no stated length are, too. Every refusal is one JSON object {"error": "..."} of one line.
#pragma once
#include <memory>
#include <string>

#include "cli/explore/explorer.hpp"
#include "knear/core/matrix.hpp"

namespace knear::cli {

// Whether this build can serve (KNEAR_EXPLORE).
bool can_serve();

class PageServer {
 public:
  // Serves at once, in threads of its own, until destroyed. Throws IoError for a port that is
  // taken; InvalidArgument for one outside [0, 65535], and where this build cannot serve.
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
