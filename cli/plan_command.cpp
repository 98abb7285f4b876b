// cli/plan_command.cpp -- `knear plan`: how many machines a search of 10^9 to 10^12 vectors takes,
// and what it costs there, by the model (cost/scale_plan.hpp); and what stragglers and failures do
// to it, by a simulation (cost/merge_tree.hpp). With --sample: which index to make on one machine.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/commands.hpp"
#include "cli/help.hpp"
#include "cli/machine.hpp"
#include "cli/output.hpp"
#include "cli/plan_by_sample.hpp"
#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/cost/merge_tree.hpp"
#include "knear/cost/scale_plan.hpp"

namespace knear::cli {
namespace {

struct PlanArguments {
  double rows = 0;
  ScaleNeeds needs;
  std::string machine = "this";
  std::int64_t simulate = 0;
  double spread = 0.2, hedge = 1, failures = 0, recovery = 600, deadline = 0;
  std::int64_t seed = 1;
  bool json = false;
  SampledPlanArguments sampled;
};

// Returns --rows as a whole number. Throws InvalidArgument.
std::int64_t whole_rows(double rows) {
  if (rows != std::floor(rows) || !(std::fabs(rows) <= 1e15))
    throw InvalidArgument("--rows must be a whole number of at most 10^15, but is {}", rows);
  return static_cast<std::int64_t>(rows);
}

// As readable_seconds, and hours and days.
std::string readable_time(double seconds) {
  if (seconds < 7200) return readable_seconds(seconds);
  if (seconds < 3 * 86400) return fmt::format("{:.1f} h", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / 86400);
}

std::string readable_price(const std::optional<double>& price) {
  return price ? fmt::format("{:.4g}", *price) : "not known";
}

// The simulation that a plan asks for: a call is a request, and its queries' transfers are hops.
MergeTree tree_of(const ScalePlan& plan, const MachineDescription& machine,
                  const PlanArguments& arguments) {
  const ScaleNeeds& needs = arguments.needs;
  const double bandwidth =
      machine.network_bytes_per_second.value_or(assumed_network_bytes_per_second);
  const double latency = machine.network_latency_seconds.value_or(assumed_network_latency_seconds);
  const double batch = double(needs.batch);
  const double merged = double(std::min(plan.fan_in, plan.shards) - 1);
  const double merges = double(plan.levels) * merged;
  MergeTree tree;
  tree.shards = plan.shards, tree.replicas = plan.replicas, tree.fan_in = plan.fan_in;
  tree.requests_per_second = needs.queries_per_second / batch;
  tree.service_seconds = plan.service_seconds, tree.service_spread = arguments.spread;
  // One machine sends the queries to the others of its group, one after another, and receives what
  // these found likewise.
  tree.request_hop_seconds = latency + merged * batch * 4 * double(needs.dim) / bandwidth;
  tree.answer_hop_seconds = latency;
  tree.merge_seconds =
      (merges > 0 ? plan.merge_seconds / merges : 0) + batch * 16 * double(needs.k) / bandwidth;
  tree.hedge_quantile = arguments.hedge;
  tree.failures_per_hour = arguments.failures, tree.recovery_seconds = arguments.recovery;
  if (arguments.deadline > 0) tree.deadline_seconds = arguments.deadline;
  tree.requests = arguments.simulate;
  tree.seed = static_cast<std::uint64_t>(arguments.seed);
  return tree;
}

nlohmann::ordered_json json_of(const ScalePlan& plan) {
  const auto or_null = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  return {{"index", plan.factory},
          {"what", plan.what},
          {"expected_recall", plan.expected_recall},
          {"lists", plan.lists},
          {"probes", plan.probes},
          {"code_bytes", plan.code_bytes},
          {"refine_factor", plan.refine_factor},
          {"shards", plan.shards},
          {"replicas", plan.replicas},
          {"machines", plan.machines},
          {"rows_of_shard", plan.rows_of_shard},
          {"probed_rows_of_shard", plan.probed_rows},
          {"bytes_per_row", plan.row_bytes},
          {"memory_bytes", plan.memory_bytes},
          {"fan_in", plan.fan_in},
          {"levels", plan.levels},
          {"service_seconds", plan.service_seconds},
          {"merge_seconds", plan.merge_seconds},
          {"network_seconds", plan.network_seconds},
          {"wait_seconds", plan.wait_seconds},
          {"latency_seconds", plan.latency_seconds},
          {"capacity_queries_per_second", plan.capacity},
          {"busy_share", plan.busy},
          {"limit", plan.limit},
          {"network_bytes_per_query", plan.network_bytes_of_query},
          {"busiest_network_bytes_per_second", plan.busiest_bytes_per_second},
          {"opening_seconds", or_null(plan.opening_seconds)},
          {"train_seconds", plan.train_seconds},
          {"receive_seconds", plan.receive_seconds},
          {"add_seconds", plan.add_seconds},
          {"copy_seconds", plan.copy_seconds},
          {"build_seconds", plan.build_seconds},
          {"price_per_hour", or_null(plan.price_per_hour)},
          {"price_per_million_queries", or_null(plan.price_per_million_queries)},
          {"build_price", or_null(plan.build_price)}};
}

struct Simulated {
  MergeTree tree;
  MergeTreeTimes times;
};

void print_json(const std::vector<ScalePlan>& plans, const NamedMachine& machine,
                const std::optional<Simulated>& simulated, const PlanArguments& arguments) {
  const ScaleNeeds& needs = arguments.needs;
  nlohmann::ordered_json out = {{"rows", needs.rows},
                                {"dim", needs.dim},
                                {"k", needs.k},
                                {"recall", needs.recall},
                                {"queries_per_second", needs.queries_per_second},
                                {"batch", needs.batch},
                                {"machine", machine.description.name},
                                {"peaks", arguments.machine != "this" ? "described"
                                          : machine.measured          ? "measured"
                                                                      : "estimated"}};
  const nlohmann::ordered_json best = json_of(plans[0]);
  for (const auto& [key, value] : best.items()) out[key] = value;
  out["assumptions"] = plans[0].assumptions;
  auto& others = out["others"] = nlohmann::ordered_json::array();
  for (std::size_t i = 1; i < plans.size(); ++i) others.push_back(json_of(plans[i]));
  if (simulated) {
    const MergeTreeTimes& times = simulated->times;
    out["simulation"] = {{"requests", simulated->tree.requests},
                         {"seed", simulated->tree.seed},
                         {"service_spread", simulated->tree.service_spread},
                         {"hedge_quantile", simulated->tree.hedge_quantile},
                         {"mean_seconds", times.mean_seconds},
                         {"p50_seconds", times.p50_seconds},
                         {"p99_seconds", times.p99_seconds},
                         {"p999_seconds", times.p999_seconds},
                         {"partial_share", times.partial_share},
                         {"expected_partial_share", expected_partial_share(simulated->tree)},
                         {"busy_share", times.busy_share},
                         {"hedged_share", times.hedged_share}};
  }
  print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_plan(const ScalePlan& plan, const MachineDescription& machine) {
  std::vector<std::vector<std::string>> table = {
      {"index", plan.factory},
      {"shards x replicas", fmt::format("{} x {}", plan.shards, plan.replicas)},
      {"machines", fmt::format("{}", plan.machines)},
      {"rows of a shard", readable_count(plan.rows_of_shard)},
      {"bytes of a row", fmt::format("{:.1f}", plan.row_bytes)},
      {"memory of a machine", fmt::format("{} of {}", readable_bytes(plan.memory_bytes),
                                          readable_bytes(machine.memory_bytes))}};
  if (plan.lists > 0)
    table.push_back({"lists that a query probes", fmt::format("{:.3g}", plan.probes)});
  if (plan.refine_factor > 0)
    table.push_back({"codes refined for a neighbour", fmt::format("{:.3g}", plan.refine_factor)});
  const std::vector<std::vector<std::string>> rest = {
      {"latency of a call, mean", readable_time(plan.latency_seconds)},
      {"  on a shard", readable_time(plan.service_seconds)},
      {"  waiting for it", readable_time(plan.wait_seconds)},
      {"  merging", readable_time(plan.merge_seconds)},
      {"  network", readable_time(plan.network_seconds)},
      {"levels of the tree, machines of a group",
       fmt::format("{}, {}", plan.levels, plan.levels > 0 ? plan.fan_in : 1)},
      {"network, bytes a query", readable_bytes(plan.network_bytes_of_query)},
      {"network of the busiest machine", readable_bytes(plan.busiest_bytes_per_second) + "/s"},
      {"queries a second, at most", readable_count(plan.capacity)},
      {"busy", fmt::format("{:.0f} %", 100 * plan.busy)},
      {"what a machine waits for", plan.limit},
      {"checking an index, once, when it was opened",
       plan.opening_seconds ? readable_time(*plan.opening_seconds) : "not known"},
      {"building", readable_time(plan.build_seconds)},
      {"  training", readable_time(plan.train_seconds)},
      {"  receiving rows", readable_time(plan.receive_seconds)},
      {"  adding them", readable_time(plan.add_seconds)},
      {"  copying to replicas", readable_time(plan.copy_seconds)},
      {"price an hour", readable_price(plan.price_per_hour)},
      {"price of a million queries", readable_price(plan.price_per_million_queries)},
      {"price of building", readable_price(plan.build_price)}};
  table.insert(table.end(), rest.begin(), rest.end());
  print_text(format_table(table));
}

void print_others(const std::vector<ScalePlan>& plans) {
  std::vector<std::vector<std::string>> table = {
      {"", "shards x replicas", "machines", "bytes a row", "latency", "building"}};
  for (const ScalePlan& plan : plans)
    table.push_back({plan.factory, fmt::format("{} x {}", plan.shards, plan.replicas),
                     fmt::format("{}", plan.machines), fmt::format("{:.1f}", plan.row_bytes),
                     readable_time(plan.latency_seconds), readable_time(plan.build_seconds)});
  print("\n");
  print_text(format_table(table));
}

void print_simulation(const Simulated& simulated) {
  const MergeTreeTimes& times = simulated.times;
  const auto percent = [](double share) { return fmt::format("{:.3g} %", 100 * share); };
  print("\n{} calls simulated:\n", simulated.tree.requests);
  print_text(format_table(
      {{"mean", readable_time(times.mean_seconds)},
       {"p50", readable_time(times.p50_seconds)},
       {"p99", readable_time(times.p99_seconds)},
       {"p99.9", readable_time(times.p999_seconds)},
       {"partial answers", percent(times.partial_share)},
       {"  expected of failures alone", percent(expected_partial_share(simulated.tree))},
       {"busy", percent(times.busy_share)},
       {"asked again", percent(times.hedged_share)}}));
}

// f(), whose errors name what a user said by the flag, where the library has another name for it.
template <class F>
auto by_flags(F f) {
  constexpr std::pair<std::string_view, std::string_view> flags[] = {
      {"queries_per_second", "--qps"},     {"requests_per_second", "--qps"},
      {"least_shards", "--shards"},        {"least_replicas", "--replicas"},
      {"service_spread", "--spread"},      {"hedge_quantile", "--hedge"},
      {"failures_per_hour", "--failures"}, {"recovery_seconds", "--recovery"},
      {"deadline_seconds", "--deadline"}};
  try {
    return f();
  } catch (const InvalidArgument& error) {
    const std::string named = error.with_options([&](std::string_view argument) -> std::string {
      for (const auto& [name, flag] : flags)
        if (argument == name) return std::string(flag);
      return {};
    });
    if (named == error.what()) throw;
    throw InvalidArgument("{}", named);
  }
}

void run_plan(PlanArguments arguments) {
  ScaleNeeds& needs = arguments.needs;
  needs.rows = whole_rows(arguments.rows);
  if (needs.probes != 0 && needs.lists == 0)
    throw InvalidArgument("--probes is {}, but without --lists it is not said of how many",
                          needs.probes);
  if (arguments.simulate < 0)
    throw InvalidArgument("--simulate must not be negative, but is {}", arguments.simulate);
  if (arguments.seed < 0)
    throw InvalidArgument("--seed must not be negative, but is {}", arguments.seed);
  if (!(arguments.deadline >= 0))
    throw InvalidArgument("--deadline must not be negative, but is {}", arguments.deadline);
  const NamedMachine machine = machine_of(arguments.machine);
  std::vector<ScalePlan> plans =
      by_flags([&] { return plan_at_scale(needs, machine.description); });
  if (!machine.measured)
    plans[0].assumptions.insert(
        plans[0].assumptions.begin(),
        "the rates of this machine are estimates, until knear roofline measures them");
  std::optional<Simulated> simulated;
  if (arguments.simulate > 0) {
    if (arguments.hedge < 1 && plans[0].replicas < 2)
      throw InvalidArgument(
          "--hedge is {}, but the plan has one replica, and no other to ask: --replicas 2",
          arguments.hedge);
    const MergeTree tree = tree_of(plans[0], machine.description, arguments);
    simulated = Simulated{tree, by_flags([&] { return simulate(tree); })};
    plans[0].assumptions.push_back(fmt::format(
        "simulated: the time of a call on a machine is log-normal with a spread of {}, each "
        "machine fails {} times an hour for {}, each shard's part goes to the replica with the "
        "fewest, and merging and sending keep none from its next call",
        tree.service_spread, tree.failures_per_hour, readable_time(tree.recovery_seconds)));
  }
  if (arguments.json) return print_json(plans, machine, simulated, arguments);
  print("{} x {}, recall {} of the {} nearest, {} queries/s in calls of {}\n",
        readable_count(arguments.rows), needs.dim, needs.recall, needs.k,
        readable_count(needs.queries_per_second), needs.batch);
  print("on machines like {}, {} threads, {}\n\n", machine.description.name,
        machine.description.peaks.threads, readable_bytes(machine.description.memory_bytes));
  print_plan(plans[0], machine.description);
  if (plans.size() > 1) print_others(plans);
  if (simulated) print_simulation(*simulated);
  print("\nAssumed:\n");
  for (const std::string& assumption : plans[0].assumptions) print("- {}\n", assumption);
}

// --sample and its own options. `shared` are those of both kinds of plan; --sample excludes all
// others of the command.
void add_sample_options(CLI::App& command, SampledPlanArguments& sampled,
                        const std::vector<CLI::Option*>& shared) {
  const std::vector<CLI::Option*> all = command.get_options();
  CLI::Option* sample =
      command
          .add_option(
              "--sample", sampled.sample,
              "vectors like those to come: measures which index suits them on this machine, "
              "as build --index auto does")
          ->type_name("FILE");
  for (CLI::Option* option : all)
    if (option != command.get_help_ptr() &&
        std::find(shared.begin(), shared.end(), option) == shared.end())
      sample->excludes(option);
  add_size(command, "--memory", sampled.needs.memory,
           "of --sample: what the index may take (default: as much as it likes)")
      ->needs(sample);
  command
      .add_option("--metric", sampled.metric,
                  "of --sample: l2 (default; of .hdf5 what the file says), ip, cosine")
      ->type_name("M")
      ->needs(sample);
  command.add_option("--type", sampled.type, "of --sample: as f64, f32, f16, bf16, u8 or i8")
      ->type_name("T")
      ->needs(sample);
  add_whole(command, "--threads", sampled.threads, "of --sample: threads to use (default: all)")
      ->needs(sample);
}

// Fills in what --sample shares with the other plans, of the options that were given.
SampledPlanArguments sampled_plan(const CLI::App& command, const PlanArguments& arguments) {
  SampledPlanArguments out = arguments.sampled;
  const auto given = [&](const char* option) { return command.count(option) > 0; };
  if (given("--rows")) {
    out.rows = whole_rows(arguments.rows);
    check_positive("--rows", out.rows);
  }
  if (given("--dim")) {
    out.dim = arguments.needs.dim;
    check_positive("--dim", out.dim);
  }
  if (given("--recall")) out.needs.recall = arguments.needs.recall;
  if (given("--batch")) out.needs.batch = arguments.needs.batch;
  out.json = arguments.json;
  return out;
}

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "plan",
      "Plan a search of up to 10^12 vectors: machines, time and cost; or with --sample, the index "
      "that suits vectors like these on this machine");
  auto arguments = std::make_shared<PlanArguments>();
  ScaleNeeds& needs = arguments->needs;
  CLI::Option* rows = add_number(
      *command, "--rows", arguments->rows,
      "number of float32 vectors, such as 1e10 (default with --sample: those of the file)");
  CLI::Option* dim =
      add_whole(*command, "--dim", needs.dim, "columns of a vector (default: those of --sample)");
  add_whole(*command, "-k", needs.k, "neighbours of a query (default 10)");
  CLI::Option* recall =
      add_number(*command, "--recall", needs.recall, "mean recall (default 0.95; 1: exact)");
  add_number(*command, "--qps", needs.queries_per_second, "queries per second (default 1000)");
  CLI::Option* batch = add_whole(*command, "--batch", needs.batch,
                                 "queries per call (default 100; with --sample 1000)");
  command
      ->add_option("--machine", arguments->machine,
                   "this (default), or a file from knear roofline --out")
      ->type_name("NAME|FILE");
  add_whole(*command, "--lists", needs.lists, "inverted lists (default: the fastest number)");
  add_number(*command, "--probes", needs.probes,
             "lists per query that reach the recall on your vectors (default: assumed)");
  add_number(*command, "--refine-factor", needs.refine_factor,
             "codes to refine per neighbour (default: assumed)");
  add_whole(*command, "--shards", needs.least_shards, "least number of shards (default 1)");
  add_whole(*command, "--replicas", needs.least_replicas, "least number of replicas (default 1)");
  add_whole(*command, "--fan-in", needs.fan_in,
            "machines per merging group (default: the lowest latency)");
  add_number(*command, "--memory-share", needs.memory_share,
             "share of a machine's memory for the index (default 0.8)");
  add_number(*command, "--busy-share", needs.busy_share,
             "share of the time that a machine may be busy (default 0.7)");
  CLI::Option* simulating =
      add_whole(*command, "--simulate", arguments->simulate,
                "number of calls to simulate, with stragglers and failures (default 0)");
  const auto of_simulation = [&](const char* name, double& target, const char* help) {
    return add_number(*command, name, target, help)->needs(simulating);
  };
  of_simulation("--spread", arguments->spread,
                "standard deviation of the logarithm of a call's time (default 0.2)");
  of_simulation("--hedge", arguments->hedge,
                "quantile of that time after which to ask a second replica (default 1: never)");
  of_simulation("--failures", arguments->failures, "failures per machine and hour (default 0)");
  of_simulation("--recovery", arguments->recovery,
                "seconds until a failed machine is back (default 600)")
      ->needs("--failures");
  of_simulation("--deadline", arguments->deadline,
                "seconds after which a call is answered in part (default 0: none)");
  add_whole(*command, "--seed", arguments->seed, "seed of the simulation (default 1)")
      ->needs(simulating);
  CLI::Option* json = command->add_flag("--json", arguments->json, "print one JSON object");
  add_sample_options(*command, arguments->sampled, {rows, dim, recall, batch, json});
  command->footer(
      "The plan follows from the cost model and the description of a machine. The assumptions, "
      "such "
      "as the recall of lists and codes, are printed last.\n\nExample:\n"
      "  knear roofline --out machine.json\n"
      "  knear plan --rows 1e10 --dim 96 --recall 0.95 --qps 10000 --machine machine.json\n"
      "  knear plan --rows 1e9 --dim 96 --replicas 3 --simulate 10000 --failures 0.001 --hedge "
      "0.95\n"
      "  knear plan --sample base.fvecs --rows 2e6 --recall 0.95 --batch 1");
  group_options(
      *command, "Simulation",
      {"--simulate", "--spread", "--hedge", "--failures", "--recovery", "--deadline", "--seed"});
  group_options(
      *command, rarely_needed,
      {"--lists", "--probes", "--refine-factor", "--fan-in", "--memory-share", "--busy-share"});
  command->callback([command, arguments] {
    if (command->count("--sample") > 0) return plan_by_sample(sampled_plan(*command, *arguments));
    for (const char* option : {"--rows", "--dim"})
      if (command->count(option) == 0) throw CLI::RequiredError(option);
    run_plan(*arguments);
  });
}

}  // namespace knear::cli
