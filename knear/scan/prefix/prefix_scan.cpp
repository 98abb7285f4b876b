// The scan in two stages: products of prefixes against the threshold, all coordinates of what is
// left while its rows are in cache, float64 for the last few.
#include "knear/scan/prefix/prefix_scan.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "knear/core/threads.hpp"
#include "knear/cost/plan.hpp"
#include "knear/scan/prefix/second_stage.hpp"
#include "knear/scan/scan.hpp"
#include "knear/scan/scan_driver.hpp"

namespace knear::detail {
namespace {

using Clock = std::chrono::steady_clock;

// The clusters that a query was scored against before the scan, as ranges of slots.
struct ProbedClusters {
  static constexpr int most = 8;
  int count = 0;
  std::uint32_t begin[most], end[most];

  void add(std::uint32_t from, std::uint32_t to) { begin[count] = from, end[count++] = to; }
  bool has(std::uint32_t slot) const {
    for (int i = 0; i < count; ++i)
      if (slot >= begin[i] && slot < end[i]) return true;
    return false;
  }
};

// What the tasks share. Queries are numbered by their place in `which`; the table has those that
// have a prefix, in the order of their nearest clusters.
struct PrefixScan {
  const PrefixBase& base;
  const ScanJob& job;
  const std::vector<std::int64_t>& which;
  ExactNeighbors& out;
  Matrix<float> prefixes;           // [which x columns]
  std::vector<ScaledQuery> scaled;  // [which]
  std::vector<char> given_up;       // [which]
  ExactNeighbors nearest = {};      // [which x clusters that are probed]
  WorkTable table = {};
  std::vector<QueryState> found = {};  // [table.queries], where tasks share queries

  std::int64_t probes() const { return nearest.columns(); }
};

// Fills the prefixes. A query whose prefix is too large is for another path.
void project_queries(PrefixScan& scan) {
  constexpr std::int64_t block = 64;
  const std::int64_t count = std::ssize(scan.which);
  parallel_for(scan.job.threads, (count + block - 1) / block, [&](std::int64_t task) {
    const std::int64_t begin = task * block, end = std::min(count, begin + block);
    PrefixMapper mapper(scan.base.map, std::min<std::int64_t>(16, end - begin));
    for (std::int64_t i = begin; i < end; ++i)
      scan.scaled[i] = mapper.add_query(scan.job.queries, scan.which[i], scan.prefixes.row(i));
    mapper.finish();
    for (std::int64_t i = begin; i < end; ++i)
      scan.given_up[i] = !scan.base.map.fits(scan.prefixes.row(i));
  });
}

// Finds the nearest clusters of each query, so many that they hold several times k rows. Returns
// the queries in the order of the nearest one: then those of a task share what they read.
std::vector<std::int64_t> order_by_cluster(PrefixScan& scan) {
  const std::int64_t count = std::ssize(scan.which), clusters = scan.base.centroids.rows();
  const double cluster_rows =
      static_cast<double>(scan.base.panels.rows) / static_cast<double>(clusters);
  const std::int64_t probes = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(std::ceil(3 * static_cast<double>(scan.job.k) / cluster_rows)), 1,
      std::min<std::int64_t>(ProbedClusters::most, clusters));
  scan.nearest = ExactNeighbors(count, probes);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i)
    if (!scan.given_up[i]) order.push_back(i);
  nearest_clusters(scan.base, scan.job, scan.prefixes, order, probes, scan.nearest);
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return std::pair(scan.nearest.ids.row(a)[0], a) < std::pair(scan.nearest.ids.row(b)[0], b);
  });
  return order;
}

// Queries in the order of their clusters, in groups of 12. Where there are too few for that the
// base is split.
WorkTable divide_in_order(const PackedBase& panels, std::vector<std::int64_t> order,
                          const ScanJob& job, ScanStats& stats) {
  const std::int64_t queries = std::ssize(order), threads = job.threads;
  if (queries < 24 * threads || job.group > 0 || job.splits > 0)
    return divide(panels, std::move(order), job, stats);
  WorkTable table;
  table.queries = std::move(order);
  constexpr std::int64_t group = group_sizes[group_12];
  stats.group = group, stats.splits = 1;
  const std::int64_t groups = (queries + group - 1) / group;
  const std::int64_t most = std::max<std::int64_t>(1, queries_in_block(job.k) / 2 / group);
  std::int64_t blocks = (groups + most - 1) / most;
  blocks = std::max(blocks, std::min(4 * threads, groups / 8));
  blocks = std::min((std::max<std::int64_t>(1, blocks) + threads - 1) / threads * threads, groups);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t begin = groups * b / blocks * group;
    table.add(std::min(queries, groups * (b + 1) / blocks * group) - begin, {{0, panels.panels()}});
  }
  return table;
}

// The accumulator: rows that pass by their prefix are scored on all coordinates at once.
class PrefixNearest {
 public:
  PrefixNearest(PrefixScan& scan, TileLoop& loop, ScanStats& stats)
      : scan_(scan),
        base_(scan.base),
        job_(scan.job),
        loop_(loop),
        stats_(stats),
        set_(scan.table.sets[loop.task.set]),
        stage_(scan.base, scan.job),
        states_(loop.count()),
        probed_(states_.size()),
        codes_(loop.count() * code_bytes_),
        passed_(loop.queries.groups, 0),
        gave_up_(passed_.size(), 0),
        second_cost_(second_stage_seconds(base_.codes.dim, *job_.peaks)) {
    // What all rows cost without a prefix, of one query; of few queries, together, at least to read
    // them.
    const double rows = static_cast<double>(base_.panels.rows);
    const double share = static_cast<double>(loop.task.panels.end - loop.task.panels.begin) /
                         static_cast<double>(base_.panels.panels());
    plain_cost_ = rows * share * pair_seconds(ScanOp::int8, base_.codes.dim, *job_.peaks);
    if (std::ssize(scan.which) < std::int64_t{24} * job_.threads)
      reading_cost_ = rows * share * static_cast<double>(base_.codes.dim * job_.threads) /
                      job_.peaks->memory_bytes_per_second;
  }

  void begin() {
    for (std::int64_t q = 0; q < loop_.count(); ++q) probe_clusters(q);
    loop_.clock.charge(loop_.clock.probing);
  }

  void take_list(std::int64_t g, int lane, std::uint32_t* slots, int count) {
    const std::int64_t q = g * loop_.group_size() + lane;
    stats_.hits += count, passed_[g] += count;
    const ProbedClusters& probed = probed_[q];
    std::uint32_t* const end = std::remove_if(slots, slots + count, [&](std::uint32_t slot) {
      return slot >= base_.panels.rows || probed.has(slot) || !counts(slot);
    });
    if (end == slots) return;
    second_stage(q, slots, end - slots);
    publish(q);
  }

  // Gives up where what is still to come, at the rate so far, costs more than starting again
  // without a prefix; once enough was spent for the rate to be more than that of one cluster.
  bool tile_done(std::int64_t g, std::int64_t seen) {
    const double done = static_cast<double>(seen);
    const double left = static_cast<double>(loop_.tiles()) - done;
    const int in_group = loop_.queries.heads[g].count;
    const double all = std::max(plain_cost_ * in_group, reading_cost_);
    const double spent = passed_[g] * second_cost_;
    if (spent <= 0.5 * all || spent * left <= 1.5 * all * done) return true;
    gave_up_[g] = 1;
    return false;
  }

  std::int64_t finish(ScanStats& stats) {
    const auto start = Clock::now();
    std::int64_t bytes = static_cast<std::int64_t>(codes_.bytes());
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      QueryState& s = state(q);
      bytes += static_cast<std::int64_t>(s.candidates.pending.capacity() * sizeof(ScoreInterval) +
                                         sizeof(QueryState));
      if (!set_.alone() || gave_up(q)) continue;
      stage_.finish(s, query(q), scan_.out.keys.row(query(q)), scan_.out.ids.row(query(q)), stats);
      s.candidates.pending = {};
    }
    stats.rescore_seconds = seconds_since(start);
    return bytes;
  }

  void hand_over() {
    for (std::int64_t q = 0; q < loop_.count(); ++q) {
      if (gave_up(q)) scan_.given_up[number(q)] = 1;
      if (!set_.alone()) scan_.found[set_.begin + q].merge(std::move(state(q)));
    }
  }

 private:
  QueryState& state(std::int64_t q) { return states_[q]; }
  std::int64_t number(std::int64_t q) const { return scan_.table.queries[set_.begin + q]; }
  std::int64_t query(std::int64_t q) const { return scan_.which[number(q)]; }
  std::int8_t* codes(std::int64_t q) { return codes_.data() + q * code_bytes_; }
  bool gave_up(std::int64_t q) const { return gave_up_[q / loop_.group_size()]; }
  // Whether anything may be concluded from the row of a slot.
  bool counts(std::uint32_t slot) const {
    return !filtered_ || job_.allowed.any_of(base_.panels.ids[slot], base_.panels.duplicates);
  }

  // Scores the rows of the clusters nearest to a query. Where tasks share a query the first of them
  // keeps what is found there, the others its threshold.
  void probe_clusters(std::int64_t q) {
    QueryState& s = state(q) = stage_.begin(query(q), codes(q));
    s.prefix_scale =
        PrefixKeyScale(job_.metric, base_.panels.space, slack_, loop_.queries.squares[q],
                       loop_.queries.constant[q], scan_.scaled[number(q)]);
    ProbedClusters& probed = probed_[q];
    double rows = 0;
    waiting_.clear();
    for (std::int64_t j = 0; j < scan_.probes(); ++j) {
      const std::size_t cluster = scan_.nearest.ids.row(number(q))[j];
      const std::uint32_t begin = base_.cluster_begin[cluster];
      const std::uint32_t end = base_.cluster_begin[cluster + 1];
      probed.add(begin, end), rows += end - begin;
      for (std::uint32_t slot = begin; slot < end; ++slot) {
        if (!counts(slot)) continue;
        waiting_.push_back(slot);
        if (waiting_.size() < longest_list) continue;
        second_stage(q, waiting_.data(), waiting_.size());
        waiting_.clear();
      }
    }
    second_stage(q, waiting_.data(), waiting_.size());
    stage_.tighten(s, query(q), static_cast<double>(base_.panels.rows) / rows, stats_);
    if (!keeps_probed_) s.keep_bound_alone(stage_.bound(s), job_.k);
    publish(q);
  }

  void second_stage(std::int64_t q, std::uint32_t* slots, std::size_t count) {
    stage_.score(codes(q), slots, count);
    stage_.rate(state(q).coded, slots, count);
    stage_.take(state(q), query(q), codes(q), slots, count, stats_);
  }

  // Publishes what is known of the k-th key.
  void publish(std::int64_t q) {
    const QueryState& s = state(q);
    const double key = stage_.bound(s);
    const double threshold = key < infinity ? s.prefix_scale.threshold_for(key) : -infinity;
    const std::int64_t group_size = loop_.group_size();
    GroupHead& head = loop_.queries.heads[q / group_size];
    const auto lane = static_cast<int>(q % group_size);
    head.threshold[lane] = threshold;
    if (lane == head.count - 1)
      for (int other = head.count; other < group_size; ++other) head.threshold[other] = threshold;
  }

  PrefixScan& scan_;
  const PrefixBase& base_;
  const ScanJob& job_;
  TileLoop& loop_;
  ScanStats& stats_;
  const QuerySet set_;
  const bool keeps_probed_ =
      loop_.task.panels.begin == scan_.table.tasks[set_.first_task].panels.begin;
  SecondStage stage_;
  const std::int64_t code_bytes_ = SecondStage::code_bytes(base_.codes.dim);
  std::vector<QueryState> states_;
  std::vector<ProbedClusters> probed_;
  AlignedArray<std::int8_t> codes_;
  std::vector<double> passed_;  // [groups]
  std::vector<char> gave_up_;   // [groups]
  const double second_cost_;
  double plain_cost_ = 0, reading_cost_ = 0;
  const double slack_ = (static_cast<double>(base_.codes.dim) + 32) * 0x1p-50;
  const bool filtered_ = !job_.allowed.all();
  std::vector<std::uint32_t> waiting_;
};

// Measures what several tasks for the same queries have left.
void finish_shared(PrefixScan& scan, ScanStats& stats) {
  const auto start = Clock::now();
  SecondStage stage(scan.base, scan.job);
  for (std::size_t place = 0; place < scan.found.size(); ++place) {
    const std::size_t number = scan.table.queries[place];
    if (scan.given_up[number]) continue;
    const std::int64_t query = scan.which[number];
    stage.finish(scan.found[place], query, scan.out.keys.row(query), scan.out.ids.row(query),
                 stats);
  }
  stats.rescore_seconds += seconds_since(start);
}

}  // namespace

void nearest_clusters(const PrefixBase& base, const ScanJob& job, const Matrix<float>& prefixes,
                      const std::vector<std::int64_t>& which, std::int64_t count,
                      ExactNeighbors& out) {
  const bool ip = traits_of(job.metric).product;
  Matrix<float> longer;  // for ip: with a column for the row terms
  if (ip) {
    const std::int64_t columns = base.map.columns();
    const auto mean_norm = static_cast<float>(std::min(base.map.mean_norm(), 1e15));
    longer = Matrix<float>::unset(prefixes.rows(), columns + 1);
    for (std::int64_t i = 0; i < prefixes.rows(); ++i)
      *std::copy_n(prefixes.row(i), columns, longer.row(i)) = mean_norm;
  }
  ScanStats ignored;
  scan(base.centroid_panels,
       {.queries = ip ? longer.view() : prefixes.view(),
        .base = base.centroids.view(),
        .metric = ip ? Metric::ip : Metric::l2,
        .k = count,
        .threads = job.threads,
        .isa = job.isa,
        .peaks = job.peaks},
       which, out, ignored, {});
}

std::vector<std::int64_t> scan_with_prefix(const PrefixBase& base, const ScanJob& job,
                                           const std::vector<std::int64_t>& which,
                                           ExactNeighbors& out, ScanStats& stats,
                                           const Progress& progress) {
  if (which.empty()) return {};
  const auto start = Clock::now();
  PrefixScan scan{base,
                  job,
                  which,
                  out,
                  Matrix<float>(std::ssize(which), base.map.columns()),
                  std::vector<ScaledQuery>(which.size()),
                  std::vector<char>(which.size(), 0)};
  project_queries(scan);
  std::vector<std::int64_t> order = order_by_cluster(scan);
  if (order.empty()) return which;
  stats.scan_seconds += seconds_since(start) * job.threads;
  stats.query_seconds += seconds_since(start) * job.threads;

  ScanJob prefix_job = job;
  prefix_job.queries = scan.prefixes.view();
  scan.table = divide_in_order(base.panels, std::move(order), job, stats);
  const bool shared = scan.table.tasks.size() != scan.table.sets.size();
  if (shared) scan.found.resize(scan.table.queries.size());
  run_tasks(base.panels, prefix_job, scan.table, stats, progress,
            [&](TileLoop& loop, ScanStats& local) { return PrefixNearest(scan, loop, local); });
  if (shared) finish_shared(scan, stats);

  std::vector<std::int64_t> again;
  for (std::size_t i = 0; i < which.size(); ++i)
    if (scan.given_up[i]) again.push_back(which[i]);
  return again;
}

}  // namespace knear::detail
