// knear/scan/device/scan_batch.hpp -- a batch of queries of a search on a GPU (device_scan.hpp):
// codes them, scans, measures what is left and hands the answers over.
//
//   ScanBatch<Queue>(base, run, which, false).answer();
//
// Queue: cuda::Queue, or HostQueue of the tests (tests/simt/emulator.hpp).
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "knear/core/error.hpp"
#include "knear/core/progress.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/scan/device/batch_answers.hpp"
#include "knear/scan/device/coded_base.hpp"
#include "knear/scan/device/list_rounds.hpp"
#include "knear/scan/device/scan_launches.hpp"
#include "knear/scan/device/self_join_steps.hpp"

namespace knear::detail {

struct DeviceStats {
  std::int64_t steps = 0;      // of the scan of the last batch
  std::int64_t survivors = 0;  // pairs that were measured (whole numbers: that were left)
  std::int64_t repeated = 0;   // queries that were searched again, since their lists were full
  bool once = false;           // each pair of a self-join was scored once
  bool one_launch = false;     // the last batch was searched in one launch
  // Called, if set, just before the work of a stage is enqueued, and with nullptr after the last
  // stage of a batch: for callers that measure device time. A stage named "... in" or "... out"
  // includes the processor's work.
  std::function<void(const char* stage)> at_stage = {};
};

// Rows by list whose keys are not those of the vectors that were coded, but near them.
struct RowKeys {
  // How far g, as the key has it, may be from that of the vector, for the queries of a batch: as
  // far as the keys are from one another, for l2 half as far.
  std::function<double(std::span<const std::int64_t> which)> slack;
  // Enqueues what writes the keys of all entries of lists. which: the query at each place;
  // vectors [count x dim], by place.
  std::function<void(const DeviceBaseView& base, const DeviceLists& lists,
                     std::span<const std::int64_t> which, const double* vectors)>
      measure;
};

// The answers of some queries in device memory, which stay there: keys and row numbers [count x k],
// by place. order: the query at each place, counted from `first` on, -1 for none; nullptr: queries
// stand in their own order. lost: not 0 where the list of a query was full.
struct FoundOnDevice {
  std::int64_t first, count, k;
  const double* keys;
  const std::int64_t* rows;
  const std::int32_t* order;
  const int* lost;
};

// The state of one call of DeviceScan::run() and the like.
template <class Queue>
struct SearchRun {
  AnyMatrixView queries;
  const ValueRange& found;
  int k;
  std::span<const double> upper_bounds;
  const typename CodedBase<Queue>::Limited& limited;
  ExactNeighbors& out;
  DeviceStats& stats;
  Reporter* watched;  // nullptr: no progress is reported
  std::size_t most_bytes;
  std::int64_t piece;                   // bytes of queries copied at a time
  MatrixView<Id> probes;                // [queries x lists at most]; of rows by list
  bool usual_lists = false;             // for few queries too
  std::vector<std::int64_t> full = {};  // queries whose lists were full
  std::vector<double> reached = {};     // [queries] the thresholds that these have reached
  std::vector<double> scales = {};      // [queries], see DeviceScan::find_scales()
  // Of queries in device memory: these, what is known of them, and who takes what is found.
  const DeviceRowData<Queue>* device_queries = nullptr;
  const double* known_on_device = nullptr;
  const std::function<void(const FoundOnDevice&)>* take = nullptr;
  const RowKeys* keys = nullptr;  // of rows that are not measured by their vectors
  bool self_join = false;         // the queries are the rows

  double scale_of(std::int64_t query) const { return scales[query]; }
  double scale_of_all(std::span<const std::int64_t> which) const {
    double most = 0;
    for (const std::int64_t query : which) most = std::max(most, scale_of(query));
    return most > 0 ? most : 1;
  }
};

// How a batch is searched.
struct BatchMode {
  bool again = false;  // the lists of these queries were full: with as long ones as necessary
  bool pairs = false;  // a self-join, which scores each pair once
  bool device_coded = false;  // the device codes the queries
  bool one_scale = false;     // all have one scale: blocks of lists mix them
  bool ordered = false;       // the device puts queries in order, or their places are given
  bool known = false;         // bounds on their keys are known
  bool sorted = false;        // lists are sorted, not compared
  bool stored = false;        // all pairs of the first step are stored, and fit the lists
};

template <class Queue>
class ScanBatch {
  template <class T>
  using Array = typename Queue::template Array<T>;
  using Base = CodedBase<Queue>;
  using Run = SearchRun<Queue>;

 public:
  // Entries of a list: as many as may pass between two updates of the threshold, or all rows where
  // they are fewer.
  static std::int64_t room_for(const Coding& packed, std::int64_t k) {
    return std::min(2048 + 8 * k, packed.panels() * panel_rows);
  }
  // Bytes of device memory that a query takes in a batch, with a list of so many entries. There are
  // as many spare lists as blocks at once, which are fewer than the queries of a large batch. The
  // vector is there twice, as it came and as doubles.
  static std::int64_t bytes_for_query(const Coding& packed, std::int64_t k, std::int64_t room,
                                      bool sorted) {
    const std::int64_t lists = sorted ? 2 : 1;
    return lists * room * static_cast<std::int64_t>(sizeof(Entry) + sizeof(double)) + 16 * k +
           16 * packed.dim + slices_of(packed.steps) * slice_bytes + 320;
  }
  // Returns true if lists are sorted. Otherwise each entry is compared with all others, which takes
  // the square of their length. The k from which sorting pays was not measured.
  static constexpr std::int64_t most_compared_k = 256;
  static bool sorts(std::int64_t k) { return k > most_compared_k; }
  // Panels of the first step: about 2 k + 500 allowed rows, which is enough for a threshold, and a
  // quarter of what a list holds. Where a search is limited to so many rows, proportionally more
  // panels; panels are in random order, so that neighbouring rows, of one size say, are not all in
  // the first ones or the last.
  static std::int64_t first_panels(const Coding& packed, std::int64_t k, std::int64_t limited) {
    const std::int64_t panels = (2 * k + 511) / panel_rows;
    if (limited == 0) return panels;
    return (panels * packed.rows + limited - 1) / limited;
  }

  // `again`: searches queries whose lists were full, with lists as long as necessary.
  ScanBatch(Base& rows, Run& run, std::span<const std::int64_t> which, bool again)
      : rows_(rows),
        packed_(rows.packed()),
        queue_(rows.queue()),
        run_(run),
        stats_(run.stats),
        which_(which),
        k_(run.k),
        base_(rows.base()) {
    base_.allowed = run.limited.bits.data();
    mode_.again = again;
  }

  void answer() {
    code_queries();
    open_lists();
    if (stats_.one_launch) {
      search_in_one_launch();
    } else {
      scan();
      measure_and_rank();
    }
    if (run_.device_queries)
      hand_over();
    else
      take_answers();
    stage(nullptr);
  }

  // Returns the work of a query, as it is reported.
  static std::int64_t work_of_query(const Base& rows, const Run& run) {
    return rows.by_list() ? run.probes.cols() : rows.packed().panels();
  }

 private:
  static constexpr std::int64_t usual_growth = 4;
  // Pairs that are scored before progress is reported, at most and one step more. A guess.
  static constexpr std::int64_t most_ahead = std::int64_t{1} << 31;
  // Rows of the first step of few queries, from which their first thresholds are: so many are
  // scored in the time of a launch, and a block finds the k-th of them in a few microseconds. A
  // guess.
  static constexpr std::int64_t first_rows_of_few = 4096;

  void stage(const char* name) const {
    if (stats_.at_stage) stats_.at_stage(name);
  }

  // Queries have places, of which a self-join leaves some free.
  void code_queries() {
    if (run_.keys) base_.key_slack = run_.keys->slack(which_);
    stage("queries in");
    if (!mode_.again && scores_pairs_once()) {
      pairs_.emplace(queue_, base_);
      base_ = pairs_->base();
    }
    mode_.pairs = pairs_.has_value();
    if (!mode_.again) stats_.once = mode_.pairs;
    queries_ = mode_.pairs ? pairs_->queries() : std::ssize(which_);
    count_ = static_cast<std::size_t>(queries_);
    mode_.device_coded = run_.device_queries || mode_.pairs || queries_ > block_queries;
    mode_.one_scale = rows_.by_list() && !packed_.is_integer;
    mode_.ordered = mode_.pairs || (mode_.device_coded && !packed_.is_integer && !mode_.one_scale);
    mode_.known = !run_.upper_bounds.empty() || run_.known_on_device;
    const ElementType type = run_.queries.type();
    pieces_.emplace(queue_, rows_.threads(), run_.piece, rows_.sent_bytes(type, std::ssize(which_)),
                    packed_.dim * size_of(type));
    waits_at_exit_.emplace(queue_);
    const std::size_t results = count_ * static_cast<std::size_t>(k_);
    found_ = queue_.template allocate<unsigned char>(
        BatchResults::bytes(results, count_, mode_.ordered ? count_ : 0));
    results_.emplace(found_.data(), results, count_);
    if (mode_.pairs) pairs_->place_rows(results_->order);
    if (mode_.device_coded)
      code_on_device();
    else
      code_on_host();
    view_ = uploaded_.view(0, queries_);
  }
  void code_on_device() {
    rows_.code_on_device(uploaded_, vectors_, *pieces_, run_.queries, which_, run_.found,
                         mode_.again ? std::span<const double>(run_.reached) : run_.upper_bounds,
                         mode_.again, results_->order,
                         mode_.one_scale ? run_.scale_of_all(which_) : 0,
                         device_source(mode_.pairs ? queries_ : 0));
    elements_ = vectors_.elements.data(), squares_ = vectors_.squares.data();
  }
  // The processor codes them, and the vectors by which rows are measured come in the same copy:
  // each takes some microseconds.
  void code_on_host() {
    coded_ = device_queries(packed_, run_.queries, which_, run_.found, rows_.threads());
    reached_ =
        mode_.again ? std::vector<double>(count_) : rows_.thresholds_for(coded_, run_.upper_bounds);
    for (std::size_t place = 0; mode_.again && place < count_; ++place)
      reached_[place] = run_.reached[coded_.order[place]];
    std::vector<double> measured;
    if (!packed_.is_integer) measured = Base::widened(run_.queries, coded_.order);
    if (traits_of(packed_.space.metric).unit_rows) {
      const std::vector<double> added = Base::squares_of(measured, packed_.dim);
      measured.insert(measured.end(), added.begin(), added.end());
    }
    uploaded_ = rows_.upload_queries(coded_, reached_, measured);
    elements_ = uploaded_.more(), squares_ = elements_ + queries_ * packed_.dim;
  }
  // The query that was coded for a place.
  std::int64_t query_at(std::size_t place) const {
    return mode_.device_coded ? which_[place] : coded_.order[place];
  }

  // Decides how long lists are and how the scan grows, and allocates the lists. Of a scan of all
  // rows nothing is allocated from then on.
  void open_lists() {
    if (rows_.by_list()) {
      std::vector<const Id*> probes;
      for (std::size_t place = 0; place < count_; ++place)
        probes.push_back(run_.probes.row(query_at(place)));
      rounds_.emplace(queue_, base_, view_, rows_.first_panel(), std::move(probes),
                      run_.probes.cols(), run_.most_bytes);
    }
    mode_.sorted = sorts(k_) || mode_.again;
    std::int64_t room = room_for(packed_, k_);
    if (mode_.again) {
      room = std::max(room, most_passing());
      if (!fits(room)) throw MemoryBudgetError("lists of {} entries are too long", room);
    } else if (queries_ <= block_queries && !run_.usual_lists && fits(room_of_few())) {
      room = room_of_few(), growth_ = growth_of_few(k_, room);
    }
    entries_ = queue_.template allocate<Entry>(count_ * static_cast<std::size_t>(room));
    keys_ = queue_.template allocate<double>(count_ * static_cast<std::size_t>(room));
    spares_ = mode_.sorted ? spare_lists(queue_, queries_) : 0;
    spare_keys_ = queue_.template allocate<double>(spares_ * room);
    spare_entries_ = queue_.template allocate<Entry>(spares_ * room);
    if (mode_.again && run_.watched)  // what was counted
      run_.watched->add(queries_ * work_of_query(rows_, run_));
    queue_.fill_bytes(results_->counts, 0, 2 * count_);  // and those of `lost`
    lists_ = {entries_.data(), keys_.data(), results_->counts, results_->lost,
              static_cast<int>(room)};
    choose_first_step(room);
    stats_.one_launch = !mode_.again && !mode_.pairs && !rounds_ && !run_.keys && !mode_.sorted &&
                        searches_in_one_launch(queue_, base_.slices, queries_);
  }
  void choose_first_step(std::int64_t room) {
    first_ = mode_.again ? base_.panels : first_panels(packed_, k_, run_.limited.count);
    mode_.stored =
        queries_ <= few_queries && !mode_.again && !mode_.known && !base_.allowed && !rounds_;
    if (mode_.stored) first_ = std::max(first_, std::min(room / 4, first_rows_of_few) / panel_rows);
    // With thresholds from elsewhere the first step may be longer, though not all of the base:
    // these rows may be nearer than those.
    first_end_ = std::min(base_.panels, std::max(first_, mode_.known ? base_.panels / 4 : 0));
  }
  bool fits(std::int64_t room) const {
    return static_cast<std::size_t>(queries_ * bytes_for_query(packed_, k_, room, mode_.sorted)) <=
           run_.most_bytes;
  }
  // As room_for, for at most one block of queries: 34 MB of lists and keys in all.
  std::int64_t room_of_few() const {
    const std::int64_t room = queries_ <= few_queries ? 65536 : 16384;
    return std::max(room_for(packed_, k_), std::min(room, packed_.panels() * panel_rows));
  }
  // The factor by which the scanned part of the base grows. It leaves room in a list for 32 times
  // the pairs that pass exact thresholds, since loose bounds let more pass.
  static std::int64_t growth_of_few(std::int64_t k, std::int64_t room) {
    return std::clamp<std::int64_t>(room / (32 * k), usual_growth, 64);
  }
  // The longest list that queries would have with the present thresholds.
  std::int64_t most_passing() {
    int* const counts = results_->counts;
    std::vector<int> passed(view_.count);
    queue_.fill_bytes(counts, 0, passed.size());
    const DeviceLists none = {nullptr, nullptr, counts, nullptr, 0};
    if (!rounds_)
      launch_scan(queue_, base_, view_, none, 0, base_.panels);
    else if (rounds_->choose(0, rounds_->columns()) > 0)
      rounds_->scan(none);
    const StreamSyncGuard arrived{queue_};
    queue_.download(passed.data(), counts, passed.size());
    queue_.wait();
    return *std::max_element(passed.begin(), passed.end());
  }

  std::int64_t end_after(std::int64_t end) const { return std::min(growth_ * end, base_.panels); }
  void search_in_one_launch() {
    stage("scan");
    launch_few_search(
        queue_, base_, view_, lists_,
        {first_end_, growth_, mode_.stored, k_, elements_, squares_, rows_.rows().data(),
         rows_.rows().type, packed_.dim, results_->keys, results_->ids});
    stats_.steps = 0;
    for (std::int64_t end = 0; end < base_.panels; ++stats_.steps)
      end = end > 0 ? end_after(end) : first_end_;
    report(base_.panels);
  }
  void scan() {
    stats_.steps = 0;
    const auto step = [&](std::int64_t work, auto scans) {
      stage("scan");
      scans();
      stage("thresholds");
      launch_update(queue_, base_, view_, lists_, k_);
      ++stats_.steps;
      report(work);
    };
    if (mode_.pairs) return pairs_->scan(view_, lists_, first_, growth_, step);
    if (rounds_) return scan_lists(step);
    for (std::int64_t begin = 0, end = first_end_; begin < base_.panels;
         begin = end, end = end_after(end))
      step(end - begin, [&] {
        if (mode_.stored && begin == 0)
          launch_scan_of_all(queue_, base_, view_, lists_, end);
        else
          launch_scan(queue_, base_, view_, lists_, begin, end);
      });
  }
  // The steps of a search by lists. step(work, scan): scans, and updates thresholds.
  template <class Step>
  void scan_lists(Step step) {
    const std::int64_t columns = run_.probes.cols();
    for (std::int64_t first = 0, last; first < columns; first = last) {
      last = mode_.again ? columns : std::min(columns, std::max<std::int64_t>(1, growth_ * first));
      const std::int64_t longest = rounds_->choose(first, last);
      // What a whole list holds may be more than the lists of queries that have no threshold.
      const std::int64_t some = mode_.again || first > 0 ? longest : std::min(longest, first_);
      for (std::int64_t begin = 0, end = some;;
           begin = end, end = std::min(longest, growth_ * end)) {
        step(end == longest ? last - first : 0, [&] { rounds_->scan(lists_, begin, end); });
        if (end == longest) break;
      }
    }
  }
  // Work is enqueued ahead. Where progress is reported so much of it is waited for as takes some
  // milliseconds, so that it can be stopped: not each step of a few queries.
  void report(std::int64_t work) {
    if (!run_.watched) return;
    const std::int64_t given = std::ssize(which_);
    ahead_ += given * work *
              (rows_.by_list() ? packed_.rows / (std::ssize(rows_.first_panel()) - 1) : panel_rows);
    if (ahead_ >= most_ahead) queue_.wait(), ahead_ = 0;
    run_.watched->add(given * work);
  }

  void measure_and_rank() {
    const DeviceRowData<Queue>& rows = rows_.rows();
    stage("measure");
    if (run_.keys) {
      run_.keys->measure(base_, lists_, mode_.device_coded ? which_ : coded_.order, elements_);
    } else if (packed_.is_integer) {
      launch_integer_keys(queue_, base_, view_, lists_);
    } else {
      launch_measure(queue_, base_, view_, lists_, elements_, squares_, rows.data(), rows.type,
                     packed_.dim);
    }
    stage("rank");
    launch_rank(queue_, base_, view_, lists_,
                SpareLists{spare_keys_.data(), spare_entries_.data(), spares_}, results_->keys,
                results_->ids, k_);
  }

  // Answers that stay on the device go to whoever takes them.
  void hand_over() {
    stage("answers");
    (*run_.take)({which_.front(), queries_, k_, results_->keys, results_->ids,
                  mode_.ordered ? results_->order : nullptr, results_->lost});
    note_lost();
  }
  // Notes which queries are lost, whose lists were full, and what the others had.
  void note_lost() {
    std::vector<int> heads(2 * count_);
    std::vector<std::int32_t> order;
    {
      const StreamSyncGuard arrived{queue_};
      queue_.download(heads.data(), results_->counts, 2 * count_);
      queue_.wait();
    }
    for (std::size_t place = 0; place < count_; ++place) {
      if (heads[count_ + place] == 0) {
        run_.stats.survivors += heads[place];
        continue;
      }
      if (mode_.ordered && order.empty()) {
        order.resize(count_);
        const StreamSyncGuard arrived{queue_};
        queue_.download(order.data(), results_->order, count_);
        queue_.wait();
      }
      if (!order.empty() && order[place] < 0) continue;  // no query's place
      run_.full.push_back(which_[order.empty() ? place : static_cast<std::size_t>(order[place])]);
    }
  }

  // Answers go to the rows of run.out; queries that are lost are noted with the thresholds that
  // they have reached.
  void take_answers() {
    pieces_->wait();
    pieces_.reset();  // whose pinned memory the answers take, while the device is at work
    stage("answers out");
    BatchAnswers<Queue> answers(queue_, run_.out, k_, run_.piece, *results_, count_, found_.size());
    const BatchResults best = answers.wait_for_heads();
    if (std::any_of(best.lost, best.lost + count_, [](int lost) { return lost != 0; })) {
      reached_.resize(count_);
      queue_.download(reached_.data(), view_.thresholds, count_);
      queue_.wait();
    }
    std::vector<std::int64_t> query_of(count_, -1);  // -1: none, or to be searched again
    for (std::size_t place = 0; place < count_; ++place) {
      if (mode_.ordered && best.order[place] < 0) continue;  // no query's place
      const std::int64_t query =
          query_at(mode_.ordered ? static_cast<std::size_t>(best.order[place]) : place);
      if (best.lost[place]) {
        run_.reached.resize(run_.queries.rows());
        run_.reached[query] = reached_[place];
        run_.full.push_back(query);
        continue;
      }
      query_of[place] = query;
      stats_.survivors += best.counts[place];
    }
    answers.take(query_of, rows_.threads());
  }

  // Returns true for a self-join of all rows that scores each pair once: any row may be found.
  bool scores_pairs_once() const {
    for (std::size_t i = 0; run_.self_join && i < which_.size(); ++i)
      if (which_[i] != static_cast<std::int64_t>(i)) return false;
    return run_.self_join && std::ssize(which_) == packed_.rows && !rows_.by_list() && !run_.keys &&
           run_.limited.bits.size() == 0 && run_.upper_bounds.empty() && !run_.known_on_device &&
           SelfJoinSteps<Queue>::fits(queue_, rows_.base(), packed_.dim,
                                      first_panels(packed_, k_, 0));
  }

  // Returns where the queries of the batch and their bounds are in device memory. With `places` the
  // queries are the rows, which the device holds unless they are whole numbers.
  typename Base::There device_source(std::int64_t places) const {
    typename Base::There out;
    out.places = places;
    if (run_.device_queries) {
      out.queries = static_cast<const unsigned char*>(run_.device_queries->data()) +
                    which_.front() * run_.device_queries->dim * size_of(run_.device_queries->type);
      if (run_.known_on_device) out.known = run_.known_on_device + which_.front();
    } else if (places > 0 && !packed_.is_integer) {
      out.queries = rows_.rows().data();
    }
    return out;
  }

  Base& rows_;
  const Coding& packed_;
  Queue& queue_;
  Run& run_;
  DeviceStats& stats_;
  const std::span<const std::int64_t> which_;
  const int k_;
  DeviceBaseView base_;
  BatchMode mode_;
  std::int64_t queries_ = 0;  // places of queries
  std::size_t count_ = 0;     // the same
  std::optional<SelfJoinSteps<Queue>> pairs_;
  DeviceQueries coded_;  // by the processor
  std::vector<double> reached_;
  typename Base::Vectors vectors_;
  typename Base::Queries uploaded_;
  std::optional<PiecewiseUpload<Queue>> pieces_;
  std::optional<StreamSyncGuard<Queue>> waits_at_exit_;
  // The results to copy back, in one array.
  Array<unsigned char> found_;
  std::optional<BatchResults> results_;
  const double *elements_ = nullptr, *squares_ = nullptr;
  DeviceQueryView view_ = {};
  std::optional<ListRounds<Queue>> rounds_;
  std::int64_t growth_ = usual_growth, first_ = 0, first_end_ = 0;  // panels
  std::int64_t spares_ = 0, ahead_ = 0;
  Array<Entry> entries_;
  Array<double> keys_, spare_keys_;
  Array<Entry> spare_entries_;
  DeviceLists lists_ = {};
};

}  // namespace knear::detail
