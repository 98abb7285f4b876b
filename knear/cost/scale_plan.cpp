#include "knear/cost/scale_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "knear/core/error.hpp"
#include "knear/cost/list_plan.hpp"
#include "knear/cost/plan.hpp"
#include "knear/cost/recall_assumptions.hpp"
#include "knear/cost/shard_plan.hpp"

namespace knear {
namespace {

constexpr double most_machines = 1e9;
constexpr std::int64_t most_lists = std::int64_t{1} << 24, usual_most_lists = 1 << 20;
constexpr double least_rows_of_list = 32;
// Bytes: a float64 key and an id; a float32 distance and an id; an id and what else a row takes.
constexpr double key_bytes = 16, answer_bytes = 12, id_bytes = 16, coded_row_bytes = 12.5;
constexpr double coded_rest = 1.02;  // of everything, for what codes take beside
constexpr double training_rows_of_list = 256;

double packed_bytes(double dim) { return 1.055 * dim + 9; }

void check_range(const char* name, double value, double least, double most) {
  if (!(value >= least && value <= most))
    throw InvalidArgument("{} must be from {} to {}, but is {}", name, least, most, value);
}
void check_share(const char* name, double value, double most) {
  if (!(value > 0 && value <= most))
    throw InvalidArgument("{} must be above 0 and at most {}, but is {}", name, most, value);
}

void check(const ScaleNeeds& needs) {
  check_range("rows", double(needs.rows), 1, 1e15);
  check_range("dim", double(needs.dim), 1, 65536);
  check_range("k", double(needs.k), 1, 1e6);
  if (needs.k > needs.rows)
    throw InvalidArgument("k is {}, but there are {} rows", needs.k, needs.rows);
  check_share("recall", needs.recall, 1);
  check_share("queries_per_second", needs.queries_per_second, 1e12);
  check_range("batch", double(needs.batch), 1, 1e6);
  if (needs.fan_in != 0) check_range("fan_in", double(needs.fan_in), 2, 4096);
  check_range("least_shards", double(needs.least_shards), 1, most_machines);
  check_range("least_replicas", double(needs.least_replicas), 1, most_machines);
  check_range("lists", double(needs.lists), 0, double(most_lists));
  if (needs.probes != 0) check_range("probes", needs.probes, 1, double(most_lists));
  if (needs.refine_factor != 0) check_range("refine_factor", needs.refine_factor, 1, 1e6);
  check_share("memory_share", needs.memory_share, 1);
  check_share("busy_share", needs.busy_share, 0.99);
}

// A kind of index: exact search of vectors, lists of them, or lists of codes.
struct Form {
  bool lists = false;
  const CodedForm* coded = nullptr;
};

struct Service {
  double seconds = 0;
  std::string limit;
};

class Planner {
 public:
  Planner(const ScaleNeeds& needs, const MachineDescription& machine)
      : needs_(needs),
        machine_(machine),
        rows_(double(needs.rows)),
        dim_(double(needs.dim)),
        batch_(double(needs.batch)),
        bandwidth_(machine.network_bytes_per_second.value_or(assumed_network_bytes_per_second)),
        latency_(machine.network_latency_seconds.value_or(assumed_network_latency_seconds)) {}

  // Nothing where the form does not reach the recall, or does not suit the rows.
  std::optional<ScalePlan> plan(const Form& form) const {
    if (!form.lists) return plan_with(form, 0);
    std::optional<ScalePlan> best;
    const std::int64_t most =
        std::min<std::int64_t>(usual_most_lists, std::int64_t(rows_ / least_rows_of_list));
    for (std::int64_t lists = needs_.lists > 0 ? needs_.lists : 64;
         needs_.lists > 0 ? lists == needs_.lists : lists <= most; lists *= 2) {
      std::optional<ScalePlan> one = plan_with(form, lists);
      // More lists have to be worth their making.
      if (one &&
          (!best || one->machines < best->machines ||
           (one->machines == best->machines && one->latency_seconds < 0.9 * best->latency_seconds)))
        best = std::move(one);
    }
    return best;
  }

  // Of all that would take too many; infinity where nothing fits a machine's memory.
  double least_machines() const { return least_machines_; }

 private:
  std::optional<ScalePlan> plan_with(const Form& form, std::int64_t lists) const {
    ScalePlan out;
    out.lists = lists;
    if (!describe(form, out)) return std::nullopt;
    if (lists > 0) {
      const double of_codes = form.coded ? recall_of_codes(form.coded->recall, rows_) : 1;
      const double wanted = needs_.recall / of_codes;
      if (!(wanted < 1)) return std::nullopt;
      out.probes = needs_.probes > 0 ? needs_.probes : probes_for_recall(wanted, double(lists));
      if (out.probes > double(lists)) return std::nullopt;
      out.expected_recall = needs_.recall;
    }
    if (!divide(out)) return std::nullopt;
    const Service service = service_of(form, out);
    out.service_seconds = service.seconds, out.limit = service.limit;
    if (!replicate(choose_tree(out), out)) return std::nullopt;
    if (machine_.first_use_bytes_per_second)
      out.opening_seconds = out.memory_bytes / *machine_.first_use_bytes_per_second;
    build(form, out);
    price(out);
    out.assumptions = assumptions_of(form, out);
    return out;
  }

  // The factory string, and the bytes of a row.
  bool describe(const Form& form, ScalePlan& out) const {
    const std::string before = out.lists > 0 ? fmt::format("IVF{},", out.lists) : "";
    if (!form.coded) {
      out.factory = before + "Flat";
      out.what = out.lists > 0 ? "lists of vectors" : "all vectors compared";
      out.row_bytes = 4 * dim_ + packed_bytes(dim_) + id_bytes;
      return true;
    }
    const CodedForm& coded = *form.coded;
    if (needs_.dim % coded.columns != 0) return false;
    const std::int64_t parts = needs_.dim / coded.columns;
    out.code_bytes = (parts * coded.bits + 7) / 8;
    out.factory = fmt::format("{}PQ{}{}", before, parts, coded.bits == 4 ? "x4" : "");
    out.what = fmt::format("lists of codes of {} bytes", out.code_bytes);
    if (!coded.refined_by.empty()) {
      out.factory += fmt::format(",Refine({})", coded.refined_by);
      out.what += fmt::format(", refined by {} bytes a column", coded.refining_bytes);
      out.refine_factor = needs_.refine_factor > 0 ? needs_.refine_factor : coded.refine_factor;
    }
    out.row_bytes =
        coded_rest * (double(out.code_bytes) + coded_row_bytes + dim_ * coded.refining_bytes);
    return true;
  }

  double centroid_bytes(const ScalePlan& out) const {
    return double(out.lists) * (4 * dim_ + packed_bytes(dim_));
  }

  // Shards, and what is in one. False where the centroids leave no room, or for too many machines.
  bool divide(ScalePlan& out) const {
    const double fit =
        (needs_.memory_share * machine_.memory_bytes - centroid_bytes(out)) / out.row_bytes;
    if (!(fit >= 1)) return false;
    const double shards = std::max(std::ceil(rows_ / fit), double(needs_.least_shards));
    if (!few_enough(shards)) return false;
    out.shards = std::min(std::int64_t(shards), needs_.rows);
    out.rows_of_shard = std::ceil(rows_ / double(out.shards));
    out.memory_bytes = out.rows_of_shard * out.row_bytes + centroid_bytes(out);
    return true;
  }

  bool few_enough(double count) const {
    if (count <= most_machines) return true;
    least_machines_ = std::min(least_machines_, count);
    return false;
  }

  ListShape list_shape(const Form& form, const ScalePlan& out) const {
    ListShape shape{.rows = std::int64_t(out.rows_of_shard),
                    .dim = needs_.dim,
                    .queries = needs_.batch,
                    .k = needs_.k,
                    .lists = out.lists,
                    .probes = out.probes,
                    .probed_rows = out.probed_rows};
    if (form.coded) {
      shape.code_parts = needs_.dim / form.coded->columns, shape.code_bits = form.coded->bits;
      shape.measured_rows = std::min(out.refine_factor * double(needs_.k), out.probed_rows);
      shape.decoded = form.coded->refined_by == "SQ8";
    }
    return shape;
  }

  Service service_of(const Form& form, ScalePlan& out) const {
    if (out.lists > 0) {
      out.probed_rows = std::min(out.rows_of_shard, probed_list_length * out.probes *
                                                        out.rows_of_shard / double(out.lists));
      const ListCost cost = predict_lists(list_shape(form, out), machine_.peaks);
      return {cost.seconds, cost.limit};
    }
    out.probed_rows = out.rows_of_shard;
    const ScanCost cost = predict_scan({.rows = std::int64_t(out.rows_of_shard),
                                        .dim = needs_.dim,
                                        .queries = needs_.batch,
                                        .k = needs_.k,
                                        .bytes_per_element = 1,
                                        .op = ScanOp::int8},
                                       machine_.peaks);
    return {cost.seconds, cost.limit};
  }

  // Returns the bytes of a call into the machine at the top, or out of it, the larger.
  double set_tree(ScalePlan& out, std::int64_t fan_in) const {
    out.fan_in = fan_in, out.levels = 0;
    for (std::int64_t left = out.shards; left > 1; left = (left + fan_in - 1) / fan_in)
      ++out.levels;
    // The last group may be a smaller one.
    const double merged = double(std::min(fan_in, out.shards));
    const double at_top = double(out.levels) * (merged - 1);
    const double down = batch_ * 4 * dim_, up = batch_ * key_bytes * double(needs_.k),
                 back = batch_ * answer_bytes * double(needs_.k);
    out.network_seconds =
        2 * latency_ * double(1 + out.levels) + (down + back + at_top * (down + up)) / bandwidth_;
    out.merge_seconds =
        double(out.levels) *
        predict_merge({.shards = std::int64_t(merged), .queries = needs_.batch, .k = needs_.k},
                      machine_.peaks);
    out.network_bytes_of_query = (double(out.shards - 1) * (down + up) + down + back) / batch_;
    return std::max(down + at_top * up, back + at_top * down);
  }

  // As set_tree.
  double choose_tree(ScalePlan& out) const {
    if (needs_.fan_in > 0) return set_tree(out, needs_.fan_in);
    std::int64_t best = 0;
    double least = 0;
    for (const std::int64_t fan_in : {2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
      set_tree(out, fan_in);
      const double seconds = out.network_seconds + out.merge_seconds;
      if (best == 0 || seconds < least) best = fan_in, least = seconds;
    }
    return set_tree(out, best);
  }

  // False for too many machines.
  bool replicate(double bytes_of_call, ScalePlan& out) const {
    const double working = out.service_seconds + out.merge_seconds;
    const double sending = bytes_of_call / bandwidth_;
    if (sending > working)
      out.limit = "network";
    else if (out.merge_seconds > out.service_seconds)
      out.limit = "merging";
    const double of_replica = batch_ / std::max(working, sending);
    const double replicas =
        std::max(std::ceil(needs_.queries_per_second / (needs_.busy_share * of_replica)),
                 double(needs_.least_replicas));
    if (!few_enough(replicas * double(out.shards))) return false;
    out.replicas = std::int64_t(replicas);
    out.machines = out.shards * out.replicas;
    out.capacity = of_replica * replicas;
    out.busy = needs_.queries_per_second / out.capacity;
    out.busiest_bytes_per_second = bytes_of_call * needs_.queries_per_second / replicas / batch_;
    out.wait_seconds = out.busy / (2 * (1 - out.busy)) * std::max(working, sending);
    out.latency_seconds = out.network_seconds + out.wait_seconds + working;
    return true;
  }

  double training_rows(const ScalePlan& out) const {
    const double wanted =
        double(out.lists) * training_rows_of_list / (out.lists > most_lists_of_one_level ? 2 : 1);
    return std::min({rows_, std::max(wanted, out.code_bytes > 0 ? 65536. : 0.),
                     std::floor(needs_.memory_share * machine_.memory_bytes /
                                (4 * dim_ + packed_bytes(dim_)))});
  }

  void build(const Form& form, ScalePlan& out) const {
    const ListMakingCost cost = predict_list_making(
        list_shape(form, out), std::int64_t(training_rows(out)), machine_.peaks);
    out.train_seconds = cost.train_seconds, out.add_seconds = cost.add_seconds;
    if (machine_.new_memory_bytes_per_second)
      out.add_seconds += out.rows_of_shard * out.row_bytes / *machine_.new_memory_bytes_per_second;
    out.receive_seconds =
        (out.rows_of_shard * 4 * dim_ + double(out.levels) * double(out.lists) * 4 * dim_) /
        bandwidth_;
    out.copy_seconds = out.replicas > 1 ? out.memory_bytes / bandwidth_ : 0;
    out.build_seconds =
        out.train_seconds + out.receive_seconds + out.add_seconds + out.copy_seconds;
  }

  void price(ScalePlan& out) const {
    if (!machine_.price_per_hour) return;
    const double price = *machine_.price_per_hour;
    out.price_per_hour = price * double(out.machines);
    out.price_per_million_queries = *out.price_per_hour * 1e6 / (needs_.queries_per_second * 3600);
    out.build_price =
        price / 3600 *
        (out.train_seconds + double(out.shards) * (out.receive_seconds + out.add_seconds) +
         double(out.machines) * out.copy_seconds);
  }

  std::vector<std::string> assumptions_of(const Form& form, const ScalePlan& out) const {
    std::vector<std::string> all;
    if (!machine_.network_bytes_per_second)
      all.push_back(fmt::format(
          "the description has no network_bytes_per_second: {:.4g} is assumed", bandwidth_));
    if (!machine_.network_latency_seconds)
      all.push_back(fmt::format("the description has no network_latency_seconds: {:.4g} is assumed",
                                latency_));
    if (!(machine_.peaks.cycles_per_second > 0))
      all.push_back(
          fmt::format("the description has no cycles_per_second: {:.4g} of each thread is assumed",
                      assumed_cycles_per_second));
    if (!machine_.new_memory_bytes_per_second)
      all.push_back(
          "the description has no new_memory_bytes_per_second: adding rows is taken not to wait "
          "for memory");
    if (!machine_.first_use_bytes_per_second)
      all.push_back(
          "the description has no first_use_bytes_per_second: it is not told what checking an "
          "index "
          "that was opened takes");
    if (!machine_.price_per_hour)
      all.push_back("the description has no price_per_hour: no money is told");
    if (out.lists > 0 && needs_.probes == 0)
      all.push_back(
          fmt::format("{:.3g} of {} lists find the recall: as in 4,096 lists of 4,000,000 rows of "
                      "the synthetic set unit96, carried on to other numbers of lists; measure "
                      "yours and say lists and probes",
                      out.probes, out.lists));
    if (out.lists > 0)
      all.push_back(fmt::format("lists that are probed have {} times the mean of rows, as there",
                                probed_list_length));
    if (form.coded && out.refine_factor != form.coded->refine_factor)
      all.push_back(fmt::format(
          "{:.4g} codes refined for each neighbour find what {:.4g} found: measure yours",
          out.refine_factor, form.coded->refine_factor));
    if (form.coded)
      all.push_back(fmt::format(
          "these codes find {:.3f} of the nearest among {:.3g} rows if all lists are searched: as "
          "there, carried on by the logarithm of the rows",
          recall_of_codes(form.coded->recall, rows_), rows_));
    if (out.lists > 0 && training_rows(out) < double(out.lists) * training_rows_of_list / 2)
      all.push_back(fmt::format("centroids are learned from {:.0f} rows, {:.3g} of each list",
                                training_rows(out), training_rows(out) / double(out.lists)));
    all.push_back(
        "rows are vectors of float32 and spread evenly; a machine answers one call after another "
        "with all of its threads, and calls come by chance (M/D/1)");
    return all;
  }

  const ScaleNeeds& needs_;
  const MachineDescription& machine_;
  double rows_, dim_, batch_;
  double bandwidth_, latency_;
  mutable double least_machines_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<ScalePlan> plan_at_scale(const ScaleNeeds& needs, const MachineDescription& machine) {
  check(needs);
  if (needs.lists > needs.rows)
    throw InvalidArgument("lists is {}, but there are {} rows", needs.lists, needs.rows);
  if (needs.lists > 0 && needs.probes > double(needs.lists))
    throw InvalidArgument("probes is {}, but there are {} lists", needs.probes, needs.lists);
  if (needs.recall == 1 && needs.lists > 0)
    throw InvalidArgument("lists is {}, but recall is 1, for which every vector is compared",
                          needs.lists);
  if (needs.probes != 0 && needs.lists == 0)
    throw InvalidArgument("probes is {}, but lists is 0: it is not said of how many", needs.probes);
  if (needs.recall == 1 && needs.refine_factor != 0)
    throw InvalidArgument("refine_factor is {}, but recall is 1, for which no codes are refined",
                          needs.refine_factor);
  const Planner planner(needs, machine);
  std::vector<Form> forms = {{}};
  if (needs.recall < 1) {
    forms.push_back({.lists = true});
    for (const CodedForm& coded : coded_forms) forms.push_back({.lists = true, .coded = &coded});
  }
  std::vector<ScalePlan> out;
  for (const Form& form : forms)
    if (std::optional<ScalePlan> plan = planner.plan(form)) out.push_back(*std::move(plan));
  if (out.empty() && std::isfinite(planner.least_machines()))
    throw InvalidArgument("such a search takes {:.3g} machines like {}, and plans go to {:.0e}",
                          planner.least_machines(), machine.name, most_machines);
  if (out.empty())
    throw InvalidArgument(
        "memory_bytes of {} is {:.0f}, which has no room for a row of {} columns{}", machine.name,
        machine.memory_bytes, needs.dim, needs.lists > 0 ? " beside the centroids" : "");
  const auto none = [&](auto has) { return std::none_of(out.begin(), out.end(), has); };
  if (needs.lists > 0 && none([](const ScalePlan& plan) { return plan.lists > 0; }))
    throw InvalidArgument(
        "lists is {}, whose centroids do not fit memory_bytes of {}, which is {:.0f}, or leave "
        "each machine too few rows",
        needs.lists, machine.name, machine.memory_bytes);
  if (needs.refine_factor > 0 && none([](const ScalePlan& plan) { return plan.refine_factor > 0; }))
    throw InvalidArgument(
        "refine_factor is {}, but no codes that are refined suit {} rows of {} columns and a "
        "recall of {}",
        needs.refine_factor, needs.rows, needs.dim, needs.recall);
  std::stable_sort(out.begin(), out.end(), [](const ScalePlan& a, const ScalePlan& b) {
    return std::pair(a.machines, a.latency_seconds) < std::pair(b.machines, b.latency_seconds);
  });
  return out;
}

}  // namespace knear
