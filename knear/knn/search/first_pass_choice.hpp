// knear/knn/search/first_pass_choice.hpp -- what a chunk is scored by first: which passes are
// tried, whether it pays to pack its rows, all or those allowed, and whether per-row codes pay
// beside 8-bit ones. Apart from the search itself, since this is planning: by forecasts
// (cost/plan.hpp), by what earlier searches saw, and by trials on samples.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "knear/knn/search/report_builder.hpp"
#include "knear/knn/search/search_position.hpp"

namespace knear::detail {

// What a chunk is searched by.
struct Choice {
  std::vector<FirstPass> passes = {};               // in this order, while queries are left
  std::span<const std::uint32_t> packed_rows = {};  // what is packed, if that is not all
  bool keep = false;                                // the packed rows, for later searches
};

// The search of a chunk: what is chosen, and the queries that have no answer yet.
struct ChunkSearch {
  ScanJob job;
  Choice choice;
  std::vector<std::int64_t> todo;
};

class FirstPassChoice {
 public:
  FirstPassChoice(SearchPosition& at, ReportBuilder& report) : at_(at), report_(report) {}

  // Begins the search of the rows at hand for the k nearest of every query. upper_bounds: as
  // ScanJob has them, or empty; they have to stay.
  ChunkSearch begin(std::int64_t k, const std::vector<double>& upper_bounds);
  // Says in `job` which rows are allowed, if not all, or lists them in at.subset if they are packed
  // alone.
  Choice choose(ScanJob& job);
  // The first half of it: which rows are packed. Returns whether none are, since every row is
  // measured.
  bool choose_rows(ScanJob& job, Choice& choice);
  void apply_tuning(ScanJob& job) const;
  // Leaves out the passes at the front whose bound lets too much through on a sample of rows and
  // queries: packing the base for them would be lost. Small bases go without, and what a sample
  // gets wrong is put right while the scan runs (scan/scan.cpp).
  void skip_useless(std::vector<FirstPass>& passes);

  // What the rows at hand are expected to take by a choice that was made for all queries.
  double expected_seconds(const Choice& choice) const;

  // How the rows of a choice are packed; and these rows, kept from before or packed now.
  PackingJob packing(const Choice& choice) const;
  std::shared_ptr<const PackedBase> packed(FirstPass pass, const Choice& choice);
  // Codes of rows for what an 8-bit pass leaves to be measured: those kept, or where so many rows
  // survived it (a query of searches before) that they would have paid for themselves by now, new
  // ones.
  std::shared_ptr<const PerRowCodes> per_row_codes(const PackedBase& packed, const Choice& choice,
                                                   std::int64_t queries, double survivors);

 private:
  // Packing costs about as much as measuring a few queries in float64; a k of the size of the base
  // leaves nothing to prune.
  bool direct_pays(std::int64_t rows) const;
  // What to expect of a search of so many rows (cost/plan.hpp), of which `allowed` may be found, 0
  // for all: by the first of the passes, with a share of packing them; and by measuring them all.
  double scanning_seconds(std::int64_t rows, std::int64_t allowed, double packing) const;
  double measuring_seconds(std::int64_t rows) const;
  ScanShape shape(std::int64_t rows, Format format) const;
  // How to search the allowed rows of a chunk.
  enum class Way {
    whole,   // all rows are packed; what the filter forbids falls when it is hit
    subset,  // the allowed rows are packed for this search
    direct   // they are measured
  };
  // The way that is expected to take the least time. Rows that later searches find packed count a
  // twentieth.
  Way way_for(bool kept, bool will_be_kept) const;
  // Whether a pass is worth its while for k neighbours in a sample of rows and queries; nothing if
  // none of these queries is scanned for.
  std::optional<bool> is_worth(FirstPass pass, AnyMatrixView rows, AnyMatrixView queries,
                               std::int64_t k);

  SearchPosition& at_;
  ReportBuilder& report_;
};

}  // namespace knear::detail
