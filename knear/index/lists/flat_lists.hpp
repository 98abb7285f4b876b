// knear/index/lists/flat_lists.hpp -- inverted lists of an index that has none, for searches that
// ask for a recall below 1.
//
//   auto near = state.flat_lists->search(state, shape, queries, k, options, report);
//   if (!near) ...                                            // all rows are compared
//
// A flat index keeps every promise of recall by comparing all rows. For many rows and neighbours
// that are few, rows in calibrated inverted lists (index/recall/recall_rule.hpp) keep it in a
// fraction of that time. They are made once the searches that they could have served have taken as
// long as making them does, by the model of costs, and for each k calibrated by the same rule;
// until then, and for queries unlike the rows that recall was calibrated on, all rows are compared.
// So a search never waits for more than what has been spent without.
//
// Lists share the vectors of the index and have 8-bit codes of their own: dim + 16 bytes a row.
// They are those of the rows of one state and go with it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "knear/core/process_mutex.hpp"
#include "knear/distance/exact_neighbors.hpp"
#include "knear/index/life/index_state.hpp"
#include "knear/index/options.hpp"
#include "knear/index/recall/recall_rule.hpp"

namespace knear::detail {

// Any number of threads.
class FlatLists {
 public:
  // The answer by lists, as Index::search() before it rounds, of the state that these belong to;
  // nothing where all rows are to be compared. queries after the transforms. preparation takes the
  // time of making lists. Throws Cancelled.
  std::optional<ExactNeighbors> search(const State& state, const IndexShape& shape,
                                       AnyMatrixView queries, std::int64_t k,
                                       const SearchOptions& options, Preparation& preparation,
                                       KnnReport* report);
  // Makes the lists now and calibrates searches for k neighbours, by queries like those to come or
  // with none by rows. Throws InvalidArgument where there are too few rows for lists;
  // MemoryBudgetError; Cancelled.
  RecallCurve tune(const State& state, const IndexShape& shape, std::int64_t k,
                   AnyMatrixView queries, const ChangeOptions& options);
  std::int64_t bytes() const;

 private:
  // The lists and the curve for k, if they are there or have come to pay. seconds: what a scan of
  // all rows is forecast to take now. made_seconds: what making took is added.
  struct Calibrated {
    std::shared_ptr<const State> lists;
    std::shared_ptr<const RecallCurve> curve;
  };
  std::optional<Calibrated> calibrated(const State& state, const IndexShape& shape, std::int64_t k,
                                       const SearchOptions& options, double seconds,
                                       double& made_seconds);

  // By k: curves, and seconds of scans that lists might have served.
  struct Known {
    std::shared_ptr<const State> lists = {};
    std::map<std::int64_t, std::shared_ptr<const RecallCurve>> curves = {};
    std::map<std::int64_t, double> spent = {};
    bool refused = false;  // there was no memory

    std::optional<Calibrated> calibrated(std::int64_t k) const;
  };
  std::shared_ptr<const Known> known() const {
    std::lock_guard lock(mutex_);
    return known_;
  }
  // Publishes a copy that change(copy) has changed, so that a child process never finds half a
  // change (core/process_mutex.hpp). Returns it.
  template <class Change>
  std::shared_ptr<const Known> update(Change change);

  mutable ProcessMutex mutex_;  // of known_, never held for long
  std::shared_ptr<const Known> known_ = std::make_shared<const Known>();
  ProcessMutex making_;
};

// Rows that centroids are not learned from: 1,000, by which queries like the rows are known; or
// those by which recall is calibrated (calibrate_by_rows()), which are then like rows to come.
enum class KeptApart { some, calibrated };

// The rows of a state without lists in usual_lists() of them, trained on some of these: the state
// of an index of inverted lists, whose vectors are shared. Throws MemoryBudgetError; Cancelled.
std::shared_ptr<const State> in_lists(const State& state, const IndexShape& shape, KeptApart apart,
                                      int threads, const Progress& progress);

}  // namespace knear::detail
