// knear/serve/metrics.hpp -- what a server counts, in the text form that Prometheus reads.
//
//   metrics.count_request("search", 200, seconds, bytes_in, bytes_out);
//   std::string text = metrics.text();           // of GET /metrics
//
// Threads: any call at any time.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace knear::serve {

// How often values were at most each of some bounds, ascending.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds.begin(), bounds.end()), counts_(bounds.size() + 1) {}
  void add(double value);
  // Lines of the text form; labels: what stands in braces, may be empty.
  void write(std::string& out, std::string_view name, std::string_view labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<std::int64_t> counts_;  // of each interval; the last is open
  double sum_ = 0;
};

class Metrics {
 public:
  // action: "search", "add", ...: of these few alone, never what a caller sent.
  void count_request(std::string_view action, int status, double seconds, std::int64_t bytes_in,
                     std::int64_t bytes_out);
  void count_batch(std::int64_t jobs, std::int64_t rows, double seconds);
  // Changes that went to disk with one sync.
  void count_commit(std::int64_t changes);
  void count_internal_error();

  // A figure of now. labels: `index="base"`, as escaped() writes values; may be empty.
  struct Gauge {
    std::string name, help, labels;
    double value = 0;
    bool counts_up = false;
  };
  // Gauges of one name stand together.
  std::string text(const std::vector<Gauge>& gauges) const;

  // A value as it may stand between quotes.
  static std::string escaped(std::string_view value);

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::int64_t, std::less<>> requests_;
  std::map<std::string, Histogram, std::less<>> latency_;
  std::int64_t bytes_in_ = 0, bytes_out_ = 0, batches_ = 0, queries_ = 0, commits_ = 0,
               changes_ = 0, internal_errors_ = 0;
  double search_seconds_ = 0;
  Histogram batch_rows_{batch_bounds}, batch_jobs_{batch_bounds};
  static constexpr double batch_bounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
};

}  // namespace knear::serve
