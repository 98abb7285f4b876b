// The method partial-reduce: Chern et al. (2022), section 5, over the parts of a base: bins, the
// best few rows of each, and exact rescoring (scan/methods/partial_reduce_scan.hpp).
//
// How many rows of a bin are kept follows from the recall. Of k rows, c fall into a given one of B
// bins; whatever order the base has, E max(0, c - kept) is at most that of a binomial c with mean
// k / B. With a = 1 - recall, Markov's inequality says that the mean share lost by any set of
// queries, a thousand copies of one included, exceeds a with probability E loss / a at most. So
// kept is the least for which E loss <= a / 1000: that is the margin of what is promised, and since
// only expectations are used, neither copies of rows nor the dependence of bins matters.
//
// Several parts of a base have bins of their own, and each keeps what it would if it held all k:
// the expected loss is a convex function of how the k are spread over the parts, so largest where
// all are in one of them. So the promise holds for every split, and for shards merged elsewhere.
//
// On a GPU the exact search finds what bins are taken from (knn/search/partial_reduce_search.hpp):
// it has one comparison for each score, where bins that are kept in registers take more.
//
// With recall = 1 it is the share of queries without a certificate that is kept small, at 1/200,
// and these are searched exactly.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "knear/core/threads.hpp"
#include "knear/cost/plan.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/device/device_search.hpp"
#include "knear/knn/search/partial_reduce_search.hpp"
#include "knear/scan/methods/partial_reduce_scan.hpp"
#include "knear/select/bins.hpp"

namespace knear::detail {
namespace {

constexpr double risk = 1e-3, uncertified = 0.005;

// A row falls into each bin with the same probability, independently of most others: the law of
// bins that are drawn from a base without end.
constexpr std::int64_t endless = std::int64_t{1} << 40;

class PartialReduceSearch : public Search {
 public:
  // exact: the search of a device, or nothing.
  PartialReduceSearch(const ExactMaker& exact, std::span<const SearchSegment> segments,
                      AnyMatrixView queries, std::int64_t k, const KnnOptions& options, Reuse reuse)
      : Search(segments, queries, k, options, reuse),
        exact_(exact),
        all_segments_(segments.begin(), segments.end()) {
    const std::int64_t logical = options.method.logical_rows;
    if (logical > 0 && (logical < rows_ || logical > endless))
      throw InvalidArgument(
          "logical_rows must be between the {} rows that there are and 2^40, but is {}", rows_,
          logical);
    // Unless it was asked for, it is used where it is forecast to be faster, and nothing is asked
    // for that only the exact search has.
    if (options.method.kind == Method::automatic && (only_exact(options) || !pays())) {
      reduces_ = false;
      return;
    }
    check_plain("partial-reduce");
    if (options.tuning.tile > 0)
      throw InvalidArgument(
          "choices name a tile, but method is partial-reduce, whose bins are tiles");
    if (options.first_pass == FirstPass::direct)
      throw InvalidArgument(
          "first_pass is direct, but method is partial-reduce, which has no bins then");
    if (!options.method.aggregate && options.memory > 0)
      throw InvalidArgument("aggregate is off, but memory is limited to {} bytes", options.memory);
    if (exact_) check_device_way();
    learns_ = false, packs_always_ = true;
  }

  Neighbors run_reduce(KnnReport* report) {
    if (!reduces_) return run(report);
    const auto start = Clock::now();
    dropped_.assign(static_cast<std::size_t>(queries_.rows()), none);
    ExactNeighbors all;
    KnnReport filled;
    run_from(all, &filled);
    if (!options_.method.aggregate) {
      filled.memory_bytes += queries_.rows() * bins_ * kept_ * 28;
      filled.certified_queries = 0;  // nothing says which of them are the k nearest
      note(filled, start);
      if (report) *report = filled;
      return candidates();
    }
    std::vector<std::int64_t> open;  // without a certificate
    for (std::int64_t q = 0; q < queries_.rows(); ++q)
      if (!certified(all, q)) open.push_back(q);
    filled.certified_queries = queries_.rows() - std::ssize(open);
    if (options_.method.recall == 1 && !open.empty())
      repair(open, all, filled);
    else
      filled.uncertified = std::move(open);
    note(filled, start);
    if (report) *report = filled;
    return rounded(all, options_.metric, queries_.rows(), k_asked_, threads_);
  }

 protected:
  // Never those of the form that an index keeps.
  std::int64_t tile_bytes() const override { return reduces_ ? 1 : Search::tile_bytes(); }
  // Tiles are bins. Where they end is the same on every machine and for every first pass: half a
  // megabyte of 8-bit codes, and of a small base so many that there is something to reduce. One
  // bin's panels of rows:
  static std::int64_t panels_of_bin(std::int64_t rows, std::int64_t dim) {
    return std::clamp<std::int64_t>(
        std::min(most_bin_bytes / (panel_rows * (dim + 3)), rows / (panel_rows * least_bins)), 1,
        128);
  }

  void search_rows(const BaseRows& rows, std::int64_t begin, ExactNeighbors& out) override {
    if (!reduces_) return Search::search_rows(rows, begin, out);
    std::vector<std::int64_t> left = all_queries();
    if (exact_) {
      // Bins are of whole parts; only beyond 2^30 rows there are others.
      if (whole_) left = search_by_device(rows, out);
      fallback_queries_ = std::max(fallback_queries_, std::ssize(left));
      if (left.empty()) return;
    }
    auto [job, choice, todo] = begin_rows(rows, begin, out.keys.cols(), upper_bounds_);
    todo = std::move(left);
    if (options_.metric != Metric::l2 && options_.method.aggregate)
      answer_zero_queries(todo, job.allowed, out);
    const FirstPass pass = choice.passes.front();
    note_pass(pass, todo.size() * static_cast<std::size_t>(count_));
    if (pass == FirstPass::direct) {  // nothing is dropped where everything is measured
      list_allowed(job);
      scan_directly(job, subset_, todo, out, stats_, options_.progress);
      if (options_.method.aggregate) return;
      ExactNeighbors list(queries_.rows(), out.keys.cols());
      std::copy_n(out.keys.data(), out.keys.rows() * out.keys.cols(), list.keys.data());
      std::copy_n(out.ids.data(), out.ids.rows() * out.ids.cols(), list.ids.data());
      keep_candidates(std::move(list), out.keys.cols(), segment_->given.ids.from(begin));
      ++bins_, kept_ = std::max(kept_, out.keys.cols());
      return;
    }
    const std::int64_t per_step = pass == FirstPass::fp32 ? 1 : pass == FirstPass::int16 ? 2 : 4;
    const std::int64_t tile_bytes = panels_of_bin(rows_packed(rows, choice), rows.cols()) *
                                    ((rows.cols() + per_step - 1) / per_step) * panel_step_bytes;
    make_room(rows.rows(), pass);
    const auto packed = prepared().bins(pass, rows, choice.packed_rows, choice.keep, threads_,
                                        options_.progress, prepare_seconds_, tile_bytes);
    const int kept = rows_kept(job.k, packed->tiles, packed->panels_per_tile * panel_rows);
    std::vector<KeyedId> dropped(dropped_.size(), none);
    const RowIds ids = segment_->given.ids.from(begin);
    if (options_.method.aggregate) {
      scan_partial_reduce(*packed, job, kept, todo, out, dropped, nullptr, stats_,
                          options_.progress);
    } else {
      const std::int64_t width = packed->tiles * kept;
      ExactNeighbors list(queries_.rows(), width);
      scan_partial_reduce(*packed, job, kept, todo, out, dropped, &list, stats_, options_.progress);
      keep_candidates(std::move(list), kept, ids);
      std::fill_n(out.keys.data(), out.keys.rows() * out.keys.cols(), none.first);
      std::fill_n(out.ids.data(), out.ids.rows() * out.ids.cols(), no_id);
    }
    for (std::size_t q = 0; q < dropped.size(); ++q)
      if (dropped[q] != none)
        dropped_[q] = std::min(dropped_[q], KeyedId{dropped[q].first, ids(dropped[q].second)});
    if (!exact_ || !whole_) note_bins(packed->tiles, kept);
    note_scan(*packed, pass, std::ssize(todo));
  }

 private:
  static std::int64_t rows_of_tiles(const Tiling& tiling) {
    return tiling.panels_per_tile * panel_rows;
  }
  std::int64_t rows_packed(const BaseRows& rows, const Choice& choice) const {
    return choice.packed_rows.empty() ? rows.rows() : count_;
  }
  void note_bins(std::int64_t bins, std::int64_t kept) {
    bins_ += bins, kept_ = std::max(kept_, kept);
  }

  void check_device_way() const {
    if (!options_.method.aggregate)
      throw InvalidArgument("aggregate is off, but device is {}, which keeps no bins",
                            options_.device);
    if (options_.memory > 0)
      throw InvalidArgument(
          "memory is limited to {} bytes, but method is partial-reduce and device is {}, where it "
          "has bins of whole parts alone",
          options_.memory, options_.device);
    // It refuses what it has not; where there is something to search, when it is made for that.
    if (segments_.empty() || queries_.rows() == 0) exact_({}, queries_, k_asked_, options_, reuse_);
  }

  // Fills `out` from the exact lists of a device for all rows of the part; returns the queries for
  // which they were too short. The bins are those that the processor would pack.
  std::vector<std::int64_t> search_by_device(const BaseRows& rows, ExactNeighbors& out) {
    const std::int64_t k = out.keys.cols();
    ScanJob job = job_for(queries_, rows, k);
    job.query_range = found_, job.pending = most_pending();
    Choice choice;
    const bool direct = choose_rows(rows, 0, job, choice);
    std::vector<std::int64_t> todo = all_queries(), left;
    if (options_.metric != Metric::l2) answer_zero_queries(todo, job.allowed, out);
    RowBins bins{{std::max<std::int64_t>(1, rows.rows()), 1}, static_cast<int>(k), {}};
    if (!direct) {  // nothing is dropped where the processor measures everything
      const std::int64_t packed = rows_packed(rows, choice);
      const Tiling tiling = Tiling::of(packed, panels_of_bin(packed, rows.cols()));
      bins = {{packed, tiling.tiles},
              rows_kept(k, tiling.tiles, rows_of_tiles(tiling)),
              choice.packed_rows};
      note_bins(tiling.tiles, bins.kept);
    }
    const std::int64_t wanted = direct ? k : std::min(count_, k + rows_to_pass_over(k));
    SearchSegment segment = segment_->given;
    segment.ids = {};  // rows by their number
    const auto exact = exact_({&segment, 1}, queries_, wanted, options_, reuse_);
    ExactNeighbors lists;
    KnnReport seen;
    exact->run_from(lists, &seen);
    note_search(*exact);
    device_bytes_ = std::max(device_bytes_, seen.device_bytes);
    exact_bytes_ = std::max(exact_bytes_, seen.memory_bytes);

    constexpr std::int64_t task = 64;
    const std::int64_t count = std::ssize(todo);
    std::vector<char> answered(todo.size());
    parallel_for(threads_, (count + task - 1) / task, [&](std::int64_t t) {
      std::vector<int> taken(static_cast<std::size_t>(bins.interleaving.tiles));
      for (std::int64_t i = t * task; i < std::min(count, (t + 1) * task); ++i) {
        const std::int64_t q = todo[static_cast<std::size_t>(i)];
        KeyedId dropped = none;
        answered[static_cast<std::size_t>(i)] =
            reduce_list(lists.keys.row(q), lists.ids.row(q), wanted, wanted == count_, bins, k,
                        taken, out.keys.row(q), out.ids.row(q), dropped);
        if (!answered[static_cast<std::size_t>(i)] || dropped == none) continue;
        KeyedId& least = dropped_[static_cast<std::size_t>(q)];
        least = std::min(least, KeyedId{dropped.first, segment_->given.ids(dropped.second)});
      }
    });
    for (std::int64_t i = 0; i < count; ++i)
      if (!answered[static_cast<std::size_t>(i)]) left.push_back(todo[static_cast<std::size_t>(i)]);
    return left;
  }

  static constexpr KeyedId none{std::numeric_limits<double>::infinity(),
                                std::numeric_limits<Id>::max()};
  static constexpr std::int64_t least_bins = 64, most_bin_bytes = 512 << 10;

  // Rows a query that pass: k (1 + ln(rows / k)) and a quarter more while the threshold of all
  // tightens after each bin only, and of each bin the first; half as many more where they have
  // intervals. Then some four times k are measured. (On three sets, k = 10 to 1000, within a
  // quarter.)
  double rows_passed(double bins, bool whole) const {
    const double rows = static_cast<double>(allowed_rows_), k = static_cast<double>(k_);
    return (1.25 * k * (1 + std::log(std::max(1.0, rows / k))) + 1.3 * bins) * (whole ? 1 : 1.5);
  }

  // Choices that other methods have not.
  static bool only_exact(const KnnOptions& options) {
    const TuningOverrides& choices = options.tuning;
    return options.first_pass == FirstPass::prefix || options.first_pass == FirstPass::direct ||
           !choices.guess || choices.refine || choices.parts > 0 || choices.tile > 0;
  }

  // Whether the exact search is forecast to take longer. On a processor it hardly can: it has a
  // better threshold for the same scores.
  bool pays() {
    if (segments_.empty() || k_ == 0) return false;
    segment_ = &segments_.front();
    const FirstPass pass = first_pass();
    segment_ = nullptr;
    if (pass == FirstPass::direct || pass == FirstPass::prefix) return false;
    ScanShape shape = scan_shape(allowed_rows_, queries_.cols(), queries_.rows(), k_,
                                 segments_.front().integer, format_of(pass));
    const double exact = predict_scan(shape, peaks_).seconds;
    const std::int64_t bin_rows = panel_rows * panels_of_bin(allowed_rows_, queries_.cols());
    shape.expected_hits =
        rows_passed(static_cast<double>((allowed_rows_ + bin_rows - 1) / bin_rows), shape.whole);
    if (!shape.whole) shape.expected_survivors = 4 * static_cast<double>(k_) + 60;
    return predict_scan(shape, peaks_).seconds < exact;
  }

  // Of a bin, for the recall asked for; notes what that promises and makes to be expected.
  int rows_kept(std::int64_t k, std::int64_t bins, std::int64_t rows_of_bin) {
    // A shard of a base that was split at random has its share of the k, in bins like all others; a
    // filter thins out all shards alike.
    if (options_.method.logical_rows > 0)
      bins = std::min(endless,
                      static_cast<std::int64_t>(static_cast<double>(bins) *
                                                static_cast<double>(options_.method.logical_rows) /
                                                static_cast<double>(rows_)));
    const auto loss = [&](std::int64_t kept) {
      return 1 - expected_recall(k, endless, {.bins = bins, .kept = static_cast<int>(kept)});
    };
    const auto enough = [&](std::int64_t kept) {
      if (options_.method.recall < 1) return loss(kept) <= risk * (1 - options_.method.recall);
      return uncertified_share(k, endless, {.bins = bins, .kept = static_cast<int>(kept)}) <=
             uncertified;
    };
    // All that a bin has, or may have of the k, is enough; less may be.
    std::int64_t low = 1, high = std::min({k, rows_of_bin, std::int64_t{most_kept}});
    const bool whole = high == rows_of_bin;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (enough(middle))
        high = middle;
      else
        low = middle + 1;
    }
    if (low < k && !(whole && low == rows_of_bin))
      expected_ = std::min(expected_, 1 - loss(low)), drops_ = true;
    return static_cast<int>(low);
  }

  void note(KnnReport& report, Clock::time_point start) const {
    report.method = "partial-reduce";
    report.promised_recall = options_.method.recall;
    report.expected_recall = options_.method.recall == 1 ? 1 : expected_;
    report.recall_argument = options_.method.recall == 1 || !drops_ ? "exact" : "analytic";
    report.bins = bins_, report.kept_per_bin = kept_;
    if (exact_) {
      report.device = options_.device, report.device_bytes = device_bytes_;
      report.memory_bytes =
          std::max(report.memory_bytes, exact_bytes_ + queries_.rows() * (k_ * 16 + k_asked_ * 12));
    } else if (k_ > 0) {
      const bool whole = report.first_pass == name_of(FirstPass::integer);
      report.expected_hits =
          rows_passed(static_cast<double>(std::max<std::int64_t>(1, bins_)), whole);
      if (!whole) report.expected_survivors = 4 * static_cast<double>(k_) + 60;
    }
    report.seconds = seconds_since(start) - report.prepare_seconds;
  }

  void keep_candidates(ExactNeighbors list, std::int64_t kept, RowIds ids) {
    for (std::int64_t i = 0; i < list.ids.rows() * list.ids.cols(); ++i)
      if (list.ids.data()[i] != no_id) list.ids.data()[i] = ids(list.ids.data()[i]);
    candidates_.push_back({std::move(list), kept});
  }

  // Those of all bins side by side, each as wide as the widest.
  Neighbors candidates() const {
    const std::int64_t width = bins_ * kept_;
    Neighbors out{Matrix<Id>(queries_.rows(), width), Matrix<float>(queries_.rows(), width)};
    each_query([&](std::int64_t q) {
      std::fill_n(out.ids.row(q), width, no_id);
      std::fill_n(out.distances.row(q), width, no_distance(options_.metric));
      std::int64_t bin = 0;
      for (const BinCandidates& chunk : candidates_) {
        const Id* ids = chunk.list.ids.row(q);
        for (std::int64_t j = 0; j < chunk.list.ids.cols(); ++j) {
          if (ids[j] == no_id) continue;
          const std::int64_t at = (bin + j / chunk.kept) * kept_ + j % chunk.kept;
          out.ids.row(q)[at] = ids[j];
          out.distances.row(q)[at] =
              static_cast<float>(distance_of_key(options_.metric, chunk.list.keys.row(q)[j]));
        }
        bin += chunk.list.ids.cols() / chunk.kept;
      }
    });
    return out;
  }

  // Whether nothing that was dropped comes before the last of the answer.
  bool certified(const ExactNeighbors& all, std::int64_t q) const {
    const KeyedId& least = dropped_[static_cast<std::size_t>(q)];
    if (least == none || k_ == 0) return true;
    return !(least < KeyedId{all.keys.row(q)[k_ - 1], all.ids.row(q)[k_ - 1]});
  }

  // Searches the queries exactly and puts the answers in place.
  void repair(const std::vector<std::int64_t>& open, ExactNeighbors& all, KnnReport& report) {
    AnyMatrix some(queries_.type(), std::ssize(open), queries_.cols());
    const auto bytes = static_cast<std::size_t>(queries_.cols() * size_of(queries_.type()));
    for (std::size_t i = 0; i < open.size(); ++i)
      std::memcpy(some.row(static_cast<std::int64_t>(i)), queries_.row(open[i]), bytes);
    KnnOptions options = options_;
    options.progress = {};
    ExactNeighbors exact;
    KnnReport repaired;
    const auto search =
        exact_ ? exact_(all_segments_, some.view(), k_asked_, options, reuse_)
               : std::make_unique<Search>(all_segments_, some.view(), k_asked_, options, reuse_);
    search->run_from(exact, &repaired);
    for (std::size_t i = 0; i < open.size(); ++i) {
      std::copy_n(exact.keys.row(static_cast<std::int64_t>(i)), k_, all.keys.row(open[i]));
      std::copy_n(exact.ids.row(static_cast<std::int64_t>(i)), k_, all.ids.row(open[i]));
    }
    report.repaired_queries = std::ssize(open);
    report.certified_queries += std::ssize(open);
    report.prepare_seconds += repaired.prepare_seconds;
    // The second search counts what the first one keeps.
    report.memory_bytes = std::max(
        report.memory_bytes, repaired.memory_bytes + queries_.rows() * (k_ * 16 + k_asked_ * 12));
  }

  const ExactMaker& exact_;
  std::int64_t device_bytes_ = 0, exact_bytes_ = 0;
  bool reduces_ = true, drops_ = false;  // drops_: whether bins may lose one of the k
  std::vector<SearchSegment> all_segments_;
  std::vector<KeyedId> dropped_;  // of each query, the least that was, by its id
  std::int64_t bins_ = 0, kept_ = 0;
  struct BinCandidates {
    ExactNeighbors list;
    std::int64_t kept;  // of each bin
  };
  std::vector<BinCandidates> candidates_;  // of each chunk, if they are the answer
  double expected_ = 1;
};

}  // namespace

Neighbors partial_reduce_by(const ExactMaker& exact, std::span<const SearchSegment> segments,
                            AnyMatrixView queries, std::int64_t k, const KnnOptions& options,
                            Reuse reuse, KnnReport* report) {
  return PartialReduceSearch(exact, segments, queries, k, options, reuse).run_reduce(report);
}

Neighbors partial_reduce_segments(std::span<const SearchSegment> segments, AnyMatrixView queries,
                                  std::int64_t k, const KnnOptions& options, Reuse reuse,
                                  KnnReport* report) {
  ExactMaker exact;
  if (parse_device(options.device).cuda) {
    check_device(options.device);
    exact = [](const auto&... given) { return make_search(given...); };
  }
  return partial_reduce_by(exact, segments, queries, k, options, reuse, report);
}

}  // namespace knear::detail
