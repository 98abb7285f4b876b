// The method partial-reduce: Chern et al. (2022), section 5, over the segments of a base: bins, the
// best few rows of each, and exact rescoring (scan/methods/partial_reduce_scan.hpp).
//
// How many rows of a bin are kept follows from the recall. Of k rows, c fall into a given one of B
// bins; whatever order the base has, E max(0, c - kept) is at most that of a binomial c with mean
// k / B. With a = 1 - recall, Markov's inequality says that the mean share lost by any set of
// queries, a thousand copies of one included, exceeds a with probability E loss / a at most. So
// kept is the least for which E loss <= a / 1000: that is the margin of what is promised, and since
// only expectations are used, neither copies of rows nor the dependence of bins matters.
//
// Several segments of a base have bins of their own, and each keeps what it would if it held all k:
// the expected loss is a convex function of how the k are spread over them, so largest where
// all are in one of them. So the promise holds for every split, and for shards merged elsewhere.
//
// The processor keeps the best few rows of each bin while it scans. A GPU finds the k nearest of
// each segment and some more instead, exactly, with one comparison for each score, where bins that
// are kept in registers take more. Taken in order, a row of whose bin enough were taken is passed
// over, until there are k: that is the processor's answer, to the bit. Queries whose list was too
// short for that are left to the processor.
//
// With recall = 1 it is the share of queries without a certificate that is kept small, at 1/200,
// and these are searched exactly.
#include "knear/knn/search/partial_reduce_search.hpp"

#include <cmath>
#include <limits>
#include <utility>

#include "knear/cost/plan.hpp"
#include "knear/distance/reference.hpp"
#include "knear/knn/search/search.hpp"
#include "knear/scan/methods/partial_reduce_scan.hpp"
#include "knear/select/bins.hpp"

namespace knear::detail {
namespace {

constexpr double risk = 1e-3, uncertified = 0.005;

// A row falls into each bin with the same probability, independently of most others: the law of
// bins that are drawn from a base without end.
constexpr std::int64_t endless = std::int64_t{1} << 40;

constexpr KeyedId none{std::numeric_limits<double>::infinity(), std::numeric_limits<Id>::max()};
constexpr std::int64_t least_bins = 64, most_bin_bytes = 512 << 10;

// How many rows more than the k nearest are asked of a device. A promise of recall leaves less than
// k / 1000 rows of a query to be passed over on average; so very few queries have more than this.
constexpr std::int64_t rows_to_pass_over(std::int64_t k) { return 8 + k / 64; }

// Tiles are bins. Where they end is the same on every machine and for every first pass: half a
// megabyte of 8-bit codes, and of a small base so many that there is something to reduce. One
// bin's panels of rows:
std::int64_t panels_of_bin(std::int64_t rows, std::int64_t dim) {
  return std::clamp<std::int64_t>(
      std::min(most_bin_bytes / (panel_rows * (dim + 3)), rows / (panel_rows * least_bins)), 1,
      128);
}

// Rows a query that pass: k (1 + ln(rows / k)) and a quarter more while the threshold of all
// tightens after each bin only, and of each bin the first; half as many more where they have
// intervals. Then some four times k are measured. (On three sets, k = 10 to 1000, within a
// quarter.)
double rows_passed(const SearchRequest& request, std::int64_t bins, bool whole) {
  const double rows = static_cast<double>(request.allowed_rows), k = static_cast<double>(request.k);
  return (1.25 * k * (1 + std::log(std::max(1.0, rows / k))) + 1.3 * static_cast<double>(bins)) *
         (whole ? 1 : 1.5);
}
double rows_measured(const SearchRequest& request) {
  return 4 * static_cast<double>(request.k) + 60;
}

// Choices that other methods have not.
bool only_exact(const KnnOptions& options) {
  const TuningOverrides& choices = options.tuning;
  return options.first_pass == FirstPass::prefix || options.first_pass == FirstPass::direct ||
         !choices.guess || choices.refine || choices.parts > 0 || choices.tile > 0;
}

// Whether the exact search is forecast to take longer. On a processor it hardly can: it has a
// better threshold for the same scores.
bool pays(const SearchRequest& request) {
  if (request.segments.empty() || request.k == 0) return false;
  SearchPosition at(request, nullptr);
  at.segment = &request.segments.front();
  const FirstPass pass = at.first_pass();
  if (pass == FirstPass::direct || pass == FirstPass::prefix) return false;
  const std::int64_t rows = request.allowed_rows, dim = request.queries.cols();
  ScanShape shape = scan_shape(rows, dim, request.queries.rows(), request.k, at.segment->integer,
                               format_of(pass));
  const double exact = predict_scan(shape, request.peaks).seconds;
  const std::int64_t bin_rows = panel_rows * panels_of_bin(rows, dim);
  shape.expected_hits = rows_passed(request, (rows + bin_rows - 1) / bin_rows, shape.whole);
  if (!shape.whole) shape.expected_survivors = rows_measured(request);
  return predict_scan(shape, request.peaks).seconds < exact;
}

class PartialReduceSearch final : public Search {
 public:
  // device: answers by exact searches of its own; the bins are always those of the processor.
  PartialReduceSearch(const SearchRequest& request, DeviceEngine* device)
      : Search(request), device_(device) {
    report_.learns = false, report_.method = "partial-reduce";
    report_.on_device = device != nullptr;
    at_.packs_always = true, at_.tile_bytes = 1;  // never those of packed rows that an index keeps
  }

  ExactNeighbors run_reduce(KnnReport* report) {
    const double recall = request_.options.method.recall.value_or(1);
    const std::int64_t queries = request_.queries.rows();
    dropped_.assign(queries, none);
    ExactNeighbors all;
    run_from(all);
    PromiseReport promise;
    std::int64_t repaired = 0;
    if (!aggregates()) {  // nothing says which of them are the k nearest
      report_.note_answer(queries * bins_ * kept_ * 28);
    } else {
      std::vector<std::int64_t> open;  // without a certificate
      for (std::int64_t q = 0; q < queries; ++q)
        if (!certified(all, q)) open.push_back(q);
      if (recall == 1 && !open.empty()) {
        repair(open, all);
        repaired = std::ssize(open), open.clear();
      }
      promise.certified_queries = queries - std::ssize(open);
      promise.uncertified = std::move(open);
    }
    promise.promised_recall = recall;
    promise.expected_recall = recall == 1 ? 1 : expected_;
    promise.recall_argument = recall == 1 || !drops_ ? "exact" : "analytic";
    if (report) {
      *report = report_.report(at_);
      report->partial_reduce = {bins_, kept_, repaired};
      if (!device_ && request_.k > 0) {
        const bool whole = report->scan.first_pass == name_of(FirstPass::integer);
        report->scan.expected_hits = rows_passed(request_, std::max<std::int64_t>(1, bins_), whole);
        if (!whole) report->scan.expected_survivors = rows_measured(request_);
      }
      set_promise(*report, request_, std::move(promise));
    }
    if (!aggregates()) return candidates();
    return all;
  }

 protected:
  void search_chunk(ExactNeighbors& out) override {
    std::vector<std::int64_t> todo = at_.all_queries();
    if (device_) {
      // Bins are of whole segments; only beyond 2^30 rows there are others.
      if (at_.whole) todo = search_by_device(out);
      report_.note_fallback(std::ssize(todo));
      if (todo.empty()) return;
    }
    ChunkSearch chunk = passes_.begin(out.columns(), at_.upper_bounds);
    chunk.todo = std::move(todo);
    if (aggregates()) at_.answer_zero_queries(chunk.todo, chunk.job.allowed, out);
    const FirstPass pass = chunk.choice.passes.front();
    report_.note_pass(pass, std::ssize(chunk.todo), at_.count);
    if (pass == FirstPass::direct)
      measure_all(chunk, out);
    else
      search_bins(pass, chunk, out);
  }

 private:
  bool aggregates() const { return request_.options.method.partial_reduce.aggregate; }

  // Nothing is dropped where everything is measured.
  void measure_all(const ChunkSearch& chunk, ExactNeighbors& out) {
    at_.list_allowed();
    scan_directly(chunk.job, at_.subset, chunk.todo, out, report_.stats, request_.options.progress);
    if (aggregates()) return;
    const std::int64_t width = out.columns();
    ExactNeighbors list(out.keys.rows(), width);
    std::copy_n(out.keys.data(), out.keys.rows() * width, list.keys.data());
    std::copy_n(out.ids.data(), out.ids.rows() * width, list.ids.data());
    keep_candidates(std::move(list), width);
    note_bins(1, width);
  }

  void search_bins(FirstPass pass, const ChunkSearch& chunk, ExactNeighbors& out) {
    const ScanJob& job = chunk.job;
    const Progress& progress = request_.options.progress;
    const std::int64_t dim = at_.rows.cols();
    const std::int64_t per_step = pass == FirstPass::fp32 ? 1 : pass == FirstPass::int16 ? 2 : 4;
    PackingJob packing = passes_.packing(chunk.choice);
    packing.tile_bytes = panels_of_bin(rows_packed(chunk.choice), dim) *
                         ((dim + per_step - 1) / per_step) * panel_step_bytes;
    at_.make_room(pass);
    const auto packed = at_.prepared().bins(pass, packing);
    const int kept = rows_kept(job.k, packed->tiles, packed->panels_per_tile * panel_rows);
    std::vector<KeyedId> dropped(dropped_.size(), none);
    ExactNeighbors list;
    if (!aggregates()) list = ExactNeighbors(out.keys.rows(), packed->tiles * kept);
    scan_partial_reduce(*packed, job, kept, chunk.todo, out, dropped,
                        aggregates() ? nullptr : &list, report_.stats, progress);
    if (!aggregates()) {
      keep_candidates(std::move(list), kept);
      std::fill_n(out.keys.data(), out.keys.rows() * out.columns(), none.first);
      std::fill_n(out.ids.data(), out.ids.rows() * out.columns(), no_id);
    }
    for (std::size_t q = 0; q < dropped.size(); ++q) note_dropped(q, dropped[q], at_.ids());
    if (!device_ || !at_.whole) note_bins(packed->tiles, kept);
    report_.note_packed(at_.prepared(), *packed, pass);
    report_.note_scored(*packed, std::ssize(chunk.todo));
  }

  std::int64_t rows_packed(const Choice& choice) const {
    return choice.packed_rows.empty() ? at_.rows.rows() : at_.count;
  }
  void note_bins(std::int64_t bins, std::int64_t kept) {
    bins_ += bins, kept_ = std::max(kept_, kept);
  }
  // Takes in what was dropped of a query, by its row number.
  void note_dropped(std::size_t q, const KeyedId& row, const RowIds& ids) {
    if (row != none) dropped_[q] = std::min(dropped_[q], KeyedId{row.first, ids(row.second)});
  }

  // Fills `out` from the exact lists of a device for all rows of the segment; returns the queries
  // for which they were too short. The bins are those that the processor would pack.
  std::vector<std::int64_t> search_by_device(ExactNeighbors& out) {
    const std::int64_t k = out.columns();
    ScanJob job = at_.job(request_.queries, k);
    Choice choice;
    const bool direct = passes_.choose_rows(job, choice);
    std::vector<std::int64_t> todo = at_.all_queries(), left;
    at_.answer_zero_queries(todo, job.allowed, out);
    // Nothing is dropped where the processor measures everything.
    RowBins bins{{std::max<std::int64_t>(1, at_.rows.rows()), 1}, static_cast<int>(k), {}};
    if (!direct) {
      const std::int64_t packed = rows_packed(choice);
      const Tiling tiling = Tiling::of(packed, panels_of_bin(packed, at_.rows.cols()));
      bins = {{packed, tiling.tiles},
              rows_kept(k, tiling.tiles, tiling.panels_per_tile * panel_rows),
              choice.packed_rows};
      note_bins(tiling.tiles, bins.kept);
    }
    const std::int64_t wanted = direct ? k : std::min(at_.count, k + rows_to_pass_over(k));
    SearchSegment segment = at_.segment->given;
    segment.ids = {};  // rows by their number
    const ExactNeighbors lists =
        search_exactly(request_.among({&segment, 1}, request_.queries, wanted));

    constexpr std::int64_t task = 64;
    const std::int64_t count = std::ssize(todo);
    std::vector<char> answered(todo.size());
    parallel_for(request_.threads, (count + task - 1) / task, [&](std::int64_t t) {
      std::vector<int> taken(bins.interleaving.tiles);
      for (std::int64_t i = t * task; i < std::min(count, (t + 1) * task); ++i) {
        const std::int64_t q = todo[i];
        KeyedId dropped = none;
        const bool enough =
            reduce_list(lists.keys.row(q), lists.ids.row(q), wanted, wanted == at_.count, bins, k,
                        taken, out.keys.row(q), out.ids.row(q), dropped);
        answered[i] = enough;
        if (enough) note_dropped(q, dropped, at_.ids());
      }
    });
    for (std::int64_t i = 0; i < count; ++i)
      if (!answered[i]) left.push_back(todo[i]);
    return left;
  }

  // The answer of an exact search on the device, whose work counts.
  ExactNeighbors search_exactly(const SearchRequest& request) {
    Search exact(request, device_);
    ExactNeighbors out;
    exact.run_from(out);
    report_.note_search(exact.done());
    report_.note_memory(exact.done().memory_bytes(request) + answer_bytes());
    return out;
  }

  // How many rows of a bin are kept for the recall asked for; notes what that promises and makes
  // to be expected.
  int rows_kept(std::int64_t k, std::int64_t bins, std::int64_t rows_of_bin) {
    const MethodOptions& method = request_.options.method;
    const double recall = method.recall.value_or(1);
    // A shard of a base that was split at random has its share of the k, in bins like all others; a
    // filter thins out all shards alike.
    const std::int64_t logical_rows = method.partial_reduce.logical_rows;
    if (logical_rows > 0)
      bins = std::min(endless, static_cast<std::int64_t>(static_cast<double>(bins) *
                                                         static_cast<double>(logical_rows) /
                                                         static_cast<double>(request_.rows)));
    const auto loss = [&](std::int64_t kept) {
      return 1 - expected_recall(k, endless, {.bins = bins, .kept = static_cast<int>(kept)});
    };
    const auto enough = [&](std::int64_t kept) {
      if (recall < 1) return loss(kept) <= risk * (1 - recall);
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

  std::int64_t answer_bytes() const {
    return request_.queries.rows() * (request_.k * 16 + request_.k_asked * 12);
  }

  void keep_candidates(ExactNeighbors list, std::int64_t kept) {
    const RowIds ids = at_.ids();
    for (std::int64_t i = 0; i < list.ids.rows() * list.columns(); ++i)
      if (list.ids.data()[i] != no_id) list.ids.data()[i] = ids(list.ids.data()[i]);
    candidates_.push_back({std::move(list), kept});
  }

  // Those of all bins side by side, each as wide as the widest.
  ExactNeighbors candidates() const {
    const std::int64_t width = bins_ * kept_;
    ExactNeighbors out(request_.queries.rows(), width);
    each_query([&](std::int64_t q) {
      std::fill_n(out.ids.row(q), width, no_id);
      std::fill_n(out.keys.row(q), width, none.first);
      std::int64_t bin = 0;
      for (const BinCandidates& chunk : candidates_) {
        const Id* ids = chunk.list.ids.row(q);
        for (std::int64_t j = 0; j < chunk.list.columns(); ++j) {
          if (ids[j] == no_id) continue;
          const std::int64_t place = (bin + j / chunk.kept) * kept_ + j % chunk.kept;
          out.ids.row(q)[place] = ids[j];
          out.keys.row(q)[place] = chunk.list.keys.row(q)[j];
        }
        bin += chunk.list.columns() / chunk.kept;
      }
    });
    return out;
  }

  // Whether nothing that was dropped comes before the last of the answer.
  bool certified(const ExactNeighbors& all, std::int64_t q) const {
    const KeyedId& least = dropped_[q];
    const std::int64_t k = request_.k;
    if (least == none || k == 0) return true;
    return !(least < KeyedId{all.keys.row(q)[k - 1], all.ids.row(q)[k - 1]});
  }

  // Searches the queries exactly and puts the answers in place.
  void repair(const std::vector<std::int64_t>& open, ExactNeighbors& all) {
    const AnyMatrix some = copies_of(request_.queries, open);
    std::vector<SearchSegment> segments;
    for (const SearchRequest::Segment& segment : request_.segments)
      segments.push_back(segment.given);
    SearchRequest request = request_.among(segments, some.view(), request_.k_asked);
    request.options.progress = {};
    ExactNeighbors exact;
    Search again(request, device_);
    again.run_from(exact);
    for (std::size_t i = 0; i < open.size(); ++i) {
      std::copy_n(exact.keys.row(static_cast<std::int64_t>(i)), request_.k, all.keys.row(open[i]));
      std::copy_n(exact.ids.row(static_cast<std::int64_t>(i)), request_.k, all.ids.row(open[i]));
    }
    const KnnReport repaired = again.report();  // from which later searches learn
    report_.prepare_seconds += repaired.prepare_seconds;
    // The second search counts what the first one keeps.
    report_.note_memory(repaired.memory_bytes + answer_bytes());
  }

  struct BinCandidates {
    ExactNeighbors list;
    std::int64_t kept;  // of each bin
  };
  DeviceEngine* const device_;
  bool drops_ = false;            // whether bins may lose one of the k
  std::vector<KeyedId> dropped_;  // of each query, the least that was, by its id
  std::int64_t bins_ = 0, kept_ = 0;
  std::vector<BinCandidates> candidates_;  // of each chunk, if they are the answer
  double expected_ = 1;
};

}  // namespace

ExactNeighbors partial_reduce_on(DeviceEngine* device, const SearchRequest& request,
                                 KnnReport* report) {
  // Unless it was asked for, it is used where it is forecast to be faster, and nothing is asked for
  // that only the exact search has.
  if (request.options.method.kind == Method::automatic &&
      (only_exact(request.options) || !pays(request)))
    return Search(request, device).run(report);
  return PartialReduceSearch(request, device).run_reduce(report);
}

}  // namespace knear::detail
