#include "knear/factory/choose_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
#include "knear/factory/forms_to_choose.hpp"
#include "knear/index/impl/index_impl.hpp"
#include "knear/index/usual_lists.hpp"

namespace knear {
namespace {

// Rows are found in lists where that is faster than comparing all of them. Microseconds of a query,
// seen on a processor with 8-bit dot products (bench/auto); only where they cross counts.
double scan_time(double rows, double dim, double batch) {
  const double of_many = 4 + rows * dim * 1.6e-6, alone = 20 + rows * dim * 1.05e-5;
  return of_many + (alone - of_many) / batch;
}
double probing_time(double recall, double batch) {
  const double missed = std::max(1 - recall, 1e-3);
  const double of_many = 4 + 1.5 / std::sqrt(missed), alone = 14 + 2.8 / std::sqrt(missed);
  return of_many + (alone - of_many) / batch;
}

// Floats of so many columns that are compared by angle are taken for embeddings of text, which lie
// in no clear clusters: for a few queries at a time a graph was 1.3 to 5 times as fast as lists
// (bench/auto). Descriptors and pictures are whole numbers, compared by l2.
constexpr std::int64_t least_text_columns = 128;

bool guessed_as_text(std::int64_t dim, const IndexNeeds& needs) {
  const bool floats = needs.type != ElementType::u8 && needs.type != ElementType::i8;
  const MetricTraits metric = traits_of(needs.metric);
  const bool angles = metric.product || metric.unit_rows;
  return floats && angles && dim >= least_text_columns;
}

// A rotation of so many columns is learned in a minute or two.
constexpr std::int64_t most_rotated_columns = 512;

std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
  for (std::int64_t m = std::min(of, most); m > 1; --m)
    if (of % m == 0) return m;
  return 1;
}

using detail::id_and_scalar;

// A list that many queries probe together is scored at the rate of all rows, so that half as many,
// twice as long, take less: comparing with centroids is what is left. Seen of 60,000 to 1,000,000
// vectors as they are (bench/auto); codes take longer for each row.
constexpr std::int64_t many_queries = 1000;

// For one query a call. Of 100,000 to 400,000 rows half as many as usual took 0.72 to 1.04 of the
// time (bench/auto); 10,000, 60,000 and 1,000,000 have as many either way.
std::int64_t lists_for_one(std::int64_t rows) {
  const double power = std::round(std::log2(2 * std::sqrt(static_cast<double>(rows))));
  return std::min(std::int64_t{1} << static_cast<int>(power), usual_lists(rows));
}

// A form of rows, and what it takes for each.
struct Form {
  std::string before, form, what;
  double row_bytes;
  bool lossless = false;

  bool is_codes() const { return form != "Flat" && form != "SQfp16"; }
};

// From the one that loses least to the one that loses most; behind that of the vectors faster ones
// first.
std::vector<Form> forms_for(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs,
                            bool lists, double most_row_bytes) {
  const auto d = static_cast<double>(dim);
  const bool bytes = needs.type == ElementType::u8 || needs.type == ElementType::i8;
  // A metric without products measures vectors as they are.
  if (!traits_of(needs.metric).by_products)
    return {
        {"", "Flat", "vectors as they are", d * static_cast<double>(size_of(needs.type)), true}};
  const double packed = detail::packed_row_bytes(dim, needs, lists),
               vectors = detail::vector_row_bytes(dim, needs, lists);
  std::vector<Form> out{{"", "Flat", "vectors as they are", vectors, true}};
  const bool wide = needs.type == ElementType::f32 || needs.type == ElementType::f64;
  if (wide) out.push_back({"", "SQfp16", "vectors rounded to halves", 2 * d + packed});
  const bool quantizes = rows >= 5000;
  // Half a byte for two columns, by which the few are found that are measured more finely.
  std::int64_t half = largest_divisor(dim, std::max<std::int64_t>(1, dim / 2));
  if (half < dim / 8) half = dim;
  const double rough = static_cast<double>((half + 1) / 2) + id_and_scalar;
  if (wide && quantizes)
    out.push_back({"", fmt::format("PQ{}x4,Refine(SQfp16)", half),
                   "codes, of which the nearest are measured by halves of the vectors",
                   rough + 2 * d});
  if (!bytes && quantizes)
    out.push_back({"", fmt::format("PQ{}x4,Refine(SQ8)", half),
                   "codes, of which the nearest are measured by a byte a column", rough + d});
  if (!bytes) out.push_back({"", "SQ8", "codes of a byte a column", d + id_and_scalar});
  if (quantizes) {
    const double left = std::floor(most_row_bytes - id_and_scalar);
    const std::int64_t most = std::min<std::int64_t>(dim / 2, static_cast<std::int64_t>(left));
    if (most >= 1) {
      const std::int64_t m = largest_divisor(dim, most);
      // Where two columns have a byte there is little for a rotation to win.
      const bool turned = 2 * m < dim && dim <= most_rotated_columns;
      out.push_back({turned ? fmt::format("OPQ{},", m) : "", fmt::format("PQ{}", m),
                     fmt::format("codes of {} bytes", m), static_cast<double>(m) + id_and_scalar});
    }
  }
  return out;
}

// The forms that are measured on a sample where vectors as they are do not fit. Codes of 8 bits a
// part are not among them: few vectors do not train their 256 centroids.
std::vector<detail::RowForm> measured_smaller_forms(std::int64_t rows, std::int64_t dim,
                                                    const IndexNeeds& needs) {
  std::vector<detail::RowForm> out;
  for (const Form& form : forms_for(rows, dim, needs, true, id_and_scalar))
    if (!form.lossless) out.push_back({form.form, form.row_bytes});
  return out;
}

IndexChoice choice_by_rules(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs) {
  if (rows < 1) throw InvalidArgument("rows must be at least 1, but is {}", rows);
  detail::check_index_dim(dim);
  if (needs.memory < 0)
    throw InvalidArgument("memory must not be negative, but is {}", needs.memory);
  if (!(needs.recall > 0 && needs.recall <= 1))
    throw InvalidArgument("recall must be in (0, 1], but is {}", needs.recall);
  if (needs.batch < 1) throw InvalidArgument("batch must be at least 1, but is {}", needs.batch);
  const auto n = static_cast<double>(rows), d = static_cast<double>(dim),
             batch = static_cast<double>(needs.batch);
  const bool lists_pay = needs.recall < 1 && traits_of(needs.metric).by_products &&
                         probing_time(needs.recall, batch) < scan_time(n, d, batch);
  std::int64_t lists = !lists_pay ? 0 : needs.batch == 1 ? lists_for_one(rows) : usual_lists(rows);
  const auto bytes_of = [&](const Form& form) {
    return form.is_codes() ? detail::coded_index_bytes(rows, dim, form.row_bytes, lists)
                           : n * form.row_bytes + static_cast<double>(lists) * 4 * d;
  };
  const double most = needs.memory == 0 ? 1e300 : static_cast<double>(needs.memory);
  const std::vector<Form> forms =
      forms_for(rows, dim, needs, lists > 0,
                (most - detail::coded_index_bytes(rows, dim, 0, lists)) / 1.02 / n);
  const Form* chosen = nullptr;
  for (const Form& form : forms)
    if (bytes_of(form) <= most && (needs.recall < 1 || form.lossless)) {
      chosen = &form;
      break;
    }
  if (!chosen) {
    double least = bytes_of(forms.front());
    if (needs.recall < 1)
      for (const Form& form : forms_for(rows, dim, needs, lists > 0, id_and_scalar + 1))
        least = std::min(least, bytes_of(form));
    throw InvalidArgument("memory is {} bytes, but {} x {} take {:.0f} at least{}", needs.memory,
                          rows, dim, least, needs.recall == 1 ? " for a recall of 1" : "");
  }
  if (lists > 1 && lists <= detail::most_lists_compared && needs.batch >= many_queries &&
      !chosen->is_codes())
    lists /= 2;
  IndexChoice out;
  out.guessed = detail::may_be_measured(rows, needs);
  const double of_graph = n * detail::graph_row_bytes(dim, detail::guessed_links, needs);
  const bool graph = out.guessed && guessed_as_text(dim, needs) &&
                     needs.batch < detail::few_queries && of_graph <= most;
  if (graph) lists = 0;
  const std::string found_by = graph ? fmt::format("Graph{}", detail::guessed_links)
                                     : detail::lists_in_words(lists, needs.batch);
  out.factory = graph ? found_by : chosen->before + found_by + chosen->form;
  out.bytes = static_cast<std::int64_t>(graph ? of_graph : bytes_of(*chosen));
  std::string why =
      needs.recall == 1 ? std::string("a recall of 1 is certain without lists")
      : graph           ? fmt::format(
                              "{} x {} floats, compared by {}, are taken for embeddings of text, for "
                                        "which a graph is the fastest for a few queries a call",
                              rows, dim, name_of(needs.metric))
      : lists == 0
          ? fmt::format("{} x {} are compared faster than lists are probed for a recall of {}",
                        rows, dim, needs.recall)
          : fmt::format("{} x {} in {} lists, of which a query probes a few for a recall of {}",
                        rows, dim, lists, needs.recall);
  out.reason =
      fmt::format("{}: {}; {} take about {}{}", out.factory, why, chosen->what,
                  detail::readable_size(static_cast<double>(out.bytes)),
                  chosen == &forms.front()
                      ? ""
                      : fmt::format(" of the {} allowed, where vectors as they are take {}",
                                    detail::readable_size(most),
                                    detail::readable_size(bytes_of(forms.front()))));
  if (!chosen->lossless && chosen->form != "SQfp16")
    out.reason += "; tuning says which recall they reach";
  if (out.guessed) out.reason += "; guessed without a sample of the vectors";
  return out;
}

}  // namespace

namespace detail {

bool may_be_measured(std::int64_t rows, const IndexNeeds& needs) {
  return needs.recall < 1 && traits_of(needs.metric).by_products && rows >= least_measured_rows;
}

std::string lists_in_words(std::int64_t lists, std::int64_t batch) {
  if (lists == 0) return {};
  if (lists > most_lists_compared && batch <= few_queries)
    return fmt::format("IVF{}(IVF{},Flat),", lists, usual_lists(lists));
  return fmt::format("IVF{},", lists);
}

std::string readable_size(double bytes) {
  for (const auto& [unit, name] : {std::pair(1 << 30, "GiB"), std::pair(1 << 20, "MiB")})
    if (bytes >= unit) return fmt::format("{:.1f} {}", bytes / unit, name);
  return fmt::format("{:.0f} bytes", bytes);
}

}  // namespace detail

IndexChoice choose_index(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs,
                         const ChangeOptions& options) {
  return detail::public_call([&] {
    const AnyMatrixView& sample = needs.sample;
    IndexNeeds own = needs;
    if (sample.rows() > 0) own.type = sample.type();
    IndexChoice guess = choice_by_rules(rows, dim, own);
    if (sample.rows() == 0) return guess;
    if (sample.cols() != dim)
      throw ShapeMismatch("sample has {} columns, but dim is {}", sample.cols(), dim);
    if (!guess.guessed) return guess;
    if (sample.rows() < least_sample) {
      guess.reason += fmt::format(", as {} vectors are too few to measure: {} are needed",
                                  sample.rows(), least_sample);
      return guess;
    }
    IndexChoice choice =
        detail::measured_choice(rows, own, measured_smaller_forms(rows, dim, own), options);
    if (!choice.factory.empty()) return choice;
    guess.reason += ", as no form that was measured reaches the recall within the memory";
    return guess;
  });
}

}  // namespace knear
