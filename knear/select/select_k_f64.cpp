// Selection from float64: the kernels of select_k.cpp take float32, so this is a plain loop. A
// buffer takes the values below a bound; where it is full, it is cut to its k best, and the bound
// is the last of these. A row in an order made against it costs a constant number of steps a value,
// too.
#include <algorithm>
#include <limits>
#include <vector>

#include "knear/core/public_call.hpp"
#include "knear/core/threads.hpp"
#include "knear/select/select_k.hpp"

namespace knear {
namespace {

constexpr std::int64_t least_values = 1 << 17;  // that are worth a thread

struct Candidate {
  double value;  // negated where the largest are wanted
  Id place;
};

bool precedes(const Candidate& a, const Candidate& b) {
  return a.value < b.value || (a.value == b.value && a.place < b.place);
}

// Leaves the k best, in no order.
void cut(std::vector<Candidate>& all, std::int64_t k) {
  if (std::ssize(all) <= k) return;
  std::nth_element(all.begin(), all.begin() + (k - 1), all.end(), precedes);
  all.resize(k);
}

// Makes `best` the k best of row[begin .. end), in no order.
void gather(const double* row, std::int64_t begin, std::int64_t end, std::int64_t k, double sign,
            std::vector<Candidate>& best) {
  const std::size_t full = std::min(end - begin, 2 * k + 1024);
  best.clear(), best.reserve(full);
  std::int64_t i = begin;
  for (; i < end && best.size() < full; ++i)
    if (row[i] == row[i]) best.push_back({sign * row[i], i});
  while (i < end) {
    cut(best, k);
    const double bound = best[k - 1].value;  // later values lose ties
    for (; i < end && best.size() < full; ++i)
      if (sign * row[i] < bound) best.push_back({sign * row[i], i});
  }
  cut(best, k);
}

void write(std::vector<Candidate>& best, const double* row, std::int64_t k,
           const SelectOptions& options, double* values, Id* places) {
  if (options.sorted)
    std::sort(best.begin(), best.end(), precedes);
  else
    std::sort(best.begin(), best.end(),
              [](const Candidate& a, const Candidate& b) { return a.place < b.place; });
  for (std::size_t i = 0; i < best.size(); ++i)
    places[i] = best[i].place, values[i] = row[best[i].place];
  const double none =
      (options.extreme == Extreme::largest ? -1 : 1) * std::numeric_limits<double>::infinity();
  std::fill(values + best.size(), values + k, none);
  std::fill(places + best.size(), places + k, no_id);
}

void select_rows(MatrixView<double> rows, std::int64_t k, const SelectOptions& options,
                 SelectionF64& out) {
  const int threads = resolve_threads(options.threads);
  const double sign = options.extreme == Extreme::largest ? -1.0 : 1.0;
  const auto length = [&](std::int64_t row) {
    return options.lengths.empty() ? rows.cols() : options.lengths[row];
  };
  const std::int64_t parts =
      rows.rows() >= 4 * threads
          ? 1
          : std::clamp<std::int64_t>(rows.cols() / std::max(least_values, 8 * k), 1, 2 * threads);
  if (parts == 1) {
    const std::int64_t together = (1 << 18) / (rows.cols() + k + 1) + 1;
    Reporter reporter(options.progress, "select", rows.rows());
    parallel_for(threads, (rows.rows() + together - 1) / together, [&](std::int64_t task) {
      std::vector<Candidate> best;
      const std::int64_t end = std::min(rows.rows(), (task + 1) * together);
      for (std::int64_t row = task * together; row < end; ++row) {
        gather(rows.row(row), 0, length(row), k, sign, best);
        write(best, rows.row(row), k, options, out.values.row(row), out.places.row(row));
      }
      reporter.add(end - task * together);
    });
    return;
  }
  std::vector<std::vector<Candidate>> found(parts);
  Reporter reporter(options.progress, "select", rows.rows() * parts);
  for (std::int64_t row = 0; row < rows.rows(); ++row) {
    parallel_for(threads, parts, [&](std::int64_t part) {
      const std::int64_t count = length(row);
      gather(rows.row(row), count * part / parts, count * (part + 1) / parts, k, sign, found[part]);
      reporter.add(1);
    });
    std::vector<Candidate>& all = found[0];
    for (std::size_t part = 1; part < found.size(); ++part)
      all.insert(all.end(), found[part].begin(), found[part].end());
    cut(all, k);
    write(all, rows.row(row), k, options, out.values.row(row), out.places.row(row));
  }
}

}  // namespace

SelectionF64 select_k(MatrixView<double> rows, std::int64_t k, const SelectOptions& options) {
  return detail::public_call([&] {
    detail::check_selection(k, options.lengths, rows.rows(), rows.cols());
    if (options.method != SelectMethod::automatic)
      throw InvalidArgument(
          "method is {}, but values of type f64 are selected in one way: leave it auto",
          name_of(options.method));
    SelectionF64 out{Matrix<double>::unset(rows.rows(), k), Matrix<Id>::unset(rows.rows(), k)};
    select_rows(rows, k, options, out);
    return out;
  });
}

}  // namespace knear
