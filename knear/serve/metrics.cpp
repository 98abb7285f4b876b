#include "knear/serve/metrics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace knear::serve {
namespace {

constexpr double latency_bounds[] = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                     0.25,   0.5,   1,      2.5,   5,    10,    30};

void head(std::string& out, std::string_view name, std::string_view help, std::string_view type) {
  fmt::format_to(std::back_inserter(out), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void counter(std::string& out, std::string_view name, std::string_view help, double value) {
  head(out, name, help, "counter");
  fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
}

}  // namespace

void Histogram::add(double value) {
  const auto place = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[place];
  sum_ += value;
}

void Histogram::write(std::string& out, std::string_view name, std::string_view labels) const {
  const std::string_view comma = labels.empty() ? "" : ",";
  std::int64_t count = 0;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    count += counts_[i];
    fmt::format_to(std::back_inserter(out), "{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma,
                   bounds_[i], count);
  }
  count += counts_.back();
  fmt::format_to(std::back_inserter(out), "{}_bucket{{{}{}le=\"+Inf\"}} {}\n", name, labels, comma,
                 count);
  const std::string braced = labels.empty() ? "" : fmt::format("{{{}}}", labels);
  fmt::format_to(std::back_inserter(out), "{0}_sum{1} {2}\n{0}_count{1} {3}\n", name, braced, sum_,
                 count);
}

void Metrics::count_request(std::string_view action, int status, double seconds,
                            std::int64_t bytes_in, std::int64_t bytes_out) {
  std::lock_guard lock(mutex_);
  ++requests_[{std::string(action), status}];
  auto found = latency_.find(action);
  if (found == latency_.end()) found = latency_.emplace(action, Histogram(latency_bounds)).first;
  found->second.add(seconds);
  bytes_in_ += bytes_in, bytes_out_ += bytes_out;
}

void Metrics::count_batch(std::int64_t jobs, std::int64_t rows, double seconds) {
  std::lock_guard lock(mutex_);
  ++batches_, queries_ += rows, search_seconds_ += seconds;
  batch_rows_.add(static_cast<double>(rows));
  batch_jobs_.add(static_cast<double>(jobs));
}

void Metrics::count_commit(std::int64_t changes) {
  std::lock_guard lock(mutex_);
  ++commits_, changes_ += changes;
}

void Metrics::count_internal_error() {
  std::lock_guard lock(mutex_);
  ++internal_errors_;
}

std::string Metrics::escaped(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

std::string Metrics::text(const std::vector<Gauge>& gauges) const {
  std::lock_guard lock(mutex_);
  std::string out;
  head(out, "knear_requests_total", "Requests answered, by action and status.", "counter");
  for (const auto& [key, count] : requests_)
    fmt::format_to(std::back_inserter(out),
                   "knear_requests_total{{action=\"{}\",status=\"{}\"}} {}\n", key.first,
                   key.second, count);
  head(out, "knear_request_seconds", "From the head of a request to its answer.", "histogram");
  for (const auto& [action, histogram] : latency_)
    histogram.write(out, "knear_request_seconds", fmt::format("action=\"{}\"", action));
  head(out, "knear_batch_queries", "Queries that one search answered.", "histogram");
  batch_rows_.write(out, "knear_batch_queries", "");
  head(out, "knear_batch_requests", "Requests that one search answered.", "histogram");
  batch_jobs_.write(out, "knear_batch_requests", "");
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  counter(out, "knear_queries_total", "Queries searched for.", number(queries_));
  counter(out, "knear_search_seconds_total", "Time spent in searches.", search_seconds_);
  counter(out, "knear_received_bytes_total", "Bytes of bodies of requests.", number(bytes_in_));
  counter(out, "knear_sent_bytes_total", "Bytes of bodies of answers.", number(bytes_out_));
  counter(out, "knear_changes_total", "Changes written to logs.", number(changes_));
  counter(out, "knear_commits_total", "Writes of changes to a disk, each with one sync.",
          number(commits_));
  counter(out, "knear_internal_errors_total", "Requests answered with status 500.",
          number(internal_errors_));
  std::string_view last;
  for (const Gauge& gauge : gauges) {
    if (gauge.name != last)
      head(out, gauge.name, gauge.help, gauge.counts_up ? "counter" : "gauge");
    last = gauge.name;
    const std::string braced = gauge.labels.empty() ? "" : fmt::format("{{{}}}", gauge.labels);
    fmt::format_to(std::back_inserter(out), "{}{} {}\n", gauge.name, braced, gauge.value);
  }
  return out;
}

}  // namespace knear::serve
