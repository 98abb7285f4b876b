// knear/knn/search/report_builder.hpp -- counts what a search does, for its report.
#pragma once
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "knear/knn/report.hpp"
#include "knear/knn/rows/prepared_rows.hpp"
#include "knear/scan/scan.hpp"

namespace knear::detail {

class SearchPosition;
struct SearchRequest;

// Adds a sentence to a note.
void add_note(std::string& note, std::string_view more);
// Returns the promise of answers that are all proven exact, and of answers without proof or
// promise.
PromiseReport all_exact(std::int64_t queries);
PromiseReport no_promise();

// Writes what was asked for.
void set_request(KnnReport& report, const SearchRequest& request);
// Writes what is known of the answer with respect to the rows as the base keeps them. Where these
// are not the vectors that were added (SearchRequest::altered_by), nothing is promised, and the
// note says what is known.
void set_promise(KnnReport& report, const SearchRequest& request, PromiseReport promise);
// Writes which rows a public call searched, and for how long.
void set_rows(KnnReport& report, std::int64_t rows, std::int64_t dim);
void set_seconds(KnnReport& report, const Stopwatch& time);
inline void set_call(KnnReport& report, std::int64_t rows, std::int64_t dim,
                     const Stopwatch& time) {
  set_rows(report, rows, dim), set_seconds(report, time);
}

class ReportBuilder {
 public:
  // That a pass answered so many queries, among so many rows each.
  void note_pass(FirstPass pass, std::int64_t queries, std::int64_t rows) {
    done_by_[static_cast<int>(pass)] += queries * rows;
  }
  bool has_prefix() const { return prefix_columns_ > 0; }
  // That packed rows were read, of which `prepared` keeps some.
  void note_packed(PreparedRows& prepared, const PackedBase& packed, FirstPass pass);
  // That so many queries were scored against all rows of a coding, which were read `times` times.
  void note_scored(const Coding& coding, std::int64_t queries, std::int64_t times = 1);
  // That so many rows of lists were, each by one query.
  void note_listed(const Coding& coding, std::int64_t pairs);
  // That a prefix was, which is kept or made for this search alone.
  void note_prefix(PreparedRows& prepared, const PrefixBase& prefix, bool keep, double queries);
  // A tree of rows was searched, which is kept or made for this search alone.
  void note_tree(PreparedRows& prepared, const RowTree& tree, bool keep);
  // That per-row codes were made that are not kept.
  void note_codes(std::int64_t bytes) { code_bytes_ = std::max(code_bytes_, bytes); }
  // That the passes tried first, or a device, left so many queries to others.
  void note_fallback(std::int64_t queries) {
    fallback_queries_ = std::max(fallback_queries_, queries);
  }
  // That a device was used, within so much memory of its own and of the processor.
  void note_device(std::size_t device_bytes, std::int64_t host_bytes) {
    device_bytes_ = std::max(device_bytes_, static_cast<std::int64_t>(device_bytes));
    packed_bytes_ = std::max(packed_bytes_, host_bytes);
  }
  // Counts pairs of a query and a row in the lists that it probed.
  void note_probed(std::int64_t pairs) { probed_ += pairs; }
  // Counts bytes that the answer takes beside k places for each query.
  void note_answer(std::int64_t bytes) { answer_bytes_ += bytes; }
  // Notes the memory of another search on the way to the answer.
  void note_memory(std::int64_t bytes) { least_memory_ = std::max(least_memory_, bytes); }
  // What another search did for this one counts as if this one had.
  void note_search(const ReportBuilder& other);

  // Returns what was asked for and what was done. What that proves is for the search to say, by
  // set_promise(), and the rest for the call that was made, by set_call().
  KnnReport report(const SearchPosition& at) const;
  // Returns the memory that the report tells.
  std::int64_t memory_bytes(const SearchRequest& request) const;

  // A search sets these before it begins.
  std::string_view method = "exact";
  std::string_view only_pass = {};             // the name of its first pass; empty: it has several
  FirstPass idle_pass = FirstPass::automatic;  // what is told where nothing was scored
  bool on_device = false;

  ScanStats stats;
  double prepare_seconds = 0;
  bool learns = true;        // whether what is seen is an estimate for later searches
  bool self_joined = false;  // each pair of rows was scored once

 private:
  // The pass that did most of the work.
  FirstPass main_pass() const {
    const auto most = std::max_element(std::begin(done_by_), std::end(done_by_));
    return *most == 0 ? idle_pass : static_cast<FirstPass>(most - std::begin(done_by_));
  }
  // Reads what earlier searches of one segment saw, and leaves what this one did.
  void learn(const SearchPosition& at, const KnnReport& report, ScanReport& r) const;

  bool centred_ = false;
  double multiply_adds_ = 0, bytes_read_ = 0;
  std::int64_t packed_bytes_ = 0, code_bytes_ = 0, device_bytes_ = 0, fallback_queries_ = 0;
  std::int64_t prefix_columns_ = 0, clusters_ = 0, leaves_ = 0, tile_rows_ = 0;
  std::int64_t probed_ = 0, answer_bytes_ = 0, least_memory_ = 0;
  std::int64_t done_by_[any_pass_count] = {};  // queries times rows
};

}  // namespace knear::detail
