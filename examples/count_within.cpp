// examples/count_within.cpp -- the smallest kind of scan: how many rows lie within a radius of each
// query, exactly. Copy it to write another one.
//
// An accumulator is what a kind of scan does with the pairs that pass the thresholds; the driver
// (knear/scan/scan_driver.hpp) does the rest. This one keeps a number for each query. Codes of 8
// bits say of most pairs for certain whether they are within the radius; the few that they leave
// open are measured in float64.
//
// It uses headers that are not installed: a kind of scan is a part of the library. The program
// compares its counts with brute force, and ends with 1 if one differs.
#include <fmt/core.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "knear/core/random.hpp"
#include "knear/cost/peak_cache.hpp"
#include "knear/distance/reference.hpp"
#include "knear/scan/row_measurer.hpp"
#include "knear/scan/scan_driver.hpp"
#include "knear/scan/scores.hpp"

namespace {

using namespace knear;
using namespace knear::detail;

// One task: some queries against some panels of the base.
class CountWithin {
 public:
  CountWithin(const ScanJob& job, const WorkTable& table, const PackedBase& packed, double radius,
              std::vector<std::int64_t>& counts, TileLoop& loop)
      : table_(table),
        radius_(radius),
        counts_(counts),
        loop_(loop),
        begin_(table.sets[static_cast<std::size_t>(loop.task.set)].begin),
        scores_(packed, job, loop.queries),
        measurer_(job),
        found_(static_cast<std::size_t>(loop.count()), 0) {}

  // Publishes the threshold of each query: rows that are certainly farther need not come.
  void begin() {
    for (std::int64_t q = 0; q < loop_.count(); ++q) scores_.publish(q, radius_);
    scores_.publish_groups();
  }
  // One pair that passed. Its key, here the squared distance, is certainly in [low, high].
  void take(std::int64_t q, const GroupHead& head, const Hit& hit, std::uint32_t row) {
    const KeyInterval key = scores_.keys(q, head, hit);
    bool within = key.high <= radius_;
    if (!within && key.low <= radius_) {
      measurer_.set_query(query(q));
      measurer_.measure(
          1, [&](std::int64_t) { return row; },
          [&](std::int64_t, double exact) { within = exact <= radius_; });
    }
    found_[static_cast<std::size_t>(q)] += within;
  }
  void publish_group(GroupHead&) const {}  // thresholds stay as they are
  bool tile_done(std::int64_t, std::int64_t) const { return true; }
  // What is to be done once the task is through, and the bytes that it took.
  std::int64_t finish(ScanStats&) const { return std::ssize(found_) * 8; }
  // One task at a time hands over what it found.
  void hand_over() {
    for (std::int64_t q = 0; q < loop_.count(); ++q)
      counts_[static_cast<std::size_t>(query(q))] += found_[static_cast<std::size_t>(q)];
  }

 private:
  std::int64_t query(std::int64_t q) const {
    return table_.queries[static_cast<std::size_t>(begin_ + q)];
  }

  const WorkTable& table_;
  const double radius_;
  std::vector<std::int64_t>& counts_;
  TileLoop& loop_;
  const std::int64_t begin_;
  CertifiedScores scores_;
  RowMeasurer measurer_;
  std::vector<std::int64_t> found_;
};

Matrix<float> random_vectors(std::int64_t rows, std::int64_t dim, std::uint64_t seed) {
  Random random(seed);
  Matrix<float> out(rows, dim);
  for (std::int64_t i = 0; i < rows * dim; ++i)
    out.data()[i] = static_cast<float>(random.uniform());
  return out;
}

}  // namespace

int main() {
  const Matrix<float> base = random_vectors(20000, 16, 1), queries = random_vectors(100, 16, 2);
  const double radius = 1.0;  // of squared distances

  const Isa isa = active_isa();
  const int threads = available_threads();
  const ScanJob job{.queries = queries.view(),
                    .base = base.view(),
                    .metric = Metric::l2,
                    .k = 1,
                    .threads = threads,
                    .isa = isa,
                    .peaks = &planning_peaks(isa, threads)};
  // Rows are packed each by itself, so that copies count.
  const PackedBase packed = PackedBase::certified(job.base, {}, format_int8,
                                                  CodingSpace::choose(job.base, job.metric, isa),
                                                  threads, {}, 0, /*find_copies=*/false);
  std::vector<std::int64_t> all(static_cast<std::size_t>(queries.rows()));
  std::iota(all.begin(), all.end(), 0);
  ScanStats stats;
  const WorkTable table = divide(packed, all, job, stats);
  std::vector<std::int64_t> counts(all.size(), 0);
  run_tasks(packed, job, table, stats, Progress(), [&](TileLoop& loop, ScanStats&) {
    return CountWithin(job, table, packed, radius, counts, loop);
  });

  std::int64_t wrong = 0, sum = 0;
  for (std::size_t q = 0; q < all.size(); ++q) {
    std::int64_t expected = 0;
    for (std::int64_t row = 0; row < base.rows(); ++row)
      expected +=
          reference_distance(Metric::l2, queries.row(all[q]), base.row(row), base.cols()) <= radius;
    wrong += counts[q] != expected, sum += expected;
  }
  fmt::print("{} pairs within the radius, of {} that the 8-bit codes did not rule out; {} wrong\n",
             sum, stats.hits, wrong);
  return wrong > 0 || sum == 0;
}
