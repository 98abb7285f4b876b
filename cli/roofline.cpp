// cli/roofline.cpp -- `knear roofline`: what this machine can do at most.
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "knear/core/error.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/cost/roofline.hpp"

namespace knear::cli {
namespace {

struct RooflineArguments {
  std::int64_t threads = 0;
  double seconds = 3;
  std::string machine;  // one that is not measured
  bool json = false;
};

// What is measured, or the data sheet of a machine.
struct Source {
  std::string name;
  bool measured;
};

void print_peaks(const MachinePeaks& peaks, const Source& source) {
  const auto rate = [&](double value, const char* unit) {
    return std::isfinite(value) ? readable_count(value) + unit
           : source.measured    ? std::string("not on this machine")
                                : std::string("none given");
  };
  if (source.measured)
    print("{}, {} kernels, {} thread{}\n\n", source.name, name_of(peaks.isa), peaks.threads,
          peaks.threads == 1 ? "" : "s");
  else
    print("{}\n\n", source.name);
  print_text(format_table({{"fp32 multiply-adds", rate(peaks.fp32_flops, "flop/s")},
                           {"bf16 multiply-adds", rate(peaks.bf16_flops, "flop/s")},
                           {"int16 multiply-adds", rate(peaks.int16_ops, "op/s")},
                           {"int8 multiply-adds", rate(peaks.int8_ops, "op/s")},
                           {"coefficient-wise", rate(peaks.cop_per_second, "op/s")},
                           {"memory, read", rate(peaks.memory_bytes_per_second, "B/s")}}));
  print("\nA multiply-add counts as two operations.\n");
}

void print_json(const MachinePeaks& peaks, const Source& source) {
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
  if (source.measured) {
    out["threads"] = peaks.threads;
    out["isa"] = name_of(peaks.isa);
  }
  out["processor"] = source.name;
  print("{}\n", out.dump(2));
}

void run_roofline(const RooflineArguments& arguments) {
  if (!arguments.machine.empty()) {
    const KnownMachine& machine = known_machine(arguments.machine);
    const Source sheet{fmt::format("{} ({})", machine.title, machine.source), false};
    return arguments.json ? print_json(machine.peaks, sheet) : print_peaks(machine.peaks, sheet);
  }
  const Source here{processor_name(), true};
  const MachinePeaks peaks = measure_peaks(checked_threads(arguments.threads), arguments.seconds);
  std::string kept;
  try {
    keep_peaks(peaks);
    kept = "Kept for the predictions of search, truth, bench and demo.";
  } catch (const IoError& error) {  // the figures are the result; keeping them is a convenience
    kept = fmt::format("Not kept for later predictions: {}.", error.what());
  }
  if (arguments.json) return print_json(peaks, here);
  print_peaks(peaks, here);
  print("{}\n", kept);
}

}  // namespace

void add_roofline(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("roofline", "Measure this machine: peak per precision, bandwidth");
  auto arguments = std::make_shared<RooflineArguments>();
  add_whole(*command, "--threads", arguments->threads,
            "threads to measure with (0, the default: all that the process may use)");
  add_number(*command, "--seconds", arguments->seconds, "time to spend (default 3)");
  CLI::Option* machine =
      command
          ->add_option("--machine", arguments->machine,
                       "measure nothing, print the figures of this one: " + machine_names())
          ->type_name("NAME");
  for (const char* measuring : {"--threads", "--seconds"})
    machine->excludes(command->get_option(measuring));
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->footer(
      "The figures are kept in the cache directory of the user, for the predictions of other "
      "commands.\n\nExample:\n  knear roofline --threads 2 --json\n  knear roofline --machine "
      "h200");
  command->callback([arguments] { run_roofline(*arguments); });
}

}  // namespace knear::cli
