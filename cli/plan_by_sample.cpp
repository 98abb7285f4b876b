#include "cli/plan_by_sample.hpp"

#include <string_view>
#include <utility>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/files.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "cli/progress_bar.hpp"
#include "knear/core/error.hpp"
#include "knear/core/json.hpp"
#include "knear/factory/choose_index.hpp"
#include "knear/io/vectors.hpp"

namespace knear::cli {
namespace {

void print_choice_as_json(const IndexChoice& choice, std::int64_t rows, std::int64_t dim,
                          const IndexNeeds& needs) {
  nlohmann::ordered_json out = {{"rows", rows},
                                {"dim", dim},
                                {"type", name_of(needs.type)},
                                {"metric", name_of(needs.metric)},
                                {"recall", needs.recall},
                                {"batch", needs.batch},
                                {"index", choice.factory},
                                {"reason", choice.reason},
                                {"memory_bytes", choice.bytes},
                                {"guessed", choice.guessed}};
  auto& forms = out["forms"] = nlohmann::ordered_json::array();
  for (const FormForecast& form : choice.forecasts)
    forms.push_back({{"index", form.factory},
                     {"seconds_per_query", form.seconds},
                     {"scored_rows", form.scored_rows},
                     {"memory_bytes", form.bytes}});
  print("{}\n", out.dump(2));
}

void print_choice(const IndexChoice& choice) {
  print("{}\n", choice.reason);
  if (choice.forecasts.empty()) return;
  std::vector<std::vector<std::string>> table = {
      {"", "a query, one thread", "rows scored", "memory"}};
  for (const FormForecast& form : choice.forecasts)
    table.push_back({form.factory, readable_seconds(form.seconds), readable_count(form.scored_rows),
                     readable_bytes(double(form.bytes))});
  print("\n");
  print_text(format_table(table));
}

}  // namespace

void plan_by_sample(const SampledPlanArguments& arguments) {
  IndexNeeds needs = arguments.needs;
  if (!arguments.metric.empty()) needs.metric = parse_metric(arguments.metric);
  const int threads = checked_threads(arguments.threads);
  const CatchInterrupts guard;
  const io::VectorFile file = open_vectors(arguments.sample, arguments.type, base_dataset);
  if (arguments.metric.empty()) needs.metric = metric_of_file(arguments.sample);
  needs.sample = file.view();
  needs.type = needs.sample.type();
  const std::int64_t dim = needs.sample.cols();
  if (arguments.dim != 0 && arguments.dim != dim)
    throw InvalidArgument("--dim is {}, but {} has {} columns", arguments.dim, arguments.sample,
                          dim);
  const std::int64_t rows = arguments.rows == 0 ? needs.sample.rows() : arguments.rows;
  const IndexChoice choice = [&] {
    ProgressBar bar;
    return choose_index(rows, dim, needs, {.threads = threads, .progress = bar.callback()});
  }();
  if (arguments.json)
    print_choice_as_json(choice, rows, dim, needs);
  else
    print_choice(choice);
}

}  // namespace knear::cli
