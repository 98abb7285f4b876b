// The nearest row alone: a threshold and a handful of rows for each query, no lists.
#include "knear/scan/methods/nearest_row_scan.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "knear/scan/row_measurer.hpp"
#include "knear/scan/scan_driver.hpp"
#include "knear/scan/scores.hpp"

namespace knear::detail {
namespace {

struct NearestRowCall {
  const PackedBase& packed;
  const ScanJob& job;
  const WorkTable& table;
  std::span<const std::uint32_t> from;  // a row for each query to begin with; empty: none
  std::span<std::uint32_t> rows;
  std::span<double> keys;
  // A split of the base does not know what the others found, until all have handed over.
  bool shared;
};

// One task.
class NearestRow {
 public:
  NearestRow(const NearestRowCall& call, TileLoop& loop, ScanStats& stats)
      : call_(call),
        loop_(loop),
        stats_(stats),
        scores_(call.packed, call.job, loop.queries),
        begin_(call.table.sets[loop.task.set].begin),
        measurer_(call.job),
        states_(loop.count()) {}

  void begin() {
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      State& s = state(q);
      if (!call_.from.empty()) {
        s.pending[s.count++] = {infinity, call_.from[place(q)]};
        measure(q);
      }
      scores_.publish_threshold(q, s.threshold);
    }
    scores_.publish_groups();
  }
  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    State& s = state(q);
    if (row == s.row) return;
    const ScoreInterval x = scores_.interval(q, head, hit);
    if (x.upper < s.threshold) return;
    const double before = s.threshold;
    if (s.count == most_pending) {
      drop(s);
      if (s.count == most_pending) measure(q);
    }
    s.pending[s.count++] = {x.upper, row};
    s.threshold = std::max(s.threshold, x.lower);
    if (s.threshold != before) scores_.publish_threshold(q, s.threshold);
  }
  void publish_group(GroupHead& head) const { scores_.publish_group(head); }
  bool tile_done(std::int64_t, std::int64_t) const { return true; }
  std::int64_t finish(ScanStats&) {
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      drop(state(q));
      if (state(q).count > 0) measure(q);
      if (!call_.shared) write(q);
    }
    return std::ssize(states_) * static_cast<std::int64_t>(sizeof(State));
  }
  void hand_over() {
    for (std::int64_t q = 0; call_.shared && q < loop_.count(); ++q)
      if (is_nearer(state(q), call_.keys[place(q)], call_.rows[place(q)])) write(q);
  }

 private:
  static constexpr int most_pending = 6;

  struct Waiting {
    double upper;
    std::uint32_t row;
  };
  struct State {
    double threshold = -infinity;            // on g: a row below it is none of the nearest
    double key = infinity;                   // of the nearest row measured
    std::uint32_t row = PackedBase::no_row;  // that row
    int count = 0;
    Waiting pending[most_pending];  // rows that are to be measured if the threshold leaves them
  };
  State& state(std::int64_t q) { return states_[q]; }
  std::size_t place(std::int64_t q) const { return call_.table.queries[begin_ + q]; }

  static bool is_nearer(const State& s, double key, std::uint32_t row) {
    return s.key != key ? s.key < key : s.row < row;
  }
  static void drop(State& s) {
    const auto end = std::remove_if(s.pending, s.pending + s.count, [&](const Waiting& waiting) {
      return waiting.upper < s.threshold;
    });
    s.count = static_cast<int>(end - s.pending);
  }
  void measure(std::int64_t q) {
    State& s = state(q);
    measurer_.set_query(static_cast<std::int64_t>(place(q)));
    measurer_.measure(
        s.count, [&](std::int64_t i) { return s.pending[i].row; },
        [&](std::int64_t i, double key) {
          if (key < s.key || (key == s.key && s.pending[i].row < s.row))
            s.key = key, s.row = s.pending[i].row;
        });
    stats_.survivors += s.count;
    s.count = 0;
    s.threshold = std::max(s.threshold, scores_.scale(q).threshold_for(s.key));
  }
  void write(std::int64_t q) {
    call_.rows[place(q)] = state(q).row, call_.keys[place(q)] = state(q).key;
  }

  const NearestRowCall& call_;
  TileLoop& loop_;
  ScanStats& stats_;
  CertifiedScores scores_;
  const std::int64_t begin_;
  RowMeasurer measurer_;
  std::vector<State> states_;
};

}  // namespace

void scan_nearest_row(const PackedBase& packed, const ScanJob& job, bool start,
                      std::span<std::uint32_t> rows, std::span<double> keys, ScanStats& stats,
                      const Progress& progress) {
  std::vector<std::int64_t> all(job.queries.rows());
  std::iota(all.begin(), all.end(), 0);
  const WorkTable table = divide(packed, std::move(all), job, stats);
  const bool shared = table.tasks.size() > table.sets.size();
  std::vector<std::uint32_t> from;
  if (start) from.assign(rows.begin(), rows.end());
  if (shared) {
    std::fill(keys.begin(), keys.end(), infinity);
    std::fill(rows.begin(), rows.end(), PackedBase::no_row);
  }
  const NearestRowCall call{packed, job, table, from, rows, keys, shared};
  run_tasks(packed, job, table, stats, progress,
            [&](TileLoop& loop, ScanStats& local) { return NearestRow(call, loop, local); });
}

}  // namespace knear::detail
