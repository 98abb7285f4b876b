// cli/serve/serve_command.cpp -- `knear serve`: indexes over HTTP, until SIGTERM, SIGHUP or Ctrl-C.

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <filesystem>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/help.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "cli/serve/http_server.hpp"
#include "cli/serve/served_index.hpp"
#include "cli/serve/service.hpp"
#include "knear/io/lost_pages.hpp"
#include "knear/io/open_file.hpp"

namespace knear::cli {
namespace {

struct ServeArguments {
  std::vector<std::string> indexes;
  std::string listen = "127.0.0.1", token_file, data;
  bool read_only = false;
  std::int64_t port = 8080, threads = 0, memory = 0, body = std::int64_t{64} << 20, k = 10000,
               queries = 10000, connections = 1024, waiting = 4096, batch = 1024,
               checkpoint = 0;  // memory, checkpoint: 0 where not given
  double timeout = 30, calibration = 60;
  std::optional<double> audit = {};
};

struct NamedFile {
  std::string name, path;
};

// Names stand in paths of requests and in names of files.
void check_name(const std::string& name, const std::string& word) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (name.empty() || name.size() > 64 || name[0] == '.' ||
      !std::all_of(name.begin(), name.end(), fits))
    throw InvalidArgument(
        "--index {}: the name '{}' must be 1 to 64 letters, digits, '-', '_' and '.', and not "
        "begin "
        "with '.'; NAME=FILE gives another",
        word, name);
}

std::vector<NamedFile> named_files(const std::vector<std::string>& words) {
  std::vector<NamedFile> out;
  std::set<std::string> names;
  for (const std::string& word : words) {
    const std::size_t sign = word.find('=');
    // A file whose own name has a '=' is there under the whole word.
    const bool named = sign != std::string::npos && !std::filesystem::exists(word);
    NamedFile file{named ? word.substr(0, sign) : std::filesystem::path(word).stem().string(),
                   named ? word.substr(sign + 1) : word};
    check_name(file.name, word);
    if (!names.insert(file.name).second)
      throw InvalidArgument("--index: two indexes have the name {}; NAME=FILE gives another",
                            file.name);
    out.push_back(std::move(file));
  }
  return out;
}

std::string read_token(const std::string& path) {
  if (path.empty()) return "";
  std::string out;
  try {
    out = io::read_all(path, 1 << 12, io::Accepted::files_and_pipes);
  } catch (const MemoryBudgetError&) {
    throw InvalidArgument("--token-file: '{}' holds more than a line", path);
  } catch (const IoError& error) {
    throw IoError("--token-file: {}", error.what());
  }
  while (!out.empty() && (out.back() == '\n' || out.back() == '\r')) out.pop_back();
  const std::int64_t lines = out.empty() ? 0 : 1 + std::count(out.begin(), out.end(), '\n');
  const auto printable = [](char c) { return c > ' ' && c < 127; };
  // Without the content, which may be most of the token.
  if (out.size() < 16 || !std::all_of(out.begin(), out.end(), printable))
    throw InvalidArgument(
        "--token-file: '{}'{} must hold one line of 16 characters or more, without spaces, but has "
        "{}",
        path, pipe_note(path),
        lines == 0        ? "none"
        : lines > 1       ? fmt::format("{} lines", lines)
        : out.size() < 16 ? fmt::format("{} characters", out.size())
                          : "a space or another character that is not printable ASCII");
  return out;
}

void check_range(const char* option, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low || value > high)
    throw InvalidArgument("{} must be between {} and {}, but is {}", option, low, high, value);
}

void check_arguments(const ServeArguments& arguments) {
  if (!can_serve()) throw InvalidArgument("this build serves no indexes (KNEAR_SERVE is off)");
  check_range("--port", arguments.port, 0, 65535);
  check_range("--max-k", arguments.k, 1, std::int64_t{1} << 30);
  check_range("--max-rows", arguments.queries, 1, std::int64_t{1} << 30);
  check_range("--max-connections", arguments.connections, 1, 100000);
  check_range("--max-waiting", arguments.waiting, 1, 1000000);
  check_range("--batch", arguments.batch, 1, 100000);
  check_range("--max-body", arguments.body, 1 << 10, std::int64_t{1} << 32);
  if (!(arguments.timeout >= 0.1 && arguments.timeout <= 86400))
    throw InvalidArgument("--timeout must be between 0.1 and 86400 seconds, but is {}",
                          arguments.timeout);
  if (!(arguments.calibration >= 0.001 && arguments.calibration <= 86400))
    throw InvalidArgument("--max-calibration must be between 0.001 and 86400 seconds, but is {}",
                          arguments.calibration);
  if (arguments.audit && !(*arguments.audit >= 0 && *arguments.audit <= 1))
    throw InvalidArgument("--audit must be between 0 and 1, but is {}", *arguments.audit);
  if (arguments.read_only && !arguments.data.empty())
    unparsable("--data is for changes, which --read-only refuses");
  if (arguments.read_only && arguments.checkpoint > 0)
    unparsable("--checkpoint is for changes, which --read-only refuses");
  if (!is_loopback(arguments.listen) && arguments.token_file.empty())
    throw InvalidArgument("--listen {} is reached from other machines, which needs --token-file",
                          arguments.listen);
}

// A quarter of what the machine has free.
std::int64_t usual_memory() {
  const std::int64_t free = available_memory();
  return free < std::int64_t{1} << 62 ? free / 4 : std::int64_t{1} << 30;
}

void run_serve(const ServeArguments& arguments) {
  check_arguments(arguments);
  const int threads = checked_threads(arguments.threads);
  const std::vector<NamedFile> files = named_files(arguments.indexes);
  const std::string token = read_token(arguments.token_file);
  const CatchInterrupts guard;
  ignore_other_signals();
  io::handle_lost_pages(io::LostPages::read_as_zeros);
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(arguments.timeout * 1000));
  // Before an index is opened, which takes a while and writes files beside it.
  HttpServer server({.address = arguments.listen,
                     .port = static_cast<int>(arguments.port),
                     .body = arguments.body,
                     .connections = arguments.connections,
                     .timeout = timeout});
  ProgressBar bar;
  std::vector<std::unique_ptr<ServedIndex>> indexes;
  // An index that was opened before one that cannot be is left as it was.
  for (const NamedFile& file : files) {
    indexes.push_back(std::make_unique<ServedIndex>(
        file.name, file.path, arguments.read_only, arguments.audit,
        serve::DurableOptions{.data = arguments.data,
                              .checkpoint_bytes = arguments.checkpoint > 0 ? arguments.checkpoint
                                                                           : std::int64_t{64} << 20,
                              .threads = threads,
                              .report = [](const std::string& line) { warn_text(line); }},
        bar.callback()));
    check_interrupt();
  }
  bar.clear();
  Service service({.token = token,
                   .listen = arguments.listen,
                   .threads = threads,
                   .limits = {.k = arguments.k, .rows = arguments.queries},
                   .waiting = arguments.waiting,
                   .batch = arguments.batch,
                   .timeout = timeout,
                   .calibration = std::chrono::milliseconds(
                       static_cast<std::int64_t>(arguments.calibration * 1000))},
                  std::move(indexes));
  // Whatever happens: its threads answer through the server.
  const struct Finish {
    Service& service;
    ~Finish() { service.finish(); }
  } finish{service};
  server.listen(service, arguments.memory > 0 ? arguments.memory : usual_memory());
  service.start(server);
  PatientOutput line(
      fmt::format("{} serves {}; Ctrl-C ends it\n", server.url(),
                  files.size() == 1 ? "1 index" : fmt::format("{} indexes", files.size())));
  line.go_on();
  std::exception_ptr refused;
  std::set<std::string> lost;
  server.run([&] {
    for (const io::LostFile& file : io::lost_files())
      if (lost.insert(fmt::format("{} {}", file.number, file.path)).second)
        warn(
            "'{}' was truncated while it was in use, or its disk failed: requests for its index "
            "are answered 503",
            file.path);
    try {
      line.go_on();
    } catch (const IoError&) {
      refused = std::current_exception();
    }
    if (!interrupted() && !refused) return false;
    service.stop_preparing();
    return true;
  });
  if (refused) std::rethrow_exception(refused);
}

}  // namespace

void add_serve(CLI::App& app) {
  CLI::App* command = app.add_subcommand("serve", "Serve indexes over HTTP: searches and changes");
  auto arguments = std::make_shared<ServeArguments>();
  command
      ->add_option("--index", arguments->indexes,
                   "index from 'knear build'; NAME is part of the paths (default: the file's name)")
      ->type_name("[NAME=]FILE")
      ->required();
  command
      ->add_option("--listen", arguments->listen,
                   "address to listen on (default 127.0.0.1; others need --token-file)")
      ->type_name("ADDRESS");
  add_whole(*command, "--port", arguments->port, "port (default 8080; 0: any free port)");
  command
      ->add_option("--token-file", arguments->token_file,
                   "file with the token that requests must send: Authorization: Bearer TOKEN")
      ->type_name("FILE");
  command
      ->add_option("--data", arguments->data,
                   "folder for changes, created if missing (default: beside the index)")
      ->type_name("DIR");
  command->add_flag("--read-only", arguments->read_only, "refuse changes and write no file");
  add_whole(*command, "--threads", arguments->threads, "threads to search with (default: all)");
  add_size(*command, "--memory", arguments->memory,
           "limit of requests and answers, 503 beyond it (default: a quarter of free memory)");
  add_size(*command, "--checkpoint", arguments->checkpoint,
           "size of the logs at which they are merged into the index file (default 64M)");
  add_size(*command, "--max-body", arguments->body, "size limit of a request (default 64M)");
  add_whole(*command, "--max-k", arguments->k, "most neighbours per query (default 10000)");
  add_whole(*command, "--max-rows", arguments->queries,
            "most queries or vectors per request (default 10000)");
  add_whole(*command, "--max-connections", arguments->connections,
            "most connections (default 1024)");
  add_whole(*command, "--max-waiting", arguments->waiting,
            "most searches, and most changes, that may wait (default 4096)");
  add_whole(*command, "--batch", arguments->batch,
            "most queries that one search answers together (default 1024)");
  add_number(*command, "--timeout", arguments->timeout,
             "seconds for a request to arrive, and for a search without timeout_ms (default 30)");
  add_number(*command, "--max-calibration", arguments->calibration,
             "seconds to calibrate a recall for a new k (default 60)");
  command
      ->add_option("--audit", arguments->audit,
                   "share of the search time spent on measuring the recall (default 0.02; 0: none)")
      ->type_name("SHARE");
  command->footer(
      "POST /indexes/NAME/search, /add, /remove, /replace, /reload, /checkpoint; GET /indexes, "
      "/health, /metrics, /openapi.json, and a page at /. Changes are on disk when they are "
      "answered.\n\n"
      "Example, with an index of red, green and blue:\n"
      "  printf '\\3\\0\\0\\0\\377\\0\\0\\3\\0\\0\\0\\0\\377\\0\\3\\0\\0\\0\\0\\0\\377' > "
      "colours.bvecs\n"
      "  knear build --base colours.bvecs --index Flat --out colours.knear\n"
      "  knear serve --index colours.knear --port 8080\n"
      "  curl http://127.0.0.1:8080/indexes/colours/search -d '{\"queries\": [[200, 30, 40]], "
      "\"k\": 2}'");
  group_options(*command, rarely_needed,
                {"--memory", "--checkpoint", "--max-body", "--max-k", "--max-rows",
                 "--max-connections", "--max-waiting", "--batch", "--max-calibration", "--audit"});
  command->callback([=] { run_serve(*arguments); });
}

}  // namespace knear::cli
