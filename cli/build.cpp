// cli/build.cpp -- `knear build`: an index of a file of vectors, kept in a .knear file.
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/index/flat.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {
namespace {

struct BuildArguments {
  std::string base, index, out, metric, type;
  std::int64_t threads = 0, train = 0;
  bool json = false, train_given = false, optimize = false;
};

void run_build(const BuildArguments& arguments) {
  if (arguments.index != "Flat")
    throw InvalidArgument("--index {} is not in this version, only Flat", arguments.index);
  if (arguments.train_given)
    throw InvalidArgument("--train is {}, but Flat learns nothing from the vectors",
                          arguments.train);
  if (!arguments.metric.empty()) parse_metric(arguments.metric);
  const int threads = checked_threads(arguments.threads);
  const CatchInterrupts guard;
  const io::VectorFile base = open_vectors(arguments.base, arguments.type, base_dataset);
  check_output("--out", arguments.out, {".knear"}, {arguments.base});
  const Metric metric =
      arguments.metric.empty() ? metric_of_file(arguments.base) : parse_metric(arguments.metric);
  check_interrupt();

  const auto start = std::chrono::steady_clock::now();
  FlatIndex index(base.view().cols(), metric);
  ProgressBar bar;
  index.add(base.view(), {.threads = threads, .progress = bar.callback()});
  const ChangeOptions change{.threads = threads, .progress = bar.callback()};
  const std::int64_t optimized = arguments.optimize ? index.optimize(change) : 0;
  index.save(arguments.out, bar.callback());
  bar.clear();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string type(name_of(index.element_type()));
  if (arguments.json) {
    nlohmann::ordered_json out = {
        {"index", arguments.index},  {"rows", index.size()},
        {"dim", index.dim()},        {"type", type},
        {"metric", name_of(metric)}, {"memory_bytes", index.memory_bytes()},
        {"threads", threads},        {"seconds", seconds}};
    if (arguments.optimize) out["optimized_rows"] = optimized;
    print("{}\n", out.dump(2));
  } else {
    print("{}: {}, {} x {} {}, {}, {} in {}\n", arguments.out, arguments.index, index.size(),
          index.dim(), type, name_of(metric), readable_bytes(double(index.memory_bytes())),
          readable_seconds(seconds));
    if (arguments.optimize)
      print("{} of {} rows are searched by a prefix{}\n", optimized, index.size(),
            optimized == index.size() ? "" : ", the others would not gain by one");
  }
}

}  // namespace

void add_build(CLI::App& app) {
  CLI::App* command = app.add_subcommand("build", "Build an index and keep it in a file");
  auto arguments = std::make_shared<BuildArguments>();
  command->add_option("--base", arguments->base, "vectors, as for search")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--index", arguments->index, "kind of index: Flat (exact search, prepared once)")
      ->type_name("KIND")
      ->required();
  command->add_option("--out", arguments->out, "the file to write, .knear")
      ->type_name("FILE")
      ->required();
  command
      ->add_option("--metric", arguments->metric,
                   "l2 (default; of .hdf5 what the file says), ip or cosine")
      ->type_name("M");
  command->add_option("--type", arguments->type, "keep vectors as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T");
  // An option that is planned; it is in no group, so that help shows only what works.
  CLI::Option* train = add_whole(*command, "--train", arguments->train, "vectors to learn from");
  train->group("");
  command->add_flag("--optimize", arguments->optimize,
                    "make now what many searches would come to make, where it pays");
  add_whole(*command, "--threads", arguments->threads, "threads to use (default: all)");
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "The file is searched where it lies, without being read first.\n\nExample:\n"
      "  knear build --base base.fvecs --index Flat --out base.knear\n"
      "  knear search --index base.knear --queries queries.fvecs -k 10");
  command->callback([=] {
    arguments->train_given = train->count() > 0;
    run_build(*arguments);
  });
}

}  // namespace knear::cli
