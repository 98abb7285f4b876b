// knear/knn/search/search.hpp -- what every search of a base in parts (knn/segment_search.hpp) goes
// by.
//
// Search checks what was asked for, takes the parts in turn, in chunks where memory is limited,
// chooses for each by what to score its rows first, and counts what was done for the report. It
// finds the k nearest itself:
//
//   search.cpp             the checks, the way over parts and chunks, memory, lists, the report
//   first_pass_choice.cpp  which first passes a chunk goes by, and the forms they read
//   prefix_search.cpp      whether a search goes by a prefix, or a join by one, and doing so
//
// A kind of search that does something else with the rows of a chunk is a class derived from it, in
// a file of its own together with the function of segment_search.hpp that starts it. Those that
// find the k nearest in another way have a search_rows of their own (threshold_heap.cpp,
// partial_reduce.cpp, device_search.hpp); range_search.hpp calls for_each_chunk. They call choose
// and packed_form for the rows at hand; scan; say so by note_pass, note_scan and stats_; and end
// with fill.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "knear/core/threads.hpp"
#include "knear/cost/peaks.hpp"
#include "knear/knn/segment_search.hpp"

namespace knear::detail {

// What plans take for k where there is none.
inline constexpr std::int64_t usual_k = 10;

// Whether exact integer arithmetic holds both sides: 8 bits each, and every difference that the
// kernel's int32 test forms (scan/kernels/tile_kernels.hpp) within 31 bits.
bool integer_fits(Metric metric, const ValueRange& base, const ValueRange& queries,
                  std::int64_t dim);

// Everything that one search decides and counts.
class Search {
 public:
  Search(std::span<const SearchSegment> segments, AnyMatrixView queries, std::int64_t k,
         const KnnOptions& options, Reuse reuse, std::int64_t already = 0);
  virtual ~Search() = default;

  Neighbors run(KnnReport* report);
  // Of each row of the one part, the k_asked - 1 nearest others; the queries are its rows.
  Neighbors run_self(KnnReport* report);
  // `all`: the best of rows elsewhere, as many columns as were announced; takes in what is found.
  void run_from(ExactNeighbors& all, KnnReport* report);

  // Makes and keeps the form of the one part that searches like this one go by; none if that is to
  // measure every row.
  std::optional<FirstPass> prepare();

 protected:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  struct Segment {
    SearchSegment given;
    std::int64_t allowed;
    bool integer;  // whether exact integers hold both sides
  };
  PreparedRows& prepared() const { return *segment_->given.rows; }
  const BaseRows& base() const { return segment_->given.rows->base; }

  // Calls f(rows, begin, bytes of packing them) for each part, or chunks of it where memory holds
  // no more; rows none of which is allowed are passed over. segment_, whole_, count_ and subset_
  // say what is at hand.
  template <class F>
  void for_each_chunk(F f) {
    if (queries_.rows() == 0) return;
    for (const Segment& segment : segments_) {
      segment_ = &segment;
      const std::int64_t n = base().rows(), chunk = chunk_rows();
      whole_ = chunk >= n;
      for (std::int64_t begin = 0; begin < n; begin += chunk) {
        const std::int64_t end = std::min(n, begin + chunk);
        ++chunks_;
        subset_.clear();
        count_ = allowed_between(begin, end);
        if (count_ > 0) f(base().part(begin, end), begin, packing_bytes(end - begin, first_pass()));
      }
    }
  }

  // Calls f(number) for each query, on all threads where that pays.
  template <class F>
  void each_query(F f) const {
    const std::int64_t block =
        std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, k_asked_));
    const std::int64_t tasks = (queries_.rows() + block - 1) / block;
    parallel_for(tasks > 1 ? threads_ : 1, tasks, [&](std::int64_t task) {
      for (std::int64_t q = task * block; q < std::min(queries_.rows(), (task + 1) * block); ++q)
        f(q);
    });
  }

  // Of the bytes of one chunk's packed rows what a search has to pay for: nothing where an index
  // keeps the form.
  virtual std::int64_t packing_bytes(std::int64_t rows, FirstPass pass) const {
    return prepared().is_adopted(pass) && tile_bytes() == 0 ? 0 : packed_bytes(rows, pass);
  }
  // Bytes of one chunk's packed rows, with what finding equal rows takes meanwhile.
  std::int64_t packed_bytes(std::int64_t rows, FirstPass pass) const;
  // Bytes of everything else: lists of all queries, buffers and scratch of each thread.
  std::int64_t other_bytes() const;
  // No more rows of a part are taken at a time.
  virtual std::int64_t most_chunk_rows() const { return std::int64_t{1} << 30; }  // 32-bit slots
  // How many rows of the part at hand to prepare at a time: all, or as many as the memory allows.
  // Throws MemoryBudgetError where it allows too few.
  std::int64_t chunk_rows() const;
  // Candidates of a query that may wait to be measured.
  std::int64_t most_pending() const { return 4 * k_ + (options_.memory > 0 ? 64 : 4096); }

  FirstPass first_pass() const {
    if (options_.first_pass == FirstPass::prefix) return FirstPass::prefix;
    return cascade_of(*segment_).front();
  }
  // Of codes; 0: as many as usual.
  virtual std::int64_t tile_bytes() const { return options_.tuning.tile * 1024; }

  // What a chunk is searched by.
  struct Choice {
    std::vector<FirstPass> passes;               // in this order, while queries are left
    std::span<const std::uint32_t> packed_rows;  // what is packed, if that is not all
    bool keep = false;                           // the packed form, for later searches
  };

  // How many rows of the part at hand are allowed.
  std::int64_t allowed_between(std::int64_t begin, std::int64_t end) const;
  // Which rows of the chunk are.
  AllowedRows allowed_rows(const BaseRows& rows, std::int64_t begin) const;
  // Says in `job` which rows are allowed, if not all, or lists them in subset_ if they are packed
  // alone.
  Choice choose(const BaseRows& rows, std::int64_t begin, ScanJob& job);
  // The first half of it: which rows are packed. Returns whether none are, since every row is
  // measured.
  bool choose_rows(const BaseRows& rows, std::int64_t begin, ScanJob& job, Choice& choice);
  void apply_tuning(ScanJob& job) const;
  // A scan of these queries among the rows of a chunk, with nothing chosen yet.
  ScanJob job_for(AnyMatrixView queries, const BaseRows& rows, std::int64_t k) const;
  // What a search of the rows of a chunk begins with: every query, none of them answered.
  struct RowSearch {
    ScanJob job;
    Choice choice;
    std::vector<std::int64_t> todo;
  };
  // bars: as ScanJob has them, or empty; they have to stay.
  RowSearch begin_rows(const BaseRows& rows, std::int64_t begin, std::int64_t k,
                       const std::vector<double>& upper_bounds);
  // Lets go of forms that are kept where memory has no room for this one beside them.
  void make_room(std::int64_t rows, FirstPass pass);
  // Throws InvalidArgument for choices that a method other than the exact search has not.
  void check_plain(std::string_view method) const;
  // Makes subset_, which takes time in a large base, unless every row is allowed or it is there.
  void list_allowed(const ScanJob& job);
  // The form of the chunk for a pass: the one kept, or one made now.
  std::shared_ptr<const PackedBase> packed_form(FirstPass pass, const BaseRows& rows,
                                                const Choice& choice);

  static bool is_zero(AnyMatrixView vectors, std::int64_t row);
  // A zero query is as near to every row: the first k rows, by definition of the distances.
  void answer_zero_queries(std::vector<std::int64_t>& todo, const AllowedRows& allowed,
                           ExactNeighbors& out);

  // pairs: queries times rows.
  void note_pass(FirstPass pass, std::size_t pairs) { done_by_[static_cast<int>(pass)] += pairs; }
  void note_form(const PackedBase& packed, FirstPass pass);
  // That so many queries were scored against all rows of the form, which was read so many times.
  void note_scan(const PackedBase& packed, FirstPass pass, std::int64_t queries,
                 std::int64_t times = 1);
  // The same of rows that are coded elsewhere.
  void note_scored(const Coding& packed, std::int64_t queries, std::int64_t times = 1);
  // What another search did for this one counts as if this one had.
  void note_search(const Search& other);
  virtual void fill(KnnReport& r, double seconds) const;

  AnyMatrixView queries_;
  const KnnOptions& options_;
  Reuse reuse_;
  std::int64_t k_, k_asked_;
  Isa isa_;
  int threads_;
  MachinePeaks peaks_;
  ValueRange found_;
  std::vector<Segment> segments_;  // that have a row allowed
  std::int64_t rows_ = 0, allowed_rows_ = 0;

  // The chunk at hand.
  const Segment* segment_ = nullptr;
  bool whole_ = true;                  // whether it is all of its part
  std::int64_t count_ = 0;             // rows allowed
  std::vector<std::uint32_t> subset_;  // these, where that takes a list; empty: see job.allowed
  std::vector<double> upper_bounds_;   // the k-th key of each query so far; empty: not k yet

  bool learns_ = true;  // whether what is seen tells of later searches
  // Whether the answer depends on what is packed, so that no choice may depend on the time that it
  // takes: rows are never measured instead, but for a very small base.
  bool packs_always_ = false;
  std::int64_t more_bytes_ = 0;  // that a kind of search takes beside lists and scratch
  ScanStats stats_;
  double prepare_seconds_ = 0, multiply_adds_ = 0, bytes_read_ = 0;
  std::int64_t packed_bytes_ = 0, fallback_queries_ = 0;

  // Fills `out`, [queries x the least of k and the rows allowed], with the nearest of the rows of a
  // chunk, numbered from 0 on; of rows beyond upper_bounds_ none need be there. `begin`: the row of
  // the part that is the first of `rows`.
  virtual void search_rows(const BaseRows& rows, std::int64_t begin, ExactNeighbors& out);
  // The same for the queries of `todo` alone.
  void search_queries(const BaseRows& rows, std::int64_t begin, std::vector<std::int64_t> todo,
                      ExactNeighbors& out);
  std::vector<std::int64_t> all_queries() const;

 private:
  // search.cpp
  // The pass that did most of the work.
  FirstPass main_pass() const {
    return static_cast<FirstPass>(std::max_element(std::begin(done_by_), std::end(done_by_)) -
                                  std::begin(done_by_));
  }
  // Reads what earlier searches of one part saw, and leaves what this one did.
  void learn(KnnReport& r) const;

  // first_pass_choice.cpp
  // The first passes that may be tried on a part, in this order, on all coordinates.
  std::vector<FirstPass> cascade_of(const Segment& segment) const;
  // Packing costs about as much as measuring a few queries in float64; a k of the size of the base
  // leaves nothing to prune.
  bool direct_pays(std::int64_t rows) const;
  // What to expect of a search of so many rows (cost/plan.hpp), of which `allowed` may be found, 0
  // for all: by the first of the passes, with a part of packing them; and by measuring them all.
  double scanning_seconds(std::int64_t rows, std::int64_t allowed, double packing) const;
  double measuring_seconds(std::int64_t rows) const;
  // Choices that measuring every row would leave without effect.
  bool kernel_chosen() const {
    const TuningOverrides& choices = options_.tuning;
    return choices.group > 0 || choices.parts > 0 || choices.tile > 0 ||
           choices.refine.value_or(false);
  }
  // How to search the allowed rows of a chunk.
  enum class Way {
    whole,   // the packed form of all rows; what the filter forbids falls when it is hit
    subset,  // pack the allowed rows for this search
    direct   // measure them
  };
  // The way that is expected to take the least time. A form that later searches find packed counts
  // a twentieth.
  Way way_for(std::int64_t rows, bool kept, bool will_be_kept) const;
  // Leaves out the passes at the front whose bound lets too much through on a sample of rows and
  // queries: packing the base for them would be lost. Small bases go without, and what a sample
  // gets wrong is put right while the scan runs (scan/scan.hpp).
  void skip_useless(std::vector<FirstPass>& passes, const BaseRows& rows);
  // A pass that may not suit the data: a few queries go first, and if most of them are handed
  // back, so is the rest.
  // survivors_known: whether earlier searches have told how many rows survive.
  std::vector<std::int64_t> try_pass(const PackedBase& packed, const BaseRows& rows,
                                     const Choice& choice, bool survivors_known, ScanJob job,
                                     const std::vector<std::int64_t>& todo, ExactNeighbors& out);
  // Codes of rows for what an 8-bit pass leaves to be measured: those kept, or where so many rows
  // survived it (a query of searches before) that they would have paid for themselves by now,
  // new ones.
  std::shared_ptr<const PerRowCodes> per_row_codes_for(const PackedBase& packed,
                                                       const BaseRows& rows, const Choice& choice,
                                                       std::int64_t queries, double survivors);

  // prefix_search.cpp
  // A plan as it was asked for.
  PrefixPlan chosen(PrefixPlan plan) const;
  SearchShape shape_of(const BaseRows& rows, FirstPass pass, std::int64_t queries) const;
  // Whether the queries of `todo` go by a prefix, and by which. To find out, it may answer a few of
  // them without, and takes these out of `todo`.
  std::optional<PrefixPlan> prefix_for(const BaseRows& rows, const Choice& choice, ScanJob& job,
                                       std::vector<std::int64_t>& todo, ExactNeighbors& out);
  // Reckons from the neighbours of some rows what a prefix would cost.
  PrefixForecast try_prefix_on_rows(const BaseRows& rows, const SearchShape& shape,
                                    const Choice& choice, const PrefixPlan& kept);
  PrefixForecast forecast_prefix(AnyMatrixView queries, const std::vector<double>& upper_bounds,
                                 const SearchShape& shape, const PrefixPlan& kept, Format format);
  // Answers a few queries without a prefix and reckons from their distances what one would cost.
  PrefixForecast try_prefix(const BaseRows& rows, const SearchShape& shape, const Choice& choice,
                            ScanJob& job, std::vector<std::int64_t>& todo, ExactNeighbors& out,
                            const PrefixPlan& kept);
  // Scores each pair of rows once and answers all of `todo`, where that is expected to pay.
  void self_join(const BaseRows& rows, const Choice& choice, ScanJob& job,
                 std::vector<std::int64_t>& todo, ExactNeighbors& out);
  // Whether a prefix is not the one to keep, which is of the usual tiles and as it was first made.
  bool made_for_once(const std::shared_ptr<const PrefixBase>& kept, const PrefixPlan& plan) const {
    return plan.tile_bytes > 0 || differs(kept, plan);
  }
  // Whether one that is kept is not the one that was asked for.
  bool differs(const std::shared_ptr<const PrefixBase>& kept, const PrefixPlan& plan) const;
  // queries: for which all rows were scored.
  void note_prefix(const PrefixBase& form, bool keep, double queries);
  void search_with_prefix(const PrefixPlan& plan, const BaseRows& rows, const Choice& choice,
                          const ScanJob& job, std::vector<std::int64_t>& todo, ExactNeighbors& out);

  bool self_ = false, self_joined_ = false;  // queries are the rows; each pair was scored once
  bool centred_ = false;
  std::int64_t code_bytes_ = 0;  // of codes of rows that are not kept
  std::int64_t chunks_ = 0;
  std::int64_t prefix_columns_ = 0, clusters_ = 0, tile_rows_ = 0;
  std::size_t done_by_[any_pass_count] = {};
};

}  // namespace knear::detail
