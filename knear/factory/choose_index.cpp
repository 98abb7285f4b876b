#include "knear/factory/choose_index.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "knear/core/cpu.hpp"
#include "knear/core/error.hpp"
#include "knear/core/public_call.hpp"
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
// Graphs are not among them. For one query at a time, asked for a recall, a graph took 1.05 to 3.6
// times as long as the fastest lists of 60,000 vectors and more (bench/auto, on a Zen 5). Tuned by
// queries it took 0.64 to 0.86 of the time of 1,024 lists for descriptors of pictures, 1.07 to 1.38
// times it for vectors in clusters (bench/inverted_lists), and rows, columns and type do not tell
// these apart. It takes 10 to 16 times as long to make.
double probing_time(double recall, double batch) {
  const double missed = std::max(1 - recall, 1e-3);
  const double of_many = 4 + 1.5 / std::sqrt(missed), alone = 14 + 2.8 / std::sqrt(missed);
  return of_many + (alone - of_many) / batch;
}

// Below this many centroids comparing a query with all of them takes less than the rest.
constexpr std::int64_t most_lists_compared = 16384;
constexpr std::int64_t few_queries = 16;
// A rotation of so many columns is learned in a minute or two.
constexpr std::int64_t most_rotated_columns = 512;

std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
  for (std::int64_t m = std::min(of, most); m > 1; --m)
    if (of % m == 0) return m;
  return 1;
}

std::string readable(double bytes) {
  for (const auto& [unit, name] : {std::pair(1 << 30, "GiB"), std::pair(1 << 20, "MiB")})
    if (bytes >= unit) return fmt::format("{:.1f} {}", bytes / unit, name);
  return fmt::format("{:.0f} bytes", bytes);
}

// Bytes that a row of codes takes beside these.
constexpr double id_and_scalar = 12.5;

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
  const bool whole = bytes && !traits_of(needs.metric).unit_rows;
  // All rows may be scored in float32 where products of bytes are slow; those of lists never are.
  const bool in_floats = !lists && !whole && !has_byte_products(active_isa());
  const double packed = in_floats ? 4.05 * d + 12 : 1.055 * d + 9;
  const double vectors = whole ? packed : d * static_cast<double>(size_of(needs.type)) + packed;
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

}  // namespace

IndexChoice choose_index(std::int64_t rows, std::int64_t dim, const IndexNeeds& needs) {
  return detail::public_call([&] {
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
    std::int64_t lists = !lists_pay         ? 0
                         : needs.batch == 1 ? lists_for_one(rows)
                                            : usual_lists(rows);
    // Centroids; of codes also the tables of a quantiser and what recall is measured by.
    const double of_lists = static_cast<double>(lists) * 4 * d,
                 of_codes = 256 * 4 * d + std::min(n, 1000.0) * (1024 + 4 * d);
    const auto bytes_of = [&](const Form& form) {
      const double vectors = n * form.row_bytes + of_lists;
      return form.is_codes() ? 1.02 * (vectors + of_codes) : vectors;
    };
    const double most = needs.memory == 0 ? 1e300 : static_cast<double>(needs.memory);
    const std::vector<Form> forms =
        forms_for(rows, dim, needs, lists > 0, (most / 1.02 - of_lists - of_codes) / n);
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
    if (lists > 1 && lists <= most_lists_compared && needs.batch >= many_queries &&
        !chosen->is_codes())
      lists /= 2;
    std::string found_by;
    if (lists > 0) {
      found_by = fmt::format("IVF{}", lists);
      if (lists > most_lists_compared && needs.batch <= few_queries)
        found_by += fmt::format("(IVF{},Flat)", usual_lists(lists));
      found_by += ",";
    }
    IndexChoice out;
    out.factory = chosen->before + found_by + chosen->form;
    out.bytes = static_cast<std::int64_t>(bytes_of(*chosen));
    std::string why =
        needs.recall == 1 ? std::string("a recall of 1 is certain without lists")
        : lists == 0
            ? fmt::format("{} x {} are compared faster than lists are probed for a recall of {}",
                          rows, dim, needs.recall)
            : fmt::format("{} x {} in {} lists, of which a query probes a few for a recall of {}",
                          rows, dim, lists, needs.recall);
    out.reason = fmt::format(
        "{}: {}; {} take about {}{}", out.factory, why, chosen->what, readable(bytes_of(*chosen)),
        chosen == &forms.front()
            ? ""
            : fmt::format(" of the {} allowed, where vectors as they are take {}", readable(most),
                          readable(bytes_of(forms.front()))));
    if (!chosen->lossless && chosen->form != "SQfp16")
      out.reason += "; tuning says which recall they reach";
    return out;
  });
}

}  // namespace knear
