// cli/roofline_command.cpp -- `knear roofline`: what this machine can do at most, and its
// description for `knear plan`.
#include <cmath>
#include <cstdint>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/files.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/cost/first_use.hpp"
#include "knear/cost/new_memory.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/cost/roofline.hpp"
#include "knear/cost/scan_cost_model.hpp"
#include "knear/io/atomic_file.hpp"

namespace knear::cli {
namespace {

struct RooflineArguments {
  std::int64_t threads = 0;
  double seconds = 3;
  std::string machine;  // a machine of known_machines(), not measured
  bool model = false;   // the constants of the cost model, nothing measured
  std::string out;      // the file of a description
  bool json = false;
};

// What is measured, or the data sheet of a machine.
struct Source {
  std::string name;
  bool measured;
};

// As print_peaks above, for several numbers of threads in ascending order.
void print_peaks(const std::vector<MachinePeaks>& all, const Source& source) {
  const MachinePeaks& peaks = all.back();
  if (source.measured)
    print("{}, {} kernels\n\n", source.name, name_of(peaks.isa));
  else
    print("{}\n\n", source.name);
  std::vector<std::vector<std::string>> table;
  const auto line = [&](std::string name, auto value_of, const char* unit) {
    auto& row = table.emplace_back(1, std::move(name));
    for (const MachinePeaks& some : all) {
      const double value = value_of(some);
      row.push_back(value > 0         ? readable_count(value) + unit
                    : source.measured ? "not on this machine"
                                      : "none given");
    }
  };
  if (source.measured) {
    auto& head = table.emplace_back(1, "");
    for (const MachinePeaks& some : all)
      head.push_back(fmt::format("{} thread{}", some.threads, some.threads == 1 ? "" : "s"));
  }
  line(
      "fp32 multiply-adds", [](const auto& p) { return p.fp32_flops; }, "flop/s");
  line(
      "bf16 multiply-adds", [](const auto& p) { return p.bf16_flops; }, "flop/s");
  line(
      "int16 multiply-adds", [](const auto& p) { return p.int16_ops; }, "op/s");
  line(
      "int8 multiply-adds", [](const auto& p) { return p.int8_ops; }, "op/s");
  line(
      "coefficient-wise", [](const auto& p) { return p.cop_per_second; }, "op/s");
  if (source.measured)
    line(
        "cycles", [](const auto& p) { return p.cycles_per_second; }, "/s");
  line(
      "memory, read", [](const auto& p) { return p.memory_bytes_per_second; }, "B/s");
  for (std::size_t level = 0; level < 3 && source.measured; ++level)
    line(
        fmt::format("level-{} cache, read", level + 1),
        [&](const auto& p) { return p.caches[level].bytes_per_second; }, "B/s");
  print_text(format_table(table));
  print("\nA multiply-add counts as two operations.\n");
}

nlohmann::ordered_json json_of(const MachinePeaks& peaks) {
  const auto number = [](double value) {
    return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json out;
  out["fp32_flops"] = number(peaks.fp32_flops);
  out["bf16_flops"] = number(peaks.bf16_flops);
  out["int16_ops"] = number(peaks.int16_ops);
  out["int8_ops"] = number(peaks.int8_ops);
  out["memory_bytes_per_second"] = number(peaks.memory_bytes_per_second);
  out["cop_per_second"] = number(peaks.cop_per_second);
  if (peaks.cycles_per_second > 0) out["cycles_per_second"] = number(peaks.cycles_per_second);
  return out;
}

void print_json(const std::vector<MachinePeaks>& all, const Source& source) {
  const auto measured = [](const MachinePeaks& peaks) {
    nlohmann::ordered_json out = json_of(peaks);
    auto& caches = out["caches"] = nlohmann::ordered_json::array();
    for (int level = 0; level < 3; ++level)
      if (const CachePeak& cache = peaks.caches[level]; cache.bytes > 0)
        caches.push_back({{"level", level + 1},
                          {"bytes", cache.bytes},
                          {"bytes_per_second", cache.bytes_per_second}});
    out["threads"] = peaks.threads;
    return out;
  };
  nlohmann::ordered_json out = source.measured ? measured(all.back()) : json_of(all.back());
  if (source.measured) {
    out["isa"] = name_of(all.back().isa);
    auto& fewer = out["by_threads"] = nlohmann::ordered_json::array();
    for (const MachinePeaks& peaks : all) fewer.push_back(measured(peaks));
  }
  out["processor"] = source.name;
  print("{}\n", out.dump(2));
}

void print_model(bool json) {
  constexpr ScanCostModel model;
  nlohmann::ordered_json object;
  std::string text;
  for (const auto& [name, value, meaning] : scan_cost_constants) {
    object[std::string(name)] = model.*value;
    text += fmt::format("{:<28}{:>9}  {}\n", name, model.*value, meaning);
  }
  if (json) return print("{}\n", object.dump(2));
  print(
      "{}\nOperations are coefficient-wise ones and cycles those of a core, at the rates "
      "measured.\n",
      text);
}

// 1, 2, 4, ... threads, and all.
std::vector<int> thread_counts(int all) {
  std::vector<int> out;
  for (int threads = 1; threads < all; threads *= 2) out.push_back(threads);
  out.push_back(all);
  return out;
}

void run_roofline(const RooflineArguments& arguments) {
  if (arguments.model) return print_model(arguments.json);
  if (!arguments.machine.empty()) {
    const KnownMachine& machine = known_machine(arguments.machine);
    const Source sheet{fmt::format("{} ({})", machine.title, machine.source), false};
    return arguments.json ? print_json({machine.peaks}, sheet)
                          : print_peaks({machine.peaks}, sheet);
  }
  check_output("--out", arguments.out, {".json"}, {});
  const Source here{processor_name(), true};
  const int asked = checked_threads(arguments.threads);
  const std::vector<int> counts = arguments.threads > 0 ? std::vector{asked} : thread_counts(asked);
  if (!arguments.json && arguments.seconds > announced_seconds)
    print_now("measuring for {} and some\n\n", readable_seconds(arguments.seconds));
  // First, before there is memory that was given back.
  std::optional<double> new_memory, first_use;
  if (!arguments.out.empty())
    new_memory = measure_new_memory(counts.back()), first_use = measure_first_use(counts.back());
  std::vector<MachinePeaks> peaks;
  {
    ProgressBar bar;
    for (const int threads : counts) {
      bar.show(fmt::format("{} threads", threads), double(peaks.size()) / double(counts.size()));
      peaks.push_back(measure_peaks(threads, arguments.seconds / double(counts.size())));
    }
  }
  std::string kept;
  try {
    for (const MachinePeaks& some : peaks) keep_peaks(some);
    kept = "Kept for the predictions of search, truth, bench and demo.";
  } catch (const IoError& error) {  // the figures are the result; storing them is a convenience
    kept = fmt::format("Not kept for later predictions: {}.", error.what());
  }
  if (!arguments.out.empty()) {
    MachineDescription machine = this_machine(peaks.back());
    machine.new_memory_bytes_per_second = new_memory;
    machine.first_use_bytes_per_second = first_use;
    const std::string text = text_of_machine(machine);
    io::AtomicFile file(arguments.out);
    file.write(text.data(), text.size());
    file.commit();
  }
  if (arguments.json) return print_json(peaks, here);
  print_peaks(peaks, here);
  print("{}\n", kept);
  if (!arguments.out.empty())
    print(
        "{} describes this machine for knear plan; network and price, which cannot be measured "
        "here, are null: fill them in.\n",
        arguments.out);
}

}  // namespace

void add_roofline(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("roofline", "Measure the peak rates and bandwidth of this machine");
  auto arguments = std::make_shared<RooflineArguments>();
  add_whole(*command, "--threads", arguments->threads,
            "threads to measure with (0, the default: 1, 2, 4 and so on up to all that the process "
            "may use)");
  add_number(*command, "--seconds", arguments->seconds, "time to spend (default 3)");
  CLI::Option* machine =
      command
          ->add_option("--machine", arguments->machine,
                       "measure nothing, print the figures of this one: " + machine_names())
          ->type_name("NAME");
  CLI::Option* model = command->add_flag(
      "--model", arguments->model,
      "measure nothing, print the constants by which searches predict what they will cost");
  command
      ->add_option("--out", arguments->out,
                   "write a description of this machine for knear plan --machine (.json)")
      ->type_name("FILE");
  for (const char* measuring : {"--threads", "--seconds", "--out"})
    for (CLI::Option* printing : {machine, model})
      printing->excludes(command->get_option(measuring));
  model->excludes(machine);
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "The figures are kept in the cache directory of the user, for the predictions of other "
      "commands.\n\nExample:\n  knear roofline --threads 2 --json\n  knear roofline --out "
      "machine.json\n  knear roofline --machine h200\n  knear roofline --model");
  command->callback([arguments] { run_roofline(*arguments); });
}

}  // namespace knear::cli
