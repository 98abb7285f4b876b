// cli/bench_index.cpp -- `knear bench index`: what keeping vectors in an index costs.
//
// Adding, against a plain copy and one pass of packing; saving; opening the file and answering the
// first query, against later ones; removing and replacing. All take turns; medians count.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/bench.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/json.hpp"
#include "knear/core/threads.hpp"
#include "knear/factory/factory.hpp"
#include "knear/index/index.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::cli {
namespace {

struct IndexBench {
  std::string base, queries, metric = "l2", file, device = "cpu";
  std::int64_t k = 10, threads = 0, repeat = 5;
  bool json = false;
};

struct IndexFigures {
  std::vector<double> copy, pack, add, small_adds, save, open_and_first, later, remove, replace;
  std::int64_t index_bytes = 0, file_bytes = 0;
  std::string form;
};

IndexFigures measure(const IndexBench& bench, AnyMatrixView base, AnyMatrixView queries,
                     Metric metric, int threads) {
  IndexFigures out;
  ProgressBar bar;
  const std::int64_t n = base.rows(), row_bytes = base.cols() * size_of(base.type());
  const SearchOptions options{.threads = threads};
  for (std::int64_t round = 0; round < bench.repeat; ++round) {
    bar.show("bench", double(round) / double(bench.repeat));
    check_interrupt();
    out.copy.push_back(seconds_of([&] {
      AnyMatrix copy(base.type(), n, base.cols());
      constexpr std::int64_t block = 4096;
      parallel_for(threads, (n + block - 1) / block, [&](std::int64_t b) {
        for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i)
          std::memcpy(copy.row(i), base.row(i), row_bytes);
      });
    }));
    out.pack.push_back(seconds_of([&] {
      const ValueRange found = find_value_range(base, metric, "base", threads);
      detail::PreparedRows rows(base, metric, found);
      double ignored = 0;
      const Progress quiet;
      const FirstPass pass = !traits_of(metric).unit_rows && found.integer ? FirstPass::integer
                             : has_byte_products(active_isa())             ? FirstPass::int8
                                                                           : FirstPass::fp32;
      rows.packed(pass, {base, {}, true, threads, quiet, ignored});
      out.form = name_of(pass);
    }));
    Index index = make_index("Flat", base.cols(), metric);
    out.add.push_back(seconds_of([&] { index.add(base, {.threads = threads}); }));
    check_interrupt();
    out.small_adds.push_back(seconds_of([&] {
      Index slowly = make_index("Flat", base.cols(), metric);
      for (std::int64_t i = 0; i < n; i += 1000)
        slowly.add(base.rows(i, std::min(n, i + 1000)), {.threads = threads});
    }));
    out.save.push_back(seconds_of([&] { index.save(bench.file); }));
    out.index_bytes = index.memory_bytes();
    out.file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(bench.file));
    check_interrupt();
    std::optional<Index> opened;
    out.open_and_first.push_back(seconds_of([&] {
      opened.emplace(Index::load(bench.file));
      opened->search(queries.rows(0, 1), bench.k, options);
    }));
    std::vector<double> later;
    for (std::int64_t q = 1; q < std::min<std::int64_t>(queries.rows(), 40); ++q)
      later.push_back(
          seconds_of([&] { opened->search(queries.rows(q, q + 1), bench.k, options); }));
    if (later.empty()) later.push_back(0);
    out.later.push_back(median(later));
    std::vector<Id> some;
    for (Id id = 0; id < n; id += 100) some.push_back(id);
    const AnyMatrixView rows = base.rows(0, std::ssize(some));
    out.replace.push_back(seconds_of([&] { index.replace(some, rows, {.threads = threads}); }));
    out.remove.push_back(seconds_of([&] { index.remove(some, {.threads = threads}); }));
  }
  return out;
}

void run_index(const IndexBench& bench) {
  check_positive("-k", bench.k);
  check_positive("--repeat", bench.repeat);
  check_no_device(bench.device, "bench index");
  const Metric metric = parse_metric(bench.metric);
  const int threads = checked_threads(bench.threads);
  const CatchInterrupts guard;
  check_output("--file", bench.file, {".knear"}, {bench.base, bench.queries});
  const io::VectorFile base = open_vectors(bench.base, "", base_dataset),
                       queries = open_vectors(bench.queries, "", queries_dataset);
  if (queries.view().rows() < 2)
    throw InvalidArgument("queries have {} rows, but a later one takes two", queries.view().rows());
  if (!bench.json)
    print_now("flat index, {} rows x {} {}, {}, {} threads, {} rounds\n\n", base.view().rows(),
              base.view().cols(), name_of(base.view().type()), bench.metric, threads, bench.repeat);
  const IndexFigures figures = measure(bench, base.view(), queries.view(), metric, threads);
  std::error_code ignored;
  std::filesystem::remove(bench.file, ignored);

  const double copy = median(figures.copy), pack = median(figures.pack), add = median(figures.add);
  const double first = median(figures.open_and_first), later = median(figures.later);
  if (bench.json) {
    const nlohmann::ordered_json out = {{"bench", "index"},
                                        {"rows", base.view().rows()},
                                        {"dim", base.view().cols()},
                                        {"type", name_of(base.view().type())},
                                        {"metric", bench.metric},
                                        {"threads", threads},
                                        {"form", figures.form},
                                        {"copy_seconds", copy},
                                        {"pack_seconds", pack},
                                        {"add_seconds", add},
                                        {"add_over_copy_and_pack", add / (copy + pack)},
                                        {"small_adds_seconds", median(figures.small_adds)},
                                        {"save_seconds", median(figures.save)},
                                        {"open_and_first_query_seconds", first},
                                        {"later_query_seconds", later},
                                        {"first_over_later", first / later},
                                        {"replace_seconds", median(figures.replace)},
                                        {"remove_seconds", median(figures.remove)},
                                        {"index_bytes", figures.index_bytes},
                                        {"file_bytes", figures.file_bytes}};
    print("{}\n", out.dump(2));
    return;
  }
  const auto line = [](std::string what, double seconds, std::string note) {
    return std::vector<std::string>{std::move(what), readable_seconds(seconds), std::move(note)};
  };
  print("{}", format_table({{"work", "median", ""},
                            line("a plain copy", copy, ""),
                            line(fmt::format("packing ({})", figures.form), pack, ""),
                            line("add, all at once", add,
                                 fmt::format("{:.2f} x copy and packing", add / (copy + pack))),
                            line("add, 1000 rows at a time", median(figures.small_adds), ""),
                            line("save", median(figures.save),
                                 fmt::format("{}", readable_bytes(double(figures.file_bytes)))),
                            line("open and answer a query", first,
                                 fmt::format("{:.2f} x a later query", first / later)),
                            line("a later query", later, ""),
                            line("replace every 100th row", median(figures.replace), ""),
                            line("remove them", median(figures.remove), "")}));
}

}  // namespace

void add_bench_index(CLI::App& bench) {
  CLI::App* command = bench.add_subcommand("index", "What does keeping vectors in an index cost?");
  auto arguments = std::make_shared<IndexBench>();
  command->add_option("--base", arguments->base, "vectors to keep")->type_name("FILE")->required();
  command->add_option("--queries", arguments->queries, "vectors to search for")
      ->type_name("FILE")
      ->required();
  command->add_option("--file", arguments->file, "a .knear file to write, and remove in the end")
      ->type_name("FILE")
      ->required();
  command->add_option("--metric", arguments->metric, "l2 (default), ip or cosine")->type_name("M");
  add_whole(*command, "-k", arguments->k, "neighbours per query (default 10)");
  add_no_device(*command, arguments->device);
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  add_whole(*command, "--repeat", arguments->repeat,
            "number of rounds; the median counts (default 5)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "Example:\n  knear bench index --base base.fvecs --queries queries.fvecs --file t.knear");
  command->callback([=] { run_index(*arguments); });
}

}  // namespace knear::cli
